/** The server's calls by name. Paths and parameters are checked against the server's OpenAPI document; the casts narrow plain
 * strings (a status, a worker's state) to the words that this UI knows. */
import { client } from './http';
import type { Arch, ArchDetail, Ask, Job, JobFile, JobPage, JsonObject, Plan, Ready, Sample, Series, Status, Worker } from './types';

export interface JobFilter {
  status?: readonly Status[];
  q?: string;
  limit?: number;
  cursor?: string | null;
}

const at = (id: string) => ({ path: { job_id: id } });
// The body of a job is validated by the server, per arch; here it is any JSON.
const loose = (body: unknown) => body as never;

export const api = {
  archs: async () => (await client.GET('/v1/archs', {})).data?.archs as Arch[],
  arch: async (arch: string) => (await client.GET('/v1/archs/{arch}', { params: { path: { arch } } })).data as ArchDetail,

  jobs: async ({ status, q, limit, cursor }: JobFilter) => {
    const query = { ...(status ? { status: [...status] as never } : {}), ...(q ? { q } : {}), ...(limit ? { limit } : {}), ...(cursor ? { cursor: Number(cursor) } : {}) };
    return (await client.GET('/v1/jobs', { params: { query } })).data as JobPage;
  },
  job: async (id: string) => (await client.GET('/v1/jobs/{job_id}', { params: at(id) })).data as Job,
  samples: async (id: string, after = 0) => (await client.GET('/v1/jobs/{job_id}/samples', { params: { ...at(id), query: { after } } })).data?.samples as Sample[],
  metrics: async (id: string, name: string, points: number) =>
    (await client.GET('/v1/jobs/{job_id}/metrics', { params: { ...at(id), query: { name, points } } })).data as Series,
  files: async (id: string) => (await client.GET('/v1/jobs/{job_id}/files', { params: at(id) })).data?.files as JobFile[],
  /** The log from the place `after` on, and the place to go on from. */
  log: async (id: string, after: number) => {
    const { data, response } = await client.GET('/v1/jobs/{job_id}/log', { params: { ...at(id), query: { after } }, parseAs: 'text' });
    return { text: data as string, next: Number(response.headers.get('Safelight-Log-Next') ?? after) };
  },

  validate: async (spec: unknown) => (await client.POST('/v1/jobs/validate', { body: loose(spec) })).data as Plan,
  submit: async (spec: unknown, key: string) =>
    (await client.POST('/v1/jobs', { body: loose(spec), params: { header: { 'Idempotency-Key': key } as never } })).data as Job,
  patch: async (id: string, change: { name?: string; priority?: number }) => {
    await client.PATCH('/v1/jobs/{job_id}', { params: at(id), body: change });
  },
  cancel: async (id: string) => {
    await client.POST('/v1/jobs/{job_id}/cancel', { params: at(id) });
  },
  pause: async (id: string) => {
    await client.POST('/v1/jobs/{job_id}/pause', { params: at(id) });
  },
  /** Previews, or a checkpoint, now. */
  ask: async (id: string, what: Ask) => {
    await client.POST(what === 'sample' ? '/v1/jobs/{job_id}/sample' : '/v1/jobs/{job_id}/checkpoint', { params: at(id) });
  },
  pin: async (id: string, step: number, pinned: boolean) => {
    await client.POST('/v1/jobs/{job_id}/checkpoints/{step}/pin', { params: { path: { job_id: id, step } }, body: { pinned } });
  },
  resume: async (id: string, patch: JsonObject = {}) => {
    await client.POST('/v1/jobs/{job_id}/resume', { params: at(id), body: loose(patch) });
  },
  /** What `resume` would do with this patch; nothing is queued. */
  resumePlan: async (id: string, patch: JsonObject) =>
    (await client.POST('/v1/jobs/{job_id}/resume', { params: { ...at(id), query: { dry_run: true } }, body: loose(patch) })).data as unknown as Plan,
  remove: async (id: string) => {
    await client.DELETE('/v1/jobs/{job_id}', { params: { ...at(id), query: { files: true } } });
  },
  clearQueue: async () => {
    await client.POST('/v1/jobs/cancel', { body: { status: 'queued' } });
  },

  workers: async () => (await client.GET('/v1/workers', {})).data?.workers as Worker[],
  ready: async () => (await client.GET('/readyz', {})).data as Ready,
  health: async () => (await client.GET('/healthz', {})).data as { status: string; version: string },
  signIn: async (token: string) => {
    await client.POST('/v1/session', { body: { token } });
  },
  signOut: async () => {
    await client.DELETE('/v1/session', {});
  },
};
