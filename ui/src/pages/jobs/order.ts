import type { Job } from '../../api/types';

/** The priority that takes `jobs[at]` past its neighbour (`by` -1: forward, 1: back), or null at the end of the list.
 *
 * The queue goes by priority, then by age, and only one job's priority is changed: one more (or less) than the neighbour's
 * always passes it. It may pass others of the neighbour's priority too. */
export function priorityToPass(jobs: readonly Job[], at: number, by: -1 | 1): number | null {
  const other = jobs[at + by];
  return other === undefined ? null : other.priority - by;
}
