import { expect, test } from 'vitest';
import { JobStore } from './jobStore';
import type { JobEvent, JsonObject, Sample } from './types';

let seq = 0;
const event = (type: string, data: JsonObject): JobEvent => ({ seq: (seq += 1), job_id: 'j', attempt: 1, time: '', type, data });
const sample = (index: number): Sample => ({
  index, step: index * 10, prompt_index: 0, prompt: 'p', seed: 1, width: 64, height: 64, url: `/${index}`, thumbnail_url: null, created_at: '',
});

test('a preview that comes by the stream and by the list is there once, in order', () => {
  const store = new JobStore();
  store.take(event('sample', sample(3) as unknown as JsonObject));
  store.addSamples([sample(1), sample(2), sample(3)]);
  store.take(event('sample', sample(2) as unknown as JsonObject));
  expect(store.samples.map(({ index }) => index)).toEqual([1, 2, 3]);
});

test('a list that names a preview twice gives it once', () => {
  const store = new JobStore();
  store.addSamples([sample(1), sample(1)]);
  expect(store.samples).toHaveLength(1);
});

test('points are appended; a step that is done again replaces the old one', () => {
  const store = new JobStore();
  for (const step of [1, 2, 3]) store.take(event('metrics', { step, loss: step, lr: 0.1 }));
  store.take(event('metrics', { step: 2, loss: 20, lr: 0.1 }));
  expect(store.series.loss.steps).toEqual([1, 2, 3]);
  expect(store.series.loss.values).toEqual([1, 20, 3]);
  expect(store.series.grad_norm.steps).toEqual([]);
});

test('a fetched series fills in what is missing and does not overwrite what the stream told', () => {
  const store = new JobStore();
  store.take(event('metrics', { step: 5, loss: 0.5 }));
  store.addSeries('loss', [[1, 1], [3, 0.8], [5, 99], [7, null]]);
  expect(store.series.loss.steps).toEqual([1, 3, 5, 7]);
  expect(store.series.loss.values).toEqual([1, 0.8, 0.5, null]);
});

test('held-out losses are kept under their own names; what nobody draws is not', () => {
  const store = new JobStore();
  store.take(event('metrics', { step: 5, 'val/loss': 0.5, 'val/loss/125': 0.25, 'val/loss/875': null, seen: 3 }));
  store.addSeries('val/loss/125', [[1, 0.75], [5, 9]]);
  expect(store.series['val/loss']).toEqual({ steps: [5], values: [0.5] });
  expect(store.series['val/loss/125']).toEqual({ steps: [1, 5], values: [0.75, 0.25] });
  expect(store.series['val/loss/875']).toEqual({ steps: [5], values: [null] });
  expect(Object.keys(store.series)).not.toContain('seen');
});
