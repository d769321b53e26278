import { Button } from '@mantine/core';
import { Link } from 'wouter';
import { useOpenJob } from '../../api/jobStream';
import { CopyText } from '../../components/CopyText';

export function Config() {
  const { job } = useOpenJob();
  const text = JSON.stringify(job.spec, null, 2);
  return (
    <section aria-label="Config" className="stack">
      <div className="row wrap">
        <Button component={Link} href={`/new?from=${encodeURIComponent(job.id)}`} variant="default">Duplicate</Button>
        <CopyText text={text}>Copy JSON</CopyText>
        <span className="dim small mono">{job.id}</span>
      </div>
      <pre className="panel mono config" tabIndex={0} aria-label="The job as JSON">{text}</pre>
    </section>
  );
}
