import { useQuery } from '@tanstack/react-query';
import { useDebouncedValue } from '@mantine/hooks';
import { ApiError } from '../../api/http';
import type { Finding, JsonObject, Plan } from '../../api/types';
import { isBeingWorkedOut } from '../../form/needs';
import { getAt, sameJson } from '../../lib/pointer';

const PAUSE_MS = 350;
const AGAIN_MS = 2000;

/** Without what was found at values that have been changed since: a mistake that is mended is gone at once. */
function stillTrue(plan: Plan, asked: JsonObject, spec: JsonObject): Plan {
  const holds = ({ pointer }: Finding) => sameJson(getAt(asked, pointer), getAt(spec, pointer)) || pointer === '';
  return asked === spec ? plan : { ...plan, problems: plan.problems.filter(holds), warnings: plan.warnings.filter(holds) };
}

/** The plan of what is typed for `name`, asked after a short pause; the last plan stays while the next is on its way. */
export function usePlan(name: string, ask: (spec: JsonObject) => Promise<Plan>, spec: JsonObject, valid: boolean): { plan: Plan | undefined; checking: boolean; trouble: string | null } {
  const [settled] = useDebouncedValue(spec, PAUSE_MS);
  const query = useQuery({
    queryKey: ['plan', name, settled],
    queryFn: async () => ({ asked: settled, plan: await ask(settled) }),
    enabled: valid,
    placeholderData: (before) => before,
    gcTime: 30_000,
    retry: 1,
    // What takes longer (memory) comes with a later answer.
    refetchInterval: ({ state: { data } }) => (data && isBeingWorkedOut(data.plan) ? AGAIN_MS : false),
  });
  const error = query.error;
  return {
    plan: error || !query.data ? undefined : stillTrue(query.data.plan, query.data.asked, spec),
    checking: query.isFetching || settled !== spec,
    trouble: !valid ? 'The JSON has a mistake; the plan is that of the form.' : error ? (error instanceof ApiError && error.status === 0 ? 'The server does not answer just now. What you typed stays.' : error.message) : null,
  };
}
