/** A key of the job that takes the focus to its input: "train.steps". */
export function PointerLink({ pointer, onGoTo }: { pointer: string; onGoTo: (pointer: string) => void }) {
  return <button type="button" className="button-link mono" onClick={() => onGoTo(pointer)}>{pointer.slice(1).replaceAll('/', '.')}</button>;
}
