/** One job: how it goes, what it looks like now, what was made. */
import { Button } from '@mantine/core';
import { lazy, Suspense, useEffect, useMemo } from 'react';
import { Link } from 'wouter';
import { ApiError } from '../api/http';
import { OpenJobContext, useJobStream } from '../api/jobStream';
import { Notice, ReconnectBar } from '../components/bits';
import { formatCount } from '../lib/format';
import { useParam } from '../lib/useParam';
import { Config } from './job/Config';
import { Files } from './job/Files';
import { Header } from './job/Header';
import { Log } from './job/Log';
import { Previews } from './job/Previews';
import './job/job.css';

const Charts = lazy(() => import('./job/Charts').then((m) => ({ default: m.Charts })));

const TABS: [name: string, label: string][] = [['previews', 'Previews'], ['charts', 'Charts'], ['files', 'Files'], ['log', 'Log'], ['config', 'Config']];
/** A job that only makes pictures has no series to draw. */
const tabsOf = (kind: string) => TABS.filter(([name]) => name !== 'charts' || kind !== 'sample');

export function JobPage({ id }: { id: string }) {
  const { job, store, feed, error, samplesLoaded } = useJobStream(id);
  const [asked] = useParam('tab', 'previews');
  const open = useMemo(() => job && { job, store }, [job, store]);
  const percent = job && job.total_steps > 0 ? Math.floor((100 * job.step) / job.total_steps) : 0;
  const title = !job ? 'Job' : feed === 'ended' ? job.name : `${job.status === 'paused' ? 'Paused' : `${percent} %`} · ${job.name}`;
  useEffect(() => void (document.title = `${title} · Safelight`), [title]);

  if (!open) {
    if (error instanceof ApiError && error.status === 404) {
      return <Notice title="This job is not here" action={<Link href="/" className="link">To the jobs</Link>}>It may have been deleted.</Notice>;
    }
    if (error) {
      return <Notice tone="bad" title="The job did not load" action={<Button variant="default" onClick={() => window.location.reload()}>Try again</Button>}>{(error as Error).message}</Notice>;
    }
    return <div className="skeleton" style={{ height: 132 }} role="status" aria-label="Loading the job" />;
  }
  const tabs = tabsOf(open.job.kind);
  const tab = tabs.find(([name]) => name === asked)?.[0] ?? 'previews';
  return (
    <OpenJobContext.Provider value={open}>
      <ReconnectBar feed={feed} />
      <Header />
      <nav className="tabs" aria-label="Views of this job">
        {tabs.map(([name, label]) => (
          <Link key={name} href={name === 'previews' ? `/jobs/${id}` : `/jobs/${id}?tab=${name}`} aria-current={tab === name ? 'page' : undefined}>
            {label}
            {name === 'previews' && open.job.num_samples > 0 && <span className="tab-count">{formatCount(Math.max(open.job.num_samples, store.samples.length))}</span>}
          </Link>
        ))}
      </nav>
      <Suspense fallback={<div className="skeleton" style={{ height: 320 }} />}>
        {tab === 'charts' ? <Charts /> : tab === 'files' ? <Files /> : tab === 'log' ? <Log /> : tab === 'config' ? <Config /> : <Previews loaded={samplesLoaded} />}
      </Suspense>
    </OpenJobContext.Provider>
  );
}
