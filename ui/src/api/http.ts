/** One way to talk to the server: JSON in and out, and every failure as one readable error. */
import type { Finding, Problem } from './types';

/** An answer that is an error. `status` 0 means that no answer came at all. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly findings: Finding[] = [],
  ) {
    super(message);
  }
}

const signInListeners = new Set<() => void>();

/** Calls `listener` whenever the server says that a sign-in is needed (401). */
export function onSignInNeeded(listener: () => void): () => void {
  signInListeners.add(listener);
  return () => signInListeners.delete(listener);
}

async function toError(response: Response): Promise<ApiError> {
  let problem: Partial<Problem> = {};
  try {
    problem = (await response.json()) as Partial<Problem>;
  } catch {
    // A proxy's HTML page, for instance: the status is all we have.
  }
  const message = problem.detail || problem.title || `The server answered ${response.status}.`;
  return new ApiError(response.status, message, problem.errors ?? []);
}

export async function send(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers: { Accept: 'application/json', ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  } catch {
    throw new ApiError(0, 'The server did not answer. Nothing is lost; try again in a moment.');
  }
  if (response.status === 401 && path !== '/v1/session') signInListeners.forEach((listener) => listener());
  if (!response.ok) throw await toError(response);
  return response;
}

export async function getJson<T>(path: string): Promise<T> {
  return (await send('GET', path)).json() as Promise<T>;
}

export async function postJson<T>(path: string, body?: unknown, headers?: Record<string, string>): Promise<T> {
  const response = await send('POST', path, body, headers);
  const text = await response.text();
  return (text ? JSON.parse(text) : null) as T;
}

/** `?a=1&b=x&b=y`; empty and missing values are left out. */
export function query(params: Record<string, string | number | string[] | null | undefined>): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === '') continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(key, String(one));
  }
  const text = search.toString();
  return text ? `?${text}` : '';
}
