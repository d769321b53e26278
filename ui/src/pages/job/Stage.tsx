import { useElementSize } from '@mantine/hooks';
import type { Sample } from '../../api/types';
import { CRISP_FROM, Picture } from '../../components/bits';
import { ExpandIcon } from '../../components/icons';
import { Player } from '../../components/Player';
import { formatCount } from '../../lib/format';
import { mediumOf, nameOf } from '../../lib/media';
import { pictureAt, type Grid } from './grid';
import { shownWidth } from './size';

const GAP = 16;

/** Columns that make the pictures as large as they can be without a row of its own for the last one or two. */
function columnsFor(count: number, width: number): number {
  const most = Math.max(1, Math.floor((width + GAP) / (width < 560 ? 150 + GAP : 240 + GAP)));
  if (count <= most) return count;
  const rows = Math.ceil(count / most);
  return Math.ceil(count / rows);
}

interface StageProps {
  grid: Grid;
  at: number;
  onOpen: (sample: Sample) => void;
}

/** One large picture for each prompt, at the chosen step. A clip or a sound plays in its place, so a button of its own opens it. */
export function Stage({ grid, at, onOpen }: StageProps) {
  const { ref, width } = useElementSize<HTMLUListElement>();
  const columns = columnsFor(grid.rows.length, width || 1200);
  const room = Math.min(512, Math.floor(((width || 1200) - GAP * (columns - 1)) / columns));
  const step = grid.columns[at]?.step;
  return (
    <ul className="stage" ref={ref} style={{ gridTemplateColumns: `repeat(${columns}, minmax(0, ${room}px))` }}>
      {grid.rows.map(({ promptIndex, prompt }, row) => {
        const sample = pictureAt(grid, row, at);
        const plays = sample !== undefined && mediumOf(sample) !== 'image';
        const shown = shownWidth(sample?.width ?? 0, room);
        return (
          <li key={promptIndex}>
            {sample && plays ? (
              <div style={{ maxWidth: shown }}><Player sample={sample} crisp={shown >= CRISP_FROM * sample.width} /></div>
            ) : sample ? (
              <button type="button" className="stage-picture" style={{ maxWidth: shown }} onClick={() => onOpen(sample)} aria-label={`Open ${prompt || 'picture'}, step ${sample.step}, full screen`} data-nav>
                <Picture sample={sample} shownAt={shown} alt="" eager full={sample.width <= 1024} />
              </button>
            ) : (
              <div className="stage-hole" />
            )}
            <div className="stage-foot" style={{ maxWidth: shown || room }}>
              <p className="stage-caption" title={prompt}>{prompt || <span className="dim">no prompt</span>}</p>
              {sample && sample.step !== step && <span className="dim small">still step {formatCount(sample.step)}</span>}
              {sample && plays && (
                <button type="button" className="stage-open" onClick={() => onOpen(sample)} aria-label={`Open ${nameOf(sample)}, step ${sample.step}, full screen`} data-nav><ExpandIcon size={16} /></button>
              )}
            </div>
          </li>
        );
      })}
    </ul>
  );
}
