/** Sends a verb for a job and says in place when the server declines. */
import { useMutation, useQueryClient } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { api } from '../api/api';
import type { Job, JsonObject } from '../api/types';
import type { Verb } from '../lib/status';

/** The verbs that are sent as they are; deleting asks first and is sent by its own dialog. */
type Sent = Exclude<Verb['verb'], 'delete'>;

export function useVerb(job: Pick<Job, 'id'>): { run: (verb: Sent, body?: JsonObject) => void; busy: boolean; problem: ReactNode } {
  const client = useQueryClient();
  const mutation = useMutation({
    mutationFn: ({ verb, body }: { verb: Sent; body?: JsonObject }) => (verb === 'cancel' ? api.cancel(job.id) : api.resume(job.id, body)),
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
