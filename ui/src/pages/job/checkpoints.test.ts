import { expect, test } from 'vitest';
import type { JobFile } from '../../api/types';
import { toCheckpoints } from './checkpoints';

const file = (path: string, kind: string, step: number | null, pinned = false): JobFile => ({ path, kind, step, pinned, size: 1, url: '', created_at: '' });

test('files by step, the newest first; a step with several files is one checkpoint', () => {
  const { checkpoints, others } = toCheckpoints([
    file('a_2.safetensors', 'weights', 2), file('config.json', 'config', 0), file('10_high', 'weights', 10, true), file('10_low', 'weights', 10), file('p.png', 'sample', 2),
  ]);
  expect(checkpoints.map(({ step, pinned, files }) => [step, pinned, files.map(({ path }) => path)])).toEqual([[10, true, ['10_high', '10_low']], [2, false, ['a_2.safetensors']]]);
  expect(others.map(({ path }) => path)).toEqual(['config.json']);
});
