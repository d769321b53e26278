/** Home: what is running, what waits, what has ended. */
import { Button, TextInput } from '@mantine/core';
import { useInfiniteQuery, useQuery } from '@tanstack/react-query';
import { useEffect, useState } from 'react';
import { api } from '../api/api';
import { useListFeed } from '../api/lists';
import { Notice, ReconnectBar } from '../components/bits';
import { SearchIcon } from '../components/icons';
import { ACTIVE, ENDED, OPEN } from '../lib/status';
import { useParam } from '../lib/useParam';
import { EmptyJobs } from './jobs/EmptyJobs';
import { EndedTable } from './jobs/EndedTable';
import { Paused, Queue } from './jobs/Queue';
import { RunningCard } from './jobs/RunningCard';
import './jobs/jobs.css';

const SHOW: [value: string, label: string][] = [['', 'All'], ['succeeded', 'Done'], ['failed', 'Failed'], ['canceled', 'Stopped']];

function Search() {
  const [q, setQ] = useParam('q');
  const [text, setText] = useState(q);
  useEffect(() => setText(q), [q]); // Back changes the URL; the field follows
  useEffect(() => {
    if (text === q) return;
    const timer = setTimeout(() => setQ(text, { replace: true }), 200);
    return () => clearTimeout(timer);
  }, [q, setQ, text]);
  return (
    <TextInput
      type="search"
      className="search"
      aria-label="Search jobs by name"
      placeholder="Search jobs"
      leftSection={<SearchIcon size={16} />}
      value={text}
      onChange={(event) => setText(event.currentTarget.value)}
    />
  );
}

export function JobsPage() {
  const feed = useListFeed();
  const [q] = useParam('q');
  const [show, setShow] = useParam('show');
  useEffect(() => void (document.title = 'Jobs · Safelight'), []);

  const open = useQuery({
    queryKey: ['jobs', 'open', q],
    queryFn: () => api.jobs({ status: OPEN, q, limit: 200 }),
    placeholderData: (before) => before,
  });
  const ended = useInfiniteQuery({
    queryKey: ['jobs', 'ended', q, show],
    queryFn: ({ pageParam }) => api.jobs({ status: ENDED.filter((status) => show === '' || status === show), q, limit: 50, cursor: pageParam }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: (before) => before,
  });

  const error = open.error ?? ended.error;
  if (error && !open.data) {
    return (
      <Notice tone="bad" title="The list of jobs did not load" action={<Button variant="default" onClick={() => void open.refetch()}>Try again</Button>}>
        {error.message}
      </Notice>
    );
  }
  if (!open.data || !ended.data) {
    return (
      <div className="stack" aria-hidden="true">
        <div className="skeleton" style={{ height: 168 }} />
        <div className="skeleton" style={{ height: 320 }} />
      </div>
    );
  }

  // One job that changes its state between two answers may be in both; each list takes only what is its own.
  const active = open.data.jobs.filter((job) => ACTIVE.includes(job.status)).reverse();
  const queued = open.data.jobs.filter((job) => job.status === 'queued');
  const paused = open.data.jobs.filter((job) => job.status === 'paused');
  const past = ended.data.pages.flatMap((page) => page.jobs).filter((job) => ENDED.includes(job.status));
  const filtered = q !== '' || show !== '';
  const nothing = active.length + queued.length + paused.length + past.length === 0;

  if (nothing && !filtered) {
    return (
      <>
        <ReconnectBar feed={feed} />
        <EmptyJobs />
      </>
    );
  }
  return (
    <div className="jobs">
      <ReconnectBar feed={feed} />
      <div className="jobs-head">
        <h1>Jobs</h1>
        <Search />
      </div>

      {active.length > 0 && (
        <section aria-label="Running">
          <div className="cards">{active.map((job) => <RunningCard key={job.id} job={job} />)}</div>
        </section>
      )}

      {queued.length > 0 && <Queue jobs={queued} />}

      {paused.length > 0 && <Paused jobs={paused} />}

      <section aria-labelledby="past-title">
        <div className="section-head">
          <h2 id="past-title">Ended</h2>
          <div className="filters" role="group" aria-label="Which ended jobs are shown">
            {SHOW.map(([value, label]) => (
              <button key={value} type="button" className="filter" aria-pressed={show === value} onClick={() => setShow(value)}>{label}</button>
            ))}
          </div>
        </div>
        {past.length > 0 ? (
          <EndedTable jobs={past} />
        ) : (
          <p className="dim none">
            {filtered ? 'Nothing matches. ' : 'Nothing has ended yet.'}
          </p>
        )}
        {ended.hasNextPage && (
          <Button variant="default" mt={12} loading={ended.isFetchingNextPage} onClick={() => void ended.fetchNextPage()}>Show more</Button>
        )}
      </section>
    </div>
  );
}
