import { expect, test } from 'vitest';
import type { Plan, Worker } from '../api/types';
import { isBeingWorkedOut, toMemoryBar } from './needs';

const plan = (more: Partial<Plan>): Plan => ({ ok: true, problems: [], warnings: [], spec: null, datasets: [], steps_per_epoch: null, epochs: null, workers: ['w'], not_checked: [], changes: [], goes_on_from: null, memory: null, ...more });
const worker = (id: string, total: number | null): Worker => ({ id, memory_total: total }) as Worker;
const memory = { peak: 80, phase: 'training', parts: { activations: 20, weights: 60, caches: 0, buffers: 0 }, trained_parameters: 1, disk: {}, notes: [] };

test('parts stand in one order, as shares of the largest device that can run the job', () => {
  const bar = toMemoryBar(plan({ memory }), [worker('w', 100), worker('other', 1000)]);
  expect(bar).toMatchObject({ peak: 80, phase: 'training', room: 100, roomShare: 1 });
  expect(bar?.parts).toEqual([{ name: 'weights', bytes: 60, place: 0, share: 0.6 }, { name: 'activations', bytes: 20, place: 5, share: 0.2 }]);
});

test('what is trained is told from what is only put on', () => {
  const parts = { weights: 60, adapters: 20 };
  const names = (trained: number) => toMemoryBar(plan({ memory: { ...memory, parts, trained_parameters: trained } }), [])?.parts.map(({ name }) => name);
  expect(names(1)).toEqual(['weights', 'trained weights']);
  expect(names(0)).toEqual(['weights', 'adapters']);
});

test('a job that does not fit shows where the device ends', () => {
  const bar = toMemoryBar(plan({ memory }), [worker('w', 40)]);
  expect(bar?.parts.map(({ share }) => share)).toEqual([0.75, 0.25]);
  expect(bar?.roomShare).toBe(0.5);
});

test('without a device the bar is the job', () => {
  expect(toMemoryBar(plan({ memory }), [worker('w', null)])).toMatchObject({ room: null, roomShare: null });
  expect(toMemoryBar(plan({}), [])).toBeNull();
});

test('a plan that is not whole yet is asked for again', () => {
  expect(isBeingWorkedOut(plan({ not_checked: ['memory: being worked out'] }))).toBe(true);
  expect(isBeingWorkedOut(plan({ not_checked: ['texts: being worked out'], memory }))).toBe(true);
  expect(isBeingWorkedOut(plan({ memory }))).toBe(false);
  expect(isBeingWorkedOut(plan({ not_checked: ['memory: no worker'] }))).toBe(false);
  expect(isBeingWorkedOut(plan({ ok: false, not_checked: ['memory: being worked out'] }))).toBe(false);
});
