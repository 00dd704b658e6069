// Events that wait for an application that iterates, with bounds: the oldest are dropped.

import type { Event } from "./events.js";

const MAX_EVENTS = 4096;
const MAX_BYTES = 16 << 20;

const sizeOf = (event: Event): number => (event.type === "audio" ? event.data.byteLength : 0);

/** Events that nobody has taken yet. */
export class Inbox {
  #events: Event[] = [];
  #bytes = 0;
  #dropped = 0;
  #waiting: ((event: Event) => void)[] = [];

  constructor(private readonly warn: (message: string) => void) {}

  put(event: Event): void {
    const waiting = this.#waiting.shift();
    if (waiting) return waiting(event);
    this.#events.push(event);
    this.#bytes += sizeOf(event);
    while (this.#events.length > MAX_EVENTS || this.#bytes > MAX_BYTES) {
      this.#bytes -= sizeOf(this.#events.shift()!);
      this.#dropped += 1;
    }
  }

  /** What was cut is not played by an application that lags behind. */
  dropAudio(): void {
    this.#events = this.#events.filter((event) => event.type !== "audio");
    this.#bytes = 0;
  }

  take(): Promise<Event> {
    if (this.#dropped) {
      this.warn(`${this.#dropped} events were dropped, as nobody read them`);
      this.#dropped = 0;
    }
    const event = this.#events.shift();
    if (!event) return new Promise((resolve) => this.#waiting.push(resolve));
    this.#bytes -= sizeOf(event);
    return Promise.resolve(event);
  }
}
