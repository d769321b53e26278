/** What a state means in words, and what may be done in it. */
import type { Job, Status } from '../api/types';
import { formatCount, plural } from './format';

export const ENDED: readonly Status[] = ['succeeded', 'failed', 'canceled'];
export const ACTIVE: readonly Status[] = ['preparing', 'running', 'pausing', 'canceling'];

/** What the lists of jobs that have not ended ask for. The server refuses a state it does not know: pausing and paused join when
 * it learns to pause. */
export const OPEN: readonly Status[] = ['queued', 'preparing', 'running', 'canceling'];

export const isEnded = (status: Status): boolean => ENDED.includes(status);
export const isActive = (status: Status): boolean => ACTIVE.includes(status);

const PHASES: Record<string, string> = {
  loading: 'Loading the model',
  caching: 'Preparing the pictures',
  training: 'Training',
  sampling: 'Making previews',
  saving: 'Saving',
};

/** One plain sentence for the head of a page. */
export function statusSentence(job: Job): string {
  // A job that only makes pictures counts those.
  const unit = job.kind === 'sample' ? 'picture' : 'step';
  const at = `${unit} ${formatCount(job.step)}`;
  switch (job.status) {
    case 'queued': {
      const place = job.queue_position === 1 ? 'Next in the queue' : job.queue_position ? `Number ${job.queue_position} in the queue` : 'In the queue';
      return job.step > 0 ? `${place}; goes on from ${at}` : place;
    }
    case 'preparing':
      return (job.phase && PHASES[job.phase]) || 'Getting ready';
    case 'running':
      return `${(job.phase && PHASES[job.phase]) || 'Running'}, ${at} of ${formatCount(job.total_steps)}`;
    case 'pausing':
      return `Pausing at ${at}; saving first`;
    case 'paused':
      return `Paused at ${at}; saved`;
    case 'canceling':
      return `Stopping at ${at}; saving first`;
    case 'canceled':
      return job.step > 0 ? `Stopped at ${at}` : 'Canceled before it started';
    case 'failed':
      return `Failed at ${at}`;
    case 'succeeded':
      return `Done, ${plural(job.total_steps, unit)}`;
  }
}

export const STATUS_WORD: Record<Status, string> = {
  queued: 'Queued', preparing: 'Getting ready', running: 'Running', pausing: 'Pausing', paused: 'Paused', canceling: 'Stopping',
  succeeded: 'Done', failed: 'Failed', canceled: 'Stopped',
};

export interface Verb {
  verb: 'cancel' | 'resume' | 'delete';
  label: string;
  /** What pressing it will do, before it is pressed. */
  effect: string;
}

const CANCEL_WAITING: Verb = { verb: 'cancel', label: 'Cancel', effect: 'Takes it out of the queue.' };
const CANCEL_ACTIVE: Verb = { verb: 'cancel', label: 'Stop', effect: 'Stops after this step and saves the work; it can be resumed.' };
const RESUME: Verb = { verb: 'resume', label: 'Resume', effect: 'Queues it again; it goes on from its newest checkpoint.' };
const EXTEND: Verb = { verb: 'resume', label: 'Train longer', effect: 'Goes on from the end with more steps; nothing old is overwritten.' };
const DELETE: Verb = { verb: 'delete', label: 'Delete', effect: 'Removes the job, its previews and its files. This cannot be undone.' };

/** The one place that says which buttons a state has; a new verb is added here and nowhere else. */
export const VERBS: Record<Status, Verb[]> = {
  queued: [CANCEL_WAITING, DELETE],
  preparing: [CANCEL_ACTIVE],
  running: [CANCEL_ACTIVE],
  pausing: [CANCEL_ACTIVE],
  paused: [RESUME, CANCEL_WAITING, DELETE],
  canceling: [],
  succeeded: [EXTEND, DELETE],
  failed: [RESUME, DELETE],
  canceled: [RESUME, DELETE],
};
