/** The same request for a terminal. A quoted here-document needs no escaping, whatever the prompts contain. */
export function asCurl(origin: string, text: string): string {
  let mark = 'JOB';
  while (text.split('\n').includes(mark)) mark += '_';
  return `curl -sS ${origin}/v1/jobs -H 'Content-Type: application/json' --data-binary @- <<'${mark}'\n${text}\n${mark}\n`;
}
