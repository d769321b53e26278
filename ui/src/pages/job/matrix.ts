/** A matrix of pictures: every prompt (row) for each checkpoint at each weight (columns). Its shape is known before its first picture. */
import type { Json, JsonObject, Sample } from '../../api/types';
import { formatCount } from '../../lib/format';
import { getAt } from '../../lib/pointer';
import type { Grid } from './grid';

export interface Matrix {
  grid: Grid;
  /** One for each column. */
  heads: { checkpoint: string; label: string; weight: number }[];
  numWeights: number;
  /** Pictures of checkpoints, weights or prompts that the job has no more. */
  others: Sample[];
}

const listAt = (spec: JsonObject, pointer: string): Json[] => {
  const found = getAt(spec, pointer);
  return Array.isArray(found) ? found : [];
};

/** "job:j_1/emoji_000000250.safetensors" -> "emoji_000000250". */
export const fileName = (path: string): string => (path.split('/').at(-1) ?? path).replace(/\.safetensors$/, '');

/** "job:j_1/emoji_000000250.safetensors" -> "step 250" among checkpoints of one run, else "emoji_000000250", each only as long as it
 * tells them apart. */
export function shortNames(paths: readonly string[]): string[] {
  const names = paths.map(fileName);
  const parts = names.map((name) => /^(.*)_(\d{6,})$/.exec(name));
  const steps = parts.map((part) => `step ${formatCount(Number(part?.[2]))}`);
  const ofOneRun = parts.every((part) => part !== null && part[1] === parts[0]?.[1]);
  const tellsApart = (short: string[]) => new Set(short).size === new Set(paths).size;
  return [...(ofOneRun ? [steps] : []), names].find(tellsApart) ?? [...paths];
}

/** The matrix of this job, null when it asks for none. What a picture is made of says where it belongs, however the matrix has grown since. */
export function toMatrix(spec: JsonObject, samples: readonly Sample[]): Matrix | null {
  const checkpoints = listAt(spec, '/matrix/checkpoints').map(String);
  const weights = listAt(spec, '/matrix/weights').map(Number);
  const prompts = listAt(spec, '/samples').map((one) => String(getAt(one, '/prompt') ?? ''));
  if (checkpoints.length === 0 || weights.length === 0) return null;
  const labels = shortNames(checkpoints);
  const heads = checkpoints.flatMap((checkpoint, i) => weights.map((weight) => ({ checkpoint, label: labels[i] ?? checkpoint, weight })));
  const columns = heads.map((_, column) => ({ key: String(column), step: 0, take: 1, cells: new Array<Sample | undefined>(prompts.length).fill(undefined) }));
  const others: Sample[] = [];
  for (const sample of samples) {
    const column = columns[heads.findIndex(({ checkpoint, weight }) => checkpoint === sample.checkpoint && weight === sample.weight)];
    // What a resumed job made again is newer, and comes later.
    if (column && sample.prompt_index < prompts.length) column.cells[sample.prompt_index] = sample;
    else others.push(sample);
  }
  return { grid: { rows: prompts.map((prompt, promptIndex) => ({ promptIndex, prompt })), columns }, heads, numWeights: weights.length, others };
}
