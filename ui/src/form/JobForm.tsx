/** The whole form: sections, the few inputs of a preset open, the others folded. */
import { Button } from '@mantine/core';
import { useMemo, useRef } from 'react';
import type { Finding, Json, JsonObject } from '../api/types';
import { plural } from '../lib/format';
import { getAt, joinPointer, sameJson, setAt } from '../lib/pointer';
import type { FieldFacts, FormActions } from './context';
import { labelOf, leafAt, toSections, type Layout, type Leaf, type List } from './leaves';
import { SectionForm } from './SectionForm';

interface JobFormProps {
  layout: Layout;
  spec: JsonObject;
  /** What the dots compare with. */
  base: JsonObject;
  problems: readonly Finding[];
  warnings: readonly Finding[];
  unfolded: ReadonlySet<string>;
  onFold: (section: string, open: boolean) => void;
  setSpec: (change: (spec: JsonObject) => Json) => void;
}

function toFacts({ layout, spec, base, problems, warnings }: JobFormProps): Map<string, FieldFacts> {
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
      const facts: FieldFacts = { leaf, label: labelOf(leaf, layout.lists), presetValue: leaf.isPart ? presetValue !== null : (presetValue ?? leaf.defaultValue), changed, problems: at(problems, leaf), warnings: at(warnings, leaf), removable };
      return [leaf.pointer, facts];
    }),
  );
}

function AddItem({ list, onAdd }: { list: List; onAdd: () => void }) {
  if (list.count >= list.max) return null;
  return <Button variant="subtle" color="gray" c="dimmed" size="xs" onClick={onAdd}>Add {list.count === 0 ? 'a' : 'another'} {list.itemName}</Button>;
}

export function JobForm(props: JobFormProps) {
  const { layout, spec, base, unfolded, onFold, setSpec } = props;
  const facts = toFacts(props);
  const baseNow = useRef(base);
  baseNow.current = base;

  const change = (leaf: Leaf, value: Json | undefined) =>
    setSpec((before) => {
      if (!leaf.isPart) return setAt(before, leaf.pointer, value);
      // Switched on again, a part comes back as the preset had it; its defaults are the server's to fill in.
      const kept = getAt(baseNow.current, leaf.pointer);
      return setAt(before, leaf.pointer, value === true ? (kept ?? {}) : null);
    });
  // The actions stay the same object, so that sections which did not change are not drawn again.
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
        const changed = section.folded.filter(({ pointer }) => facts.get(pointer)?.changed).length;
        const open = unfolded.has(section.name);
        return (
          <section key={section.name} className="form-section" aria-labelledby={`section-${section.name}`}>
            <h2 id={`section-${section.name}`}>{section.name}</h2>
            {section.basic.length > 0 && <SectionForm leaves={section.basic} {...shared} />}
            {section.lists.map((list) => <AddItem key={list.pointer} list={list} onAdd={() => addItem(list)} />)}
            {section.folded.length > 0 && (
              <details open={open} onToggle={(event) => onFold(section.name, event.currentTarget.open)}>
                <summary>
                  {plural(section.folded.length, section.basic.length > 0 ? 'more setting' : 'setting')}
                  {changed > 0 && <span className="fold-changed"> <span className="dot" aria-hidden="true" /> {changed} changed</span>}
                </summary>
                {open && <SectionForm leaves={section.folded} {...shared} />}
              </details>
            )}
          </section>
        );
      })}
    </>
  );
}
