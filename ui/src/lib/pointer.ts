/** JSON pointers (RFC 6901) over plain JSON values; nothing is changed in place. */
import type { Json, JsonObject } from '../api/types';

const unescape = (part: string) => part.replaceAll('~1', '/').replaceAll('~0', '~');
const escape = (part: string) => part.replaceAll('~', '~0').replaceAll('/', '~1');

export const parsePointer = (pointer: string): string[] => (pointer === '' ? [] : pointer.slice(1).split('/').map(unescape));
export const joinPointer = (parent: string, key: string | number): string => `${parent}/${escape(String(key))}`;

export function getAt(value: Json | undefined, pointer: string): Json | undefined {
  let here: Json | undefined = value;
  for (const part of parsePointer(pointer)) {
    if (Array.isArray(here)) here = here[Number(part)];
    else if (here !== null && typeof here === 'object') here = here[part];
    else return undefined;
  }
  return here;
}

/** A copy of `value` with `next` at `pointer`; missing objects on the way are made. `undefined` removes the key. */
export function setAt(value: Json, pointer: string, next: Json | undefined): Json {
  return setParts(value, parsePointer(pointer), next) ?? null;
}

function setParts(value: Json | undefined, parts: string[], next: Json | undefined): Json | undefined {
  const [key, ...rest] = parts;
  if (key === undefined) return next;
  if (Array.isArray(value)) {
    const copy = [...value];
    const item = setParts(copy[Number(key)], rest, next);
    if (item === undefined) copy.splice(Number(key), 1);
    else copy[Number(key)] = item;
    return copy;
  }
  const copy: JsonObject = value !== null && typeof value === 'object' ? { ...value } : {};
  const item = setParts(copy[key], rest, next);
  if (item === undefined) delete copy[key];
  else copy[key] = item;
  return copy;
}

/** Equality of JSON values; the order of keys does not count. */
export function sameJson(a: Json | undefined, b: Json | undefined): boolean {
  if (a === b) return true;
  if (a === null || b === null || typeof a !== 'object' || typeof b !== 'object') return false;
  if (Array.isArray(a) || Array.isArray(b)) {
    return Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((item, i) => sameJson(item, b[i]));
  }
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  return [...keys].every((key) => sameJson(a[key], b[key]));
}
