/** The same request for a terminal. A quoted here-document needs no escaping, whatever the prompts contain. */
export function asCurl(url: string, text: string): string {
  let mark = 'JOB';
  while (text.split('\n').includes(mark)) mark += '_';
  return `curl -sS ${url} -H 'Content-Type: application/json' --data-binary @- <<'${mark}'\n${text}\n${mark}\n`;
}
