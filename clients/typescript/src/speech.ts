// What a session says: utterances in the order of `say`, the tokens of a language model as one utterance, and how each has
// ended. Text goes out one utterance after the other, because text with another id would end the one that is being written.

import { Overloaded, ServerError } from "./errors.js";
import type { ErrorMessage, SpeakMessage, TextType } from "./messages.js";

/** As many as the server queues. */
const MAX_WAITING = 64;

/** The tokens of a text. */
export type Tokens = Iterable<string> | AsyncIterable<string>;

/** A text, its tokens, or what makes them until the signal aborts, because the utterance was cut. */
export type Text = string | Tokens | ((signal: AbortSignal) => Tokens | Promise<Tokens>);

/** How an utterance has ended. */
export interface Outcome {
  readonly status: "complete" | "interrupted" | "failed";
  /** What the listener has heard: what belongs in the history of a language model. */
  readonly heardText: string;
  /** How much was played. */
  readonly playedMs: number;
  /** Why it failed: a `ServerError`, a `SessionClosed`, or what the source of the text threw. */
  readonly error?: unknown;
}

/** Options of `Session.say`. */
export interface SayOptions {
  /** Names it in events; one is made by default. */
  id?: string;
  /** `ssml`: a whole document, for a provider that takes it. */
  textType?: TextType;
  /** Whether `clear` and interruptions may cut it (true). */
  allowInterruption?: boolean;
  /** Cuts what is being said and what waits (false). */
  replace?: boolean;
}

/** Something that is said. */
export class Utterance {
  /** How it has ended. Never rejects. */
  readonly ended: Promise<Outcome>;
  /** What was sent of it so far. */
  text = "";
  /** How it has ended, once it has. */
  outcome: Outcome | undefined;

  /** @internal */ readonly abort = new AbortController();
  /** @internal */ begun = false;
  /** @internal */ written = false;
  /** @internal */ error: unknown;
  /** @internal */ resolve!: (outcome: Outcome) => void;

  /** @internal */
  constructor(
    /** Names it in events. */
    readonly id: string,
    /** @internal */ readonly source: Text,
    /** @internal */ readonly textType: TextType,
    /** Whether `clear` and interruptions may cut it. */
    readonly allowInterruption: boolean,
    private readonly clear: (id: string) => void,
  ) {
    this.ended = new Promise((resolve) => (this.resolve = resolve));
  }

  /** Cuts it: `clear` with its id. `ended` tells what was heard. */
  interrupt(): void {
    if (!this.outcome) this.clear(this.id);
  }
}

/** The utterances of a session that have not ended. */
export class Speech {
  #utterances = new Map<string, Utterance>();
  #waiting: Utterance[] = [];
  #writing = false;
  #count = 0;

  constructor(
    private readonly send: (message: SpeakMessage) => void,
    private readonly room: () => Promise<void>,
    private readonly clear: (id: string) => void,
    private readonly tellEnded: (utterance: Utterance, outcome: Outcome) => void,
    private readonly warn: (message: string) => void,
  ) {}

  /** Queues an utterance. */
  say(text: Text, { id, textType = "plain", allowInterruption = true }: SayOptions): Utterance {
    if (this.#waiting.length >= MAX_WAITING) throw new Overloaded(`${MAX_WAITING} utterances wait to be said`);
    id ??= `utterance-${++this.#count}`;
    if (this.#utterances.has(id)) throw new RangeError(`the utterance ${id} has not ended`);
    const utterance = new Utterance(id, text, textType, allowInterruption, this.clear);
    this.#utterances.set(id, utterance);
    this.#waiting.push(utterance);
    if (!this.#writing) void this.#writeAll();
    return utterance;
  }

  async #writeAll(): Promise<void> {
    this.#writing = true;
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) {
      if (next.outcome) continue;
      try {
        await this.#write(next);
      } catch (error) {
        // The session has ended, or the outbox is full of other messages.
        this.#fail(next, error);
      }
    }
    this.#writing = false;
  }

  async #write(utterance: Utterance): Promise<void> {
    const { source, abort: { signal } } = utterance;
    if (typeof source === "string") {
      await this.room();
      if (!signal.aborted) this.#speak(utterance, source, true);
      return;
    }
    try {
      for await (const token of untilAborted(source, signal)) {
        if (!token) continue;
        await this.room();
        if (signal.aborted) break;
        this.#speak(utterance, token, false);
      }
    } catch (error) {
      if (signal.aborted) return;
      // Not what it says: that may be what people say, or a part of a credential. The outcome has it.
      this.warn(`the text of ${utterance.id} ended early: ${error instanceof Error ? error.name : typeof error}`);
      utterance.error = error;
    }
    // Ends it; what came of it is played.
    if (!signal.aborted) this.#speak(utterance, "", true);
  }

