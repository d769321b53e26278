/** Numbers, sizes and times in words. Units always; nothing here depends on the page. */

const count = new Intl.NumberFormat('en');

export const formatCount = (n: number): string => count.format(n);

/** "1 step", "1,240 steps". */
export const plural = (n: number, one: string, many = `${one}s`): string => `${formatCount(n)} ${n === 1 ? one : many}`;

export function formatSize(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let n = bytes;
  let i = 0;
  while (n >= 1000 && i < units.length - 1) {
    n /= 1000;
    i += 1;
  }
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

/** Memory is counted in powers of two, as devices are sold and as the server's messages say it: "23.5 GiB". */
export function formatMemory(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const i = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), units.length - 1);
  const n = bytes / 1024 ** i;
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

/** 75 -> "1 min 15 s"; two units at most, so that it stays short. */
export function formatDuration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return s % 60 && m < 10 ? `${m} min ${s % 60} s` : `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 48) return m % 60 ? `${h} h ${m % 60} min` : `${h} h`;
  return plural(Math.floor(h / 24), 'day');
}

/** How long a clip or a sound plays: "1.3 s", "12 s", "1:15". */
export function formatLength(seconds: number): string {
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const s = Math.round(seconds);
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`;
}

export function formatAgo(iso: string, now: number): string {
  const seconds = (now - Date.parse(iso)) / 1000;
  if (seconds < 45) return 'just now';
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 14 * 86400) return `${plural(Math.round(seconds / 86400), 'day')} ago`;
  return new Date(iso).toLocaleDateString(undefined, { dateStyle: 'medium' });
}

export const formatExact = (iso: string): string => new Date(iso).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

/** Four significant digits; tiny and huge values in exponent form. */
export function formatValue(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return Number(value.toPrecision(4)).toString();
}

export function formatSpeed(stepsPerSecond: number | null | undefined): string {
  if (!stepsPerSecond) return '–';
  if (stepsPerSecond >= 1) return `${stepsPerSecond.toFixed(stepsPerSecond < 10 ? 1 : 0)} steps/s`;
  return `${(1 / stepsPerSecond).toFixed(1)} s/step`;
}

/** A value in a sentence: "64, 96", "off", "nothing". */
export function formatJson(value: unknown): string {
  if (value === undefined || value === null) return 'nothing';
  if (value === '') return 'an empty text';
  if (value === true) return 'on';
  if (value === false) return 'off';
  if (Array.isArray(value)) return value.length > 0 ? value.map(formatJson).join(', ') : 'nothing';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}
