import { useEffect, useRef } from 'react';

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(target.tagName));

/** Runs `actions[key]` for a plain key press outside of fields and dialogs. */
export function useShortcuts(actions: Record<string, () => void>): void {
  const current = useRef(actions);
  current.current = actions;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (document.querySelector('[role="dialog"]')) return;
      if (isTyping(event.target)) {
        // Esc leaves the field first; a second Esc goes back.
        if (event.key === 'Escape') (event.target as HTMLElement).blur();
        return;
      }
      const action = current.current[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    window.addEventListener('keydown', onKey);
    return () => window.removeEventListener('keydown', onKey);
  }, []);
}

/** Moves the focus among the elements that carry `data-nav`, in page order. */
export function moveFocus(by: 1 | -1): void {
  const stops = [...document.querySelectorAll<HTMLElement>('[data-nav]')];
  const at = stops.indexOf(document.activeElement as HTMLElement);
  const next = at < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(Math.max(at + by, 0), stops.length - 1);
  stops[next]?.focus();
  stops[next]?.scrollIntoView({ block: 'nearest' });
}
