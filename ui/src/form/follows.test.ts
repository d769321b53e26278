import { expect, test } from 'vitest';
import type { JsonObject } from '../api/types';
import { setAt } from '../lib/pointer';
import { toFacts } from './JobForm';
import { toLayout } from './leaves';

const number = (title: string, order: number, more: JsonObject = {}): JsonObject => ({ anyOf: [{ type: 'number' }, { type: 'null' }], default: null, title, ui: { section: 'Training', order, ...more } });
const schema: JsonObject = {
  properties: { network: { $ref: '#/$defs/Network', ui: {} } },
  $defs: {
    Network: {
      properties: {
        linear: { type: 'integer', default: 16, title: 'Rank', ui: { section: 'Training', order: 1 } },
        linear_alpha: number('Alpha', 2, { follows: 'linear' }),
        conv: number('Convolution rank', 3),
        conv_alpha: number('Convolution alpha', 4, { follows: 'conv' }),
      },
    },
  },
};

const followed = (spec: JsonObject, key: string) => {
  const facts = toFacts({ layout: toLayout(schema, spec), spec, base: spec, problems: [], warnings: [], unfolded: new Set(), onFold: () => undefined, setSpec: () => undefined });
  return facts.get(`/network/${key}`)?.followed;
};

test('alpha follows the rank until it is touched, and says so', () => {
  const preset: JsonObject = { network: { linear: 8, linear_alpha: null } };
  expect(followed(preset, 'linear_alpha')).toBe('8, as Rank');
  for (const rank of [4, 16]) {
    const changed = setAt(preset, '/network/linear', rank) as JsonObject;
    expect([followed(changed, 'linear_alpha'), (changed.network as JsonObject).linear_alpha]).toEqual([`${rank}, as Rank`, null]);
  }
  expect(followed({ network: {} }, 'linear_alpha')).toBe('16, as Rank');
  expect([followed(preset, 'conv_alpha'), followed({ network: { conv: 4 } }, 'conv_alpha')]).toEqual([null, '4, as Convolution rank']);
});
