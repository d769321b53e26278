import { Link, useLocation } from 'wouter';
import type { Job } from '../../api/types';
import { Picture, When } from '../../components/bits';
import { formatCount, formatExact, formatValue } from '../../lib/format';
import { STATUS_WORD } from '../../lib/status';
import { useNewest } from './useNewest';

function Row({ job }: { job: Job }) {
  const newest = useNewest(job);
  const [, navigate] = useLocation();
  const href = `/jobs/${job.id}`;
  return (
    // The link in the row is the control; a click anywhere on the row is a convenience for the pointer.
    <tr onClick={(event) => !(event.target as HTMLElement).closest('a') && navigate(href)}>
      <td className="cell-picture">
        <div className="thumb">{newest && <Picture sample={newest} shownAt={40} alt="" />}</div>
      </td>
      <td className="cell-name">
        <Link href={href} className="row-link clip" data-nav>{job.name}</Link>
        {job.status === 'failed' && job.error && <p className="small dim clip" title={job.error.message}>{job.error.message}</p>}
      </td>
      <td className="cell-arch dim">{job.arch}</td>
      <td className="cell-number">{formatCount(job.step)}<span className="dim"> / {formatCount(job.total_steps)}</span></td>
      <td className="cell-number cell-loss">{formatValue(job.loss)}</td>
      <td className="cell-when dim" title={job.finished_at ? formatExact(job.finished_at) : undefined}><When iso={job.finished_at ?? job.created_at} /></td>
      <td className={`cell-result ${job.status === 'failed' ? 'bad' : job.status === 'succeeded' ? '' : 'dim'}`}>{STATUS_WORD[job.status]}</td>
    </tr>
  );
}

export function EndedTable({ jobs }: { jobs: Job[] }) {
  return (
    <table className="ended">
      <thead>
        <tr>
          <th><span className="visually-hidden">Newest preview</span></th>
          <th>Name</th>
          <th className="cell-arch">Model</th>
          <th className="cell-number">Steps</th>
          <th className="cell-number cell-loss">Loss</th>
          <th className="cell-when">Ended</th>
          <th className="cell-result">Result</th>
        </tr>
      </thead>
      <tbody>{jobs.map((job) => <Row key={job.id} job={job} />)}</tbody>
    </table>
  );
}
