import { Button } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { api } from '../../api/api';
import { useOpenJob } from '../../api/jobStream';
import { Notice, When } from '../../components/bits';
import { DownloadIcon } from '../../components/icons';
import { formatCount, formatSize } from '../../lib/format';

export function Files() {
  const { job } = useOpenJob();
  const files = useQuery({ queryKey: ['files', job.id], queryFn: () => api.files(job.id) });
  if (files.error) {
    return <Notice tone="bad" title="The files did not load" action={<Button variant="default" onClick={() => void files.refetch()}>Try again</Button>}>{files.error.message}</Notice>;
  }
  if (!files.data) return <div className="skeleton" style={{ height: 200 }} />;
  // Previews have a tab of their own, and there may be thousands.
  const shown = files.data.filter(({ kind }) => kind !== 'sample' && kind !== 'thumbnail' && kind !== 'animation');
  if (shown.length === 0) return <p className="dim previews-none">No files yet. The first checkpoint appears here when it is saved.</p>;
  return (
    <table className="ended files">
      <thead>
        <tr>
          <th>File</th>
          <th className="cell-number cell-step">Step</th>
          <th className="cell-number">Size</th>
          <th className="cell-when">Saved</th>
          <th className="cell-result"><span className="visually-hidden">Download</span></th>
        </tr>
      </thead>
      <tbody>
        {shown.map((file) => (
          <tr key={file.path}>
            <td className="cell-file"><span className="mono">{file.path}</span> <span className="dim small">{file.kind}{file.step !== null && <span className="file-step">, step {formatCount(file.step)}</span>}</span></td>
            <td className="cell-number cell-step">{file.step === null ? '–' : formatCount(file.step)}</td>
            <td className="cell-number">{formatSize(file.size)}</td>
            <td className="cell-when dim"><When iso={file.created_at} /></td>
            <td className="cell-result">
              <a className="link row" href={file.url} download data-nav aria-label={`Download ${file.path}`}><DownloadIcon size={16} /><span className="download-word">Download</span></a>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
