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

export interface Line {
  /** What the legend calls it; a chart whose lines have names has a legend. */
  name?: string;
  values: (number | null)[];
  look: 'strong' | 'faint' | 'thin';
  /** Of a thin line: any CSS colour. */
  colour?: string;
}

interface ChartProps {
  title: string;
  unit?: string;
  steps: number[];
  /** The last strong one is the one that is told in words. */
  lines: readonly Line[];
  /** Few points, each of which counts, are drawn as dots too. */
  dots?: boolean;
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

/** How uPlot is told to draw a line. */
function drawn({ look, colour }: Pick<Line, 'look' | 'colour'>, dots: boolean): uPlot.Series {
  const accent = cssVar('--accent');
  const stroke = look === 'thin' ? (colour ?? accent) : look === 'faint' ? `color-mix(in srgb, ${accent} 35%, transparent)` : accent;
  return { stroke, width: look === 'strong' ? 2 : 1, points: { show: dots, size: 5, fill: stroke }, spanGaps: true };
}

export function Chart({ title, unit, steps, lines, dots = false, log = false, ticks }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const ticksNow = useRef(ticks);
  ticksNow.current = ticks;
  const zoomed = useRef(false);
  const [cursor, setCursor] = useState<number | null>(null);
  const scheme = useComputedColorScheme('dark', { getInitialValueInEffect: false });
  // The plot is made anew when its lines look different, not when they grow.
  const looks = JSON.stringify(lines.map(({ look, colour }) => ({ look, colour })));

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const axis = { stroke: cssVar('--ink-2'), grid: { stroke: cssVar('--line'), width: 1 }, ticks: { show: false }, font: `12px ${getComputedStyle(document.body).fontFamily}` };
    const series = (JSON.parse(looks) as Pick<Line, 'look' | 'colour'>[]).map((line) => drawn(line, dots));
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
        series: [{}, ...series],
        cursor: { sync: { key: 'job' }, points: { size: 6 }, drag: { x: true, y: false } },
        hooks: {
          draw: [(self) => drawTicks(self, ticksNow.current)],
          setCursor: [(self) => setCursor(self.cursor.idx ?? null)],
          // A drag narrows the view; until a double click widens it again, new points must not reset it.
          setSelect: [() => void (zoomed.current = true)],
        },
      },
      [[], ...series.map(() => [])] as unknown as uPlot.AlignedData,
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
  }, [dots, log, looks, scheme]);

  useEffect(() => {
    plot.current?.setData([steps, ...lines.map(({ values }) => values)] as uPlot.AlignedData, !zoomed.current);
    if (zoomed.current) plot.current?.redraw();
  });

  const line = lines.findLast(({ look }) => look === 'strong')?.values ?? [];
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
      {lines.some(({ name }) => name) && (
        <ul className="chart-legend small">
          {lines.map(({ name, values, look, colour }) => <li key={name}><span className="chart-swatch" data-look={look} style={{ background: look === 'thin' ? colour : 'var(--accent)' }} aria-hidden="true" />{name} <span className="dim">{formatValue(values[at])}</span></li>)}
        </ul>
      )}
      <div ref={box} style={{ height: HEIGHT }} role="img" aria-label={`${title} over ${formatCount(steps.length)} points, last ${formatValue((lines.length > 1 && lines[0]?.look === 'faint' ? lines[0].values : line).at(-1))}${suffix}`} />
    </figure>
  );
}
