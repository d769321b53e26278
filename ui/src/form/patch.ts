/** What to send at a resume, so that the job becomes what the form shows. */
import type { Json, JsonObject } from '../api/types';
import { sameJson } from '../lib/pointer';
import { isObject, resolve, withoutNull } from './schema';

/** The patch that turns `before` into `after` on a server that merges objects key by key and replaces everything else. Nothing in
 * such a patch takes a key away, so one that is gone is sent as its default (null where the schema has none). */
export function toPatch(before: JsonObject, after: JsonObject, given: JsonObject, root: JsonObject = given): JsonObject {
  const { schema } = withoutNull(resolve(given, root), root);
  const properties = isObject(schema.properties) ? schema.properties : {};
  const patch: JsonObject = {};
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const old = before[key];
    const now: Json | undefined = after[key];
    const property = isObject(properties[key]) ? properties[key] : {};
    if (sameJson(old, now)) continue;
    if (now === undefined) patch[key] = property.default ?? null;
    else patch[key] = isObject(old) && isObject(now) ? toPatch(old, now, property, root) : now;
  }
  return patch;
}
