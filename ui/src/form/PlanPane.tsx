/** What would happen, before it does. */
import type { Finding, Plan, PlanDataset } from '../api/types';
import { withAdvice } from '../lib/findings';
import { formatCount, formatSize, plural } from '../lib/format';
import { Changes } from './Changes';
import { Memory } from './Memory';
import { isPending } from './needs';
import { PointerLink } from './PointerLink';

interface PlanPaneProps {
  plan: Plan | undefined;
  checking: boolean;
  /** The check itself failed (no answer, for instance). */
  trouble: string | null;
  /** An input's label. */
  nameOf: (pointer: string) => string | null;
  onGoTo: (pointer: string) => void;
}

function Buckets({ dataset }: { dataset: PlanDataset }) {
  const most = Math.max(...dataset.buckets.flatMap(({ width, height }) => [width, height]), 1);
  return (
    <ul className="buckets" aria-label="Sizes">
      {dataset.buckets.slice(0, 12).map(({ width, height, images, frames = 1 }) => (
        <li key={`${width} ${height} ${frames}`} title={`${plural(images, 'picture')} at ${width} × ${height} px`}>
          <span className="bucket" style={{ width: (32 * width) / most, height: (32 * height) / most }} aria-hidden="true" />
          <span className="small dim">{width} × {height}{frames > 1 && ` × ${frames} frames`}: {formatCount(images)}</span>
        </li>
      ))}
      {dataset.buckets.length > 12 && <li className="small dim">and {dataset.buckets.length - 12} more sizes</li>}
    </ul>
  );
}

function Dataset({ dataset }: { dataset: PlanDataset }) {
  const { refused, samples = [], masks = 0, controls = 0, held_out: heldOut = 0 } = dataset;
  const notes = [
    ...(dataset.is_reg ? ['of the class in general'] : []),
    ...(heldOut > 0 ? [`${formatCount(heldOut)} held out for validation`] : []),
    ...(masks > 0 ? [plural(masks, 'mask')] : []),
    ...(controls > 0 ? [plural(controls, 'control picture')] : []),
  ];
  return (
    <li>
      <p><strong>{plural(dataset.images, 'picture')}</strong> in <span className="mono">{dataset.folder_path}</span></p>
      {notes.length > 0 && <p className="dim small">{notes.join('; ')}</p>}
      {dataset.captions_missing > 0 && <p className="dim small">{plural(dataset.captions_missing, 'caption')} missing</p>}
      {refused.length > 0 && (
        <details className="small">
          <summary className="warn">{plural(refused.length, 'file')} cannot be read</summary>
          <ul>{refused.slice(0, 50).map(({ file, reason }) => <li key={file}><span className="mono">{file}</span>: {reason}</li>)}</ul>
        </details>
      )}
      <Buckets dataset={dataset} />
      {samples.length > 0 && (
        <details className="small plan-samples">
          <summary className="dim">What a step sees of it</summary>
          <ul>{samples.slice(0, 20).map(({ file, caption, width, height }, i) => <li key={`${i} ${file}`}><span className="mono">{file}</span> <span className="dim">{width} × {height}</span>: {caption || <span className="dim">no caption</span>}</li>)}</ul>
        </details>
      )}
    </li>
  );
}

function Findings({ findings, kind, nameOf, onGoTo }: { findings: readonly Finding[]; kind: 'bad' | 'warn' } & Pick<PlanPaneProps, 'nameOf' | 'onGoTo'>) {
  return (
    <ul className="findings">
      {findings.map((finding) => (
        <li key={`${finding.pointer} ${finding.message}`} className={kind}>
          {finding.pointer && <><PointerLink pointer={finding.pointer} label={nameOf(finding.pointer)} onGoTo={onGoTo} />: </>}{withAdvice(finding)}
        </li>
      ))}
    </ul>
  );
}

const round = (n: number) => formatCount(Number(n.toPrecision(3)));

/** What a job leaves on disk; of one and of all that are kept, all. */
const onDisk = (disk: Record<string, number>) => Object.entries(disk).filter(([what, bytes]) => bytes > 0 && !(`${what}s` in disk));

export function PlanPane({ plan, checking, trouble, nameOf, onGoTo }: PlanPaneProps) {
  // What is being worked out has its place above.
  const notChecked = (plan?.not_checked ?? []).filter((line) => !isPending(line));
  const disk = onDisk(plan?.memory?.disk ?? {});
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
          {plan.problems.length > 0 && <Findings findings={plan.problems} kind="bad" nameOf={nameOf} onGoTo={onGoTo} />}
          {plan.warnings.length > 0 && <Findings findings={plan.warnings} kind="warn" nameOf={nameOf} onGoTo={onGoTo} />}
          {plan.goes_on_from !== null && <Changes changes={plan.changes} from={plan.goes_on_from} unit={plan.spec?.kind === 'sample' ? 'picture' : 'step'} nameOf={nameOf} onGoTo={onGoTo} />}
          {plan.datasets.length > 0 && <ul className="plan-datasets">{plan.datasets.map((dataset, place) => <Dataset key={`${place} ${dataset.folder_path}`} dataset={dataset} />)}</ul>}
          <Memory plan={plan} />
          <dl className="plan-facts">
            {plan.steps_per_epoch !== null && <div><dt>Steps in an epoch</dt><dd>{round(plan.steps_per_epoch)}</dd></div>}
            {plan.epochs !== null && <div><dt>Epochs</dt><dd>{round(plan.epochs)}</dd></div>}
            {plan.memory && plan.memory.trained_parameters > 0 && <div><dt>Trained parameters</dt><dd>{formatCount(plan.memory.trained_parameters)}</dd></div>}
            {disk.map(([what, bytes]) => <div key={what}><dt>Disk for {what.replaceAll('_', ' ')}</dt><dd>{formatSize(bytes)}</dd></div>)}
            {plan.ok && <div><dt>Workers that can run it</dt><dd>{plan.workers.length > 0 ? plan.workers.join(', ') : 'none now; it waits in the queue'}</dd></div>}
          </dl>
          {notChecked.length > 0 && <p className="dim small">Not checked: {notChecked.join('; ')}</p>}
        </>
      )}
    </section>
  );
}
