import { useOpenJob } from '../../api/jobStream';
import { ProgressBar, When } from '../../components/bits';
import { formatDuration, formatSpeed, formatValue } from '../../lib/format';
import { isActive, isEnded, statusSentence } from '../../lib/status';
import { Controls } from './Controls';

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function Header() {
  const { job } = useOpenJob();
  const active = isActive(job.status);
  const eta = job.speed?.eta_seconds;
  const took = job.started_at && job.finished_at ? (Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000 : null;
  return (
    <header className="job-head">
      <div className="job-top">
        <div className="grow">
          <div className="row wrap" style={{ gap: 12 }}>
            <h1 className="job-name">{job.name}</h1>
            <span className="chip">{job.arch}</span>
          </div>
          <p className={`job-status${job.status === 'failed' ? ' bad' : ''}`} data-status={job.status}>
            {active && <span className="live-dot" aria-hidden="true" />}
            <span>{statusSentence(job)}</span>
            <span className="dim job-since"> · {job.finished_at && isEnded(job.status) ? <>ended <When iso={job.finished_at} /></> : <>submitted <When iso={job.created_at} /></>}</span>
          </p>
          {/* Read aloud only when the state itself changes, not at every step. */}
          <p className="visually-hidden" role="status">{`${job.name}: ${job.status}`}</p>
        </div>
        <Controls />
      </div>
      <ProgressBar job={job} label="Progress" />
      <dl className="job-facts">
        {isEnded(job.status) ? (
          <Fact name="Took" value={took === null ? '–' : formatDuration(took)} />
        ) : (
          <>
            <Fact name="Time left" value={active && eta != null ? formatDuration(eta) : '–'} />
            <Fact name="Speed" value={formatSpeed(job.speed?.steps_per_second)} />
          </>
        )}
        {job.kind !== 'sample' && <Fact name="Loss" value={formatValue(job.loss)} />}
        {active && <Fact name="Worker" value={job.worker ?? '–'} />}
        {job.attempt > 1 && <Fact name="Attempt" value={String(job.attempt)} />}
      </dl>
      {job.error && job.status !== 'succeeded' && (
        <div className="notice notice-bad" role="alert">
          <p className="notice-title">{job.error.message}</p>
          {job.error.hint && <p>{job.error.hint}</p>}
          {job.error.traceback && (
            <details style={{ marginTop: 8 }}>
              <summary className="dim">Traceback</summary>
              <pre className="mono trace" tabIndex={0}>{job.error.traceback}</pre>
            </details>
          )}
        </div>
      )}
    </header>
  );
}
