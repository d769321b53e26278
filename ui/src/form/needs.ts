/** What a plan says a job will need: memory by part, parameters that are trained, disk. */
import type { Plan, Worker } from '../api/types';

export interface MemoryPart {
  /** In words. */
  name: string;
  bytes: number;
  /** Its place in the order of all parts; a part keeps its colour whatever else there is. */
  place: number;
  /** Of the whole bar, from 0 to 1. */
  share: number;
}

export interface MemoryBar {
  peak: number;
  phase: string;
  parts: MemoryPart[];
  /** The device's memory in bytes, if a worker tells it. */
  room: number | null;
  /** Where the device ends on the bar, from 0 to 1. */
  roomShare: number | null;
}

/** Parts in the order of the bar; what a server names beyond these follows. */
const ORDER = ['weights', 'adapters', 'gradients', 'optimizer', 'ema', 'activations', 'caches'];
const WORDS: Record<string, string> = { ema: 'averages' };

const partName = (name: string, trains: boolean): string => (name === 'adapters' && trains ? 'trained weights' : (WORDS[name] ?? name.replaceAll('_', ' ')));

/** The bar of a plan, or null where it tells no memory. It is as long as the largest device that can run the job, or as the job where
 * that is more. */
export function toMemoryBar(plan: Plan, workers: readonly Worker[]): MemoryBar | null {
  const { memory } = plan;
  if (!memory) return null;
  const able = workers.filter(({ id }) => plan.workers.includes(id)).map(({ memory_total: total }) => total ?? 0);
  const room = Math.max(0, ...able) || null;
  const whole = Math.max(memory.peak, room ?? 0) || 1;
  const place = (name: string) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  const parts = Object.entries(memory.parts)
    .filter(([, bytes]) => bytes > 0)
    .sort(([a], [b]) => place(a) - place(b))
    .map(([name, bytes]) => ({ name: partName(name, memory.trained_parameters > 0), bytes, place: place(name), share: bytes / whole }));
  return { peak: memory.peak, phase: memory.phase, parts, room, roomShare: room === null ? null : room / whole };
}

/** Whether a line of `not_checked` says that the answer comes later. */
export const isPending = (line: string): boolean => line.includes('being worked out');

/** Whether a part of the plan comes later: then it is worth asking again. */
export const isBeingWorkedOut = (plan: Plan): boolean => plan.ok && plan.not_checked.some(isPending);
