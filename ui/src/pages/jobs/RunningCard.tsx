import { Button } from '@mantine/core';
import { Link } from 'wouter';
import type { Job } from '../../api/types';
import { Picture, ProgressBar } from '../../components/bits';
import { Sparkline } from '../../components/Sparkline';
import { useVerb } from '../../components/useVerb';
import { formatDuration, formatSpeed, formatValue } from '../../lib/format';
import { statusSentence, VERBS } from '../../lib/status';
import { useNewest, useSpark } from './useNewest';

export function RunningCard({ job }: { job: Job }) {
  const newest = useNewest(job);
  const points = useSpark(job);
  const verb = useVerb(job);
  const cancel = VERBS[job.status].find(({ verb: name }) => name === 'cancel');
  const eta = job.speed?.eta_seconds;
  return (
    <article className="card">
      <div className="card-picture">
        {newest ? <Picture sample={newest} shownAt={168} full={newest.width < 512} eager /> : <div className="card-nopicture dim small">First preview comes here</div>}
      </div>
      <div className="card-body">
        <div className="card-title">
          <Link href={`/jobs/${job.id}`} className="card-link" data-nav>{job.name}</Link>
          <span className="chip">{job.arch}</span>
        </div>
        <p className="dim">{statusSentence(job)}</p>
        <ProgressBar job={job} label={`Progress of ${job.name}`} />
        <p className="card-numbers">
          <span>{eta != null ? `${formatDuration(eta)} left` : 'Time left: –'}</span>
          <span className="dim">{formatSpeed(job.speed?.steps_per_second)}</span>
        </p>
      </div>
      <div className="card-side">
        <div className="card-loss">
          <Sparkline points={points} label={`Loss of ${job.name}, now ${formatValue(job.loss)}`} />
          <span className="dim small">loss {formatValue(job.loss)}</span>
        </div>
        {cancel && (
          <Button variant="default" size="xs" title={cancel.effect} disabled={verb.busy} onClick={() => verb.run('cancel')} aria-label={`${cancel.label} ${job.name}`}>
            {cancel.label}
          </Button>
        )}
      </div>
      {verb.problem}
    </article>
  );
}
