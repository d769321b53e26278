import { expect, test } from 'vitest';
import { getAt, joinPointer, sameJson, setAt } from './pointer';

const value = { a: { 'b/c': [1, { d: 2 }] }, e: null };

test('reads and writes through objects, lists and escaped keys', () => {
  expect(getAt(value, '/a/b~1c/1/d')).toBe(2);
  expect(getAt(value, '/a/x/y')).toBeUndefined();
  expect(getAt(value, '/e/f')).toBeUndefined();
  expect(joinPointer('/a', 'b/c')).toBe('/a/b~1c');
  expect(setAt(value, '/a/b~1c/1/d', 3)).toEqual({ a: { 'b/c': [1, { d: 3 }] }, e: null });
  expect(value.a['b/c'][1]).toEqual({ d: 2 });
});

test('makes objects on the way, and undefined takes a key or an item out', () => {
  expect(setAt({}, '/a/b', 1)).toEqual({ a: { b: 1 } });
  expect(setAt({ a: 1, b: 2 }, '/a', undefined)).toEqual({ b: 2 });
  expect(setAt({ a: [1, 2, 3] }, '/a/1', undefined)).toEqual({ a: [1, 3] });
  expect(setAt({ a: null }, '/a/b', 1)).toEqual({ a: { b: 1 } });
});

test('equality does not mind the order of keys, but that of items', () => {
  expect(sameJson({ a: 1, b: [1, 2] }, { b: [1, 2], a: 1 })).toBe(true);
  expect(sameJson([1, 2], [2, 1])).toBe(false);
  expect(sameJson([], {})).toBe(false);
  expect(sameJson(null, {})).toBe(false);
});
