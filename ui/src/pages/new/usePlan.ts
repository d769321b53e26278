import { useQuery } from '@tanstack/react-query';
import { useDebouncedValue } from '@mantine/hooks';
import { api } from '../../api/api';
import { ApiError } from '../../api/http';
import type { JsonObject, Plan } from '../../api/types';

const PAUSE_MS = 350;

/** The plan of what is typed, asked after a short pause; the last plan stays while the next is on its way. */
export function usePlan(spec: JsonObject, valid: boolean): { plan: Plan | undefined; checking: boolean; trouble: string | null } {
  const [settled] = useDebouncedValue(spec, PAUSE_MS);
  const query = useQuery({
    queryKey: ['plan', settled],
    queryFn: () => api.validate(settled),
    enabled: valid,
    placeholderData: (before) => before,
    gcTime: 30_000,
    retry: 1,
  });
  const error = query.error;
  return {
    plan: error ? undefined : query.data,
    checking: query.isFetching || settled !== spec,
    trouble: !valid ? 'The JSON has a mistake; the plan is that of the form.' : error ? (error instanceof ApiError && error.status === 0 ? 'The server does not answer just now. What you typed stays.' : error.message) : null,
  };
}
