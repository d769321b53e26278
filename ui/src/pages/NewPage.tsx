/** A new job (which model and preset, then the form), or one that goes on with changes. The URL holds the choice, this tab holds
 * what is typed. */
import { Button } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useEffect, useMemo } from 'react';
import { api } from '../api/api';
import type { Job, JsonObject } from '../api/types';
import { Notice } from '../components/bits';
import { toPatch } from '../form/patch';
import { useParam } from '../lib/useParam';
import { getAt, setAt } from '../lib/pointer';
import { isEnded } from '../lib/status';
import { Composer, type Purpose } from './new/Composer';
import { Picker } from './new/Picker';
import { GoesOn } from './new/GoesOn';
import './new/new.css';

const NEW: Purpose = {
  title: 'New job',
  button: 'Start job',
  path: '/v1/jobs',
  plan: api.validate,
  send: api.submit,
};

function resumeOf(job: Job): Purpose {
  return {
    title: job.status === 'paused' ? 'Go on with changes' : 'Extend or edit',
    button: 'Queue again',
    path: `/v1/jobs/${job.id}/resume`,
    plan: (spec, schema) => api.resumePlan(job.id, toPatch(job.spec, spec, schema)),
    send: async (spec, _key, schema) => {
      await api.resume(job.id, toPatch(job.spec, spec, schema));
      return job;
    },
  };
}

/** A training job that is done has nothing left to do: its form opens with twice the steps, told by a dot and in the plan. */
function startOf(job: Job): JsonObject {
  const steps = getAt(job.spec, '/train/steps');
  return job.status === 'succeeded' && typeof steps === 'number' ? (setAt(job.spec, '/train/steps', 2 * steps) as JsonObject) : job.spec;
}

export function NewPage() {
  const [archName] = useParam('arch');
  const [presetName, setPreset] = useParam('preset');
  const [from] = useParam('from');
  const [resumed] = useParam('resume');
  const sourceId = resumed || from;
  useEffect(() => void (document.title = `${resumed ? 'Extend or edit' : 'New job'} · Safelight`), [resumed]);

  const source = useQuery({ queryKey: ['job', sourceId], queryFn: () => api.job(sourceId), enabled: sourceId !== '', ...(resumed ? { staleTime: 0 } : {}) });
  const archs = useQuery({ queryKey: ['archs'], queryFn: api.archs });
  const usable = (archs.data ?? []).filter(({ broken }) => !broken);
  const copied = source.data && getAt(source.data.spec, '/model/arch');
  const wanted = sourceId ? copied : archName;
  // A newcomer starts with a model that needs no download, if there is one.
  const first = usable.find(({ capabilities }) => capabilities.includes('from_scratch')) ?? usable[0];
  const arch = usable.find((one) => one.arch === wanted) ?? (sourceId ? undefined : first);
  const detail = useQuery({ queryKey: ['arch', arch?.arch], queryFn: () => api.arch(arch?.arch ?? ''), enabled: arch !== undefined, staleTime: Infinity });
  const presets = detail.data?.presets ?? [];
  const preset = presets.find(({ name }) => name === presetName) ?? presets[0];
  const base: JsonObject | undefined = sourceId ? source.data?.spec : preset?.spec;
  const job = resumed ? source.data : undefined;
  const purpose = useMemo(() => (job ? resumeOf(job) : NEW), [job]);

  const error = archs.error ?? detail.error ?? source.error;
  if (error) {
    return <Notice tone="bad" title="The form did not load" action={<Button variant="default" onClick={() => window.location.reload()}>Try again</Button>}>{error.message}</Notice>;
  }
  if (archs.data && usable.length === 0) return <Notice title="No model is usable here yet">The Models page says why.</Notice>;
  if (sourceId && archs.data && source.data && !arch) return <Notice title="This job's model is not here any more">The Models page lists those that are.</Notice>;
  if (arch && detail.data && !base) return <Notice title={`${arch.label} has no preset to start from`}>Another model may have one.</Notice>;
  if (!arch || !detail.data || !base) return <div className="skeleton" style={{ height: 480 }} role="status" aria-label="Loading the form" />;
  if (job && job.status !== 'paused' && !isEnded(job.status)) {
    return <Notice title="This job is not at rest" action={<Button component="a" variant="default" href={`/jobs/${job.id}`}>To the job</Button>}>Pause it, or wait for its end; then it can go on with changes.</Notice>;
  }

  // Another start is another draft: mounted anew, each kept by itself.
  const name = job ? `resume ${job.id} ${job.status}` : from ? `from ${from}` : `${arch.arch} ${preset?.name ?? ''}`;
  return (
    <Composer key={name} name={name} base={base} start={job && startOf(job)} detail={detail.data} purpose={purpose}>
      {job ? (
        <GoesOn job={job} />
      ) : (
        <Picker
          archs={archs.data ?? []}
          arch={arch}
          presets={presets}
          preset={from ? null : (preset ?? null)}
          copiedFrom={source.data ?? null}
          onPreset={setPreset}
        />
      )}
    </Composer>
  );
}
