/** The whole form: sections, the few inputs of a preset open, the others folded. */
import { Button } from '@mantine/core';
import { useCallback, useMemo, useRef, type ReactNode } from 'react';
import type { Finding, Json, JsonObject } from '../api/types';
import { formatJson, plural } from '../lib/format';
import { getAt, joinPointer, sameJson, setAt } from '../lib/pointer';
import type { FieldFacts, FormActions } from './context';
import { foldOf, labelOf, leafAt, partFold, toRuns, toSections, type Layout, type Leaf, type List } from './leaves';
import { SectionForm } from './SectionForm';

interface JobFormProps {
  layout: Layout;
  spec: JsonObject;
  /** What the dots compare with. */
  base: JsonObject;
  problems: readonly Finding[];
  warnings: readonly Finding[];
  unfolded: ReadonlySet<string>;
  onFold: (name: string, open: boolean) => void;
  setSpec: (change: (spec: JsonObject) => Json) => void;
}

export function toFacts({ layout, spec, base, problems, warnings }: JobFormProps): Map<string, FieldFacts> {
  const at = (findings: readonly Finding[], leaf: Leaf) => findings.filter(({ pointer }) => leafAt(layout.leaves, pointer) === leaf);
  const firstOfItem = new Set<string>();
  return new Map(
    [...layout.leaves].sort((a, b) => Number(b.basic) - Number(a.basic) || a.order - b.order).map((leaf) => {
      const value = getAt(spec, leaf.pointer);
      const presetValue = getAt(base, leaf.pointer);
      const list = leaf.item && layout.lists.find(({ pointer }) => pointer === leaf.item?.list);
      const item = leaf.item ? joinPointer(leaf.item.list, leaf.item.index) : '';
      const removable = list != null && list.count > list.min && !firstOfItem.has(item);
      firstOfItem.add(item);
      // Absent means the default, on both sides.
      const changed = leaf.isPart
        ? (value === null) !== (presetValue === null)
        : !sameJson(value ?? leaf.defaultValue ?? null, presetValue ?? leaf.defaultValue ?? null);
      const other = layout.leaves.find(({ pointer }) => pointer === leaf.follows);
      const shown = other && (getAt(spec, other.pointer) ?? other.defaultValue);
      const followed = other && shown != null ? `${formatJson(shown)}, as ${other.title}` : null;
      const facts: FieldFacts = { leaf, followed, label: labelOf(leaf, layout.lists), presetValue: leaf.isPart ? presetValue !== null : (presetValue ?? leaf.defaultValue), changed, problems: at(problems, leaf), warnings: at(warnings, leaf), removable };
      return [leaf.pointer, facts];
    }),
  );
}

function AddItem({ list, onAdd }: { list: List; onAdd: () => void }) {
  if (list.count >= list.max) return null;
  const article = list.count > 0 ? 'another' : /^[aeiou]/.test(list.itemName) ? 'an' : 'a';
  return <Button variant="subtle" color="gray" c="dimmed" size="xs" onClick={onAdd}>Add {article} {list.itemName}</Button>;
}

interface FoldProps {
  name: string;
  label: string;
  leaves: readonly Leaf[];
  facts: Map<string, FieldFacts>;
  unfolded: ReadonlySet<string>;
  onFold: (name: string, open: boolean) => void;
  children: ReactNode;
}

/** Inputs out of sight, with a word on those in it that were changed or are wrong. */
function Fold({ name, label, leaves, facts, unfolded, onFold, children }: FoldProps) {
  const open = unfolded.has(name);
  const changed = leaves.filter(({ pointer }) => facts.get(pointer)?.changed).length;
  const wrong = leaves.filter(({ pointer }) => (facts.get(pointer)?.problems.length ?? 0) > 0).length;
  return (
    <details open={open} onToggle={(event) => event.target === event.currentTarget && onFold(name, event.currentTarget.open)}>
      <summary>
        {label}
        {changed > 0 && <span className="fold-changed"><span className="dot" aria-hidden="true" /> {changed} changed</span>}
        {wrong > 0 && <span className="fold-changed bad">{wrong} to mend</span>}
      </summary>
      {open && <div className="fold-body">{children}</div>}
    </details>
  );
}

export function JobForm(props: JobFormProps) {
  const { layout, spec, base, unfolded, onFold, setSpec } = props;
  const facts = toFacts(props);
  const baseNow = useRef(base);
  baseNow.current = base;

  const fold = useRef(onFold);
  fold.current = onFold;
  const change = useCallback(
    (leaf: Leaf, value: Json | undefined) => {
      // Whoever switches a part on wants to see what is in it.
      if (leaf.isPart && value === true) fold.current(partFold(leaf), true);
      setSpec((before) => {
        if (!leaf.isPart) return setAt(before, leaf.pointer, value);
        // Switched on again, a part comes back as the preset had it; its defaults are the server's to fill in.
        const kept = getAt(baseNow.current, leaf.pointer);
        return setAt(before, leaf.pointer, value === true ? (kept ?? {}) : null);
      });
    },
    [setSpec],
  );
  // The actions stay the same object, so that inputs which did not change are not drawn again.
  const actions = useMemo<FormActions>(
    () => ({
      reset: (leaf) => setSpec((before) => setAt(before, leaf.pointer, getAt(baseNow.current, leaf.pointer))),
      removeItem: (leaf) => leaf.item && setSpec((before) => setAt(before, joinPointer(leaf.item?.list ?? '', leaf.item?.index ?? 0), undefined)),
      apply: (leaf, value) => setSpec((before) => setAt(before, leaf.pointer, value)),
    }),
    [setSpec],
  );
  const addItem = (list: List) =>
    setSpec((before) => {
      const items = getAt(before, list.pointer);
      const all = Array.isArray(items) ? items : [];
      return setAt(before, list.pointer, [...all, list.blank]);
    });

  return (
    <>
      {toSections(layout).map((section) => {
        const shared = { spec, facts, actions, onChange: change };
        const empty = section.lists.filter(({ count }) => count === 0);
        return (
          <section key={section.name} className="form-section" aria-labelledby={`section-${section.name}`}>
            <h2 id={`section-${section.name}`}>{section.name}</h2>
            {toRuns(section.basic, layout.lists, false).map(({ key, list, leaves }) => (
              <div key={key} className="form-run">
                <SectionForm leaves={leaves} {...shared} />
                {list && <AddItem list={list} onAdd={() => addItem(list)} />}
              </div>
            ))}
            {empty.map((list) => <AddItem key={list.pointer} list={list} onAdd={() => addItem(list)} />)}
            {section.folded.length > 0 && (
              <Fold name={section.name} label={plural(section.folded.length, section.basic.length > 0 ? 'more setting' : 'setting')} leaves={section.folded} facts={facts} unfolded={unfolded} onFold={onFold}>
                {toRuns(section.folded, layout.lists, true).map((run) => {
                  const fold = foldOf(section.name, run);
                  const form = <SectionForm key={run.key} leaves={run.leaves} {...shared} />;
                  return fold ? <Fold key={run.key} {...fold} leaves={run.leaves} facts={facts} unfolded={unfolded} onFold={onFold}>{form}</Fold> : form;
                })}
              </Fold>
            )}
          </section>
        );
      })}
    </>
  );
}
