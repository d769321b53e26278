import { expect, test } from 'vitest';
import type { JsonObject, Sample } from '../../api/types';
import { neighbour, toStrip } from './grid';
import { shortNames, toMatrix } from './matrix';

const spec: JsonObject = { matrix: { checkpoints: ['job:j_1/a_5.safetensors', 'job:j_1/a_9.safetensors'], weights: [0, 1] }, samples: [{ prompt: 'x' }, { prompt: 'y' }, { prompt: 'z' }] };
const places = ['a_5', 'a_9'].flatMap((name) => [0, 1].flatMap((weight) => [0, 1, 2].map((prompt_index) => ({ checkpoint: `job:j_1/${name}.safetensors`, weight, prompt_index }))));
const made = (index: number, cell: number): Sample => ({
  ...(places[cell] as { checkpoint: string; weight: number; prompt_index: number }), index, step: cell + 1, prompt: '', seed: 1, width: 64, height: 64, url: '', thumbnail_url: null, created_at: '',
});
const shown = (matrix: ReturnType<typeof toMatrix>) => matrix?.grid.columns.map(({ cells }) => cells.map((cell) => cell?.index ?? null));

test('its shape is known before its first picture', () => {
  const matrix = toMatrix(spec, []);
  expect(matrix?.grid.rows.map(({ prompt }) => prompt)).toEqual(['x', 'y', 'z']);
  expect(matrix?.heads.map(({ label, weight }) => `${label} ${weight}`)).toEqual(['a_5 0', 'a_5 1', 'a_9 0', 'a_9 1']);
  expect(matrix?.grid.columns.flatMap(({ cells }) => cells)).toEqual(new Array(12).fill(undefined));
});

test('a picture stands under its checkpoint and weight, beside its prompt; the newest telling of one stands', () => {
  const matrix = toMatrix(spec, [made(1, 0), made(2, 5), made(3, 11), made(4, 5)]);
  expect(matrix?.grid.columns.map(({ cells }) => cells.map((cell) => cell?.index))).toEqual([[1, undefined, undefined], [undefined, undefined, 4], [undefined, undefined, undefined], [undefined, undefined, 3]]);
});

test('a matrix that grew keeps every picture in its place', () => {
  const pictures = [made(1, 0), made(2, 3), made(3, 6), made(4, 9)];
  const grown: JsonObject = { ...spec, matrix: { checkpoints: ['job:j_1/a_5.safetensors', 'job:j_1/a_9.safetensors'], weights: [0, 0.5, 1] } };
  expect(shown(toMatrix(grown, pictures))).toEqual([[1, null, null], [null, null, null], [2, null, null], [3, null, null], [null, null, null], [4, null, null]]);
  expect(toMatrix(grown, pictures)?.others).toEqual([]);
});

test('what the job has no more is kept beside the matrix', () => {
  const pictures = [made(1, 0), made(2, 3), made(3, 6), made(4, 9), made(5, 11)];
  const other: JsonObject = { matrix: { checkpoints: ['job:j_1/a_9.safetensors'], weights: [1] }, samples: [{ prompt: 'x' }, { prompt: 'y' }] };
  const matrix = toMatrix(other, pictures);
  expect(shown(matrix)).toEqual([[4, null]]);
  expect(matrix?.others.map(({ index }) => index)).toEqual([1, 2, 3, 5]);
});

test('arrows walk the matrix, over holes', () => {
  const samples = [made(1, 2), made(2, 11), made(3, 9)];
  const grid = toMatrix(spec, samples)?.grid as never;
  expect(neighbour(grid, samples[0] as Sample, 'right')?.index).toBe(2);
  expect(neighbour(grid, samples[1] as Sample, 'up')?.index).toBe(3);
  expect(neighbour(grid, samples[1] as Sample, 'down')).toBeUndefined();
});

test('a job without a matrix has none, and its pictures are walked in their order', () => {
  expect(toMatrix({ matrix: null, samples: [] }, [])).toBeNull();
  const samples = [made(7, 0), made(8, 1)];
  expect(neighbour(toStrip(samples), samples[0] as Sample, 'right')?.index).toBe(8);
  expect(neighbour(toStrip(samples), samples[0] as Sample, 'left')).toBeUndefined();
});

test('names are short as long as they tell checkpoints apart', () => {
  expect(shortNames(['job:a/x.safetensors', 'job:b/x.safetensors'])).toEqual(['job:a/x.safetensors', 'job:b/x.safetensors']);
  expect(shortNames(['x.safetensors', 'x.safetensors'])).toEqual(['x', 'x']);
  expect(shortNames(['job:a/x_000000250.safetensors', 'job:a/x_000001000.safetensors'])).toEqual(['step 250', 'step 1,000']);
  expect(shortNames(['job:a/x_000000250.safetensors', 'job:b/y_000000250.safetensors'])).toEqual(['x_000000250', 'y_000000250']);
  expect(shortNames(['job:a/x_000000250.safetensors', 'job:b/x_000000250.safetensors'])).toEqual(['job:a/x_000000250.safetensors', 'job:b/x_000000250.safetensors']);
});
