/** What the server says names keys, as a job file has them; on the page each input has a label, and this puts that in their place. */
import type { Finding, Json, JsonObject } from '../api/types';
import { isObject } from '../form/schema';
import { parsePointer } from './pointer';

/** A key's title, by the key. */
export type Titles = ReadonlyMap<string, string>;

/** The titles of every key in a job's schema, wherever it stands. */
export function titlesOf(schema: JsonObject): Titles {
  const found = new Map<string, string>();
  const walk = (part: Json | undefined) => {
    if (!isObject(part)) return;
    for (const [key, property] of Object.entries(isObject(part.properties) ? part.properties : {})) {
      if (isObject(property) && typeof property.title === 'string' && !found.has(key)) found.set(key, property.title);
    }
    Object.values(isObject(part.$defs) ? part.$defs : {}).forEach(walk);
  };
  walk(schema);
  return found;
}

/** Words that are keys and nothing else: several parts joined by dots or underscores. `seed` alone may just be a word. */
const KEY = /\b[a-z][a-z0-9]*(?:[._][a-z0-9]+)+\b/g;

export function inLabels(text: string, titles: Titles): string {
  return text.replace(KEY, (key) => titles.get(key.split('.').at(-1) ?? '') ?? key);
}

/** The finding as it stands at its input, whose own key need not be said again. */
export function atInput(finding: Finding, titles: Titles): Finding {
  const own = parsePointer(finding.pointer).at(-1) ?? '';
  const { message, suggestion } = finding;
  const rest = titles.has(own) && message.startsWith(`${own} `) ? message.slice(own.length + 1) : message;
  return { ...finding, message: inLabels(rest, titles), ...(suggestion?.includes(' ') ? { suggestion: inLabels(suggestion, titles) } : {}) };
}
