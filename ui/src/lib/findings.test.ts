import { expect, test } from 'vitest';
import { inWords, withAdvice } from './findings';

test('a suggestion is what was meant, or advice', () => {
  const typo = { pointer: '/train/step', message: "unknown key 'step'", suggestion: 'steps' };
  const large = { pointer: '/model', message: 'the job needs 9.0 GiB', suggestion: 'it would fit with model.quantize: true' };
  expect([withAdvice(typo), inWords(typo)]).toEqual(["unknown key 'step'", "unknown key 'step'. Did you mean steps?"]);
  expect([withAdvice(large), inWords(large)]).toEqual(new Array(2).fill('the job needs 9.0 GiB; it would fit with model.quantize: true'));
  expect(inWords({ pointer: '', message: 'no worker' })).toBe('no worker');
});
