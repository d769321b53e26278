/** Sends a verb for a job and says in place when the server declines. */
import { useMutation, useQueryClient } from '@tanstack/react-query';
import type { ReactNode } from 'react';
import { api } from '../api/api';
import type { Job } from '../api/types';
import type { Verb } from '../lib/status';

/** The verbs that are sent as they are; deleting asks first, and editing is a page of its own. */
export type Sent = Exclude<Verb['verb'], 'delete' | 'edit'>;

function send(id: string, verb: Sent): Promise<void> {
  switch (verb) {
    case 'cancel':
      return api.cancel(id);
    case 'pause':
      return api.pause(id);
    case 'resume':
      return api.resume(id);
    case 'sample':
    case 'checkpoint':
      return api.ask(id, verb);
  }
}

export function useVerb(job: Pick<Job, 'id'>): { run: (verb: Sent) => void; busy: boolean; problem: ReactNode } {
  const client = useQueryClient();
  const mutation = useMutation({
    mutationFn: (verb: Sent) => send(job.id, verb),
    onSettled: () => {
      void client.invalidateQueries({ queryKey: ['jobs'] });
      void client.invalidateQueries({ queryKey: ['job', job.id] });
    },
  });
  return {
    run: mutation.mutate,
    busy: mutation.isPending,
    problem: mutation.error && <p className="bad small" role="alert">{mutation.error.message}</p>,
  };
}
