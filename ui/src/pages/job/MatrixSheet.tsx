/** A matrix of pictures as a table: rows are prompts, columns are checkpoints at weights. Its place is there before its pictures. */
import type { Job, Sample } from '../../api/types';
import { Picture } from '../../components/bits';
import { formatValue } from '../../lib/format';
import { nameOf } from '../../lib/media';
import { isEnded } from '../../lib/status';
import type { Matrix } from './matrix';

interface MatrixSheetProps {
  job: Job;
  matrix: Matrix;
  onOpen: (sample: Sample) => void;
}

export function MatrixSheet({ job, matrix, onOpen }: MatrixSheetProps) {
  const { grid, heads, numWeights } = matrix;
  const first = grid.columns.flatMap(({ cells }) => cells).find(Boolean);
  const shape = first ? `${first.width || 1} / ${first.height || 1}` : '1';
  const hole = isEnded(job.status) ? 'not made' : 'to come';
  return (
    <div className="matrix-scroller" tabIndex={0} role="region" aria-label="Pictures by prompt, checkpoint and weight">
      <table className="matrix">
        <thead>
          <tr>
            <td rowSpan={2} className="matrix-corner" />
            {heads.map(({ checkpoint, label }, column) => column % numWeights === 0 && <th key={column} colSpan={numWeights} scope="colgroup" className="matrix-checkpoint" title={checkpoint}>{label}</th>)}
          </tr>
          <tr>{heads.map(({ weight }, column) => <th key={column} scope="col" className="matrix-weight">weight {formatValue(weight)}</th>)}</tr>
        </thead>
        <tbody>
          {grid.rows.map(({ promptIndex, prompt }, row) => (
            <tr key={promptIndex}>
              <th scope="row" className="matrix-prompt" title={prompt}><span>{prompt || 'no prompt'}</span></th>
              {grid.columns.map(({ key, cells }, column) => {
                const sample = cells[row];
                const head = heads[column];
                const where = head ? `${head.label}, weight ${formatValue(head.weight)}` : '';
                return (
                  <td key={key}>
                    {sample ? (
                      <button type="button" className="sheet-cell" data-sample-index={sample.index} onClick={() => onOpen(sample)} aria-label={`Open ${nameOf(sample)}, ${where}, full screen`} title={`${sample.prompt}\n${where}`} data-nav>
                        <Picture sample={sample} shownAt={160} alt="" />
                      </button>
                    ) : (
                      <div className="matrix-hole dim small" style={{ aspectRatio: shape }}>{hole}</div>
                    )}
                    <p className="matrix-label small dim clip" aria-hidden="true">{head && `${head.label} × ${formatValue(head.weight)}`}</p>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
