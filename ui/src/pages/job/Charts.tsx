import { Switch } from '@mantine/core';
import { useQueries, useQuery } from '@tanstack/react-query';
import { useEffect, useMemo } from 'react';
import { api } from '../../api/api';
import { useOpenJob, useStoreVersion } from '../../api/jobStream';
import { METRICS, type Metric } from '../../api/jobStore';
import { Range } from '../../components/Range';
import { useParam } from '../../lib/useParam';
import { Chart, type Tick } from './Chart';
import { onlyPositive, smooth } from './series';
import { toHeldOut, validationNames } from './heldOut';

const TITLES: Record<Metric, string> = { loss: 'Loss', lr: 'Learning rate', grad_norm: 'Gradient norm', step_seconds: 'Step time' };
const UNITS: Partial<Record<Metric, string>> = { step_seconds: 's' };
const MOST_POINTS = 2000;

export function Charts() {
  const { job, store } = useOpenJob();
  const version = useStoreVersion(store);
  const [log, setLog] = useParam('log');
  const [smoothing, setSmoothing] = useParam('smooth', '0.9');
  const weight = Math.min(Math.max(Number(smoothing) || 0, 0), 0.995);

  // Asked once for an open job, however often this tab is opened; from then on the stream appends.
  const names = useMemo(() => [...METRICS, ...validationNames(job.spec)], [job.spec]);
  const fetched = useQueries({
    queries: names.map((name) => ({ queryKey: ['metrics', job.id, name], queryFn: () => api.metrics(job.id, name, MOST_POINTS), enabled: !store.fetched.has(name), staleTime: Infinity, gcTime: 0 })),
  });
  const answers = fetched.map(({ data }) => data);
  useEffect(() => {
    names.forEach((name, i) => {
      const answer = answers[i];
      if (answer) store.addSeries(name, answer.points);
    });
    // eslint-disable-next-line -- answers are listed one by one: their array is new at every render
  }, [store, names, ...answers]);

  // The stream has this asked again at each new checkpoint.
  const files = useQuery({ queryKey: ['files', job.id], queryFn: () => api.files(job.id) });
  const ticks = useMemo<Tick[]>(
    () => [
      ...[...new Set(store.samples.map(({ step }) => step))].map((step) => ({ step, kind: 'preview' as const })),
      ...(files.data ?? []).filter(({ kind, step }) => kind === 'weights' && step !== null).map(({ step }) => ({ step: step as number, kind: 'checkpoint' as const })),
    ],
    [store.samples, files.data],
  );
  const loss = store.series.loss;
  const lossValues = log ? onlyPositive(loss.values) : loss.values;
  // `version` stands for the arrays, which grow in place.
  const smoothed = useMemo(() => smooth(lossValues, weight), [version, weight, log]); // eslint-disable-line
  const heldOut = useMemo(() => toHeldOut(store.series), [version, store]); // eslint-disable-line -- as above
  const problem = fetched.find(({ error }) => error)?.error;
  return (
    <section aria-label="Charts" className="stack">
      <div className="chart-tools row wrap">
        <Switch label="Log scale" checked={log === '1'} onChange={(event) => setLog(event.currentTarget.checked ? '1' : null, { replace: true })} />
        <label className="row small">
          Smoothing
          <Range min={0} max={0.99} step={0.01} value={weight} onChange={(event) => setSmoothing(event.currentTarget.value, { replace: true })} aria-valuetext={String(weight)} />
          <output style={{ width: 32 }}>{weight.toFixed(2)}</output>
        </label>
        <span className="dim small chart-hint">Drag to zoom, double click to reset. Marks: previews, and checkpoints in amber.</span>
      </div>
      {problem && <p className="bad" role="alert">{problem.message}</p>}
      <div className="charts">
        <Chart title={TITLES.loss} steps={loss.steps} lines={[{ values: lossValues, look: 'faint' }, { values: smoothed, look: 'strong' }]} log={log === '1'} ticks={ticks} />
        {heldOut && <Chart title="Loss on held-out pictures" steps={heldOut.steps} lines={log ? heldOut.lines.map((line) => ({ ...line, values: onlyPositive(line.values) })) : heldOut.lines} dots={heldOut.steps.length < 100} log={log === '1'} ticks={ticks} />}
        {(['lr', 'grad_norm', 'step_seconds'] as const).map((name) => {
          const { steps, values } = store.series[name];
          return <Chart key={name} title={TITLES[name]} {...(UNITS[name] ? { unit: UNITS[name] } : {})} steps={steps} lines={[{ values, look: 'strong' }]} ticks={ticks} />;
        })}
      </div>
    </section>
  );
}
