import { expect, test } from 'vitest';
import { diffLines, toPieces } from './diff';

const told = (before: string, after: string) => diffLines([...before], [...after]).map(({ kind, text }) => ({ same: ' ', gone: '-', new: '+' })[kind] + text).join('');

test('what is gone, what is new, and what stayed', () => {
  expect(told('abcd', 'abcd')).toBe(' a b c d');
  expect(told('abcd', 'axcd')).toBe(' a-b+x c d');
  expect(told('abc', 'abcde')).toBe(' a b c+d+e');
  expect(told('abxab', 'ab')).toBe(' a b-x-a-b');
  expect(told('', 'ab')).toBe('+a+b');
  expect(told('ab', '')).toBe('-a-b');
});

test('both texts can be read back from it, whatever they are', () => {
  // Every pair of texts of up to four letters from two.
  const texts = [''];
  for (let i = 0; i < texts.length; i += 1) if ((texts[i] as string).length < 4) texts.push(`${texts[i]}a`, `${texts[i]}b`);
  for (const before of texts) {
    for (const after of texts) {
      const lines = diffLines([...before], [...after]);
      const read = (without: string) => lines.filter(({ kind }) => kind !== without).map(({ text }) => text).join('');
      expect([read('new'), read('gone')]).toEqual([before, after]);
    }
  }
});

test('what lies far from a difference is only counted', () => {
  const pieces = toPieces(diffLines([...'0123456789'], [...'01234x6789']), 1);
  expect(pieces.map((piece) => ('skipped' in piece ? piece.skipped : piece.lines.map(({ text }) => text).join('')))).toEqual([4, '45x6', 3]);
  expect(toPieces(diffLines(['a'], ['a']), 3)).toEqual([{ skipped: 1 }]);
});
