import { NativeSelect, TextInput } from '@mantine/core';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';
import { api } from '../../api/api';
import { useOpenJob, useStoreVersion } from '../../api/jobStream';
import { SearchIcon } from '../../components/icons';
import { formatCount } from '../../lib/format';
import { useParam } from '../../lib/useParam';
import { filterLines, LEVELS, toLines, type Level } from './logLines';

/** More would make typing in the search slow, and nobody reads them; the file itself has all. */
const MOST_LINES = 2000;

/** The log's text. Events only ring: the text is asked for from the last byte on, one request at a time. */
function useLogText(): { text: string; error: string | null } {
  const { job, store } = useOpenJob();
  useStoreVersion(store);
  const [state, setState] = useState({ text: '', error: null as string | null });
  const next = useRef(0);
  const asking = useRef(false);
  const again = useRef(false);
  useEffect(() => {
    let gone = false;
    const ask = async () => {
      if (asking.current) {
        again.current = true;
        return;
      }
      asking.current = true;
      try {
        const part = await api.log(job.id, next.current);
        if (gone) return;
        next.current = part.next;
        setState((before) => ({ text: part.text ? before.text + part.text : before.text, error: null }));
      } catch (error) {
        if (!gone) setState((before) => ({ ...before, error: (error as Error).message }));
      } finally {
        asking.current = false;
      }
      if (again.current) {
        again.current = false;
        void ask();
      }
    };
    void ask();
    return () => {
      gone = true;
    };
  }, [job.id, job.status, store.logBell]);
  return state;
}

export function Log() {
  const { text, error } = useLogText();
  const [find, setFind] = useParam('find');
  const [level, setLevel] = useParam('level', 'info');
  const lines = useMemo(() => toLines(text), [text]);
  const matching = useMemo(() => filterLines(lines, LEVELS.includes(level as Level) ? (level as Level) : 'info', find), [lines, level, find]);
  const shown = matching.slice(-MOST_LINES);
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown.length]);
  return (
    <section aria-label="Log" className="stack">
      <div className="row wrap">
        <TextInput type="search" className="search" aria-label="Search the log" placeholder="Search the log" leftSection={<SearchIcon size={16} />} value={find} onChange={(event) => setFind(event.currentTarget.value, { replace: true })} />
        <NativeSelect aria-label="Least level" value={level} onChange={(event) => setLevel(event.currentTarget.value, { replace: true })} data={[{ value: 'debug', label: 'Everything' }, { value: 'info', label: 'Info and above' }, { value: 'warning', label: 'Warnings and errors' }, { value: 'error', label: 'Errors only' }]} />
        <span className="dim small">
          {find || level !== 'info' ? `${formatCount(matching.length)} of ${formatCount(lines.length)} lines` : `${formatCount(lines.length)} lines`}
          {matching.length > MOST_LINES && `, the last ${formatCount(MOST_LINES)} shown`}
        </span>
      </div>
      {error && <p className="bad small" role="alert">{error}</p>}
      <div
        ref={box}
        className="panel log mono"
        tabIndex={0}
        aria-label="Log lines"
        role="log"
        aria-live="off"
        onScroll={(event) => {
          const element = event.currentTarget;
          atEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - 8;
        }}
      >
        {shown.map((line) => <div key={line.number} className={`log-line log-${line.level}`}>{line.text}</div>)}
        {shown.length === 0 && <p className="dim">{lines.length === 0 ? 'The log is empty so far.' : 'No line matches.'}</p>}
      </div>
    </section>
  );
}
