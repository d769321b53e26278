/** What a state means in words, and what may be done in it. */
import type { Ask, Job, JsonObject, Status } from '../api/types';
import { formatCount, plural } from './format';
import { getAt } from './pointer';

export const ENDED: readonly Status[] = ['succeeded', 'failed', 'canceled'];
export const ACTIVE: readonly Status[] = ['preparing', 'running', 'pausing', 'canceling'];

/** What waits: for its turn, or for someone to go on with it. */
export const WAITING: readonly Status[] = ['queued', 'paused'];

/** Everything that has not ended. */
export const OPEN: readonly Status[] = [...WAITING, ...ACTIVE];

export const isEnded = (status: Status): boolean => ENDED.includes(status);
export const isActive = (status: Status): boolean => ACTIVE.includes(status);

const PHASES: Record<string, string> = {
  reading: 'Looking at the data',
  loading: 'Loading the model',
  caching: 'Preparing the pictures',
  training: 'Training',
  sampling: 'Making previews',
  saving: 'Saving',
};

/** " 120 of 4,000" while the data is looked at, and while pictures are prepared. Other phases tell no count, or only their first. */
function phaseCount({ phase, phase_done: done, phase_total: total }: Job): string {
  return (phase === 'reading' || phase === 'caching') && done != null && total != null && total > 0 ? ` ${formatCount(done)} of ${formatCount(total)}` : '';
}

/** What of the steps done is saved, as far as the server has told; steps after that are done again. */
function savedPart({ step, saved_step: saved }: Job): string {
  if (saved === undefined) return '';
  return saved >= step ? '; saved' : saved > 0 ? `; saved up to step ${formatCount(saved)}` : '; nothing saved';
}

/** One plain sentence for the head of a page. */
export function statusSentence(job: Job): string {
  // A job that only makes pictures counts those.
  const unit = job.kind === 'sample' ? 'picture' : 'step';
  const at = `${unit} ${formatCount(job.step)}`;
  switch (job.status) {
    case 'queued': {
      const place = job.queue_position === 1 ? 'Next in the queue' : job.queue_position ? `Number ${job.queue_position} in the queue` : 'In the queue';
      if (job.step === 0 || job.saved_step === undefined) return place;
      return job.saved_step > 0 ? `${place}; goes on from ${unit} ${formatCount(job.saved_step)}` : `${place}; starts over, nothing was saved`;
    }
    case 'preparing':
      return `${(job.phase && PHASES[job.phase]) || 'Getting ready'}${phaseCount(job)}`;
    case 'running':
      return `${(job.phase && PHASES[job.phase]) || 'Running'}, ${at} of ${formatCount(job.total_steps)}`;
    case 'pausing':
      return `Pausing at ${at}; saving first`;
    case 'paused':
      return job.step > 0 ? `Paused at ${at}${savedPart(job)}` : 'Paused before it started';
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

/** `edit` opens the job's spec to go on with it changed; `delete` asks first. All others are sent as they are. */
export interface Verb {
  verb: 'cancel' | 'pause' | 'resume' | 'edit' | 'delete' | Ask;
  label: string;
  /** What pressing it will do, before it is pressed. */
  effect: string;
}

const CANCEL_WAITING: Verb = { verb: 'cancel', label: 'Cancel', effect: 'Takes it out of the queue.' };
const CANCEL_PAUSED: Verb = { verb: 'cancel', label: 'Cancel', effect: 'Ends it here. What is saved stays, and it can still be resumed.' };
const CANCEL_ACTIVE: Verb = { verb: 'cancel', label: 'Stop', effect: 'Stops after this step and saves the work; it can be resumed.' };
const PAUSE_WAITING: Verb = { verb: 'pause', label: 'Pause', effect: 'Holds it back; the next job in the queue gets its turn.' };
const PAUSE_ACTIVE: Verb = { verb: 'pause', label: 'Pause', effect: 'Saves after this step and gives the memory back; the next job in the queue may start.' };
const SAMPLE: Verb = { verb: 'sample', label: 'Preview now', effect: 'Makes a round of previews after this step, then goes on. The weights come out the same.' };
const CHECKPOINT: Verb = { verb: 'checkpoint', label: 'Save now', effect: 'Saves a checkpoint with weights to use after this step, then goes on.' };
const RESUME: Verb = { verb: 'resume', label: 'Resume', effect: 'Queues it again as it is; it goes on from its newest checkpoint.' };
const EDIT: Verb = { verb: 'edit', label: 'Extend or edit', effect: 'Opens its settings and shows what each change will do; nothing is queued before you say so.' };
const EXTEND: Verb = { ...EDIT, effect: 'Opens its settings to go on from the end; shows what each change will do. Nothing old is overwritten.' };
const DELETE: Verb = { verb: 'delete', label: 'Delete', effect: 'Removes the job, its previews and its files. This cannot be undone.' };

/** The one place that says which buttons a state has; a new verb is added here and nowhere else. */
export const VERBS: Record<Status, Verb[]> = {
  queued: [PAUSE_WAITING, CANCEL_WAITING, DELETE],
  preparing: [SAMPLE, CHECKPOINT, PAUSE_ACTIVE, CANCEL_ACTIVE],
  running: [SAMPLE, CHECKPOINT, PAUSE_ACTIVE, CANCEL_ACTIVE],
  pausing: [CANCEL_ACTIVE],
  paused: [RESUME, EDIT, CANCEL_PAUSED, DELETE],
  canceling: [],
  succeeded: [EXTEND, DELETE],
  failed: [RESUME, EDIT, DELETE],
  canceled: [RESUME, EDIT, DELETE],
};

const isAsk = (verb: Verb['verb']): verb is Ask => verb === 'sample' || verb === 'checkpoint';

/** The buttons of this job: only training can be asked for previews and checkpoints, and only where the job has previews. */
export function verbsOf(job: Pick<Job, 'status' | 'kind' | 'spec'>): Verb[] {
  return VERBS[job.status].filter(({ verb }) => !isAsk(verb) || (job.kind === 'train' && (verb !== 'sample' || makesPreviews(job.spec))));
}

/** Whether the run was asked for this already and has not come to it. */
export const isAsked = (job: Pick<Job, 'asked'>, verb: Verb['verb']): boolean => isAsk(verb) && job.asked.includes(verb);

/** Whether a training job makes pictures of prompts. */
export function makesPreviews(spec: JsonObject): boolean {
  const prompts = getAt(spec, '/sample/samples');
  return Array.isArray(prompts) && prompts.length > 0 && getAt(spec, '/train/disable_sampling') !== true;
}
