import { expect, test } from 'vitest';
import { applyEvent } from '../api/lists';
import type { Job, JobEvent } from '../api/types';
import { formatDuration, formatJson, formatSize, formatValue } from '../lib/format';
import { priorityToPass } from '../pages/jobs/order';
import { filterLines, toLines } from '../pages/job/logLines';
import { asCurl } from './curl';

test('the curl command takes any text', () => {
  const text = '{"prompt": "it\'s $HOME `x`\\nJOB"}\nJOB';
  expect(asCurl('http://h', text)).toBe(`curl -sS http://h/v1/jobs -H 'Content-Type: application/json' --data-binary @- <<'JOB_'\n${text}\nJOB_\n`);
});

test('moving in the queue passes the neighbour by one', () => {
  const jobs = [{ priority: 2 }, { priority: 0 }, { priority: 0 }] as Job[];
  expect(priorityToPass(jobs, 0, -1)).toBeNull();
  expect(priorityToPass(jobs, 1, -1)).toBe(3);
  expect(priorityToPass(jobs, 1, 1)).toBe(-1);
  expect(priorityToPass(jobs, 2, 1)).toBeNull();
});

test('a line without a level has that of the line before', () => {
  const lines = toLines('t INFO    a\nt ERROR   b\nTraceback\n  x\nt WARNING c\n');
  expect(lines.map(({ level }) => level)).toEqual(['info', 'error', 'error', 'error', 'warning']);
  expect(filterLines(lines, 'error', 'TRACE').map(({ number }) => number)).toEqual([3]);
});

test('events change a listed job', () => {
  const job = { status: 'queued', step: 0, total_steps: 10, progress: 0, last_seq: 1, name: 'n', priority: 0, loss: null, error: null } as Job;
  const event = (type: string, data: JobEvent['data']): JobEvent => ({ seq: 2, job_id: 'j', attempt: 1, time: '', type, data });
  expect(applyEvent(job, event('progress', { step: 5, total_steps: 10, loss: 0.5, steps_per_second: 2, eta_seconds: 2.5 }))).toMatchObject({ step: 5, progress: 0.5, loss: 0.5, last_seq: 2 });
  expect(applyEvent(job, event('status', { status: 'failed', error: { code: 'c', message: 'm' } }))).toMatchObject({ status: 'failed', error: { message: 'm' } });
  expect(applyEvent(job, event('unheard-of', {}))).toMatchObject({ status: 'queued', step: 0 });
});

test('numbers in words', () => {
  expect([59, 75, 660, 3720, 200_000].map(formatDuration)).toEqual(['59 s', '1 min 15 s', '11 min', '1 h 2 min', '2 days']);
  expect([0, 999, 1500, 4_400_000_000].map(formatSize)).toEqual(['0 B', '999 B', '1.5 kB', '4.4 GB']);
  expect([0.08123, 1e-4, 0, null, 123_456].map(formatValue)).toEqual(['0.08123', '1e-4', '0', '–', '1.23e5']);
  expect([null, true, [1, 2], 'x'].map(formatJson)).toEqual(['nothing', 'on', '1, 2', 'x']);
});
