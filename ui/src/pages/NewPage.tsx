/** A new job: which model and preset, then the form. The URL holds the choice, this tab holds what is typed. */
import { Button } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useEffect } from 'react';
import { api } from '../api/api';
import type { JsonObject } from '../api/types';
import { Notice } from '../components/bits';
import { useParam } from '../lib/useParam';
import { getAt } from '../lib/pointer';
import { Composer } from './new/Composer';
import { Picker } from './new/Picker';
import './new/new.css';

export function NewPage() {
  const [archName] = useParam('arch');
  const [presetName, setPreset] = useParam('preset');
  const [from] = useParam('from');
  useEffect(() => void (document.title = 'New job · Safelight'), []);

  const source = useQuery({ queryKey: ['job', from], queryFn: () => api.job(from), enabled: from !== '' });
  const archs = useQuery({ queryKey: ['archs'], queryFn: api.archs });
  const usable = (archs.data ?? []).filter(({ broken }) => !broken);
  const copied = source.data && getAt(source.data.spec, '/model/arch');
  const wanted = from ? copied : archName;
  // A newcomer starts with a model that needs no download, if there is one.
  const first = usable.find(({ capabilities }) => capabilities.includes('from_scratch')) ?? usable[0];
  const arch = usable.find((one) => one.arch === wanted) ?? (from ? undefined : first);
  const detail = useQuery({ queryKey: ['arch', arch?.arch], queryFn: () => api.arch(arch?.arch ?? ''), enabled: arch !== undefined, staleTime: Infinity });
  const presets = detail.data?.presets ?? [];
  const preset = presets.find(({ name }) => name === presetName) ?? presets[0];
  const base: JsonObject | undefined = from ? source.data?.spec : preset?.spec;

  const error = archs.error ?? detail.error ?? source.error;
  if (error) {
    return <Notice tone="bad" title="The form did not load" action={<Button variant="default" onClick={() => window.location.reload()}>Try again</Button>}>{error.message}</Notice>;
  }
  if (archs.data && usable.length === 0) return <Notice title="No model is usable here yet">The Models page says why.</Notice>;
  if (from && archs.data && source.data && !arch) return <Notice title="This job's model is not here any more">The Models page lists those that are.</Notice>;
  if (arch && detail.data && !base) return <Notice title={`${arch.label} has no preset to start from`}>Another model may have one.</Notice>;
  if (!arch || !detail.data || !base) return <div className="skeleton" style={{ height: 480 }} role="status" aria-label="Loading the form" />;

  // Another start is another draft: mounted anew, each kept by itself.
  const name = from ? `from ${from}` : `${arch.arch} ${preset?.name ?? ''}`;
  return (
    <Composer key={name} name={name} base={base} detail={detail.data}>
      <Picker
        archs={usable}
        arch={arch}
        presets={presets}
        preset={from ? null : (preset ?? null)}
        copiedFrom={source.data ?? null}
        onPreset={setPreset}
      />
    </Composer>
  );
}
