/** What the open job's stream has told so far: previews and series, each thing once. */
import type { JobEvent, Point, Sample } from './types';

export interface SeriesData {
  steps: number[];
  values: (number | null)[];
}

export const METRICS = ['loss', 'lr', 'grad_norm', 'step_seconds'] as const;
export type Metric = (typeof METRICS)[number];

/** Losses on held-out pictures: all in one, and one for each noise level (`val/loss/125`). A job has them if it asks for them. */
export const VALIDATION = 'val/loss';
export const isKept = (name: string): boolean => (METRICS as readonly string[]).includes(name) || name === VALIDATION || name.startsWith(`${VALIDATION}/`);

/** Where `step` is or belongs in the ascending `steps`. Nearly always at the end, so the end is looked at first. */
function place(steps: number[], step: number): number {
  let high = steps.length;
  if (high === 0 || (steps[high - 1] as number) < step) return high;
  let low = 0;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((steps[middle] as number) < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class JobStore {
  samples: Sample[] = [];
  readonly series: Record<Metric, SeriesData> & Record<string, SeriesData> = {
    loss: { steps: [], values: [] },
    lr: { steps: [], values: [] },
    grad_norm: { steps: [], values: [] },
    step_seconds: { steps: [], values: [] },
  };
  /** Grows with every change; what React compares. */
  version = 0;
  logBell = 0;
  /** The series that were fetched; from then on the stream alone tells. */
  readonly fetched = new Set<string>();
  /** Steps that the stream told before the fetched series came. */
  private readonly live = new Map<string, Set<number>>();
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | null = null;

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  getVersion = (): number => this.version;

  addSamples(added: readonly Sample[]): void {
    const known = new Set(this.samples.map((sample) => sample.index));
    const fresh = added.filter((sample) => !known.has(sample.index) && known.add(sample.index));
    if (fresh.length === 0) return;
    this.samples = [...this.samples, ...fresh].sort((a, b) => a.index - b.index);
    this.changed();
  }

  /** A fetched series; what the stream told meanwhile is newer and stays. */
  addSeries(name: string, points: readonly Point[]): void {
    if (this.fetched.has(name)) return;
    this.fetched.add(name);
    const live = this.live.get(name);
    for (const [step, value] of points) if (!live?.has(step)) this.setPoint(name, step, value);
    live?.clear();
    this.changed();
  }

  take(event: JobEvent): void {
    const data = event.data;
    if (event.type === 'sample') this.addSamples([data as unknown as Sample]);
    else if (event.type === 'metrics') {
      for (const [name, value] of Object.entries(data)) {
        if (!isKept(name) || (typeof value !== 'number' && value !== null)) continue;
        if (!this.fetched.has(name)) this.liveSteps(name).add(Number(data.step));
        this.setPoint(name, Number(data.step), value);
      }
      this.changed();
    } else if (event.type === 'log') {
      this.logBell += 1;
      this.changed();
    }
  }

  private liveSteps(name: string): Set<number> {
    const known = this.live.get(name) ?? new Set();
    this.live.set(name, known);
    return known;
  }

  /** The newest telling of a step replaces an older one. */
  private setPoint(name: string, step: number, value: number | null): void {
    const { steps, values } = (this.series[name] ??= { steps: [], values: [] });
    const at = place(steps, step);
    if (steps[at] === step) values[at] = value;
    else {
      steps.splice(at, 0, step);
      values.splice(at, 0, value);
    }
  }

  /** Listeners hear at most ten times a second, however fast the job is. */
  private changed(): void {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.version += 1;
      this.listeners.forEach((listener) => listener());
    }, 100);
  }
}
