/** From a job's JSON Schema to the inputs of a form. Where an input stands is told by its own `ui` hint, however deep it is nested;
 * nothing here knows a field by name. */
import type { Json, JsonObject } from '../api/types';
import { getAt, joinPointer } from '../lib/pointer';

/** The sections in the order of the page; unknown ones follow. */
const SECTIONS = ['What', 'Dataset', 'Training', 'Previews', 'Advanced'];
const LAST = Number.MAX_SAFE_INTEGER;

interface Hint {
  section?: string;
  order?: number;
  basic?: boolean;
  unit?: string;
  widget?: string;
  hidden?: boolean;
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
  nullable: boolean;
  defaultValue: Json | undefined;
  /** True for a whole optional part of the job: drawn as a switch, off is null. */
  isPart: boolean;
  /** The list that this input's item is in, and the item's number from 0. */
  item: { list: string; index: number; name: string } | null;
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

const isObject = (value: Json | undefined): value is JsonObject => value !== null && typeof value === 'object' && !Array.isArray(value);

/** `#/$defs/X` replaced by what it names; what stands beside the reference (title, ui, default) wins. */
function resolve(schema: JsonObject, root: JsonObject): JsonObject {
  if (typeof schema.$ref !== 'string') return schema;
  const { $ref, ...beside } = schema;
  const target = getAt(root, $ref.slice(1));
  return isObject(target) ? { ...resolve(target, root), ...beside } : beside;
}

/** The schema without its null branch, if what is left is one schema. */
function withoutNull(schema: JsonObject, root: JsonObject): { schema: JsonObject; nullable: boolean } {
  const branches = schema.anyOf ?? schema.oneOf;
  if (!Array.isArray(branches)) return { schema, nullable: false };
  const rest = branches.filter((branch) => !(isObject(branch) && branch.type === 'null'));
  const nullable = rest.length < branches.length;
  const [only] = rest;
  const { anyOf, oneOf, ...outer } = schema;
  if (rest.length === 1 && isObject(only)) return { schema: { ...resolve(only, root), ...outer }, nullable };
  return { schema: { ...outer, anyOf: rest }, nullable };
}

const singular = (title: string) => title.replace(/s$/, '').toLowerCase();

/** The simplest item that the schema allows: its required texts, empty. */
function blankItem(schema: JsonObject, root: JsonObject): JsonObject {
  const blank: JsonObject = {};
  const properties = isObject(schema.properties) ? schema.properties : {};
  for (const key of Array.isArray(schema.required) ? schema.required : []) {
    const property = properties[String(key)];
    if (isObject(property)) blank[String(key)] = resolve(property, root).type === 'string' ? '' : null;
  }
  return blank;
}

function collect(layout: Layout, given: JsonObject, pointer: string, value: Json | undefined, item: Leaf['item'], root: JsonObject): void {
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
    section: hint.section ?? 'Advanced',
    order: hint.order ?? LAST,
    basic: hint.basic ?? false,
    unit: hint.unit ?? null,
    widget: hint.widget ?? null,
    nullable,
    defaultValue,
    isPart: false,
    item,
  };

  if (isObject(schema.properties)) {
    if (nullable) layout.leaves.push({ ...leaf, schema: { type: 'boolean', title }, isPart: true });
    if (nullable && value === null) return;
    for (const [key, property] of Object.entries(schema.properties)) {
      if (isObject(property)) collect(layout, property, joinPointer(pointer, key), isObject(value) ? value[key] : undefined, item, root);
    }
    return;
  }
  const items = isObject(schema.items) ? resolve(schema.items, root) : null;
  if (items && isObject(items.properties)) {
    const values = Array.isArray(value) ? value : [];
    const before = layout.leaves.length;
    values.forEach((one, index) => collect(layout, items, joinPointer(pointer, index), one, { list: pointer, index, name: singular(title) }, root));
    // A list stands where its items' inputs stand; an empty one is asked what an item would look like.
    const probe: Layout = { leaves: layout.leaves.slice(before), lists: [] };
    if (probe.leaves.length === 0) collect(probe, items, pointer, undefined, null, root);
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
  collect(layout, schema, '', spec, null, schema);
  return layout;
}

/** The inputs by section, each section's in the order of their hints. */
export function toSections({ leaves, lists }: Layout): SectionLayout[] {
  const names = [...SECTIONS, ...leaves.map(({ section }) => section).filter((name) => !SECTIONS.includes(name))];
  const inOrder = (a: Leaf, b: Leaf) => a.order - b.order || (a.item?.index ?? 0) - (b.item?.index ?? 0);
  // Folded inputs of list items stand item by item, after those of the section itself.
  const byItem = (a: Leaf, b: Leaf) => (a.item?.list ?? '').localeCompare(b.item?.list ?? '') || (a.item?.index ?? -1) - (b.item?.index ?? -1) || a.order - b.order;
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

/** A stretch of inputs that belong together: those of one list, of one item of a list, or none's. */
export interface Run {
  key: string;
  list: List | null;
  index: number | null;
  leaves: Leaf[];
}

/** Splits inputs, in their order, where the list (or, `byItem`, its item) changes. */
export function toRuns(leaves: readonly Leaf[], lists: readonly List[], byItem: boolean): Run[] {
  const runs: Run[] = [];
  for (const leaf of leaves) {
    const list = lists.find(({ pointer }) => pointer === leaf.item?.list) ?? null;
    // The only item of a list needs no heading of its own.
    const index = byItem && list && list.count > 1 ? (leaf.item?.index ?? null) : null;
    const owner = byItem && index === null ? null : list;
    const last = runs.at(-1);
    if (last && last.list === owner && last.index === index) last.leaves.push(leaf);
    else runs.push({ key: `${owner?.pointer ?? ''} ${index ?? ''} ${runs.length}`, list: owner, index, leaves: [leaf] });
  }
  return runs;
}

/** The name of the fold that an input is in, or in turn the folds around it; an open input has none. */
export function foldsOf(leaf: Leaf, lists: readonly List[]): string[] {
  if (leaf.basic) return [];
  const list = leaf.item && lists.find(({ pointer }) => pointer === leaf.item?.list);
  return list && list.count > 1 && leaf.item ? [leaf.section, foldName(leaf.section, list.pointer, leaf.item.index)] : [leaf.section];
}

export const foldName = (section: string, list: string, index: number): string => `${section} ${list}/${index}`;

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
