/** What the job saved: its checkpoints by step, each to download and to pin, and its other files. */
import { Button } from '@mantine/core';
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { api } from '../../api/api';
import { useOpenJob } from '../../api/jobStream';
import type { JobFile } from '../../api/types';
import { Notice, When } from '../../components/bits';
import { DownloadIcon, PinIcon } from '../../components/icons';
import { formatCount, formatSize } from '../../lib/format';
import { getAt } from '../../lib/pointer';
import { toCheckpoints, type Checkpoint } from './checkpoints';

function PinButton({ jobId, checkpoint }: { jobId: string; checkpoint: Checkpoint }) {
  const client = useQueryClient();
  const { step, pinned } = checkpoint;
  const pin = useMutation({
    mutationFn: () => api.pin(jobId, step, !pinned),
    onSettled: () => client.invalidateQueries({ queryKey: ['files', jobId] }),
  });
  return (
    <>
      <Button
        variant="subtle"
        size="xs"
        px={8}
        color={pinned ? 'amber' : 'gray'}
        c={pinned ? 'var(--accent-ink)' : 'dimmed'}
        leftSection={<PinIcon size={16} filled={pinned} />}
        aria-label={pinned ? `Pinned; unpin the checkpoint of step ${formatCount(step)}` : `Pin the checkpoint of step ${formatCount(step)}`}
        title={pinned ? 'Kept whatever comes. Press to let it go when its turn comes.' : 'Keeps it whatever comes: newer checkpoints do not push it out.'}
        loading={pin.isPending}
        onClick={() => pin.mutate()}
      >
        <span className="pin-word">{pinned ? 'Pinned' : 'Pin'}</span>
      </Button>
      {pin.error && <p className="bad small" role="alert">{pin.error.message}</p>}
    </>
  );
}

function Download({ file }: { file: JobFile }) {
  return <a className="link row" href={file.url} download data-nav aria-label={`Download ${file.path}`}><DownloadIcon size={16} /><span className="download-word">Download</span></a>;
}

function CheckpointRows({ jobId, checkpoint }: { jobId: string; checkpoint: Checkpoint }) {
  return checkpoint.files.map((file, i) => (
    <tr key={file.path} data-step={checkpoint.step}>
      <td className="cell-number cell-step">{i === 0 && formatCount(checkpoint.step)}</td>
      <td className="cell-file"><span className="mono">{file.path}</span></td>
      <td className="cell-number">{formatSize(file.size)}</td>
      <td className="cell-when dim"><When iso={file.created_at} /></td>
      <td className="cell-pin">{i === 0 && <PinButton jobId={jobId} checkpoint={checkpoint} />}</td>
      <td className="cell-result"><Download file={file} /></td>
    </tr>
  ));
}

/** Both tables have the same columns at the same places. */
const Columns = () => (
  <colgroup>
    <col className="cell-step" />
    <col />
    <col className="cell-number" />
    <col className="cell-when" />
    <col className="cell-pin" />
    <col className="cell-result" />
  </colgroup>
);

export function Files() {
  const { job } = useOpenJob();
  const files = useQuery({ queryKey: ['files', job.id], queryFn: () => api.files(job.id) });
  if (files.error) {
    return <Notice tone="bad" title="The files did not load" action={<Button variant="default" onClick={() => void files.refetch()}>Try again</Button>}>{files.error.message}</Notice>;
  }
  if (!files.data) return <div className="skeleton" style={{ height: 200 }} />;
  const { checkpoints, others } = toCheckpoints(files.data);
  if (checkpoints.length + others.length === 0) return <p className="dim previews-none">No files yet. The first checkpoint appears here when it is saved.</p>;
  const kept = getAt(job.spec, '/save/max_step_saves_to_keep');
  return (
    <>
      {checkpoints.length > 0 && (
        <section aria-labelledby="checkpoints-title">
          <div className="section-head">
            <h2 id="checkpoints-title">Checkpoints</h2>
            {typeof kept === 'number' && <span className="dim small">The newest {formatCount(kept)} are kept, and those that are pinned.</span>}
          </div>
          <table className="ended files">
            <Columns />
            <thead>
              <tr>
                <th className="cell-number cell-step">Step</th>
                <th className="cell-file">File</th>
                <th className="cell-number">Size</th>
                <th className="cell-when">Saved</th>
                <th className="cell-pin"><span className="visually-hidden">Pin</span></th>
                <th className="cell-result"><span className="visually-hidden">Download</span></th>
              </tr>
            </thead>
            <tbody>{checkpoints.map((checkpoint) => <CheckpointRows key={checkpoint.step} jobId={job.id} checkpoint={checkpoint} />)}</tbody>
          </table>
        </section>
      )}
      {others.length > 0 && (
        <section aria-labelledby="others-title">
          <div className="section-head"><h2 id="others-title">Other files</h2></div>
          <table className="ended files">
            <Columns />
            <tbody>
              {others.map((file) => (
                <tr key={file.path}>
                  <td className="cell-file" colSpan={2}><span className="mono">{file.path}</span> <span className="dim small">{file.kind}</span></td>
                  <td className="cell-number">{formatSize(file.size)}</td>
                  <td className="cell-when dim"><When iso={file.created_at} /></td>
                  <td className="cell-result" colSpan={2}><Download file={file} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}
