import { Button } from '@mantine/core';
import { useMutation, useQueries, useQuery } from '@tanstack/react-query';
import { useRef } from 'react';
import { Link, useLocation } from 'wouter';
import { api } from '../../api/api';
import type { Preset } from '../../api/types';

/** The preset named "demo" of whichever arch has one. */
function useDemo(): { preset: Preset | undefined; loading: boolean } {
  const archs = useQuery({ queryKey: ['archs'], queryFn: api.archs });
  const usable = (archs.data ?? []).filter((arch) => !arch.broken);
  const details = useQueries({ queries: usable.map(({ arch }) => ({ queryKey: ['arch', arch], queryFn: () => api.arch(arch) })) });
  const preset = details.flatMap(({ data }) => data?.presets ?? []).find(({ name }) => name === 'demo');
  return { preset, loading: archs.isPending || details.some(({ isPending }) => isPending) };
}

export function EmptyJobs() {
  const { preset, loading } = useDemo();
  const [, navigate] = useLocation();
  const key = useRef(crypto.randomUUID()); // a double click makes one job
  const start = useMutation({
    mutationFn: (demo: Preset) => api.submit(demo.spec, key.current),
    onSuccess: (job) => navigate(`/jobs/${job.id}`),
  });
  return (
    <div className="empty">
      <div className="empty-lamp" aria-hidden="true" />
      <h1>Nothing has been trained here yet</h1>
      <p className="dim">
        {preset ? `Start with the demo: ${preset.description}` : 'Pick a model, point at a folder of pictures, and watch the previews come in.'}
      </p>
      <div className="row wrap" style={{ justifyContent: 'center', marginTop: 20, minHeight: 42 }}>
        {preset && (
          <Button size="md" loading={start.isPending} onClick={() => start.mutate(preset)}>Run the demo</Button>
        )}
        {!loading && <Button size="md" variant={preset ? 'default' : 'filled'} component={Link} href="/new">Set up a job</Button>}
      </div>
      {start.error && <p className="bad" role="alert" style={{ marginTop: 12 }}>{start.error.message}</p>}
    </div>
  );
}
