import { expect, test } from 'vitest';
import type { JsonObject } from '../api/types';
import { foldOf, foldsOf, labelOf, leafAt, toLayout, toRuns, toSections } from './leaves';

const hint = (section: string, order: number, more: JsonObject = {}): JsonObject => ({ ui: { section, order, basic: false, ...more } });

/** As pydantic writes it: references, optional things, nested sections. */
const schema: JsonObject = {
  type: 'object',
  properties: {
    kind: { const: 'train', type: 'string', ui: { hidden: true } },
    name: { type: 'string', title: 'Name', ...hint('What', 1, { basic: true }) },
    inner: { $ref: '#/$defs/Inner', title: 'Inner', ui: {} },
    part: { anyOf: [{ $ref: '#/$defs/Part' }, { type: 'null' }], title: 'Part', default: null, ...hint('Training', 4) },
    rows: { type: 'array', title: 'Preview rows', items: { $ref: '#/$defs/Row' }, minItems: 1, ui: {} },
  },
  $defs: {
    Inner: {
      type: 'object',
      properties: {
        late: { type: 'integer', title: 'Late', default: 3, ...hint('Training', 30) },
        early: { type: 'number', title: 'Early', ...hint('Training', 10, { basic: true, unit: 's' }) },
        maybe: { anyOf: [{ type: 'string', maxLength: 5 }, { type: 'null' }], default: null, title: 'Maybe', ...hint('Advanced', 1) },
        only: { const: 'one', title: 'Only', ...hint('Training', 1) },
        strange: { title: 'Strange', type: 'object', additionalProperties: true },
      },
    },
    Part: { type: 'object', properties: { rank: { type: 'integer', title: 'Rank', default: 16, ...hint('Training', 5, { basic: true }) } } },
    Row: { type: 'object', required: ['text'], properties: { text: { type: 'string', title: 'Text', ...hint('Previews', 1, { basic: true }) }, seed: { type: 'integer', title: 'Seed', ...hint('Previews', 2) } } },
  },
};
const spec: JsonObject = { kind: 'train', name: 'x', inner: { early: 1 }, part: null, rows: [{ text: 'a' }, { text: 'b' }] };
const pointers = (items: { pointer: string }[]) => items.map(({ pointer }) => pointer);

test('an input stands in the section of its own hint, however deep it is nested', () => {
  const sections = toSections(toLayout(schema, spec));
  expect(sections.map(({ name }) => name)).toEqual(['What', 'Training', 'Previews', 'Advanced']);
  const training = sections.find(({ name }) => name === 'Training');
  expect(pointers(training?.basic ?? [])).toEqual(['/inner/early']);
  expect(pointers(training?.folded ?? [])).toEqual(['/part', '/inner/late']);
});

test('hidden things and constants are not drawn; what has no hint is, under Advanced', () => {
  const { leaves } = toLayout(schema, spec);
  expect(leafAt(leaves, '/kind')).toBeUndefined();
  expect(leafAt(leaves, '/inner/only')).toBeUndefined();
  expect(leafAt(leaves, '/inner/strange')?.section).toBe('Advanced');
});

test('an optional value keeps its limits and knows that it may be null', () => {
  const leaf = leafAt(toLayout(schema, spec).leaves, '/inner/maybe');
  expect(leaf).toMatchObject({ nullable: true, defaultValue: null });
  expect(leaf?.schema).toMatchObject({ type: 'string', maxLength: 5 });
});

test('an optional part is a switch; its inputs are there only while it is on', () => {
  expect(leafAt(toLayout(schema, spec).leaves, '/part/rank')?.pointer).toBe('/part');
  const on = toLayout(schema, { ...spec, part: {} });
  expect(leafAt(on.leaves, '/part/rank')?.pointer).toBe('/part/rank');
  expect(leafAt(on.leaves, '/part')?.isPart).toBe(true);
});

