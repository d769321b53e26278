/** The URL is the state: one query parameter as a React state. */
import { useCallback } from 'react';
import { useSearchParams } from 'wouter';

interface Write {
  /** Replace the history entry, for values that change while dragging or typing. */
  replace?: boolean;
}

/** The parameter's text (or `fallback`), and a setter; the fallback and null take it out of the URL. */
export function useParam(name: string, fallback = ''): [string, (value: string | null, write?: Write) => void] {
  const [params, setParams] = useSearchParams();
  const set = useCallback(
    (value: string | null, write: Write = {}) => {
      setParams(
        (before) => {
          const next = new URLSearchParams(before);
          if (value === null || value === fallback || value === '') next.delete(name);
          else next.set(name, value);
          return next;
        },
        { replace: write.replace ?? false },
      );
    },
    [fallback, name, setParams],
  );
  return [params.get(name) ?? fallback, set];
}
