/** Keeps every list of jobs in step with the server through one stream; the Jobs page mounts it. */
import { useQueryClient, type InfiniteData, type QueryClient } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { Feed, type FeedState } from './feed';
import type { Job, JobError, JobEvent, JobPage, Point, Sample, Status } from './types';

type Cached = JobPage | InfiniteData<JobPage>;

const patchPage = (page: JobPage, id: string, change: (job: Job) => Job): JobPage =>
  page.jobs.some((job) => job.id === id) ? { ...page, jobs: page.jobs.map((job) => (job.id === id ? change(job) : job)) } : page;

/** Changes one job wherever a list holds it. */
export function patchListed(client: QueryClient, id: string, change: (job: Job) => Job): void {
  client.setQueriesData<Cached>({ queryKey: ['jobs'] }, (cached) => {
    if (!cached) return cached;
    if ('pages' in cached) return { ...cached, pages: cached.pages.map((page) => patchPage(page, id, change)) };
    return patchPage(cached, id, change);
  });
}

/** How an event changes a job; unknown types change nothing. */
export function applyEvent(job: Job, event: JobEvent): Job {
  const data = event.data;
  const next = { ...job, last_seq: Math.max(job.last_seq, event.seq) };
  if (event.type === 'status') {
    return {
      ...next,
      status: (data.status as Status | undefined) ?? job.status,
      step: (data.step as number | undefined) ?? job.step,
      saved_step: undefined,
      total_steps: (data.total_steps as number | undefined) ?? job.total_steps,
      name: (data.name as string | undefined) ?? job.name,
      priority: (data.priority as number | undefined) ?? job.priority,
      error: 'error' in data ? (data.error as unknown as JobError | null) : job.error,
    };
  }
  if (event.type === 'phase') {
    return { ...next, phase: (data.phase as string | undefined) ?? null, phase_done: (data.done as number | null | undefined) ?? null, phase_total: (data.total as number | null | undefined) ?? null };
  }
  if (event.type === 'progress') {
    const step = (data.step as number | undefined) ?? job.step;
    const total = (data.total_steps as number | undefined) ?? job.total_steps;
    return {
      ...next,
      step,
      total_steps: total,
      progress: total > 0 ? step / total : 0,
      loss: (data.loss as number | null | undefined) ?? job.loss,
      speed: {
        steps_per_second: (data.steps_per_second as number | null | undefined) ?? null,
        eta_seconds: (data.eta_seconds as number | null | undefined) ?? null,
      },
    };
  }
  return next;
}

const SPARK_POINTS = 400;

function take(client: QueryClient, event: JobEvent, refresh: () => void): void {
  const id = event.job_id;
  patchListed(client, id, (job) => applyEvent(job, event));
  if (event.type === 'status') refresh();
  if (event.type === 'sample') {
    const sample = event.data as unknown as Sample;
    client.setQueryData(['newest', id], sample);
    patchListed(client, id, (job) => ({ ...job, num_samples: Math.max(job.num_samples, sample.index) }));
  }
  if (event.type === 'progress' && typeof event.data.loss === 'number') {
    const point: Point = [Number(event.data.step), event.data.loss];
    client.setQueryData<Point[]>(['spark', id], (points) => points && [...points.filter(([step]) => step < point[0]), point].slice(-SPARK_POINTS));
  }
}

/** Opens the stream of all jobs while mounted. */
export function useListFeed(): FeedState {
  const client = useQueryClient();
  const [state, setState] = useState<FeedState>('connecting');
  useEffect(() => {
    // Many status changes in one moment (a cleared queue) ask for the lists once.
    let timer: ReturnType<typeof setTimeout> | null = null;
    const refresh = () => {
      timer ??= setTimeout(() => {
        timer = null;
        void client.invalidateQueries({ queryKey: ['jobs'] });
      }, 250);
    };
    const feed = new Feed<JobEvent>({
      url: '/v1/events',
      after: null,
      types: ['status', 'phase', 'progress', 'sample'],
      onEvent: (event) => take(client, event, refresh),
      onState: setState,
      onReopen: refresh,
    });
    return () => {
      feed.close();
      if (timer) clearTimeout(timer);
    };
  }, [client]);
  return state;
}
