/** From a job's JSON Schema to the inputs of a form. Where an input stands is told by its own `ui` hint, however deep it is nested;
 * nothing here knows a field by name. */
import type { Json, JsonObject } from '../api/types';
import { joinPointer, sameJson } from '../lib/pointer';
import { blankItem, isObject, resolve, withoutNull } from './schema';
import { isMet, whenOf, type Scope } from './when';

/** The sections in the order of the page; unknown ones follow. */
const SECTIONS = ['What', 'Dataset', 'Training', 'Previews', 'Advanced'];
const LAST = Number.MAX_SAFE_INTEGER;

interface Hint {
  section?: string;
  order?: number;
  basic?: boolean;
  unit?: string;
  widget?: string;
  suggest?: string[];
  hidden?: boolean;
  follows?: string;
}

export interface Leaf {
  pointer: string;
  /** Just this value's schema: references resolved, no default, null taken out. */
  schema: JsonObject;
  title: string;
  help: string;
  section: string;
  order: number;
  basic: boolean;
  unit: string | null;
  widget: string | null;
  /** Values to offer for a free text. */
  suggest: readonly string[];
  /** The input whose value this one has for as long as it is left empty. */
  follows: string | null;
  nullable: boolean;
  defaultValue: Json | undefined;
  /** True for a whole optional part of the job: drawn as a switch, off is null. */
  isPart: boolean;
  /** The list that this input's item is in, and the item's number from 0. */
  item: { list: string; index: number; name: string } | null;
  /** The optional part that this input is drawn together with, if that part has no place of its own. */
  group: { pointer: string; title: string } | null;
}

/** A list whose items have inputs of their own (datasets, prompts). */
export interface List {
  pointer: string;
  itemName: string;
  section: string;
  min: number;
  max: number;
  count: number;
  blank: JsonObject;
}

export interface Layout {
  leaves: Leaf[];
  lists: List[];
}

export interface SectionLayout {
  name: string;
  basic: Leaf[];
  folded: Leaf[];
  lists: List[];
}

const singular = (title: string) => title.replace(/s$/, '').toLowerCase();

/** Where the values below stand: in which object, in which item of a list, in which part that keeps its inputs together, in which
 * part's section. */
interface Around {
  root: JsonObject;
  scope: Scope | null;
  item: Leaf['item'];
  group: Leaf['group'];
  section: string | null;
}

function collect(layout: Layout, given: JsonObject, pointer: string, value: Json | undefined, around: Around): void {
  const { root, item, group } = around;
  const { schema, nullable } = withoutNull(resolve(given, root), root);
  const hint: Hint = isObject(schema.ui) ? (schema.ui as Hint) : {};
  if (hint.hidden || 'const' in schema) return; // a constant is no choice
  const title = typeof schema.title === 'string' ? schema.title : (pointer.split('/').at(-1) ?? '');
  const { default: defaultValue, ui, title: _title, description, ...rest } = schema;
  const leaf: Leaf = {
    pointer,
    schema: { ...rest, title },
    title,
    help: typeof description === 'string' ? description : '',
    section: (group ? around.section : (hint.section ?? around.section)) ?? 'Advanced',
    order: hint.order ?? LAST,
    basic: (hint.basic ?? false) && !group,
    unit: hint.unit ?? null,
    widget: hint.widget ?? null,
    suggest: hint.suggest ?? [],
    follows: hint.follows === undefined ? null : joinPointer(pointer.slice(0, pointer.lastIndexOf('/')), hint.follows),
    nullable,
    defaultValue,
    isPart: false,
    item,
    group,
  };

  if (isObject(schema.properties)) {
    let inside = around;
    if (nullable) {
      layout.leaves.push({ ...leaf, schema: { type: 'boolean', title }, isPart: true });
      if (value === null || (value === undefined && defaultValue === null)) return;
      // An optional part without a place of its own keeps its inputs together, whatever place they would have elsewhere.
      inside = { ...around, section: leaf.section, group: hint.section === undefined ? { pointer, title } : group };
    }
    const scope: Scope = { properties: schema.properties, value, outer: around.scope };
    inside = { ...inside, scope };
    for (const [key, property] of Object.entries(schema.properties)) {
      if (!isObject(property)) continue;
      const own = isObject(value) ? value[key] : undefined;
      const when = whenOf(property);
      // A value that is set where it means nothing is drawn all the same, so that it can be seen and mended.
      const idle = own === undefined || sameJson(own, property.default);
      if (when && idle && !isMet(when, scope)) continue;
      collect(layout, property, joinPointer(pointer, key), own, inside);
    }
    return;
  }
  const items = isObject(schema.items) ? resolve(schema.items, root) : null;
  if (items && isObject(items.properties)) {
    const values = Array.isArray(value) ? value : [];
    const before = layout.leaves.length;
    values.forEach((one, index) => collect(layout, items, joinPointer(pointer, index), one, { ...around, item: { list: pointer, index, name: singular(title) } }));
    // A list stands where its items' inputs stand; an empty one is asked what an item would look like.
    const probe: Layout = { leaves: layout.leaves.slice(before), lists: [] };
    if (probe.leaves.length === 0) collect(probe, items, pointer, undefined, { ...around, item: null });
    const first = probe.leaves.find(({ basic }) => basic) ?? probe.leaves[0];
    layout.lists.push({
      pointer,
      itemName: singular(title),
      section: first?.section ?? leaf.section,
      min: typeof schema.minItems === 'number' ? schema.minItems : 0,
      max: typeof schema.maxItems === 'number' ? schema.maxItems : LAST,
      count: values.length,
      blank: blankItem(items, root),
    });
    return;
  }
  layout.leaves.push(leaf);
}

