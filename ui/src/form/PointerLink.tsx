/** An input's label, which takes the focus to it; the key where there is no such input. */
export function PointerLink({ pointer, label, onGoTo }: { pointer: string; label: string | null; onGoTo: (pointer: string) => void }) {
  const key = pointer.slice(1).replaceAll('/', '.');
  return <button type="button" className={`button-link${label === null ? ' mono' : ''}`} title={key} onClick={() => onGoTo(pointer)}>{label ?? key}</button>;
}
