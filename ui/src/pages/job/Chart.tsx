/** One chart over steps. New points are appended to the same plot; only a changed look makes a new one. */
import { useComputedColorScheme } from '@mantine/core';
import { useEffect, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { formatCount, formatValue } from '../../lib/format';

const HEIGHT = 220;

export interface Tick {
  step: number;
  kind: 'preview' | 'checkpoint';
}

interface ChartProps {
  title: string;
  unit?: string;
  steps: number[];
  values: (number | null)[];
  smoothed?: (number | null)[] | undefined;
  log?: boolean;
  ticks: readonly Tick[];
}

const cssVar = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Short marks on the bottom axis: checkpoints in the accent colour, previews in grey. */
function drawTicks(plot: uPlot, ticks: readonly Tick[]): void {
  const { ctx, bbox } = plot;
  const bottom = bbox.top + bbox.height;
  ctx.save();
  let lastPreview = -Infinity;
  for (const { step, kind } of ticks) {
    const x = plot.valToPos(step, 'x', true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    // Marks that would touch are one mark; hundreds of previews are no bar.
    if (kind === 'preview') {
      if (x - lastPreview < 6 * devicePixelRatio) continue;
      lastPreview = x;
    }
    ctx.fillStyle = cssVar(kind === 'checkpoint' ? '--accent' : '--ink-3');
    const length = (kind === 'checkpoint' ? 10 : 5) * devicePixelRatio;
    ctx.fillRect(x - devicePixelRatio / 2, bottom - length, devicePixelRatio, length);
  }
  ctx.restore();
}

export function Chart({ title, unit, steps, values, smoothed, log = false, ticks }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const ticksNow = useRef(ticks);
  ticksNow.current = ticks;
  const zoomed = useRef(false);
  const [cursor, setCursor] = useState<number | null>(null);
  const scheme = useComputedColorScheme('dark', { getInitialValueInEffect: false });
  const twoLines = smoothed !== undefined;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const axis = { stroke: cssVar('--ink-2'), grid: { stroke: cssVar('--line'), width: 1 }, ticks: { show: false }, font: `12px ${getComputedStyle(document.body).fontFamily}` };
    const accent = cssVar('--accent');
    const faint = { stroke: `color-mix(in srgb, ${accent} 35%, transparent)`, width: 1, points: { show: false }, spanGaps: true };
    const strong = { stroke: accent, width: 2, points: { show: false }, spanGaps: true };
    const made = new uPlot(
      {
        width: element.clientWidth || 400,
        height: HEIGHT,
        legend: { show: false },
        padding: [8, 12, 0, 0],
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
        axes: [
          { ...axis, size: 28, values: (_plot, splits) => splits.map((step) => (Number.isInteger(step) ? formatCount(step) : '')) },
          { ...axis, size: 64, values: (_plot, splits) => splits.map((value) => (value == null ? '' : formatValue(value))) },
        ],
        series: [{}, ...(twoLines ? [faint, strong] : [strong])],
        cursor: { sync: { key: 'job' }, points: { size: 6 }, drag: { x: true, y: false } },
        hooks: {
          draw: [(self) => drawTicks(self, ticksNow.current)],
          setCursor: [(self) => setCursor(self.cursor.idx ?? null)],
          // A drag narrows the view; until a double click widens it again, new points must not reset it.
          setSelect: [() => void (zoomed.current = true)],
        },
      },
      [[], [], ...(twoLines ? [[]] : [])] as uPlot.AlignedData,
      element,
    );
    made.over.addEventListener('dblclick', () => void (zoomed.current = false));
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [log, scheme, twoLines]);

  useEffect(() => {
    plot.current?.setData([steps, values, ...(smoothed ? [smoothed] : [])] as uPlot.AlignedData, !zoomed.current);
    if (zoomed.current) plot.current?.redraw();
  });

  const line = smoothed ?? values;
  // The smoothed line may be a moment behind the steps, which grow in place.
  const at = cursor ?? Math.min(steps.length, line.length) - 1;
  const shown = line[at];
  const suffix = unit ? ` ${unit}` : '';
  return (
    <figure className="chart panel">
      <figcaption>
        <h2>{title}</h2>
        <span className="dim">{steps.length > 0 ? `${formatValue(shown)}${suffix} at step ${formatCount(steps[at] ?? 0)}` : 'no points yet'}</span>
      </figcaption>
      <div ref={box} style={{ height: HEIGHT }} role="img" aria-label={`${title} over ${formatCount(steps.length)} points, last ${formatValue(values.at(-1))}${suffix}`} />
    </figure>
  );
}
