import type { Point } from '../api/types';

/** A series in one glance; no axes, so its last value stands beside it in words. */
export function Sparkline({ points, label }: { points: readonly Point[]; label: string }) {
  const known = points.filter((point): point is [number, number] => point[1] !== null);
  if (known.length < 2) return <svg className="spark" viewBox="0 0 100 32" role="img" aria-label={`${label}: no values yet`} />;
  const values = known.map(([, value]) => value);
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const first = known[0]?.[0] ?? 0;
  const width = (known.at(-1)?.[0] ?? 1) - first || 1;
  const path = known.map(([step, value], i) => `${i ? 'L' : 'M'}${((100 * (step - first)) / width).toFixed(2)} ${(30 - (28 * (value - low)) / span).toFixed(2)}`).join('');
  return (
    <svg className="spark" viewBox="0 0 100 32" preserveAspectRatio="none" role="img" aria-label={label}>
      <path d={path} fill="none" stroke="currentColor" strokeWidth={1.5} vectorEffect="non-scaling-stroke" strokeLinejoin="round" />
    </svg>
  );
}
