import type { Sample } from '../../api/types';
import { Picture } from '../../components/bits';
import { formatValue } from '../../lib/format';
import { nameOf } from '../../lib/media';
import { fileName } from './matrix';

/** Pictures of a job that only makes pictures, newest first. */
export function Wall({ samples, onOpen }: { samples: readonly Sample[]; onOpen: (sample: Sample) => void }) {
  return (
    <ul className="wall">
      {[...samples].reverse().map((sample) => (
        <li key={sample.index}>
          <button type="button" className="stage-picture" data-sample-index={sample.index} onClick={() => onOpen(sample)} aria-label={`Open ${nameOf(sample)} full screen`} data-nav>
            <Picture sample={sample} shownAt={256} alt="" />
          </button>
          <p className="stage-caption" title={sample.prompt}>{sample.prompt}</p>
          {sample.checkpoint != null && <p className="dim small clip" title={sample.checkpoint}>{fileName(sample.checkpoint)} × {formatValue(sample.weight)}</p>}
        </li>
      ))}
    </ul>
  );
}
