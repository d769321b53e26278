import { ActionIcon, Button } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { Link } from 'wouter';
import { api } from '../../api/api';
import type { Job } from '../../api/types';
import { Picture, When } from '../../components/bits';
import { DownIcon, UpIcon } from '../../components/icons';
import { useVerb, type Sent } from '../../components/useVerb';
import { formatCount, plural } from '../../lib/format';
import { statusSentence, verbsOf, type Verb } from '../../lib/status';
import { priorityToPass } from './order';
import { useNewest } from './useNewest';

function RowVerbs({ job, verb, only }: { job: Job; verb: ReturnType<typeof useVerb>; only: Sent[] }) {
  return verbsOf(job).map(({ verb: what, label, effect }) =>
    (only as Verb['verb'][]).includes(what) ? (
      <Button key={what} variant="subtle" color="gray" c="dimmed" size="xs" px={8} disabled={verb.busy} onClick={() => verb.run(what as Sent)} title={effect} aria-label={`${label} ${job.name}`}>
        {label}
      </Button>
    ) : null,
  );
}

function QueueRow({ job, up, down, onMove }: { job: Job; up: number | null; down: number | null; onMove: (priority: number) => void }) {
  const verb = useVerb(job);
  return (
    <li className="queue-row">
      <span className="queue-place dim">{job.queue_position ?? '–'}</span>
      <div className="grow">
        <Link href={`/jobs/${job.id}`} className="row-link clip" data-nav>{job.name}</Link>
        <p className="dim small clip">
          {job.arch} · {job.step > 0 ? `goes on from step ${formatCount(job.step)} of ${formatCount(job.total_steps)}` : plural(job.total_steps, job.kind === 'sample' ? 'picture' : 'step')} · <When iso={job.created_at} />
        </p>
        {verb.problem}
      </div>
      {(up !== null || down !== null) && (
        <>
          <ActionIcon variant="subtle" color="gray" c="dimmed" size={36} disabled={up === null} onClick={() => up !== null && onMove(up)} aria-label={`Move ${job.name} up`}>
            <UpIcon size={16} />
          </ActionIcon>
          <ActionIcon variant="subtle" color="gray" c="dimmed" size={36} disabled={down === null} onClick={() => down !== null && onMove(down)} aria-label={`Move ${job.name} down`}>
            <DownIcon size={16} />
          </ActionIcon>
        </>
      )}
      <RowVerbs job={job} verb={verb} only={['pause', 'cancel']} />
    </li>
  );
}

function PausedRow({ job }: { job: Job }) {
  const verb = useVerb(job);
  const newest = useNewest(job);
  return (
    <li className="queue-row">
      <div className="thumb paused-thumb">{newest && <Picture sample={newest} shownAt={40} alt="" />}</div>
      <div className="grow">
        <Link href={`/jobs/${job.id}`} className="row-link clip" data-nav>{job.name}</Link>
        <p className="dim small clip">{statusSentence(job)} · {job.arch} · <When iso={job.created_at} /></p>
        {verb.problem}
      </div>
      <RowVerbs job={job} verb={verb} only={['resume', 'cancel']} />
    </li>
  );
}

/** Jobs that hold no memory and wait for someone to go on with them. */
export function Paused({ jobs }: { jobs: Job[] }) {
  return (
    <section aria-labelledby="paused-title">
      <div className="section-head"><h2 id="paused-title">Paused</h2></div>
      <ul className="queue">{jobs.map((job) => <PausedRow key={job.id} job={job} />)}</ul>
    </section>
  );
}

export function Queue({ jobs }: { jobs: Job[] }) {
  const client = useQueryClient();
  const refresh = () => client.invalidateQueries({ queryKey: ['jobs'] });
  const move = useMutation({ mutationFn: ({ id, priority }: { id: string; priority: number }) => api.patch(id, { priority }), onSettled: refresh });
  const clear = useMutation({ mutationFn: api.clearQueue, onSettled: refresh });
  const queued = [...jobs].sort((a, b) => (a.queue_position ?? Infinity) - (b.queue_position ?? Infinity));
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
        {queued.map((job, at) => (
          <QueueRow key={job.id} job={job} up={priorityToPass(queued, at, -1)} down={priorityToPass(queued, at, 1)} onMove={(priority) => move.mutate({ id: job.id, priority })} />
        ))}
      </ol>
    </section>
  );
}
