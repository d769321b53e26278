/** The form, the plan and the JSON of one draft, and its submission. */
import { Button } from '@mantine/core';
import { useEffect, useMemo, useRef, useState, type ReactNode } from 'react';
import { useLocation } from 'wouter';
import { api } from '../../api/api';
import { ApiError } from '../../api/http';
import type { ArchDetail, Finding, JsonObject } from '../../api/types';
import { JobForm } from '../../form/JobForm';
import { JsonPane } from '../../form/JsonPane';
import { fieldId, foldsOf, leafAt, toLayout, toSections, type Layout } from '../../form/leaves';
import { PlanPane } from '../../form/PlanPane';
import { useDraft } from '../../form/useDraft';
import { plural } from '../../lib/format';
import { usePlan } from './usePlan';

interface ComposerProps {
  name: string;
  base: JsonObject;
  detail: ArchDetail;
  children: ReactNode;
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

export function Composer({ name, base, detail, children }: ComposerProps) {
  const [, navigate] = useLocation();
  const draft = useDraft(name, base);
  const { spec, text, setSpec } = draft;
  const schema = detail.schema[String(spec.kind)] ?? Object.values(detail.schema)[0] ?? {};
  const layout = useMemo(() => toLayout(schema, spec), [schema, spec]);

  const [unfolded, setUnfolded] = useState<ReadonlySet<string>>(new Set());
  const [sending, setSending] = useState(false);
  /** The server's no to exactly this text; typing on makes it old. */
  const [refusal, setRefusal] = useState<{ text: string; message: string; findings: Finding[] } | null>(null);
  const key = useRef({ text: '', id: '' });
  const summary = useRef<HTMLDivElement>(null);
  const [goTo, setGoTo] = useState<{ id: string } | null>(null);

  const { plan, checking, trouble } = usePlan(spec, draft.mistake === null);
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
      const job = await api.submit(spec, key.current.id);
      draft.forget();
      navigate(`/jobs/${job.id}`);
    } catch (error) {
      const findings = error instanceof ApiError ? error.findings : [];
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
        <h1>New job</h1>
        {children}
        <JobForm layout={layout} spec={spec} base={base} problems={problems} warnings={plan?.warnings ?? []} unfolded={unfolded} onFold={onFold} setSpec={setSpec} />
      </div>
      <div className="composer-side">
        <div className="panel"><PlanPane plan={plan} checking={checking} trouble={trouble} onGoTo={show} /></div>
        <div className="panel json-panel"><JsonPane draft={draft} problems={problems} /></div>
      </div>
      <div className="submit-bar">
        <div ref={summary} tabIndex={-1} className="submit-message grow" role="alert">
          {refused && (
            <>
              <p className="bad">{refused.findings.length > 0 ? `Not submitted: ${plural(refused.findings.length, 'thing')} to mend.` : refused.message}</p>
              {loose.map(({ pointer, message, suggestion }) => (
                <p key={`${pointer} ${message}`} className="small">{pointer && <span className="mono">{pointer} </span>}{message}{suggestion && ` Did you mean ${suggestion}?`}</p>
              ))}
            </>
          )}
        </div>
        <Button type="submit" size="md" loading={sending}>Start job</Button>
      </div>
    </form>
  );
}
