/** Reading a JSON Schema as pydantic writes it: references, and optional things as a choice between a schema and null. */
import type { Json, JsonObject } from '../api/types';
import { getAt } from '../lib/pointer';

export const isObject = (value: Json | undefined): value is JsonObject => value !== null && typeof value === 'object' && !Array.isArray(value);

/** `#/$defs/X` replaced by what it names; what stands beside the reference (title, ui, default) wins. */
export function resolve(schema: JsonObject, root: JsonObject): JsonObject {
  if (typeof schema.$ref !== 'string') return schema;
  const { $ref, ...beside } = schema;
  const target = getAt(root, $ref.slice(1));
  return isObject(target) ? { ...resolve(target, root), ...beside } : beside;
}

/** The schema without its null branch, if what is left is one schema. */
export function withoutNull(schema: JsonObject, root: JsonObject): { schema: JsonObject; nullable: boolean } {
  const branches = schema.anyOf ?? schema.oneOf;
  if (!Array.isArray(branches)) return { schema, nullable: false };
  const rest = branches.filter((branch) => !(isObject(branch) && branch.type === 'null'));
  const nullable = rest.length < branches.length;
  const [only] = rest;
  const { anyOf, oneOf, ...outer } = schema;
  if (rest.length === 1 && isObject(only)) return { schema: { ...resolve(only, root), ...outer }, nullable };
  return { schema: { ...outer, anyOf: rest }, nullable };
}

/** The simplest item that the schema allows: its required texts, empty. */
export function blankItem(schema: JsonObject, root: JsonObject): JsonObject {
  const blank: JsonObject = {};
  const properties = isObject(schema.properties) ? schema.properties : {};
  for (const key of Array.isArray(schema.required) ? schema.required : []) {
    const property = properties[String(key)];
    if (isObject(property)) blank[String(key)] = resolve(property, root).type === 'string' ? '' : null;
  }
  return blank;
}