  #speak(utterance: Utterance, text: string, flush: boolean): void {
    const message: SpeakMessage = { type: "speak", id: utterance.id, text, flush };
    if (utterance.textType !== "plain") message.text_type = utterance.textType;
    if (!utterance.allowInterruption) message.allow_interruption = false;
    utterance.begun = true;
    utterance.written = flush;
    utterance.text += text;
    this.send(message);
  }

  /** The server cuts, or was told to: no more text goes out. It says itself how what it knew of has ended. */
  cut(id?: string): void {
    const cut = id === undefined ? [...this.#utterances.values()] : [this.#utterances.get(id)];
    for (const utterance of cut) {
      if (!utterance?.allowInterruption || utterance.abort.signal.aborted) continue;
      utterance.abort.abort();
      if (!utterance.begun) this.#end(utterance, { status: "interrupted", heardText: "", playedMs: 0 });
    }
  }

  /** `tts_playback_complete`. */
  complete(id: string | null, playedMs: number): void {
    const utterance = this.#utterances.get(id ?? "");
    if (!utterance) return;
    const { error, text, textType } = utterance;
    const heardText = textType === "ssml" ? withoutTags(text) : text;
    this.#end(utterance, { status: error ? "failed" : "complete", heardText, playedMs, error });
  }

  /** `tts_interrupted`. */
  interrupted(id: string | null, heardText: string, playedMs: number): void {
    const utterance = this.#utterances.get(id ?? "");
    if (utterance) this.#end(utterance, { status: "interrupted", heardText, playedMs, error: utterance.error });
  }

  /** An `error` about an utterance: its end, or one text that was refused. */
  failed(event: ErrorMessage): void {
    const utterance = this.#utterances.get(event.id ?? "");
    if (!utterance || event.in_reply_to === "clear") return;
    const error = (utterance.error = new ServerError(event));
    if (event.played_ms != null || utterance.written) {
      const heardText = event.heard_text ?? "";
      this.#end(utterance, { status: "failed", heardText, playedMs: event.played_ms ?? 0, error });
    } else {
      // A part was refused: a text with a hole in it is not gone on with.
      utterance.abort.abort();
      try {
        this.#speak(utterance, "", true);
      } catch (failure) {
        this.#fail(utterance, failure);
      }
    }
  }

  /** It could not be sent. */
  #fail(utterance: Utterance, error: unknown): void {
    if (!utterance.outcome) this.#end(utterance, { status: "failed", heardText: "", playedMs: 0, error });
  }

  /** The session is over. */
  close(error: Error): void {
    this.#waiting = [];
    for (const utterance of [...this.#utterances.values()]) {
      this.#end(utterance, { status: "failed", heardText: "", playedMs: 0, error });
    }
  }

  #end(utterance: Utterance, outcome: Outcome): void {
    this.#utterances.delete(utterance.id);
    this.#waiting = this.#waiting.filter((waiting) => waiting !== utterance);
    utterance.abort.abort();
    utterance.outcome = outcome;
    utterance.resolve(outcome);
    this.tellEnded(utterance, outcome);
  }
}

/** The tokens of a source until the signal aborts, when it is closed, even if it is waiting for something. */
async function* untilAborted(source: Exclude<Text, string>, signal: AbortSignal): AsyncGenerator<string> {
  const aborted = new Promise<undefined>((resolve) => {
    if (signal.aborted) resolve(undefined);
    else signal.addEventListener("abort", () => resolve(undefined), { once: true });
  });
  const opened = Promise.resolve(typeof source === "function" ? source(signal) : source);
  opened.catch(() => {});
  const tokens = await Promise.race([opened, aborted]);
  if (!tokens) return;
  const iterator = Symbol.asyncIterator in tokens ? tokens[Symbol.asyncIterator]() : tokens[Symbol.iterator]();
  let ended = false;
  try {
    for (;;) {
      const next = Promise.resolve(iterator.next());
      // It may reject after it was left behind.
      next.catch(() => {});
      const result = await Promise.race([next, aborted]);
      ended = result?.done === true;
      if (!result || result.done) return;
      yield result.value;
    }
  } finally {
    // Not waited for: a generator that waits for something closes when that has come.
    if (!ended) void Promise.resolve(iterator.return?.()).catch(() => {});
  }
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

/** A document of SSML as it is heard, as the server reports it. */
function withoutTags(document: string): string {
  return document.replace(/<[^>]*>/g, "").replace(/&(amp|lt|gt|quot|apos);/g, (_, name: string) => ENTITIES[name]!);
}
