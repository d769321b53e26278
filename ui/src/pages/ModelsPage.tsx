import { Button } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useEffect } from 'react';
import { Link } from 'wouter';
import { api } from '../api/api';
import type { Arch } from '../api/types';
import { Notice } from '../components/bits';
import './models.css';

function ArchCard({ arch }: { arch: Arch }) {
  return (
    <article className="panel arch">
      <div>
        <h2>{arch.label}</h2>
        <p className="dim mono">{arch.arch}</p>
      </div>
      {arch.description && <p>{arch.description}</p>}
      <ul className="row wrap badges" aria-label="What it does">
        {[...new Set([arch.modality, ...arch.capabilities])].map((word) => <li key={word} className="chip">{word.replaceAll('_', ' ')}</li>)}
        {arch.template_support && <li className="chip">templates</li>}
      </ul>
      {arch.broken ? (
        <div className="arch-broken">
          <p className="bad">This one did not load</p>
          <p className="mono">{arch.broken}</p>
        </div>
      ) : (
        <div className="arch-foot">
          <span className="dim small">{arch.workers.length > 0 ? `Runs on ${arch.workers.join(', ')}` : 'No worker here runs it yet'}</span>
          <Button component={Link} href={`/new?arch=${encodeURIComponent(arch.arch)}`} variant="default" size="xs" data-nav aria-label={`New job with ${arch.label}`}>New job</Button>
        </div>
      )}
    </article>
  );
}

export function ModelsPage() {
  const archs = useQuery({ queryKey: ['archs'], queryFn: api.archs });
  useEffect(() => void (document.title = 'Models · Safelight'), []);
  return (
    <div className="stack" style={{ gap: 20 }}>
      <h1>Models</h1>
      {archs.error && (
        <Notice tone="bad" title="The catalogue did not load" action={<Button variant="default" onClick={() => void archs.refetch()}>Try again</Button>}>
          {archs.error.message}
        </Notice>
      )}
      <div className="archs">
        {archs.data?.map((arch) => <ArchCard key={arch.arch} arch={arch} />) ?? <div className="skeleton" style={{ height: 200 }} />}
      </div>
    </div>
  );
}
