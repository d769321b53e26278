import { expect, test } from 'vitest';
import { inWords, withAdvice } from './findings';

test('a suggestion is the name that was meant, a value to use, or advice', () => {
  const typo = { pointer: '/train/step', message: "unknown key 'step'", suggestion: 'steps', misspelt: true };
  const size = { pointer: '/sample/width', message: '1000 must be a multiple of 16', suggestion: '992', misspelt: false };
  const large = { pointer: '/model', message: 'the job needs 9.0 GiB', suggestion: 'it would fit with model.quantize: true' };
  expect([withAdvice(typo), inWords(typo)]).toEqual(["unknown key 'step'", "unknown key 'step'. Did you mean steps?"]);
  expect(inWords(size)).toBe('1000 must be a multiple of 16. Use 992.');
  expect([withAdvice(large), inWords(large)]).toEqual(new Array(2).fill('the job needs 9.0 GiB; it would fit with model.quantize: true'));
  expect(inWords({ pointer: '', message: 'no worker' })).toBe('no worker');
});
