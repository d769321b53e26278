/** JSON as text: parsed with the line of every value, and with the exact place of a mistake.
 *
 * JSON.parse does not always say where it stopped, and never where a value stood. Grammar: RFC 8259. */
import type { Json, JsonObject } from '../api/types';
import { joinPointer } from '../lib/pointer';

export interface JsonMistake {
  line: number;
  column: number;
  message: string;
}

export type Parsed = { value: Json; lines: Map<string, number>; mistake: null } | { value: null; lines: null; mistake: JsonMistake };

class Stop extends Error {
  constructor(
    message: string,
    readonly at: number,
  ) {
    super(message);
  }
}

const NUMBER = /-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
const STRING = /"([^"\\\u0000-\u001f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;

class Reader {
  at = 0;
  readonly lines = new Map<string, number>();
  constructor(readonly text: string) {}

  private line = 1;
  private lineFrom = 0;

  /** The line of the place now; places only grow, so nothing is counted twice. */
  private lineNow(): number {
    for (; this.lineFrom < this.at; this.lineFrom += 1) if (this.text[this.lineFrom] === '\n') this.line += 1;
    return this.line;
  }

  space(): void {
    while (' \t\n\r'.includes(this.text[this.at] ?? 'x')) this.at += 1;
  }

  private take(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0] ?? null;
    if (found !== null) this.at += found.length;
    return found;
  }

  private string(what: string): string {
    const start = this.at;
    if (this.text[start] !== '"') throw new Stop(`${what} must be in double quotes`, start);
    const found = this.take(STRING);
    if (found === null) throw new Stop('this text is not closed, or has a character that needs a backslash', start);
    return JSON.parse(found) as string;
  }

  value(pointer: string): Json {
    this.space();
    this.lines.set(pointer, this.lineNow());
    const char = this.text[this.at];
    if (char === '{') return this.object(pointer);
    if (char === '[') return this.array(pointer);
    if (char === '"') return this.string('a text');
    for (const [word, value] of [['true', true], ['false', false], ['null', null]] as const) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return value;
      }
    }
    const number = this.take(NUMBER);
    if (number !== null) return Number(number);
    throw new Stop(char === undefined ? 'the text ends here, but a value is missing' : 'a value is expected here', this.at);
  }

  private object(pointer: string): JsonObject {
    const made: JsonObject = {};
    this.at += 1;
    this.space();
    if (this.text[this.at] === '}') return (this.at += 1), made;
    for (;;) {
      this.space();
      const keyAt = this.at;
      const key = this.string('a key');
      if (Object.hasOwn(made, key)) throw new Stop(`"${key}" stands here twice`, keyAt);
      this.space();
      if (this.text[this.at] !== ':') throw new Stop('a colon is expected after the key', this.at);
      this.at += 1;
      made[key] = this.value(joinPointer(pointer, key));
      if (this.more('}')) continue;
      return made;
    }
  }

  private array(pointer: string): Json[] {
    const made: Json[] = [];
    this.at += 1;
    this.space();
    if (this.text[this.at] === ']') return (this.at += 1), made;
    for (;;) {
      made.push(this.value(joinPointer(pointer, made.length)));
      if (this.more(']')) continue;
      return made;
    }
  }

  /** True after a comma, false after the closing bracket. */
  private more(close: string): boolean {
    this.space();
    const char = this.text[this.at];
    if (char !== ',' && char !== close) throw new Stop(`a comma or "${close}" is expected here`, this.at);
    this.at += 1;
    return char === ',';
  }
}

export function parseJson(text: string): Parsed {
  const reader = new Reader(text);
  try {
    const value = reader.value('');
    reader.space();
    if (reader.at < text.length) throw new Stop('nothing may follow the closing bracket', reader.at);
    return { value, lines: reader.lines, mistake: null };
  } catch (error) {
    if (!(error instanceof Stop)) throw error;
    const before = text.slice(0, error.at).split('\n');
    return { value: null, lines: null, mistake: { line: before.length, column: (before.at(-1)?.length ?? 0) + 1, message: error.message } };
  }
}

export const writeJson = (value: Json): string => JSON.stringify(value, null, 2);
