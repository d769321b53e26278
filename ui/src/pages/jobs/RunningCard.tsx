import { Button } from '@mantine/core';
import { Link } from 'wouter';
import type { Job } from '../../api/types';
import { Picture, ProgressBar } from '../../components/bits';
import { Sparkline } from '../../components/Sparkline';
import { useVerb } from '../../components/useVerb';
import { formatDuration, formatSpeed, formatValue } from '../../lib/format';
import { statusSentence, verbsOf, type Verb } from '../../lib/status';
import { useNewest, useSpark } from './useNewest';

export function RunningCard({ job }: { job: Job }) {
  const newest = useNewest(job);
  const points = useSpark(job);
  const verb = useVerb(job);
  const shown = verbsOf(job).filter((item): item is Verb & { verb: 'pause' | 'cancel' } => item.verb === 'pause' || item.verb === 'cancel');
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
        <div className="row card-verbs">
          {shown.map(({ verb: what, label, effect }) => (
            <Button key={what} variant="default" size="xs" title={effect} disabled={verb.busy} onClick={() => verb.run(what)} aria-label={`${label} ${job.name}`}>
              {label}
            </Button>
          ))}
        </div>
      </div>
      {verb.problem}
    </article>
  );
}
