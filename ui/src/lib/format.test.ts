import { expect, test } from 'vitest';
import { formatDuration, formatJson, formatLength, formatMemory, formatSize, formatValue } from './format';

test('numbers in words', () => {
  expect([59, 75, 660, 3720, 200_000].map(formatDuration)).toEqual(['59 s', '1 min 15 s', '11 min', '1 h 2 min', '2 days']);
  expect([0, 999, 1500, 4_400_000_000].map(formatSize)).toEqual(['0 B', '999 B', '1.5 kB', '4.4 GB']);
  expect([0, 1023, 1024, 25_276_502_016].map(formatMemory)).toEqual(['0 B', '1023 B', '1.0 KiB', '23.5 GiB']);
  expect([0.08123, 1e-4, 0, null, 123_456].map(formatValue)).toEqual(['0.08123', '1e-4', '0', '–', '1.23e5']);
  expect([0.0625, 1.25, 2, 9.96, 59.6, 75, 605].map(formatLength)).toEqual(['0.1 s', '1.3 s', '2 s', '10 s', '1:00', '1:15', '10:05']);
  expect([null, '', true, [1, 2], 'x'].map(formatJson)).toEqual(['nothing', 'an empty text', 'on', '1, 2', 'x']);
});
