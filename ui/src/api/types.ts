/** The shapes this UI relies on. Fields may be added by the server; nothing here may be renamed. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export type Status =
  | 'queued' | 'preparing' | 'running' | 'pausing' | 'paused' | 'canceling' | 'succeeded' | 'failed' | 'canceled';

/** What a running job can be asked for without ending it. */
export type Ask = 'sample' | 'checkpoint';

export interface JobError {
  code: string;
  message: string;
  hint?: string | null;
  traceback?: string | null;
}

export interface Speed {
  steps_per_second: number | null;
  eta_seconds: number | null;
}

export interface Job {
  id: string;
  name: string;
  kind: string;
  arch: string;
  status: Status;
  /** What a run does: reading (its data), loading, caching, training, sampling, saving. */
  phase: string | null;
  /** How far the phase is, where it counts something; told by events alone. */
  phase_done?: number | null;
  phase_total?: number | null;
  step: number;
  /** What a resume goes on from; undefined until the server tells it anew. */
  saved_step?: number | undefined;
  total_steps: number;
  progress: number;
  attempt: number;
  failures: number;
  queue_position: number | null;
  priority: number;
  labels: Record<string, string>;
  worker: string | null;
  /** What the run was asked for and has not done yet. */
  asked: Ask[];
  speed: Speed | null;
  loss: number | null;
  error: JobError | null;
  spec: JsonObject;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  last_seq: number;
  num_samples: number;
}

export interface JobPage {
  jobs: Job[];
  next_cursor: string | null;
}

/** One preview: a picture, clip or sound made of one prompt at one step. A sound's size is that of its waveform, the thumbnail. */
export interface Sample {
  index: number;
  step: number;
  prompt_index: number;
  prompt: string;
  seed: number | null;
  width: number;
  height: number;
  neg?: string;
  guidance_scale?: number | null;
  sample_steps?: number | null;
  sampler?: string | null;
  /** The strength of the adapter; 1 is as trained. */
  network_multiplier?: number | null;
  /** Of a matrix: which adapter it was made with, at which weight. */
  checkpoint?: string | null;
  weight?: number | null;
  media?: 'image' | 'video' | 'audio' | null;
  num_frames?: number | null;
  fps?: number | null;
  duration_seconds?: number | null;
  sample_rate?: number | null;
  channels?: number | null;
  url: string;
  thumbnail_url: string | null;
  animation_url?: string | null;
  created_at: string;
}

export interface Preset {
  name: string;
  label: string;
  description: string;
  spec: JsonObject;
}

export interface Arch {
  arch: string;
  label: string;
  description: string;
  kind: string;
  modality: string;
  capabilities: string[];
  adapters: string[];
  template_support: boolean;
  workers: string[];
  broken: string | null;
}

export interface ArchDetail extends Arch {
  schema: Record<string, JsonObject>;
  presets: Preset[];
}

/** A finding that points into the spec: `/train/steps`. */
export interface Finding {
  pointer: string;
  message: string;
  suggestion?: string | null;
  /** The suggestion is a known name like the one that was given. */
  misspelt?: boolean;
}

export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  errors?: Finding[];
}

export interface PlanDataset {
  folder_path: string;
  images: number;
  refused: { file: string; reason: string }[];
  captions_missing: number;
  buckets: { width: number; height: number; images: number; frames?: number; milliseconds?: number }[];
  is_reg?: boolean;
  masks?: number;
  controls?: number;
  /** Kept back for validation. */
  held_out?: number;
  /** Some of its items as training will see them. */
  samples?: { file: string; caption: string; width: number; height: number; frames: number }[];
}

/** One key that a resume changes; null where there was or will be nothing. */
export interface Change {
  pointer: string;
  before: Json;
  after: Json;
  effect: string;
}

/** A job's memory, predicted, in bytes; `parts` are those of the phase that takes most and add up to `peak`. */
export interface PlanMemory {
  peak: number;
  phase: string;
  parts: Record<string, number>;
  trained_parameters: number;
  disk: Record<string, number>;
  notes: string[];
}

export interface Plan {
  ok: boolean;
  problems: Finding[];
  warnings: Finding[];
  spec: JsonObject | null;
  datasets: PlanDataset[];
  steps_per_epoch: number | null;
  epochs: number | null;
  workers: string[];
  not_checked: string[];
  /** Of a resume: what differs from the job as it was, and the step (of a job of pictures: the picture) it goes on from. */
  changes: Change[];
  goes_on_from: number | null;
  /** Null until a worker has worked it out. */
  memory: PlanMemory | null;
}

export type Point = [step: number, value: number | null];

export interface Series {
  name: string;
  points: Point[];
  last_seq: number;
}

export interface JobFile {
  path: string;
  size: number;
  kind: string;
  step: number | null;
  pinned: boolean;
  url: string;
  created_at: string;
}

export interface Worker {
  id: string;
  device: string;
  state: 'idle' | 'busy' | 'stopped' | 'gone';
  memory_used: number | null;
  memory_total: number | null;
  job_id: string | null;
  archs: string[];
  versions: Record<string, string>;
  problem: string | null;
  last_heartbeat: string;
  started_at: string;
}

export interface Ready {
  status: string;
  database: Json;
  broker: Json;
  workers: number;
}

/** One line of a job's history; `seq` counts from 1 without gaps, `id` counts over all jobs (lists only). */
export interface JobEvent {
  id?: number;
  seq: number;
  job_id: string;
  attempt: number;
  time: string;
  type: string;
  data: JsonObject;
}
