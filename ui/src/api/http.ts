/** One way to talk to the server: typed by its OpenAPI document, and every failure as one readable error. */
import createClient from 'openapi-fetch';
import type { paths } from './schema.gen';
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

export const client = createClient<paths>({
  // Looked up at each call, so that a test can put its own in place.
  fetch: (request) => fetch(request),
  // FastAPI reads a list as `status=a&status=b`.
  querySerializer: { array: { style: 'form', explode: true } },
});

client.use({
  async onResponse({ response, request }) {
    if (response.ok) return;
    const signingIn = new URL(request.url).pathname === '/v1/session';
    if (response.status === 401 && !signingIn) signInListeners.forEach((listener) => listener());
    throw await toError(response);
  },
  onError({ error }) {
    return error instanceof ApiError ? error : new ApiError(0, 'The server did not answer. Nothing is lost; try again in a moment.');
  },
});
