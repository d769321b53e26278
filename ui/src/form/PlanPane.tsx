/** What would happen, before it does. */
import type { Finding, Plan, PlanDataset } from '../api/types';
import { formatCount, plural } from '../lib/format';

interface PlanPaneProps {
  plan: Plan | undefined;
  checking: boolean;
  /** The check itself failed (no answer, for instance). */
  trouble: string | null;
  onGoTo: (pointer: string) => void;
}

function Buckets({ dataset }: { dataset: PlanDataset }) {
  const most = Math.max(...dataset.buckets.flatMap(({ width, height }) => [width, height]), 1);
  return (
    <ul className="buckets" aria-label="Sizes">
      {dataset.buckets.slice(0, 12).map(({ width, height, images }) => (
        <li key={`${width} ${height}`} title={`${plural(images, 'picture')} at ${width} × ${height} px`}>
          <span className="bucket" style={{ width: (32 * width) / most, height: (32 * height) / most }} aria-hidden="true" />
          <span className="small dim">{width} × {height}: {formatCount(images)}</span>
        </li>
      ))}
      {dataset.buckets.length > 12 && <li className="small dim">and {dataset.buckets.length - 12} more sizes</li>}
    </ul>
  );
}

function Dataset({ dataset }: { dataset: PlanDataset }) {
  const { refused } = dataset;
  return (
    <li>
      <p><strong>{plural(dataset.images, 'picture')}</strong> in <span className="mono">{dataset.folder_path}</span></p>
      {dataset.captions_missing > 0 && <p className="dim small">{plural(dataset.captions_missing, 'caption')} missing</p>}
      {refused.length > 0 && (
        <details className="small">
          <summary className="warn">{plural(refused.length, 'file')} cannot be read</summary>
          <ul>{refused.slice(0, 50).map(({ file, reason }) => <li key={file}><span className="mono">{file}</span>: {reason}</li>)}</ul>
        </details>
      )}
      <Buckets dataset={dataset} />
    </li>
  );
}

function Findings({ findings, kind, onGoTo }: { findings: readonly Finding[]; kind: 'bad' | 'warn'; onGoTo: (pointer: string) => void }) {
  return (
    <ul className="findings">
      {findings.map(({ pointer, message }) => (
        <li key={`${pointer} ${message}`} className={kind}>
          {message} {pointer && <button type="button" className="button-link mono" onClick={() => onGoTo(pointer)}>{pointer.slice(1).replaceAll('/', '.')}</button>}
        </li>
      ))}
    </ul>
  );
}

const round = (n: number) => formatCount(Number(n.toPrecision(3)));

export function PlanPane({ plan, checking, trouble, onGoTo }: PlanPaneProps) {
  return (
    <section className="plan" aria-labelledby="plan-title" aria-busy={checking}>
      <div className="section-head">
        <h2 id="plan-title">Plan</h2>
        <span className={`small ${plan && plan.problems.length > 0 ? 'bad' : 'dim'}`} role="status">
          {trouble ? 'Not checked' : !plan ? 'Checking' : plan.ok ? 'This will run' : plan.problems.length === 0 ? 'Checking' : `${plural(plan.problems.length, 'thing')} to mend`}
        </span>
      </div>
      {trouble && <p className="warn small">{trouble}</p>}
      {!plan && !trouble && <div className="skeleton" style={{ height: 96 }} />}
      {plan && (
        <>
          {plan.problems.length > 0 && <Findings findings={plan.problems} kind="bad" onGoTo={onGoTo} />}
          {plan.warnings.length > 0 && <Findings findings={plan.warnings} kind="warn" onGoTo={onGoTo} />}
          {plan.datasets.length > 0 && <ul className="plan-datasets">{plan.datasets.map((dataset) => <Dataset key={dataset.folder_path} dataset={dataset} />)}</ul>}
          <dl className="plan-facts">
            {plan.steps_per_epoch !== null && <div><dt>Steps in an epoch</dt><dd>{round(plan.steps_per_epoch)}</dd></div>}
            {plan.epochs !== null && <div><dt>Epochs</dt><dd>{round(plan.epochs)}</dd></div>}
            {plan.ok && <div><dt>Workers that can run it</dt><dd>{plan.workers.length > 0 ? plan.workers.join(', ') : 'none now; it waits in the queue'}</dd></div>}
          </dl>
          {plan.not_checked.length > 0 && <p className="dim small">Not checked: {plan.not_checked.join('; ')}</p>}
        </>
      )}
    </section>
  );
}
