import { expect, test } from 'vitest';
import type { Sample } from '../../api/types';
import { neighbour, pictureAt, toGrid } from './grid';
import { smooth } from './series';
import { shownWidth } from './size';

const made = (index: number, step: number, prompt_index: number): Sample => ({
  index, step, prompt_index, prompt: `prompt ${prompt_index}`, seed: 1, width: 64, height: 64, url: '', thumbnail_url: null, created_at: '',
});
const samples = [made(1, 0, 0), made(2, 0, 1), made(3, 10, 0), made(4, 10, 1), made(5, 20, 0)];

test('rows are prompts, columns are steps, and every picture has one place', () => {
  const grid = toGrid(samples);
  expect(grid.rows.map(({ prompt }) => prompt)).toEqual(['prompt 0', 'prompt 1']);
  expect(grid.columns.map(({ step, cells }) => [step, cells.map((cell) => cell?.index)])).toEqual([[0, [1, 2]], [10, [3, 4]], [20, [5, undefined]]]);
});

test('a step that was done again is a column of its own', () => {
  const grid = toGrid([...samples, made(6, 10, 0), made(7, 10, 1)]);
  expect(grid.columns.map(({ key }) => key)).toEqual(['0', '10', '10.2', '20']);
  expect(grid.columns.flatMap(({ cells }) => cells).filter(Boolean)).toHaveLength(7);
});

test('a column that is still being made shows the picture before', () => {
  const grid = toGrid(samples);
  expect(pictureAt(grid, 1, 2)?.index).toBe(4);
  expect(pictureAt(grid, 0, 2)?.index).toBe(5);
});

test('arrows walk steps and prompts, over holes, and stop at the edges', () => {
  const grid = toGrid(samples);
  const from = (index: number) => samples[index - 1] as Sample;
  expect(neighbour(grid, from(1), 'right')?.index).toBe(3);
  expect(neighbour(grid, from(4), 'right')).toBeUndefined();
  expect(neighbour(grid, from(5), 'left')?.index).toBe(3);
  expect(neighbour(grid, from(1), 'down')?.index).toBe(2);
  expect(neighbour(grid, from(5), 'down')).toBeUndefined();
});

test('small pictures grow by whole factors, large ones fill the room', () => {
  expect(shownWidth(32, 340)).toBe(320);
  expect(shownWidth(64, 300)).toBe(256);
  expect(shownWidth(64, 250)).toBe(250);
  expect(shownWidth(1024, 340)).toBe(340);
});

test('smoothing starts at the first value and keeps holes', () => {
  expect(smooth([4, 4, null, 4], 0.9).map((value) => value && Number(value.toFixed(6)))).toEqual([4, 4, null, 4]);
  expect(smooth([0, 1], 0.5)[1]).toBeCloseTo(2 / 3);
});
