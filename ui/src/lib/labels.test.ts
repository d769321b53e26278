import { expect, test } from 'vitest';
import { atInput, inLabels, titlesOf } from './labels';

const titles = titlesOf({
  properties: { train: { $ref: '#/$defs/Train', title: 'Training' } },
  $defs: {
    Train: { properties: { loss_type: { title: 'Loss' }, huber_c: { title: 'Huber bend' }, seed: { title: 'Seed' } } },
    Model: { properties: { quantize: { title: 'Quantize' }, qtype: { title: 'Quantized to' } } },
  },
});

test("problems are said in the form's labels, and an input's own key is not said again", () => {
  const said = (pointer: string, message: string) => atInput({ pointer, message }, titles).message;
  expect(said('/train/huber_c', 'huber_c means nothing unless train.loss_type is huber')).toBe('means nothing unless Loss is huber');
  expect(said('/model/qtype', 'qtype means nothing unless model.quantize is true')).toBe('means nothing unless Quantize is true');
  expect(said('/train/seed', 'must be a whole number, not 2.5')).toBe('must be a whole number, not 2.5');
});

test('words, values and files that are no keys stay', () => {
  const text = "a seed of one_step in a.png and 'huber_x' at 0.5";
  expect(inLabels(text, titles)).toBe(text);
  expect(atInput({ pointer: '/model', message: 'it needs 9.0 GiB', suggestion: 'it would fit with model.quantize: true' }, titles).suggestion).toBe('it would fit with Quantize: true');
});
