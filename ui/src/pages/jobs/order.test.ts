import { expect, test } from 'vitest';
import type { Job } from '../../api/types';
import { priorityToPass } from './order';

test('moving in the queue passes the neighbour by one', () => {
  const jobs = [{ priority: 2 }, { priority: 0 }, { priority: 0 }] as Job[];
  expect(priorityToPass(jobs, 0, -1)).toBeNull();
  expect(priorityToPass(jobs, 1, -1)).toBe(3);
  expect(priorityToPass(jobs, 1, 1)).toBe(-1);
  expect(priorityToPass(jobs, 2, 1)).toBeNull();
});
