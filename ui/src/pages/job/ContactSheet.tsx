/** Every preview: rows are prompts, columns are steps, the newest at the right edge. Only columns near the view are drawn. */
import { useVirtualizer } from '@tanstack/react-virtual';
import { useEffect, useLayoutEffect, useRef, useState } from 'react';
import type { Sample } from '../../api/types';
import { Picture } from '../../components/bits';
import { formatCount } from '../../lib/format';
import { nameOf } from '../../lib/media';
import type { Grid } from './grid';

const CELL = 72;
const GAP = 6;
const REST_MS = 150;

/** A cell that flies past asks for no picture: thousands of requests would hold up those that are looked at. */
function CellPicture({ sample, flying }: { sample: Sample; flying: boolean }) {
  const [wanted, setWanted] = useState(!flying);
  useEffect(() => {
    if (wanted) return;
    const timer = setTimeout(() => setWanted(true), REST_MS);
    return () => clearTimeout(timer);
  }, [wanted]);
  return wanted ? <Picture sample={sample} shownAt={CELL} alt="" /> : <div className="picture" />;
}

interface SheetProps {
  grid: Grid;
  at: number;
  onOpen: (sample: Sample) => void;
  onPick: (column: number) => void;
}

export function ContactSheet({ grid, at, onOpen, onPick }: SheetProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const atEdge = useRef(true);
  const first = grid.columns[0]?.cells.find(Boolean);
  const cellHeight = first && first.width > 0 ? Math.round((CELL * first.height) / first.width) : CELL;
  const virtual = useVirtualizer({
    horizontal: true,
    count: grid.columns.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => CELL + GAP,
    overscan: 12,
    getItemKey: (index) => grid.columns[index]?.key ?? index,
  });

  useEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const onScroll = () => {
      atEdge.current = element.scrollLeft + element.clientWidth >= element.scrollWidth - 4;
    };
    element.addEventListener('scroll', onScroll, { passive: true });
    return () => element.removeEventListener('scroll', onScroll);
  }, []);

  // Whoever looks at the newest edge stays there; whoever scrolled back is left alone.
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element && atEdge.current) element.scrollLeft = element.scrollWidth;
  }, [grid.columns.length]);

  // Scrubbing takes the sheet along once it rests: on the way, every column passed would ask for its pictures. A new column that
  // becomes the chosen one by itself moves nothing.
  const following = at === grid.columns.length - 1;
  const shownAt = useRef(at);
  useEffect(() => {
    if (following || at === shownAt.current) return;
    const timer = setTimeout(() => {
      shownAt.current = at;
      virtual.scrollToIndex(at, { align: 'auto' });
    }, REST_MS);
    return () => clearTimeout(timer);
  }, [at, following, virtual]);

  return (
    <div className="sheet">
      <div className="sheet-prompts" aria-hidden="true">
        <div className="sheet-head" />
        {grid.rows.map(({ promptIndex, prompt }) => (
          <div key={promptIndex} className="sheet-prompt" style={{ height: cellHeight }} title={prompt}><span>{prompt}</span></div>
        ))}
      </div>
      <div className="sheet-scroller" ref={scroller}>
        <div className="sheet-columns" style={{ width: virtual.getTotalSize(), height: 28 + grid.rows.length * (cellHeight + GAP) }}>
          {virtual.getVirtualItems().map((item) => {
            const column = grid.columns[item.index];
            if (!column) return null;
            return (
              <div key={column.key} className="sheet-column" data-chosen={item.index === at || undefined} style={{ transform: `translateX(${item.start}px)`, width: CELL }}>
                <button type="button" className="sheet-step" onClick={() => onPick(item.index)} aria-label={`Show step ${column.step} above`} aria-pressed={item.index === at}>
                  {formatCount(column.step)}{column.take > 1 && '′'}
                </button>
                {column.cells.map((sample, row) =>
                  sample ? (
                    <button key={sample.index} type="button" className="sheet-cell" style={{ height: cellHeight }} data-sample-index={sample.index} onClick={() => onOpen(sample)} aria-label={`Open ${nameOf(sample)}, step ${sample.step}, full screen`}>
                      <CellPicture sample={sample} flying={virtual.isScrolling} />
                    </button>
                  ) : (
                    <div key={`hole ${row}`} className="sheet-hole" style={{ height: cellHeight }} />
                  ),
                )}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
