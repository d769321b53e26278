/** What a resume changes, key by key, with what each change does from there on. */
import type { Change, Json } from '../api/types';
import { formatCount } from '../lib/format';
import { PointerLink } from './PointerLink';

const LONGEST = 60;

/** A value in a line: texts as they are, what is not there as "nothing". */
export function shortValue(value: Json): string {
  const text = value === null ? 'nothing' : typeof value === 'string' ? value || '""' : typeof value === 'number' && Number.isInteger(value) ? formatCount(value) : JSON.stringify(value);
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}

interface ChangesProps {
  changes: readonly Change[];
  from: number;
  unit: string;
  nameOf: (pointer: string) => string | null;
  onGoTo: (pointer: string) => void;
}

export function Changes({ changes, from, unit, nameOf, onGoTo }: ChangesProps) {
  return (
    <div className="changes">
      <p>{from > 0 ? <>Goes on from <strong>{unit} {formatCount(from)}</strong></> : <>Begins at the <strong>start</strong>: nothing is saved to go on from</>}{changes.length === 0 && '; nothing changes'}.</p>
      <ul>
        {changes.map(({ pointer, before, after, effect }) => (
          <li key={pointer}>
            <p><PointerLink pointer={pointer} label={nameOf(pointer)} onGoTo={onGoTo} />{' '}
              <del title={JSON.stringify(before)}>{shortValue(before)}</del> <span aria-hidden="true">→</span> <ins title={JSON.stringify(after)}>{shortValue(after)}</ins>
            </p>
            <p className="dim small">{effect}</p>
          </li>
        ))}
      </ul>
    </div>
  );
}
