import { expect, test } from 'vitest';
import type { JsonObject } from '../api/types';
import { toPatch } from './patch';
import { dropLeftovers } from './when';

const schema: JsonObject = {
  type: 'object',
  properties: { train: { $ref: '#/$defs/Train' }, part: { anyOf: [{ $ref: '#/$defs/Part' }, { type: 'null' }], default: null } },
  $defs: {
    Train: { type: 'object', properties: { steps: { type: 'integer', default: 1000 }, lr: { type: 'number' } } },
    Part: { type: 'object', properties: { every: { type: 'integer', default: 5 } } },
  },
};

test('only what changed is sent, lists as a whole', () => {
  const before: JsonObject = { name: 'n', train: { steps: 10, lr: 1 }, rows: [{ a: 1 }, { b: 2 }], part: null };
  expect(toPatch(before, before, schema)).toEqual({});
  expect(toPatch(before, { ...before, train: { steps: 20, lr: 1 }, rows: [{ a: 1 }] }, schema)).toEqual({ train: { steps: 20 }, rows: [{ a: 1 }] });
  expect(toPatch(before, { ...before, part: { every: 3 } }, schema)).toEqual({ part: { every: 3 } });
});

test('a key that was cleared goes back to its default, at any depth', () => {
  const before = { train: { steps: 10, lr: 1 }, part: { every: 3 }, unknown: 1 };
  expect(toPatch(before, { train: {}, part: {} }, schema)).toEqual({ train: { steps: 1000, lr: null }, part: { every: 5 }, unknown: null });
  expect(toPatch(before, { ...before, part: null }, schema)).toEqual({ part: null });
});

test('a choice that is changed in the form sends what belonged to it back at its default', () => {
  const ui = { when: { '../loss_type': ['huber'] } };
  const choosing: JsonObject = { properties: { loss_type: { type: 'string', default: 'mse' }, options: { properties: { bend: { type: 'number', default: 0.01, ui }, other: { type: 'number', default: 1 } } } } };
  const before: JsonObject = { loss_type: 'huber', options: { bend: 0.5, other: 2 } };
  const after = dropLeftovers(choosing, before, { ...before, loss_type: 'mse' });
  expect(toPatch(before, after, choosing)).toEqual({ loss_type: 'mse', options: { bend: 0.01 } });
});
