import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Feed, type FeedState } from './feed';

/** An EventSource whose server is this test. */
class FakeSource extends EventTarget {
  static all: FakeSource[] = [];
  readyState = 0;
  closed = false;
  constructor(readonly url: string) {
    super();
    FakeSource.all.push(this);
  }
  close() {
    this.closed = true;
    this.readyState = 2;
  }
  opened() {
    this.readyState = 1;
    this.dispatchEvent(new Event('open'));
  }
  message(type: string, id: number, data: unknown = { seq: id }) {
    this.dispatchEvent(new MessageEvent(type, { data: JSON.stringify(data), lastEventId: String(id) }));
  }
  dropped(forGood: boolean) {
    this.readyState = forGood ? 2 : 0;
    this.dispatchEvent(new Event('error'));
  }
}

const last = () => FakeSource.all.at(-1) as FakeSource;

function open(after: number | null) {
  const seen: number[] = [];
  const states: FeedState[] = [];
  const reopened = vi.fn();
  const feed = new Feed<{ seq: number }>({
    url: '/v1/jobs/j/events',
    after,
    types: ['sample', 'metrics', 'error'],
    onEvent: ({ seq }) => seen.push(seq),
    onState: (state) => states.push(state),
    onReopen: reopened,
    source: FakeSource as unknown as new (url: string) => EventSource,
  });
  return { feed, seen, states, reopened };
}

beforeEach(() => {
  vi.useFakeTimers();
  FakeSource.all = [];
});
afterEach(() => vi.useRealTimers());

test('starts where it is told and passes each event once, also when the server repeats some', () => {
  const { seen } = open(4);
  expect(last().url).toBe('/v1/jobs/j/events?after=4');
  last().opened();
  last().message('sample', 5);
  last().message('metrics', 6);
  last().message('sample', 5);
  last().message('sample', 4);
  last().message('sample', 7);
  expect(seen).toEqual([5, 6, 7]);
});

test('leaves a short break to the browser', () => {
  const { states } = open(0);
  last().opened();
  last().dropped(false);
  vi.advanceTimersByTime(60_000);
  expect(FakeSource.all).toHaveLength(1);
  expect(states).toEqual(['live', 'reconnecting']);
});

test('opens anew after the last event when the browser has given up', () => {
  const { seen, reopened } = open(0);
  last().opened();
  last().message('sample', 1);
  last().message('sample', 2);
  last().dropped(true);
  vi.advanceTimersByTime(600);
  expect(FakeSource.all).toHaveLength(2);
  expect(last().url).toBe('/v1/jobs/j/events?after=2');
  expect(reopened).toHaveBeenCalledOnce();
  last().message('sample', 2);
  last().message('sample', 3);
  expect(seen).toEqual([1, 2, 3]);
});

test('waits longer from one failure to the next, up to a limit', () => {
  open(0);
  for (let i = 0; i < 8; i += 1) {
    last().dropped(true);
    vi.advanceTimersByTime(10_000);
  }
  expect(FakeSource.all).toHaveLength(9);
  last().dropped(true);
  vi.advanceTimersByTime(5000);
  expect(FakeSource.all).toHaveLength(9);
});

test("an event named 'error' is the server's message, not a broken line", () => {
  const { seen, states } = open(0);
  last().opened();
  last().message('error', 1);
  expect(seen).toEqual([1]);
  expect(states).toEqual(['live']);
});

test("notes the number of the server's opening message, so that a stream from now can go on", () => {
  const { seen } = open(null);
  expect(last().url).toBe('/v1/jobs/j/events');
  last().message('open', 40);
  expect(seen).toEqual([]);
  last().dropped(true);
  vi.advanceTimersByTime(600);
  expect(last().url).toBe('/v1/jobs/j/events?after=40');
});

test('closes for good at the end', () => {
  const { states } = open(0);
  last().opened();
  last().message('end', 9);
  expect(last().closed).toBe(true);
  last().dropped(true);
  vi.advanceTimersByTime(60_000);
  expect(FakeSource.all).toHaveLength(1);
  expect(states).toEqual(['live', 'ended']);
});
