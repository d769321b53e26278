import { expect, test } from 'vitest';
import { toHeldOut, validationNames } from './heldOut';

test('a job that validates has one series for all and one for each noise level', () => {
  expect(validationNames({ validation: { timesteps: [125.0, 12.5, 1000 / 3] } })).toEqual(['val/loss', 'val/loss/125', 'val/loss/12.5', 'val/loss/333.333']);
  expect(validationNames({ validation: null })).toEqual([]);
  expect(validationNames({})).toEqual([]);
});

test('lines stand over the same steps, from little noise to much, the whole on top', () => {
  const made = toHeldOut({
    'val/loss': { steps: [10, 20], values: [3, 2] },
    'val/loss/875': { steps: [20], values: [5] },
    'val/loss/125': { steps: [10, 20], values: [1, null] },
    loss: { steps: [1], values: [9] },
  });
  expect(made?.steps).toEqual([10, 20]);
  expect(made?.lines.map(({ name, values, look }) => [name, values, look])).toEqual([['noise 125', [1, null], 'thin'], ['noise 875', [null, 5], 'thin'], ['all', [3, 2], 'strong']]);
});

test('without a value there is no chart', () => {
  expect(toHeldOut({ loss: { steps: [1], values: [1] } })).toBeNull();
  expect(toHeldOut({ 'val/loss': { steps: [], values: [] } })).toBeNull();
});
