/** The job as JSON, with line numbers; mistakes and findings are marked at their line. */
import { useRef } from 'react';
import type { Finding } from '../api/types';
import { CopyText } from '../components/CopyText';
import { asCurl } from './curl';
import type { Draft } from './useDraft';

function lineOf(lines: Map<string, number> | null, pointer: string): number | null {
  if (!lines) return null;
  for (let at = pointer; ; at = at.slice(0, at.lastIndexOf('/'))) {
    const line = lines.get(at);
    if (line !== undefined) return line;
    if (at === '') return null;
  }
}

interface JsonPaneProps {
  draft: Draft;
  problems: readonly Finding[];
  /** Where a POST of this text does what the page's button does. */
  path: string;
}

export function JsonPane({ draft, problems, path }: JsonPaneProps) {
  const { text, mistake, lines, setText } = draft;
  const gutter = useRef<HTMLDivElement>(null);
  const bad = new Set(mistake ? [mistake.line] : problems.map(({ pointer }) => lineOf(lines, pointer)));
  const count = text.split('\n').length;
  return (
    <div className="json">
      <div className="section-head">
        <h2 id="json-title">JSON</h2>
        <div className="row" style={{ gap: 0 }}>
          <CopyText text={text}>Copy</CopyText>
          <CopyText text={asCurl(`${window.location.origin}${path}`, text)}>Copy as curl</CopyText>
        </div>
      </div>
      <div className="json-box" data-invalid={mistake !== null || undefined}>
        <div className="json-gutter mono" ref={gutter} aria-hidden="true">
          {Array.from({ length: count }, (_, i) => <div key={i} data-bad={bad.has(i + 1) || undefined}>{i + 1}</div>)}
        </div>
        <textarea
          className="mono"
          aria-labelledby="json-title"
          aria-describedby="json-mistake"
          aria-invalid={mistake !== null || undefined}
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          wrap="off"
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
          onScroll={(event) => {
            if (gutter.current) gutter.current.style.transform = `translateY(${-event.currentTarget.scrollTop}px)`;
          }}
        />
      </div>
      <p id="json-mistake" className={`small ${mistake ? 'bad' : 'dim'}`} aria-live="polite">
        {mistake ? `Line ${mistake.line}, column ${mistake.column}: ${mistake.message}` : 'Edit here or in the form; both stay the same.'}
      </p>
    </div>
  );
}
