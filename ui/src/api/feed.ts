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
    window.addEventListener('online', this.renew);
    this.open();
  }

  close(): void {
    this.done = true;
    window.removeEventListener('online', this.renew);
    this.source?.close();
    if (this.timer) clearTimeout(this.timer);
  }

  /** Back from a lost network, a stream may look alive and be dead: it is opened anew. */
  private renew = (): void => {
    this.source?.close();
    if (this.timer) clearTimeout(this.timer);
    this.open();
    this.options.onReopen?.();
  };

  private open(): void {
    const { url, types, onState, source: Source = EventSource } = this.options;
    const source = new Source(this.last === null ? url : `${url}?after=${this.last}`);
    this.source = source;
    // "open" and "error" are both names of the browser's own happenings and of messages from the server; only messages have data.
    source.addEventListener('open', (event) => {
      if (event instanceof MessageEvent) this.isNew(event as MessageEvent<string>);
      else {
        this.wait = FIRST_WAIT_MS;
        onState('live');
      }
    });
    source.addEventListener('error', (event) => {
      if (!(event instanceof MessageEvent)) this.failed(source);
      else if (types.includes('error')) this.take(event as MessageEvent<string>);
    });
    for (const type of types) {
      if (type !== 'error') source.addEventListener(type, (message) => this.take(message as MessageEvent<string>));
    }
    source.addEventListener('end', () => {
      this.close();
      onState('ended');
    });
  }

  /** Notes the message's number; false if it, or a later one, was seen before. */
  private isNew(message: MessageEvent<string>): boolean {
    const number = Number(message.lastEventId);
    if (!message.lastEventId || !Number.isFinite(number)) return true;
    if (this.last !== null && number <= this.last) return false;
    this.last = number;
    return true;
  }

  private take(message: MessageEvent<string>): void {
    if (this.isNew(message)) this.options.onEvent(JSON.parse(message.data) as T);
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
