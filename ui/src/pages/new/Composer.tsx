/** The form, the plan and the JSON of one draft, and what sends it. */
import { Button } from '@mantine/core';
import { useQueryClient } from '@tanstack/react-query';
import { useCallback, useEffect, useMemo, useRef, useState, type ReactNode } from 'react';
import { useLocation } from 'wouter';
import { ApiError } from '../../api/http';
import type { ArchDetail, Finding, Json, JsonObject, Plan } from '../../api/types';
import { JobForm } from '../../form/JobForm';
import { JsonPane } from '../../form/JsonPane';
import { fieldId, foldsOf, labelOf, leafAt, toLayout, toSections, type Layout } from '../../form/leaves';
import { PlanPane } from '../../form/PlanPane';
import { isObject } from '../../form/schema';
import { useDraft } from '../../form/useDraft';
import { dropLeftovers } from '../../form/when';
import { inWords } from '../../lib/findings';
import { plural } from '../../lib/format';
import { atInput, inLabels, titlesOf, type Titles } from '../../lib/labels';
import { parsePointer } from '../../lib/pointer';
import { usePlan } from './usePlan';

/** What becomes of the job being written: a new job, or a resume of one. */
export interface Purpose {
  title: string;
  button: string;
  /** Where a POST of the whole job does the same, for a terminal. */
  path: string;
  plan: (spec: JsonObject, schema: JsonObject) => Promise<Plan>;
  send: (spec: JsonObject, key: string, schema: JsonObject) => Promise<{ id: string }>;
}

interface ComposerProps {
  /** Tells drafts apart. */
  name: string;
  /** What the dots compare with. */
  base: JsonObject;
  /** What a new draft begins as, if not `base`. */
  start?: JsonObject | undefined;
  detail: ArchDetail;
  purpose: Purpose;
  children: ReactNode;
}

/** The plan with labels in place of keys. */
function inTheForm(plan: Plan, titles: Titles): Plan {
  const say = (finding: Finding) => atInput(finding, titles);
  const changes = plan.changes.map((change) => ({ ...change, effect: inLabels(change.effect, titles) }));
  return { ...plan, problems: plan.problems.map(say), warnings: plan.warnings.map(say), changes };
}

/** The first finding in the order of the page, so that the focus goes to the topmost. */
function topmost(layout: Layout, findings: readonly Finding[]): Finding | undefined {
  const order = toSections(layout).flatMap(({ basic, folded }) => [...basic, ...folded]);
  const place = ({ pointer }: Finding) => {
    const leaf = leafAt(layout.leaves, pointer);
    return leaf ? order.indexOf(leaf) : Infinity;
  };
  return [...findings].sort((a, b) => place(a) - place(b))[0];
}

export function Composer({ name, base, start, detail, purpose, children }: ComposerProps) {
  const [, navigate] = useLocation();
  const client = useQueryClient();
  const draft = useDraft(name, start ?? base);
  const { spec, text, setSpec: setDraft } = draft;
  const schema = detail.schema[String(spec.kind)] ?? Object.values(detail.schema)[0] ?? {};
  const layout = useMemo(() => toLayout(schema, spec), [schema, spec]);
  const setSpec = useCallback(
    (change: (before: JsonObject) => Json) =>
      setDraft((before) => {
        const after = change(before);
        return isObject(after) ? dropLeftovers(schema, before, after) : after;
      }),
    [schema, setDraft],
  );

  const [unfolded, setUnfolded] = useState<ReadonlySet<string>>(new Set());
  const [sending, setSending] = useState(false);
  /** The server's no to exactly this text; typing on makes it old. */
  const [refusal, setRefusal] = useState<{ text: string; message: string; findings: Finding[] } | null>(null);
  const key = useRef({ text: '', id: '' });
  const summary = useRef<HTMLDivElement>(null);
  const [goTo, setGoTo] = useState<{ id: string } | null>(null);

  const titles = useMemo(() => titlesOf(schema), [schema]);
  const { plan: answered, checking, trouble } = usePlan(name, (asked) => purpose.plan(asked, schema), spec, draft.mistake === null);
  const plan = useMemo(() => answered && inTheForm(answered, titles), [answered, titles]);
  const refused = refusal?.text === text ? refusal : null;
  const problems = refused && refused.findings.length > 0 ? refused.findings : (plan?.problems ?? []);
  const loose = problems.filter(({ pointer }) => !leafAt(layout.leaves, pointer));

  const onFold = (section: string, open: boolean) =>
    setUnfolded((before) => {
      const next = new Set(before);
      if (open) next.add(section);
      else next.delete(section);
      return next;
    });

  const nameOf = (pointer: string) => {
    const leaf = layout.leaves.find((one) => one.pointer === pointer);
    return leaf ? labelOf(leaf, layout.lists) : (titles.get(parsePointer(pointer).at(-1) ?? '') ?? null);
  };
  const show = (pointer: string) => {
    const leaf = leafAt(layout.leaves, pointer);
    if (!leaf) {
      summary.current?.focus();
      return;
    }
    for (const fold of foldsOf(leaf, layout.lists)) onFold(fold, true);
    setGoTo({ id: fieldId(leaf.pointer) });
  };
  // After the section has unfolded.
  useEffect(() => {
    if (!goTo) return;
    const element = document.getElementById(goTo.id);
    element?.focus({ preventScroll: true });
    element?.closest('.field')?.scrollIntoView({ block: 'center' });
    setGoTo(null);
  }, [goTo]);

  const submit = async () => {
    if (sending) return;
    if (draft.mistake) {
      document.querySelector<HTMLTextAreaElement>('.json textarea')?.focus();
      return;
    }
    // One key for one state of the form: pressing twice, or again after a lost answer, makes one job.
    if (key.current.text !== text) key.current = { text, id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
    setSending(true);
    try {
      const job = await purpose.send(spec, key.current.id, schema);
      draft.forget();
      // A job that goes on was looked at before: what is known of it is old.
      await client.invalidateQueries({ queryKey: ['job', job.id] });
      navigate(`/jobs/${job.id}`);
    } catch (error) {
      const findings = error instanceof ApiError ? error.findings.map((finding) => atInput(finding, titles)) : [];
      setRefusal({ text, message: (error as Error).message, findings });
      const first = topmost(layout, findings);
      if (first) show(first.pointer);
      else requestAnimationFrame(() => summary.current?.focus());
    } finally {
      setSending(false);
    }
  };

  return (
    <form
      className="composer"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <div className="composer-main">
        <h1>{purpose.title}</h1>
        {children}
        <JobForm layout={layout} spec={spec} base={base} problems={problems} warnings={plan?.warnings ?? []} unfolded={unfolded} onFold={onFold} setSpec={setSpec} />
      </div>
      <div className="composer-side">
        <div className="panel"><PlanPane plan={plan} checking={checking} trouble={trouble} nameOf={nameOf} onGoTo={show} /></div>
        <div className="panel json-panel"><JsonPane draft={draft} problems={problems} path={purpose.path} /></div>
      </div>
      <div className="submit-bar">
        <div ref={summary} tabIndex={-1} className="submit-message grow" role="alert">
          {refused && (
            <>
              <p className="bad">{refused.findings.length > 0 ? `Not submitted: ${plural(refused.findings.length, 'thing')} to mend.` : refused.message}</p>
              {loose.map((finding) => <p key={`${finding.pointer} ${finding.message}`} className="small">{finding.pointer && <span className="mono">{finding.pointer} </span>}{inWords(finding)}</p>)}
            </>
          )}
        </div>
        <Button type="submit" size="md" loading={sending}>{purpose.button}</Button>
      </div>
    </form>
  );
}
