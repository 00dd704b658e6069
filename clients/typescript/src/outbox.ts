// What waits to be sent to the server, in order and with bounds: commands, and sound of a length at most.

import { Overloaded } from "./errors.js";

/** Commands that wait at most. */
export const MAX_COMMANDS = 256;

/** A queue of commands (text) and sound (bytes). */
export class Outbox {
  #items: (string | Uint8Array)[] = [];
  #commands = 0;
  #audioBytes = 0;
  #changed: (() => void)[] = [];
  /** Sound that was dropped because it was too much, in bytes. */
  droppedBytes = 0;

  constructor(private readonly maxAudioBytes: number) {}

  get length(): number {
    return this.#items.length;
  }

  /** Adds a command. */
  put(command: string): void {
    if (this.#commands >= MAX_COMMANDS) throw new Overloaded(`${MAX_COMMANDS} messages wait to be sent`);
    this.#items.push(command);
    this.#commands += 1;
  }

  /** Adds sound; the oldest gives way. */
  putAudio(sound: Uint8Array): void {
    this.#items.push(sound);
    this.#audioBytes += sound.byteLength;
    while (this.#audioBytes > this.maxAudioBytes) {
      const at = this.#items.findIndex((item) => typeof item !== "string");
      const [oldest] = this.#items.splice(at, 1) as [Uint8Array];
      this.#audioBytes -= oldest.byteLength;
      this.droppedBytes += oldest.byteLength;
    }
  }

  /** The next one. */
  take(): string | Uint8Array | undefined {
    const item = this.#items.shift();
    if (typeof item === "string") this.#commands -= 1;
    else if (item) this.#audioBytes -= item.byteLength;
    this.wake();
    return item;
  }

  /** Whether whoever can wait should wait, so that others find room. */
  get hasManyCommands(): boolean {
    return this.#commands >= MAX_COMMANDS / 2;
  }

  /** The same for sound. */
  get hasMuchAudio(): boolean {
    return this.#audioBytes > this.maxAudioBytes / 2;
  }

  /** Waits until something was taken, or `wake` is called. */
  changed(): Promise<void> {
    return new Promise((resolve) => this.#changed.push(resolve));
  }

  /** Lets go who waits. */
  wake(): void {
    for (const resolve of this.#changed.splice(0)) resolve();
  }
}
