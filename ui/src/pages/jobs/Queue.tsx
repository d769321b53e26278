import { ActionIcon, Button } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { Link } from 'wouter';
import { api } from '../../api/api';
import type { Job } from '../../api/types';
import { When } from '../../components/bits';
import { DownIcon, UpIcon } from '../../components/icons';
import { useVerb } from '../../components/useVerb';
import { plural } from '../../lib/format';
import { priorityToPass } from './order';

function QueueRow({ job, up, down, onMove }: { job: Job; up: number | null; down: number | null; onMove: (priority: number) => void }) {
  const verb = useVerb(job);
  return (
    <li className="queue-row">
      <span className="queue-place dim">{job.queue_position ?? '–'}</span>
      <div className="grow">
        <Link href={`/jobs/${job.id}`} className="row-link clip" data-nav>{job.name}</Link>
        <p className="dim small clip">
          {job.status === 'paused' ? 'Paused' : job.arch} · {plural(job.total_steps, 'step')} · <When iso={job.created_at} />
        </p>
        {verb.problem}
      </div>
      <ActionIcon variant="subtle" color="gray" c="dimmed" size={36} disabled={up === null} onClick={() => up !== null && onMove(up)} aria-label={`Move ${job.name} up`}>
        <UpIcon size={16} />
      </ActionIcon>
      <ActionIcon variant="subtle" color="gray" c="dimmed" size={36} disabled={down === null} onClick={() => down !== null && onMove(down)} aria-label={`Move ${job.name} down`}>
        <DownIcon size={16} />
      </ActionIcon>
      <Button variant="subtle" color="gray" c="dimmed" size="xs" disabled={verb.busy} onClick={() => verb.run('cancel')} title="Takes it out of the queue." aria-label={`Cancel ${job.name}`}>
        Cancel
      </Button>
    </li>
  );
}

export function Queue({ jobs }: { jobs: Job[] }) {
  const client = useQueryClient();
  const refresh = () => client.invalidateQueries({ queryKey: ['jobs'] });
  const move = useMutation({ mutationFn: ({ id, priority }: { id: string; priority: number }) => api.patch(id, { priority }), onSettled: refresh });
  const clear = useMutation({ mutationFn: api.clearQueue, onSettled: refresh });
  const ordered = [...jobs].sort((a, b) => (a.queue_position ?? Infinity) - (b.queue_position ?? Infinity));
  const queued = ordered.filter((job) => job.status === 'queued');
  return (
    <section aria-labelledby="queue-title">
      <div className="section-head">
        <h2 id="queue-title">Queue</h2>
        {queued.length > 1 && (
          <Button variant="subtle" color="gray" c="dimmed" size="xs" disabled={clear.isPending} onClick={() => clear.mutate()} title="Running jobs are not touched.">
            Cancel all {queued.length}
          </Button>
        )}
      </div>
      {(move.error ?? clear.error) && <p className="bad small" role="alert">{(move.error ?? clear.error)?.message}</p>}
      <ol className="queue">
        {ordered.map((job) => {
          const at = queued.indexOf(job);
          return (
            <QueueRow
              key={job.id}
              job={job}
              up={at < 0 ? null : priorityToPass(queued, at, -1)}
              down={at < 0 ? null : priorityToPass(queued, at, 1)}
              onMove={(priority) => move.mutate({ id: job.id, priority })}
            />
          );
        })}
      </ol>
    </section>
  );
}
