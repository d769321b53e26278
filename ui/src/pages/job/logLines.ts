/** The worker's log as lines with levels. */

export const LEVELS = ['debug', 'info', 'warning', 'error'] as const;
export type Level = (typeof LEVELS)[number];

export interface LogLine {
  number: number;
  level: Level;
  text: string;
}

const NAMES: Record<string, Level> = { DEBUG: 'debug', INFO: 'info', WARNING: 'warning', WARN: 'warning', ERROR: 'error', CRITICAL: 'error' };

/** A line without a level of its own (a traceback's) has that of the line before it. */
export function toLines(text: string): LogLine[] {
  let level: Level = 'info';
  const parts = text.split('\n');
  if (parts.at(-1) === '') parts.pop();
  return parts.map((line, i) => {
    const found = /\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b/i.exec(line.slice(0, 80))?.[1]?.toUpperCase();
    level = (found && NAMES[found]) || level;
    return { number: i + 1, level, text: line };
  });
}

export function filterLines(lines: readonly LogLine[], least: Level, find: string): LogLine[] {
  const from = LEVELS.indexOf(least);
  const needle = find.toLowerCase();
  return lines.filter(({ level, text }) => LEVELS.indexOf(level) >= from && (needle === '' || text.toLowerCase().includes(needle)));
}
