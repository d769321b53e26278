import { expect, test } from 'vitest';
import { applyEvent } from '../api/lists';
import type { Job, Status } from '../api/types';
import { ACTIVE, ENDED, isAsked, OPEN, STATUS_WORD, statusSentence, VERBS, verbsOf } from './status';

const job = (status: Status, more: Partial<Job> = {}): Job =>
  ({ kind: 'train', status, step: 1240, saved_step: 1240, total_steps: 2000, phase: null, queue_position: null, asked: [], spec: { train: {}, sample: { samples: [{ prompt: 'p' }] } }, ...more }) as Job;
const verbs = (of: Job) => verbsOf(of).map(({ verb }) => verb);

test('every state is open or ended, and has its words', () => {
  const all = Object.keys(STATUS_WORD) as Status[];
  expect([...OPEN, ...ENDED].sort()).toEqual(all.sort());
  expect(ACTIVE.every((status) => OPEN.includes(status))).toBe(true);
  expect(all.every((status) => VERBS[status] !== undefined)).toBe(true);
});

test('what happened, in words', () => {
  expect(statusSentence(job('paused'))).toBe('Paused at step 1,240; saved');
  expect(statusSentence(job('paused', { step: 0 }))).toBe('Paused before it started');
  expect(statusSentence(job('pausing'))).toBe('Pausing at step 1,240; saving first');
  expect(statusSentence(job('queued', { queue_position: 1 }))).toBe('Next in the queue; goes on from step 1,240');
  expect(statusSentence(job('paused', { kind: 'sample', step: 3, saved_step: 3 }))).toBe('Paused at picture 3; saved');
});

test('only what is saved is said to be', () => {
  expect(statusSentence(job('paused', { step: 54, saved_step: 32 }))).toBe('Paused at step 54; saved up to step 32');
  expect(statusSentence(job('paused', { step: 54, saved_step: 0 }))).toBe('Paused at step 54; nothing saved');
  expect(statusSentence(job('queued', { queue_position: 1, step: 54, saved_step: 32 }))).toBe('Next in the queue; goes on from step 32');
  expect(statusSentence(job('queued', { queue_position: 1, step: 54, saved_step: 0 }))).toBe('Next in the queue; starts over, nothing was saved');
  const heard = applyEvent(job('running', { saved_step: 32 }), { seq: 1, job_id: 'j', attempt: 1, time: '', type: 'status', data: { status: 'paused', step: 54 } });
  expect(statusSentence(heard)).toBe('Paused at step 54'); // until the server says what is saved
});

test('preparing pictures says how far it is', () => {
  expect(statusSentence(job('preparing', { phase: 'caching', phase_done: 120, phase_total: 4000 }))).toBe('Preparing the pictures 120 of 4,000');
  expect(statusSentence(job('preparing', { phase: 'reading', phase_done: 120, phase_total: 4000 }))).toBe('Looking at the data 120 of 4,000');
  expect(statusSentence(job('preparing', { phase: 'reading' }))).toBe('Looking at the data');
  expect(statusSentence(job('running', { phase: 'sampling', phase_done: 0, phase_total: 4 }))).toBe('Making previews, step 1,240 of 2,000');
  expect(statusSentence(job('running', { phase: 'training', phase_done: 5, phase_total: 9 }))).toBe('Training, step 1,240 of 2,000');
});

test('the buttons are the verbs that the server takes in that state', () => {
  expect(verbs(job('running'))).toEqual(['sample', 'checkpoint', 'pause', 'cancel']);
  expect(verbs(job('queued'))).toEqual(['pause', 'cancel', 'delete']);
  expect(verbs(job('paused'))).toEqual(['resume', 'edit', 'cancel', 'delete']);
  expect(verbs(job('succeeded'))).toEqual(['edit', 'delete']);
  expect(verbs(job('canceling'))).toEqual([]);
});

test('only training with prompts is asked for previews', () => {
  expect(verbs(job('running', { kind: 'sample' }))).toEqual(['pause', 'cancel']);
  expect(verbs(job('running', { spec: { sample: { samples: [] } } }))).toEqual(['checkpoint', 'pause', 'cancel']);
  expect(verbs(job('running', { spec: { train: { disable_sampling: true }, sample: { samples: [{ prompt: 'p' }] } } }))).toEqual(['checkpoint', 'pause', 'cancel']);
});

test('a press that waits for its turn is known', () => {
  const asked = job('running', { asked: ['sample'] });
  expect([isAsked(asked, 'sample'), isAsked(asked, 'checkpoint'), isAsked(asked, 'pause')]).toEqual([true, false, false]);
});
