import { useQuery } from '@tanstack/react-query';
import { api } from '../../api/api';
import type { Job, Point, Sample } from '../../api/types';

/** A job's newest preview; asked once, then kept fresh by the stream. Indexes count from 1. */
export function useNewest(job: Job): Sample | undefined {
  const { data } = useQuery({
    queryKey: ['newest', job.id],
    queryFn: async () => (await api.samples(job.id, job.num_samples - 1)).at(-1) ?? null,
    enabled: job.num_samples > 0,
    staleTime: 60_000,
  });
  return data ?? undefined;
}

/** The loss so far for a sparkline; the stream appends to it. */
export function useSpark(job: Job): Point[] {
  const { data } = useQuery({
    queryKey: ['spark', job.id],
    queryFn: async () => (await api.metrics(job.id, 'loss', 120)).points,
    staleTime: Infinity,
  });
  return data ?? [];
}
