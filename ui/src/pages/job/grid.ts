/** Previews as rows (prompts) and columns (steps). */
import type { Sample } from '../../api/types';

export interface Column {
  /** Unique: a step that was done again after a crash is a column of its own. */
  key: string;
  step: number;
  take: number;
  /** By row; a hole where that prompt has no picture (yet). */
  cells: (Sample | undefined)[];
}

export interface Row {
  promptIndex: number;
  prompt: string;
}

export interface Grid {
  rows: Row[];
  columns: Column[];
}

export function toGrid(samples: readonly Sample[]): Grid {
  const prompts = new Map<number, string>();
  for (const sample of samples) prompts.set(sample.prompt_index, sample.prompt);
  const rows = [...prompts].sort(([a], [b]) => a - b).map(([promptIndex, prompt]) => ({ promptIndex, prompt }));
  const rowOf = new Map(rows.map(({ promptIndex }, row) => [promptIndex, row]));

  const columns = new Map<string, Column>();
  const takes = new Map<string, number>();
  for (const sample of samples) {
    const place = `${sample.step} ${sample.prompt_index}`;
    const take = (takes.get(place) ?? 0) + 1;
    takes.set(place, take);
    const key = take === 1 ? String(sample.step) : `${sample.step}.${take}`;
    let column = columns.get(key);
    if (!column) {
      column = { key, step: sample.step, take, cells: new Array<Sample | undefined>(rows.length).fill(undefined) };
      columns.set(key, column);
    }
    column.cells[rowOf.get(sample.prompt_index) as number] = sample;
  }
  return { rows, columns: [...columns.values()].sort((a, b) => a.step - b.step || a.take - b.take) };
}

/** The newest picture of a row at or before a column, so that a column still being made shows no hole. */
export function pictureAt(grid: Grid, row: number, column: number): Sample | undefined {
  for (let at = column; at >= 0; at -= 1) {
    const sample = grid.columns[at]?.cells[row];
    if (sample) return sample;
  }
  return undefined;
}

export type Direction = 'left' | 'right' | 'up' | 'down';

/** The next picture from `sample` in a direction; holes are stepped over. */
export function neighbour(grid: Grid, sample: Sample, direction: Direction): Sample | undefined {
  const isIt = (cell: Sample | undefined) => cell?.index === sample.index;
  const column = grid.columns.findIndex(({ cells }) => cells.some(isIt));
  const row = grid.columns[column]?.cells.findIndex(isIt) ?? -1;
  if (row < 0) return undefined;
  const by = direction === 'left' || direction === 'up' ? -1 : 1;
  if (direction === 'left' || direction === 'right') {
    for (let at = column + by; at >= 0 && at < grid.columns.length; at += by) {
      const next = grid.columns[at]?.cells[row];
      if (next) return next;
    }
    return undefined;
  }
  for (let at = row + by; at >= 0 && at < grid.rows.length; at += by) {
    const next = grid.columns[column]?.cells[at];
    if (next) return next;
  }
  return undefined;
}

/** Pictures that were made one after the other and have no other order: one row. */
export function toStrip(samples: readonly Sample[]): Grid {
  return { rows: [{ promptIndex: 0, prompt: '' }], columns: samples.map((sample) => ({ key: String(sample.index), step: sample.step, take: 1, cells: [sample] })) };
}
