/** Inputs that mean something only beside certain values of other keys: `ui.when` in the schema, `{key: [values]}`. A key stands in the
 * same object; "../key" stands in the object around it (for an item of a list, the object that holds the list). */
import type { Json, JsonObject } from '../api/types';
import { joinPointer, sameJson, setAt } from '../lib/pointer';
import { isObject, resolve, withoutNull } from './schema';

/** An object of the job, as its schema and its value, and the one around it. */
export interface Scope {
  properties: JsonObject;
  value: Json | undefined;
  outer: Scope | null;
}

/** The `when` of a property's own hint. */
export function whenOf(property: JsonObject): JsonObject | null {
  return isObject(property.ui) && isObject(property.ui.when) ? property.ui.when : null;
}

/** What a key of a `when` names: its schema, and its value, which is the default where there is none. */
function named(key: string, scope: Scope): { schema: JsonObject; value: Json | undefined } {
  const outside = key.startsWith('../');
  const holder = outside ? scope.outer : scope;
  const own = outside ? key.slice(3) : key;
  const found = holder?.properties[own];
  const schema = isObject(found) ? found : {};
  const given = isObject(holder?.value) ? holder.value[own] : undefined;
  return { schema, value: given === undefined ? schema.default : given };
}

/** Whether the keys that `when` names have the values asked for. */
export function isMet(when: JsonObject, scope: Scope): boolean {
  return Object.entries(when).every(([key, values]) => Array.isArray(values) && values.some((wanted) => sameJson(wanted, named(key, scope).value)));
}

/** Whether a key that `when` names is a free text that is none of those offered: perhaps one still being typed. */
function isUnsettled(when: JsonObject, scope: Scope): boolean {
  return Object.keys(when).some((key) => {
    const { schema, value } = named(key, scope);
    const offered = isObject(schema.ui) ? schema.ui.suggest : undefined;
    return Array.isArray(offered) && !offered.some((known) => sameJson(known, value));
  });
}

type Change = [pointer: string, value: Json | undefined];

/** Something of the job before and after a change, and the objects around it then. */
interface Then {
  value: Json | undefined;
  scope: Scope | null;
}

function leftovers(given: JsonObject, pointer: string, before: Then, after: Then, root: JsonObject, found: Change[]): void {
  // Unchanged parts are the same objects; what hangs on a key of the object around them may have changed all the same.
  if (before.value === after.value && before.scope?.value === after.scope?.value) return;
  const { schema } = withoutNull(resolve(given, root), root);
  if (Array.isArray(after.value) && isObject(schema.items)) {
    const items = schema.items;
    const was = Array.isArray(before.value) ? before.value : [];
    after.value.forEach((item, index) => leftovers(items, joinPointer(pointer, index), { ...before, value: was[index] }, { ...after, value: item }, root, found));
  }
  if (!isObject(schema.properties) || !isObject(after.value)) return;
  const then = ({ value, scope }: Then): Scope => ({ properties: schema.properties as JsonObject, value, outer: scope });
  const [old, now] = [then(before), then(after)];
  for (const [key, property] of Object.entries(schema.properties)) {
    if (!isObject(property)) continue;
    const when = whenOf(property);
    const at = joinPointer(pointer, key);
    const value = after.value[key];
    if (when && key in after.value && isMet(when, old) && !isMet(when, now)) {
      if (!sameJson(value, property.default) && !isUnsettled(when, now)) found.push([at, property.default]);
    } else leftovers(property, at, { value: isObject(before.value) ? before.value[key] : undefined, scope: old }, { value, scope: now }, root, found);
  }
}

/** `after` with each value whose condition went away by this change back at its default: the server refuses what means nothing.
 * What had no meaning before the change either (typed in the JSON) is left for the server to name, and so is what hangs on a text that
 * is none of those offered: half a word must not cost what was typed elsewhere. */
export function dropLeftovers(schema: JsonObject, before: JsonObject, after: JsonObject): JsonObject {
  let now = after;
  for (;;) {
    const found: Change[] = [];
    leftovers(schema, '', { value: before, scope: null }, { value: now, scope: null }, schema, found);
    if (found.length === 0) return now;
    // One that goes back may be another's condition.
    for (const [pointer, value] of found) now = setAt(now, pointer, value) as JsonObject;
  }
}
