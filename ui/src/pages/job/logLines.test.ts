import { expect, test } from 'vitest';
import { filterLines, toLines } from './logLines';

test('a line without a level has that of the line before', () => {
  const lines = toLines('t INFO    a\nt ERROR   b\nTraceback\n  x\nt WARNING c\n');
  expect(lines.map(({ level }) => level)).toEqual(['info', 'error', 'error', 'error', 'warning']);
  expect(filterLines(lines, 'error', 'TRACE').map(({ number }) => number)).toEqual([3]);
});