/** All inputs that `spec` has under this schema. */
export function toLayout(schema: JsonObject, spec: JsonObject): Layout {
  const layout: Layout = { leaves: [], lists: [] };
  collect(layout, schema, '', spec, { root: schema, scope: null, item: null, group: null, section: null });
  return layout;
}

/** The inputs by section, each section's in the order of their hints. */
export function toSections({ leaves, lists }: Layout): SectionLayout[] {
  const names = [...SECTIONS, ...leaves.map(({ section }) => section).filter((name) => !SECTIONS.includes(name))];
  const inOrder = (a: Leaf, b: Leaf) => a.order - b.order || (a.item?.index ?? 0) - (b.item?.index ?? 0);
  // Folded inputs of list items stand item by item, after those of the section itself; those of a part that keeps together come last.
  const byItem = (a: Leaf, b: Leaf) =>
    (a.group?.pointer ?? '').localeCompare(b.group?.pointer ?? '') || (a.item?.list ?? '').localeCompare(b.item?.list ?? '') || (a.item?.index ?? -1) - (b.item?.index ?? -1) || a.order - b.order;
  return [...new Set(names)]
    .map((name) => {
      const own = leaves.filter(({ section }) => section === name);
      return {
        name,
        basic: own.filter(({ basic }) => basic).sort(inOrder),
        folded: own.filter(({ basic }) => !basic).sort(byItem),
        lists: lists.filter(({ section }) => section === name),
      };
    })
    .filter(({ basic, folded, lists: own }) => basic.length + folded.length + own.length > 0);
}

/** A stretch of inputs that belong together: those of one list, of one item of a list, of a part that keeps together, or none's. */
export interface Run {
  key: string;
  list: List | null;
  index: number | null;
  group: Leaf['group'];
  leaves: Leaf[];
}

/** Splits inputs, in their order, where the list (or, `byItem`, its item, or the part that keeps together) changes. */
export function toRuns(leaves: readonly Leaf[], lists: readonly List[], byItem: boolean): Run[] {
  const runs: Run[] = [];
  for (const leaf of leaves) {
    const { group } = leaf;
    const list = group ? null : (lists.find(({ pointer }) => pointer === leaf.item?.list) ?? null);
    // The only item of a list needs no heading of its own.
    const index = byItem && list && list.count > 1 ? (leaf.item?.index ?? null) : null;
    const owner = byItem && index === null ? null : list;
    const last = runs.at(-1);
    if (last && last.list === owner && last.index === index && last.group?.pointer === group?.pointer) last.leaves.push(leaf);
    else runs.push({ key: `${group?.pointer ?? owner?.pointer ?? ''} ${index ?? ''} ${runs.length}`, list: owner, index, group, leaves: [leaf] });
  }
  return runs;
}

/** The fold of a part that keeps its inputs together, named by its switch. */
export const partFold = ({ section, pointer }: Pick<Leaf, 'section' | 'pointer'>): string => `${section} ${pointer}`;

/** The fold around a run, beside the section's own: its name and what it says; null where there is none. */
export function foldOf(section: string, { list, index, group }: Pick<Run, 'list' | 'index' | 'group'>): { name: string; label: string } | null {
  if (group) return { name: partFold({ section, pointer: group.pointer }), label: group.title };
  if (list && index !== null) return { name: `${section} ${list.pointer}/${index}`, label: `For ${list.itemName} ${index + 1} alone` };
  return null;
}

/** The name of the fold that an input is in, or in turn the folds around it; an open input has none. */
export function foldsOf(leaf: Leaf, lists: readonly List[]): string[] {
  if (leaf.basic) return [];
  const list = lists.find(({ pointer }) => pointer === leaf.item?.list) ?? null;
  const inner = foldOf(leaf.section, { list, index: list && list.count > 1 ? (leaf.item?.index ?? null) : null, group: leaf.group });
  return inner ? [leaf.section, inner.name] : [leaf.section];
}

/** The input that a finding's pointer means: itself, or the one around it. */
export function leafAt(leaves: readonly Leaf[], pointer: string): Leaf | undefined {
  for (let at = pointer; at !== ''; at = at.slice(0, at.lastIndexOf('/'))) {
    const leaf = leaves.find((candidate) => candidate.pointer === at);
    if (leaf) return leaf;
  }
  return undefined;
}

export const fieldId = (pointer: string): string => `field${pointer}`;

/** What the label says: the item's number only where there are several. */
export function labelOf(leaf: Leaf, lists: readonly List[]): string {
  const list = leaf.item && lists.find(({ pointer }) => pointer === leaf.item?.list);
  return list && list.count > 1 && leaf.item ? `${leaf.title} ${leaf.item.index + 1}` : leaf.title;
}
