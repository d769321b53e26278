import { Button } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { useEffect } from 'react';
import { Link } from 'wouter';
import { api } from '../api/api';
import type { Json, Worker } from '../api/types';
import { Notice, When } from '../components/bits';
import { formatSize } from '../lib/format';
import './system.css';

const STATE: Record<Worker['state'], string> = { idle: 'Idle', busy: 'Busy', stopped: 'Stopped', gone: 'Gone; not heard of for a while' };

function Memory({ worker }: { worker: Worker }) {
  const { memory_used: used, memory_total: total } = worker;
  if (used === null || total === null || total === 0) return <span className="dim">not told</span>;
  const percent = Math.min(100, Math.round((100 * used) / total));
  return (
    <div>
      <div className="progress" role="meter" aria-label={`Memory of ${worker.id}`} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
        <div style={{ width: `${percent}%` }} />
      </div>
      <span className="dim small">{formatSize(used)} of {formatSize(total)}</span>
    </div>
  );
}

function WorkerRow({ worker }: { worker: Worker }) {
  const versions = Object.entries(worker.versions).map(([name, version]) => `${name} ${version}`).join(', ');
  return (
    <li className="worker">
      <div>
        <p><strong>{worker.id}</strong> <span className="dim">{worker.device}</span></p>
        <p className="dim small">{versions}</p>
        {worker.problem && <p className="small">Takes no jobs; its device cannot be used: {worker.problem}</p>}
      </div>
      <Memory worker={worker} />
      <div>
        <p>{worker.job_id ? <Link className="link" href={`/jobs/${worker.job_id}`} data-nav>Working on a job</Link> : STATE[worker.state]}</p>
        <p className="dim small">heard <When iso={worker.last_heartbeat} />, started <When iso={worker.started_at} /></p>
      </div>
    </li>
  );
}

function word(value: Json | undefined): string {
  if (value === true) return 'ok';
  if (value === false || value === null || value === undefined) return 'away';
  return typeof value === 'string' ? value : JSON.stringify(value);
}

export function SystemPage() {
  useEffect(() => void (document.title = 'System · Safelight'), []);
  const workers = useQuery({ queryKey: ['workers'], queryFn: api.workers, refetchInterval: 5000 });
  const ready = useQuery({ queryKey: ['ready'], queryFn: api.ready, refetchInterval: 5000 });
  const health = useQuery({ queryKey: ['health'], queryFn: api.health });
  // A server without a token has nothing to sign out of; asking for the page again shows what holds.
  const signOut = useMutation({ mutationFn: api.signOut, onSettled: () => window.location.assign('/') });
  const facts: [string, string][] = [
    ['Server', ready.error ? ready.error.message : ready.data ? 'ready' : '…'],
    ['Database', ready.data ? word(ready.data.database) : '…'],
    ['Broker', ready.data ? word(ready.data.broker) : '…'],
    ['Version', health.data?.version ?? '…'],
  ];
  return (
    <div className="stack" style={{ gap: 24 }}>
      <h1>System</h1>
      <section aria-labelledby="workers-title">
        <h2 id="workers-title" style={{ marginBottom: 8 }}>Workers</h2>
        {workers.error && <Notice tone="bad" title="The workers could not be asked">{workers.error.message}</Notice>}
        {workers.data?.length === 0 && <Notice title="No worker is connected">Start one with <span className="mono">safelight worker</span>; jobs wait in the queue until then.</Notice>}
        {workers.data && workers.data.length > 0 && <ul className="workers">{workers.data.map((worker) => <WorkerRow key={worker.id} worker={worker} />)}</ul>}
        {workers.isPending && <div className="skeleton" style={{ height: 72 }} />}
      </section>
      <section aria-labelledby="state-title">
        <h2 id="state-title" style={{ marginBottom: 8 }}>Server</h2>
        <dl className="panel facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt className="dim">{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </section>
      <div>
        <Button variant="default" onClick={() => signOut.mutate()}>Sign out</Button>
      </div>
    </div>
  );
}
