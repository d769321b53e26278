/** Peak memory by part, as one bar against the device. */
import { useQuery } from '@tanstack/react-query';
import { api } from '../api/api';
import type { Plan } from '../api/types';
import { formatMemory } from '../lib/format';
import { isBeingWorkedOut, toMemoryBar } from './needs';

/** Calm colours that differ in both schemes; none is the red of failure. */
const COLOURS = ['oklch(0.72 0.14 75)', 'oklch(0.7 0.11 130)', 'oklch(0.7 0.1 185)', 'oklch(0.66 0.12 240)', 'oklch(0.65 0.12 285)', 'oklch(0.66 0.12 325)', 'oklch(0.6 0.03 80)', 'oklch(0.75 0.08 100)'];
const colourOf = (place: number) => COLOURS[place % COLOURS.length];

export function Memory({ plan }: { plan: Plan }) {
  const workers = useQuery({ queryKey: ['workers'], queryFn: api.workers, staleTime: 60_000 });
  const bar = toMemoryBar(plan, workers.data ?? []);
  if (!bar) {
    if (!isBeingWorkedOut(plan)) return null;
    return (
      <div className="memory">
        <p><strong>Memory</strong> <span className="dim">being worked out</span></p>
        <div className="memory-bar skeleton" />
      </div>
    );
  }
  const over = bar.room !== null && bar.peak > bar.room;
  // A job that may run nevertheless makes fewer pictures at once; a warning says how many.
  const misfit = plan.ok ? 'fewer at once will fit' : 'does not fit';
  const told = `${formatMemory(bar.peak)}${bar.room === null ? '' : ` of ${formatMemory(bar.room)}`}`;
  return (
    <div className="memory">
      <p><strong>Memory</strong> <span className={!over ? 'dim' : plan.ok ? 'warn' : 'bad'}>{over ? `${told}: ${misfit}` : `${told} at most, while ${bar.phase}`}</span></p>
      <div className="memory-bar" data-over={over || undefined} role="img" aria-label={`Memory ${told}: ${bar.parts.map(({ name, bytes }) => `${name} ${formatMemory(bytes)}`).join(', ')}`}>
        {bar.parts.map(({ name, share, place }) => <span key={name} style={{ width: `${100 * share}%`, background: colourOf(place) }} />)}
        {over && bar.roomShare !== null && <i style={{ left: `${100 * bar.roomShare}%` }} title="Here the device ends" />}
      </div>
      <ul className="memory-parts small">
        {bar.parts.map(({ name, bytes, place }) => <li key={name}><span className="memory-swatch" style={{ background: colourOf(place) }} aria-hidden="true" />{name} <span className="dim">{formatMemory(bytes)}</span></li>)}
      </ul>
      {plan.memory?.notes.map((note) => <p key={note} className="dim small">{note}</p>)}
    </div>
  );
}
