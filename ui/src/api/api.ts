/** The server's calls by name. */
import { getJson, postJson, query, send } from './http';
import type { Arch, ArchDetail, Job, JobFile, JobPage, JsonObject, Plan, Ready, Sample, Series, Worker } from './types';

const job = (id: string) => `/v1/jobs/${encodeURIComponent(id)}`;

export interface JobFilter {
  status?: string[];
  q?: string;
  limit?: number;
  cursor?: string | null;
}

export const api = {
  archs: async () => (await getJson<{ archs: Arch[] }>('/v1/archs')).archs,
  arch: (name: string) => getJson<ArchDetail>(`/v1/archs/${encodeURIComponent(name)}`),

  jobs: (filter: JobFilter) => getJson<JobPage>(`/v1/jobs${query({ ...filter })}`),
  job: (id: string) => getJson<Job>(job(id)),
  samples: async (id: string, after?: number) => (await getJson<{ samples: Sample[] }>(`${job(id)}/samples${query({ after })}`)).samples,
  metrics: (id: string, name: string, points: number) => getJson<Series>(`${job(id)}/metrics${query({ name, points })}`),
  files: async (id: string) => (await getJson<{ files: JobFile[] }>(`${job(id)}/files`)).files,
  log: async (id: string, after: number) => {
    const response = await send('GET', `${job(id)}/log${query({ after })}`, undefined, { Accept: 'text/plain' });
    const text = await response.text();
    return { text, next: Number(response.headers.get('Safelight-Log-Next') ?? after) };
  },

  validate: (spec: unknown) => postJson<Plan>('/v1/jobs/validate', spec),
  submit: (spec: unknown, key: string) => postJson<Job>('/v1/jobs', spec, { 'Idempotency-Key': key }),
  patch: (id: string, change: JsonObject) => send('PATCH', job(id), change),
  verb: (id: string, verb: string, body?: JsonObject) => postJson<Job>(`${job(id)}/${verb}`, body),
  remove: (id: string) => send('DELETE', `${job(id)}?files=true`),
  clearQueue: () => postJson<unknown>('/v1/jobs/cancel', { status: 'queued' }),

  workers: async () => (await getJson<{ workers: Worker[] }>('/v1/workers')).workers,
  ready: () => getJson<Ready>('/readyz'),
  health: () => getJson<{ status: string; version: string }>('/healthz'),
  signIn: (token: string) => postJson<unknown>('/v1/session', { token }),
  signOut: () => send('DELETE', '/v1/session'),
};
