import { expect, test } from 'vitest';
import { parseJson } from './jsonText';

test.each([
  '{"a": [1, -2.5e-3, true, false, null, "x\\n\\u00e9"], "b": {}, "c": []}',
  ' [ ] ',
  '"text"',
  '-0',
  '{"deep": {"deep": {"deep": [[[]]]}}}',
])('reads what JSON.parse reads: %s', (text) => {
  expect(parseJson(text).value).toEqual(JSON.parse(text));
});

test.each([
  ['{\n  "a": 1,\n  "b" 2\n}', 3, 7],
  ['{\n  "a": 1\n  "b": 2\n}', 3, 3],
  ['{"a": x}', 1, 7],
  ['{"a": 1,}', 1, 9],
  ['[1, 2', 1, 6],
  ['{"a": "x\n"}', 1, 7],
  ['{} {}', 1, 4],
  ['{"a": 1, "a": 2}', 1, 10],
  ['', 1, 1],
  ["{'a': 1}", 1, 2],
  ['{"a": 01}', 1, 8],
])('finds the place of the mistake in %j', (text, line, column) => {
  const { mistake } = parseJson(text);
  expect(mistake).toMatchObject({ line, column });
});

test('knows the line of every value', () => {
  const { lines } = parseJson('{\n  "train": {\n    "steps": 0\n  },\n  "samples": [\n    {"prompt": "x"}\n  ]\n}');
  expect(lines?.get('')).toBe(1);
  expect(lines?.get('/train')).toBe(2);
  expect(lines?.get('/train/steps')).toBe(3);
  expect(lines?.get('/samples/0/prompt')).toBe(6);
});
