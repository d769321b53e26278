import { expect, test } from 'vitest';
import { asCurl } from './curl';

test('the curl command takes any text', () => {
  const text = '{"prompt": "it\'s $HOME `x`\\nJOB"}\nJOB';
  expect(asCurl('http://h/v1/jobs', text)).toBe(`curl -sS http://h/v1/jobs -H 'Content-Type: application/json' --data-binary @- <<'JOB_'\n${text}\nJOB_\n`);
});
