/** What was asked for: as JSON, or the lines that differ from a preset or from another job. */
import { Button, NativeSelect } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useMemo } from 'react';
import { Link } from 'wouter';
import { api } from '../../api/api';
import { useOpenJob } from '../../api/jobStream';
import type { Job, JsonObject } from '../../api/types';
import { CopyText } from '../../components/CopyText';
import { writeJson } from '../../form/jsonText';
import { plural } from '../../lib/format';
import { diffLines, toPieces } from '../../lib/diff';
import { useParam } from '../../lib/useParam';

const CONTEXT = 2;
const MOST_JOBS = 50;
const PRESET = 'preset:';
const JOB = 'job:';

interface Others {
  presets: { name: string; label: string; spec: JsonObject }[];
  jobs: Job[];
  loading: boolean;
  error: Error | null;
}

/** What this job can be compared with: presets of its model and kind, and the newest jobs. One that the URL names is asked for. */
function useOthers(job: Job, against: string): Others {
  const arch = useQuery({ queryKey: ['arch', job.arch], queryFn: () => api.arch(job.arch), staleTime: Infinity });
  const recent = useQuery({ queryKey: ['jobs', 'recent'], queryFn: () => api.jobs({ limit: MOST_JOBS }) });
  const listed = recent.data?.jobs ?? [];
  const wanted = against.startsWith(JOB) ? against.slice(JOB.length) : '';
  const missing = wanted !== '' && recent.data !== undefined && !listed.some(({ id }) => id === wanted);
  const named = useQuery({ queryKey: ['job', wanted], queryFn: () => api.job(wanted), enabled: missing });
  return {
    presets: (arch.data?.presets ?? []).filter(({ spec }) => spec.kind === job.kind),
    jobs: [...listed, ...(missing && named.data ? [named.data] : [])].filter(({ id }) => id !== job.id),
    loading: arch.isPending || recent.isPending || (missing && named.isPending),
    error: named.error ?? recent.error,
  };
}

const lines = (spec: JsonObject) => writeJson(spec).split('\n');
const MARK = { same: ' ', gone: '−', new: '+' };

function Difference({ from, to, name }: { from: JsonObject; to: JsonObject; name: string }) {
  const all = useMemo(() => diffLines(lines(from), lines(to)), [from, to]);
  const gone = all.filter(({ kind }) => kind === 'gone').length;
  const added = all.filter(({ kind }) => kind === 'new').length;
  if (gone + added === 0) return <p className="dim previews-none">Nothing differs from {name}.</p>;
  return (
    <>
      <p className="small dim">{plural(added, 'line')} of this job, {plural(gone, 'line')} of {name}.</p>
      <pre className="panel mono config diff" tabIndex={0} aria-label={`Lines that differ from ${name}`}>
        {toPieces(all, CONTEXT).map((piece, i) =>
          'skipped' in piece ? (
            <span key={i} className="diff-skip">{plural(piece.skipped, 'line')} the same{'\n'}</span>
          ) : (
            piece.lines.map(({ kind, text }, j) => <span key={`${i} ${j}`} className={`diff-${kind}`}>{`${MARK[kind]} ${text}\n`}</span>)
          ),
        )}
      </pre>
    </>
  );
}

export function Config() {
  const { job } = useOpenJob();
  const [against, setAgainst] = useParam('against');
  const { presets, jobs, loading, error } = useOthers(job, against);
  const text = writeJson(job.spec);
  const preset = presets.find(({ name }) => against === PRESET + name);
  const other = jobs.find(({ id }) => against === JOB + id);
  const spec = preset?.spec ?? other?.spec;
  return (
    <section aria-label="Config" className="stack">
      <div className="row wrap">
        <Button component={Link} href={`/new?from=${encodeURIComponent(job.id)}`} variant="default">Duplicate</Button>
        <NativeSelect
          aria-label="Compare with"
          value={spec ? against : ''}
          onChange={(event) => setAgainst(event.currentTarget.value)}
          data={[
            { value: '', label: 'Compare with…' },
            ...(presets.length > 0 ? [{ group: 'Presets', items: presets.map(({ name, label }) => ({ value: PRESET + name, label })) }] : []),
            ...(jobs.length > 0 ? [{ group: 'Jobs', items: jobs.map(({ id, name }) => ({ value: JOB + id, label: name })) }] : []),
          ]}
        />
        <CopyText text={text}>Copy JSON</CopyText>
        <span className="dim small mono">{job.id}</span>
      </div>
      {error && <p className="bad small" role="alert">{error.message}</p>}
      {spec ? (
        <Difference from={spec} to={job.spec} name={preset ? `the preset ${preset.label}` : (other?.name ?? '')} />
      ) : against && loading ? (
        <div className="skeleton" style={{ height: 320 }} />
      ) : (
        <pre className="panel mono config" tabIndex={0} aria-label="The job as JSON">{text}</pre>
      )}
    </section>
  );
}
