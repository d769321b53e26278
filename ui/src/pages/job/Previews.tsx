/** What it looks like now: the chosen step large, every step in the contact sheet below. */
import { useMemo, useRef } from 'react';
import { useOpenJob, useStoreVersion } from '../../api/jobStream';
import type { Sample } from '../../api/types';
import { Range } from '../../components/Range';
import { formatCount, plural } from '../../lib/format';
import { mediumOf, NOUN } from '../../lib/media';
import { isEnded, makesPreviews } from '../../lib/status';
import { useParam } from '../../lib/useParam';
import { ContactSheet } from './ContactSheet';
import { toGrid, toStrip, type Grid } from './grid';
import { toMatrix } from './matrix';
import { MatrixSheet } from './MatrixSheet';
import { Stage } from './Stage';
import { Viewer } from './Viewer';
import { Wall } from './Wall';

interface ScrubberProps {
  grid: Grid;
  at: number;
  following: boolean;
  onPick: (column: number) => void;
}

function Scrubber({ grid, at, following, onPick }: ScrubberProps) {
  const column = grid.columns[at];
  const last = grid.columns.length - 1;
  const label = column ? `Step ${formatCount(column.step)}${column.take > 1 ? `, take ${column.take}` : ''}` : '';
  return (
    <div className="scrubber">
      <output className="scrubber-step">{label}</output>
      <Range
        aria-label="Step of all previews"
        aria-valuetext={label}
        min={0}
        max={Math.max(last, 1)}
        value={last === 0 ? 1 : at}
        disabled={last === 0}
        onChange={(event) => onPick(Number(event.currentTarget.value))}
      />
      <button type="button" className="filter" aria-pressed={following} onClick={() => onPick(last)}>Newest</button>
    </div>
  );
}

export function Previews({ loaded }: { loaded: boolean }) {
  const { job, store } = useOpenJob();
  useStoreVersion(store);
  const { samples } = store;
  const matrix = useMemo(() => toMatrix(job.spec, samples), [job.spec, samples]);
  // What the arrows of the viewer walk is what the page shows: steps, a matrix, or pictures one after the other, the newest first.
  const grid = useMemo(() => (job.kind === 'train' ? toGrid(samples) : (matrix?.grid ?? toStrip([...samples].reverse()))), [job.kind, matrix, samples]);
  const otherGrid = useMemo(() => toStrip([...(matrix?.others ?? [])].reverse()), [matrix]);
  const [step, setStep] = useParam('step');
  const [view, setView] = useParam('view');
  // Closing a viewer that was opened here is Back; one that came with the URL has nothing behind it.
  const openedHere = useRef(false);

  const open = (sample: Sample) => {
    openedHere.current = true;
    setView(String(sample.index));
  };
  const close = () => {
    if (openedHere.current) window.history.back();
    else setView(null, { replace: true });
    openedHere.current = false;
  };

  if (samples.length === 0 && !(matrix && loaded)) {
    if (!loaded) return <div className="skeleton" style={{ height: 320 }} />;
    const none = job.kind === 'train' && !makesPreviews(job.spec);
    const [said, more] = isEnded(job.status)
      ? ['This job made no previews.', none && 'It has no prompts, or previews are off. Extend or edit adds some.']
      : none
        ? ['This job makes no previews.', 'It has no prompts, or previews are off.']
        : ['No preview yet.', 'The first pictures appear here by themselves.'];
    return (
      <div className="previews-none">
        <p>{said}</p>
        {more && <p className="dim">{more}</p>}
      </div>
    );
  }
  const media = new Set(samples.map(mediumOf));
  const [medium] = media;
  const noun = media.size === 1 && medium ? NOUN[medium] : 'preview';
  const last = grid.columns.length - 1;
  const chosen = grid.columns.findIndex(({ key }) => key === step);
  const at = chosen < 0 ? last : chosen;
  const pick = (column: number) => setStep(column === last ? null : (grid.columns[column]?.key ?? null), { replace: true });
  const viewed = view ? samples.find(({ index }) => String(index) === view) : undefined;
  return (
    <section aria-label="Previews" className="previews" data-num-samples={samples.length}>
      {job.kind === 'train' ? (
        <>
          <Scrubber grid={grid} at={at} following={chosen < 0} onPick={pick} />
          <Stage grid={grid} at={at} onOpen={open} />
          <h2 className="sheet-title">
            Contact sheet <span className="dim">{plural(samples.length, noun)}, {plural(grid.columns.length, 'step')}</span>
          </h2>
          <ContactSheet grid={grid} at={at} onOpen={open} onPick={pick} />
        </>
      ) : matrix ? (
        <>
          <MatrixSheet job={job} matrix={matrix} onOpen={open} />
          {matrix.others.length > 0 && (
            <>
              <h2 className="sheet-title">
                No longer in the matrix <span className="dim">{plural(matrix.others.length, noun)} of checkpoints, weights or prompts that were taken out</span>
              </h2>
              <Wall samples={matrix.others} onOpen={open} />
            </>
          )}
        </>
      ) : (
        <Wall samples={samples} onOpen={open} />
      )}
      {viewed && <Viewer grid={viewed && matrix?.others.includes(viewed) ? otherGrid : grid} kind={job.kind} sample={viewed} onShow={(sample) => setView(String(sample.index), { replace: true })} onClose={close} />}
    </section>
  );
}
