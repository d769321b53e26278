/** Sends a verb for a job and says in place when the server declines. */
import { useMutation, useQueryClient } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { api } from '../api/api';
import type { Job, JsonObject } from '../api/types';

export function useVerb(job: Pick<Job, 'id'>): { run: (verb: string, body?: JsonObject) => void; busy: boolean; problem: ReactNode } {
  const client = useQueryClient();
  const mutation = useMutation({
    mutationFn: ({ verb, body }: { verb: string; body?: JsonObject }) => api.verb(job.id, verb, body),
    onSettled: () => {
      void client.invalidateQueries({ queryKey: ['jobs'] });
      void client.invalidateQueries({ queryKey: ['job', job.id] });
    },
  });
  return {
    run: (verb, body) => mutation.mutate(body ? { verb, body } : { verb }),
    busy: mutation.isPending,
    problem: mutation.error && <p className="bad small" role="alert">{mutation.error.message}</p>,
  };
}