test('every item of a list has its inputs, numbered where there are several', () => {
  const layout = toLayout(schema, spec);
  const second = leafAt(layout.leaves, '/rows/1/text');
  expect(second && labelOf(second, layout.lists)).toBe('Text 2');
  expect(layout.lists).toEqual([{ pointer: '/rows', itemName: 'preview row', section: 'Previews', min: 1, max: Number.MAX_SAFE_INTEGER, count: 2, blank: { text: '' } }]);
  const one = toLayout(schema, { ...spec, rows: [{ text: 'a' }] });
  const only = leafAt(one.leaves, '/rows/0/text');
  expect(only && labelOf(only, one.lists)).toBe('Text');
});

test('an empty list still stands in the section of its items', () => {
  expect(toLayout(schema, { ...spec, rows: [] }).lists[0]).toMatchObject({ section: 'Previews', count: 0 });
});

test("a finding below an input is the input's", () => {
  const { leaves } = toLayout(schema, spec);
  expect(leafAt(leaves, '/inner/strange/deep/0')?.pointer).toBe('/inner/strange');
  expect(leafAt(leaves, '/unknown')).toBeUndefined();
  expect(leafAt(leaves, '')).toBeUndefined();
});

test('the folds to open for an input are its section and, among several items, its item', () => {
  const { leaves, lists } = toLayout(schema, spec);
  const folds = (pointer: string) => foldsOf(leafAt(leaves, pointer) as never, lists);
  expect(folds('/inner/early')).toEqual([]);
  expect(folds('/inner/late')).toEqual(['Training']);
  expect(folds('/rows/1/seed')).toEqual(['Previews', 'Previews /rows/1']);
});

test('inputs of one item stay together', () => {
  const layout = toLayout(schema, spec);
  const folded = toSections(layout).find(({ name }) => name === 'Previews')?.folded ?? [];
  expect(toRuns(folded, layout.lists, true).map(({ index, leaves }) => [index, pointers(leaves)])).toEqual([[0, ['/rows/0/seed']], [1, ['/rows/1/seed']]]);
});

test('an optional part without a place of its own keeps its inputs together, in a fold of the section around it', () => {
  const nested: JsonObject = {
    type: 'object',
    properties: { check: { anyOf: [{ $ref: '#/$defs/Check' }, { type: 'null' }], default: null, title: 'Check', ...hint('Training', 9) } },
    $defs: {
      Check: { type: 'object', properties: { every: { type: 'integer', ...hint('Training', 10) }, own: { anyOf: [{ $ref: '#/$defs/Own' }, { type: 'null' }], default: null, title: 'Own pictures', ui: {} } } },
      Own: { type: 'object', properties: { folder: { type: 'string', title: 'Folder', ...hint('Dataset', 1, { basic: true }) }, size: { type: 'integer', ...hint('Dataset', 2) } } },
    },
  };
  // Off is null, and off is also absent where null is the default.
  expect(pointers(toLayout(nested, {}).leaves)).toEqual(['/check']);
  const layout = toLayout(nested, { check: { own: {} } });
  const [training, ...others] = toSections(layout);
  expect(others).toEqual([]);
  expect(training?.basic).toEqual([]);
  const runs = toRuns(training?.folded ?? [], layout.lists, true);
  expect(runs.map((run) => [foldOf('Training', run)?.label, pointers(run.leaves)])).toEqual([[undefined, ['/check', '/check/every', '/check/own']], ['Own pictures', ['/check/own/folder', '/check/own/size']]]);
  expect(foldsOf(leafAt(layout.leaves, '/check/own/folder') as never, layout.lists)).toEqual(['Training', foldOf('Training', runs[1] as never)?.name]);
});

test('suggestions come with the input', () => {
  const layout = toLayout({ type: 'object', properties: { how: { type: 'string', ...hint('Training', 1, { suggest: ['a', 'b'] }) } } }, {});
  expect(layout.leaves[0]?.suggest).toEqual(['a', 'b']);
});
