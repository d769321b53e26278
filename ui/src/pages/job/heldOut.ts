/** The losses on pictures that are not trained on, all in one and by noise level, as lines of one chart. */
import { VALIDATION, type SeriesData } from '../../api/jobStore';
import type { JsonObject } from '../../api/types';
import { getAt } from '../../lib/pointer';
import type { Line } from './Chart';

/** The series that this job will have; a level is told with six digits. */
export function validationNames(spec: JsonObject): string[] {
  const levels = getAt(spec, '/validation/timesteps');
  return Array.isArray(levels) ? [VALIDATION, ...levels.map((level) => `${VALIDATION}/${Number(Number(level).toPrecision(6))}`)] : [];
}

/** From cold for little noise to warm for much; never the red of failure. */
const colourOf = (share: number) => `oklch(0.68 0.13 ${Math.round(190 + 130 * share)})`;

/** Null while there is no value. */
export function toHeldOut(series: Readonly<Record<string, SeriesData>>): { steps: number[]; lines: Line[] } | null {
  const all = series[VALIDATION];
  if (!all || all.steps.length === 0) return null;
  const level = (name: string) => Number(name.slice(VALIDATION.length + 1));
  const names = Object.keys(series).filter((name) => name.startsWith(`${VALIDATION}/`)).sort((a, b) => level(a) - level(b));
  const lines = names.map((name, i): Line => {
    const { steps, values } = series[name] as SeriesData;
    const bySteps = new Map(steps.map((step, at) => [step, values[at] ?? null]));
    return { name: `noise ${level(name)}`, values: all.steps.map((step) => bySteps.get(step) ?? null), look: 'thin', colour: colourOf(names.length > 1 ? i / (names.length - 1) : 0) };
  });
  return { steps: all.steps, lines: [...lines, { name: 'all', values: all.values, look: 'strong' }] };
}
