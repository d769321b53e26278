import { expect, test } from 'vitest';
import { applyEvent } from './lists';
import type { Job, JobEvent } from './types';

test('events change a listed job', () => {
  const job = { status: 'queued', step: 0, total_steps: 10, progress: 0, last_seq: 1, name: 'n', priority: 0, loss: null, error: null } as Job;
  const event = (type: string, data: JobEvent['data']): JobEvent => ({ seq: 2, job_id: 'j', attempt: 1, time: '', type, data });
  expect(applyEvent(job, event('progress', { step: 5, total_steps: 10, loss: 0.5, steps_per_second: 2, eta_seconds: 2.5 }))).toMatchObject({ step: 5, progress: 0.5, loss: 0.5, last_seq: 2 });
  expect(applyEvent(job, event('status', { status: 'failed', error: { code: 'c', message: 'm' } }))).toMatchObject({ status: 'failed', error: { message: 'm' } });
  expect(applyEvent(job, event('unheard-of', {}))).toMatchObject({ status: 'queued', step: 0 });
});
