/** A stream of events that is never lost and never told twice.
 *
 * The browser's EventSource reconnects by itself and sends Last-Event-ID; where it gives up (an error status at reconnect), the
 * feed opens a new one with `?after=`. Whatever number was seen once is not passed on again. */

export type FeedState = 'connecting' | 'live' | 'reconnecting' | 'ended';

export interface FeedOptions<T> {
  url: string;
  /** Start after this number; null starts at "now". */
  after: number | null;
  types: readonly string[];
  onEvent: (event: T) => void;
  onState: (state: FeedState) => void;
  /** Called when the feed had to be opened anew, so that lists can be asked again. */
  onReopen?: () => void;
  /** The class to open; a test puts its own here. */
  source?: new (url: string) => EventSource;
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export class Feed<T> {
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private wait = FIRST_WAIT_MS;
  private last: number | null;
  private done = false;

  constructor(private readonly options: FeedOptions<T>) {
    this.last = options.after;
    this.open();
  }

  close(): void {
    this.done = true;
    this.source?.close();
    if (this.timer) clearTimeout(this.timer);
  }

  private open(): void {
    const { url, types, onState, source: Source = EventSource } = this.options;
    const source = new Source(this.last === null ? url : `${url}?after=${this.last}`);
    this.source = source;
    source.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      onState('live');
    };
    source.onerror = () => this.failed(source);
    for (const type of types) source.addEventListener(type, (message) => this.take(message as MessageEvent<string>));
    source.addEventListener('end', () => {
      this.close();
      onState('ended');
    });
  }

  private take(message: MessageEvent<string>): void {
    const number = Number(message.lastEventId);
    if (message.lastEventId && Number.isFinite(number)) {
      if (this.last !== null && number <= this.last) return;
      this.last = number;
    }
    this.options.onEvent(JSON.parse(message.data) as T);
  }

  private failed(source: EventSource): void {
    if (this.done) return;
    this.options.onState('reconnecting');
    if (source.readyState !== 2) return; // not CLOSED: the browser tries again by itself
    source.close();
    this.timer = setTimeout(() => {
      this.open();
      this.options.onReopen?.();
    }, this.wait);
    this.wait = Math.min(this.wait * 2, LONGEST_WAIT_MS);
  }
}
