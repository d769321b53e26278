import { expect, test } from 'vitest';
import type { JsonObject } from '../api/types';
import { getAt } from '../lib/pointer';
import { leafAt, toLayout } from './leaves';
import { dropLeftovers } from './when';

const hint = (order: number, more: JsonObject = {}): JsonObject => ({ ui: { section: 'Training', order, ...more } });
const schema: JsonObject = {
  type: 'object',
  properties: {
    inner: { $ref: '#/$defs/Inner', ui: {} },
    part: { anyOf: [{ $ref: '#/$defs/Part' }, { type: 'null' }], default: null, title: 'Part', ...hint(9) },
    rows: { type: 'array', items: { $ref: '#/$defs/Part' }, title: 'Rows', ui: {} },
  },
  $defs: {
    Inner: {
      type: 'object',
      properties: {
        on: { type: 'boolean', default: false, title: 'On', ...hint(1) },
        kind: { type: 'string', enum: ['a', 'b'], default: 'a', title: 'Kind', ...hint(2, { when: { on: [true] } }) },
        much: { type: 'number', default: 1, title: 'Much', ...hint(3, { when: { kind: ['b'] } }) },
      },
    },
    Part: { type: 'object', properties: { mode: { type: 'string', default: 'x', ...hint(4) }, path: { anyOf: [{ type: 'string' }, { type: 'null' }], default: null, ...hint(5, { when: { mode: ['x', 'y'] } }) } } },
  },
};
const drawn = (spec: JsonObject) => toLayout(schema, spec).leaves.map(({ pointer }) => pointer);

test('an input is drawn only beside the values that give it a meaning; an absent neighbour has its default', () => {
  expect(drawn({ inner: {} })).toEqual(['/inner/on', '/part']);
  expect(drawn({ inner: { on: true } })).toEqual(['/inner/on', '/inner/kind', '/part']);
  expect(drawn({ inner: { on: true, kind: 'b' } })).toEqual(['/inner/on', '/inner/kind', '/inner/much', '/part']);
  expect(drawn({ part: {} })).toEqual(['/inner/on', '/part', '/part/mode', '/part/path']);
});

test('a value that is set where it means nothing is drawn, so that it can be mended', () => {
  expect(leafAt(toLayout(schema, { inner: { on: false, kind: 'b' } }).leaves, '/inner/kind')).toBeDefined();
  expect(leafAt(toLayout(schema, { inner: { on: false, kind: 'a' } }).leaves, '/inner/kind')).toBeUndefined();
});

test('a value goes back to its default when its condition goes away, and in turn those that hang on it', () => {
  const before = { inner: { on: true, kind: 'b', much: 5 }, name: 'n' };
  expect(dropLeftovers(schema, before, { ...before, inner: { ...before.inner, on: false } })).toEqual({ inner: { on: false, kind: 'a', much: 1 }, name: 'n' });
  expect(dropLeftovers(schema, before, { ...before, inner: { ...before.inner, kind: 'a' } })).toEqual({ inner: { on: true, kind: 'a', much: 1 }, name: 'n' });
});

test('what had no meaning before either is left alone, and so is what still has one', () => {
  const typed = { inner: { on: false, kind: 'b' } };
  const renamed = { ...typed, name: 'n' };
  expect(dropLeftovers(schema, typed, renamed)).toBe(renamed);
  expect(dropLeftovers(schema, typed, { inner: { ...typed.inner, much: 2 } })).toEqual({ inner: { on: false, kind: 'b', much: 2 } });
  const moved = { part: { mode: 'y', path: 'p' } };
  expect(dropLeftovers(schema, { part: { mode: 'x', path: 'p' } }, moved)).toBe(moved);
});

test('parts that can be off, and items of lists, are looked into', () => {
  const off = dropLeftovers(schema, { part: { mode: 'x', path: 'p' }, rows: [{}, { path: 'p' }] }, { part: { mode: 'z', path: 'p' }, rows: [{}, { mode: 'z', path: 'p' }] });
  expect(getAt(off, '/part')).toEqual({ mode: 'z', path: null });
  expect(getAt(off, '/rows/1')).toEqual({ mode: 'z', path: null });
});

const outer: JsonObject = {
  type: 'object',
  properties: { train: { $ref: '#/$defs/Train', ui: {} } },
  $defs: {
    Train: {
      type: 'object',
      properties: {
        how: { type: 'string', default: 'fast', title: 'How', ...hint(1, { suggest: ['fast', 'slow'] }) },
        options: { $ref: '#/$defs/Options', ui: {} },
        rows: { type: 'array', items: { $ref: '#/$defs/Options' }, title: 'Rows', ui: {} },
      },
    },
    Options: {
      type: 'object',
      properties: {
        rush: { anyOf: [{ type: 'number' }, { type: 'null' }], default: null, ...hint(2, { when: { '../how': ['fast'] } }) },
        rest: { type: 'number', default: 1, ...hint(3, { when: { '../how': ['slow'] } }) },
        both: { type: 'number', default: 0, ...hint(4, { when: { '../how': ['fast', 'slow'] } }) },
        deep: { type: 'number', default: 0, ...hint(5, { when: { rest: [2] } }) },
      },
    },
  },
};
const drawnIn = (spec: JsonObject) => toLayout(outer, spec).leaves.map(({ pointer }) => pointer);
const train = (how: string, options: JsonObject, rows: JsonObject[] = []): JsonObject => ({ train: { how, options, rows } });
/** `spec` with another `how`; all else stays the same objects, as an edit of one input leaves them. */
const switched = (spec: JsonObject, how: string): JsonObject => ({ ...spec, train: { ...(spec.train as JsonObject), how } });

test('a condition can stand in the object around, where absence is the default as well', () => {
  expect(drawnIn({})).toEqual(['/train/how', '/train/options/rush', '/train/options/both']);
  expect(drawnIn(train('slow', {}))).toEqual(['/train/how', '/train/options/rest', '/train/options/both']);
  expect(drawnIn(train('slow', { rush: 2 }))).toContain('/train/options/rush');
  expect(drawnIn(train('slow', {}, [{}]))).toContain('/train/rows/0/rest');
  expect(drawnIn(train('slow', {}, [{}]))).not.toContain('/train/rows/0/rush');
});

test('a value goes back when its condition in the object around goes away, although its own object did not change', () => {
  const fast = train('fast', { rush: 2, both: 3 }, [{ rush: 4 }]);
  expect(dropLeftovers(outer, fast, switched(fast, 'slow'))).toEqual(train('slow', { rush: null, both: 3 }, [{ rush: null }]));
  const slow = train('slow', { rest: 2, deep: 5 });
  expect(dropLeftovers(outer, slow, switched(slow, 'fast'))).toEqual(train('fast', { rest: 1, deep: 0 }));
});

test('a text on its way from one of those offered to another costs nothing', () => {
  const fast = train('fast', { rush: 2 });
  const typing = switched(fast, 'fas');
  expect(dropLeftovers(outer, fast, typing)).toBe(typing);
  expect(dropLeftovers(outer, typing, fast)).toBe(fast);
  expect(drawnIn(typing)).toContain('/train/options/rush');
});
