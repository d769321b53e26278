import { expect, test } from 'vitest';
import type { JsonObject, Sample } from '../../api/types';
import { neighbour, toStrip } from './grid';
import { shortNames, toMatrix } from './matrix';

const spec: JsonObject = { matrix: { checkpoints: ['job:j_1/a_5.safetensors', 'job:j_1/a_9.safetensors'], weights: [0, 1] }, samples: [{ prompt: 'x' }, { prompt: 'y' }, { prompt: 'z' }] };
const made = (index: number, cell: number): Sample => ({
  index, cell, step: cell + 1, prompt_index: cell % 3, prompt: '', seed: 1, width: 64, height: 64, url: '', thumbnail_url: null, created_at: '',
});

test('its shape is known before its first picture', () => {
  const matrix = toMatrix(spec, []);
  expect(matrix?.grid.rows.map(({ prompt }) => prompt)).toEqual(['x', 'y', 'z']);
  expect(matrix?.heads.map(({ label, weight }) => `${label} ${weight}`)).toEqual(['a_5 0', 'a_5 1', 'a_9 0', 'a_9 1']);
  expect(matrix?.grid.columns.flatMap(({ cells }) => cells)).toEqual(new Array(12).fill(undefined));
});

test('a cell counts prompts fastest, then weights, then checkpoints; the newest telling of one stands', () => {
  const matrix = toMatrix(spec, [made(1, 0), made(2, 5), made(3, 11), made(4, 5)]);
  expect(matrix?.grid.columns.map(({ cells }) => cells.map((cell) => cell?.index))).toEqual([[1, undefined, undefined], [undefined, undefined, 4], [undefined, undefined, undefined], [undefined, undefined, 3]]);
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
