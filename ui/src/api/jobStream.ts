/** The open job: its record, its stream and what the stream has told. */
import { useQuery, useQueryClient } from '@tanstack/react-query';
import { createContext, useContext, useEffect, useMemo, useState, useSyncExternalStore } from 'react';
import { isEnded } from '../lib/status';
import { api } from './api';
import { Feed, type FeedState } from './feed';
import { JobStore } from './jobStore';
import { applyEvent } from './lists';
import type { Job, JobEvent } from './types';

const TYPES = ['status', 'phase', 'progress', 'metrics', 'sample', 'checkpoint', 'log', 'error', 'worker'] as const;

export interface OpenJob {
  job: Job;
  store: JobStore;
}

export const OpenJobContext = createContext<OpenJob | null>(null);

export function useOpenJob(): OpenJob {
  const open = useContext(OpenJobContext);
  if (!open) throw new Error('useOpenJob is only for parts of the job page');
  return open;
}

/** Re-renders when the store has something new. */
export function useStoreVersion(store: JobStore): number {
  return useSyncExternalStore(store.subscribe, store.getVersion);
}

export function useJobStream(id: string): { job: Job | undefined; store: JobStore; feed: FeedState; error: unknown; samplesLoaded: boolean } {
  const client = useQueryClient();
  const store = useMemo(() => new JobStore(), [id]); // eslint-disable-line -- a new job is a new store
  const [feed, setFeed] = useState<FeedState>('connecting');
  const record = useQuery({ queryKey: ['job', id], queryFn: () => api.job(id) });
  const job = record.data;
  const waiting = job !== undefined && !isEnded(job.status);

  // The stream starts where the first record stood; the lists below are fetched after that, so between them nothing is missed.
  useEffect(() => {
    if (!waiting) return;
    const after = client.getQueryData<Job>(['job', id])?.last_seq ?? 0;
    let timer: ReturnType<typeof setTimeout> | null = null;
    const refresh = () => {
      timer ??= setTimeout(() => {
        timer = null;
        void client.invalidateQueries({ queryKey: ['job', id] });
        void client.invalidateQueries({ queryKey: ['files', id] });
      }, 250);
    };
    const stream = new Feed<JobEvent>({
      url: `/v1/jobs/${encodeURIComponent(id)}/events`,
      after,
      types: TYPES,
      onEvent: (event) => {
        store.take(event);
        client.setQueryData<Job>(['job', id], (old) => old && applyEvent(old, event));
        // Whether a wish still waits is told by the record alone; it may be answered when previews or saving end.
        const asked = client.getQueryData<Job>(['job', id])?.asked.length ? ['sample', 'phase'] : [];
        if (['status', 'checkpoint', 'error', ...asked].includes(event.type)) refresh();
      },
      onState: (state) => {
        setFeed(state);
        if (state === 'ended') refresh();
      },
    });
    return () => {
      stream.close();
      if (timer) clearTimeout(timer);
    };
  }, [client, id, store, waiting]);

  const known = job !== undefined;
  const samples = useQuery({ queryKey: ['samples', id], queryFn: () => api.samples(id), enabled: known, staleTime: 0 });
  useEffect(() => {
    if (samples.data) store.addSamples(samples.data);
  }, [samples.data, store]);

  return { job, store, feed: waiting ? feed : 'ended', error: record.error, samplesLoaded: samples.isSuccess };
}
