/** The job being written: one spec with two faces, the form and the JSON text. Kept for this tab, so that a reload loses nothing. */
import { useCallback, useMemo, useState } from 'react';
import type { Json, JsonObject } from '../api/types';
import { parseJson, writeJson, type JsonMistake } from './jsonText';
import { isObject } from './schema';

export interface Draft {
  spec: JsonObject;
  text: string;
  /** Why the text is not a job just now; the form then still shows the last good spec. */
  mistake: JsonMistake | null;
  lines: Map<string, number> | null;
  setSpec: (change: (spec: JsonObject) => Json) => void;
  setText: (text: string) => void;
  forget: () => void;
}

interface Kept {
  spec: JsonObject;
  text: string;
}

function recall(key: string): Kept | null {
  try {
    const kept = sessionStorage.getItem(key);
    return kept ? (JSON.parse(kept) as Kept) : null;
  } catch {
    return null; // storage is off: drafts then live as long as the page
  }
}

function keep(key: string, kept: Kept | null): void {
  try {
    if (kept) sessionStorage.setItem(key, JSON.stringify(kept));
    else sessionStorage.removeItem(key);
  } catch {
    // as above
  }
}

/** `name` tells drafts apart; mount anew (a React key) for another name. A new draft is `start`. */
export function useDraft(name: string, start: JsonObject): Draft {
  const key = `safelight draft ${name}`;
  const [kept, setKept] = useState<Kept>(() => recall(key) ?? { spec: start, text: writeJson(start) });
  const parsed = useMemo(() => parseJson(kept.text), [kept.text]);

  const update = useCallback(
    (change: (before: Kept) => Kept) =>
      setKept((before) => {
        const next = change(before);
        keep(key, next);
        return next;
      }),
    [key],
  );
  const setSpec = useCallback(
    (change: (spec: JsonObject) => Json) =>
      update((before) => {
        const next = change(before.spec);
        return isObject(next) ? { spec: next, text: writeJson(next) } : before;
      }),
    [update],
  );
  const setText = useCallback(
    (text: string) =>
      update((before) => {
        const { value } = parseJson(text);
        return { text, spec: value !== null && isObject(value) ? value : before.spec };
      }),
    [update],
  );
  const forget = useCallback(() => keep(key, null), [key]);

  const notAnObject = parsed.mistake === null && !isObject(parsed.value);
  const mistake = notAnObject ? { line: 1, column: 1, message: 'a job is an object: { … }' } : parsed.mistake;
  return { spec: kept.spec, text: kept.text, mistake, lines: parsed.lines, setSpec, setText, forget };
}
