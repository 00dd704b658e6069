// The history that a language model is given: what was said to the agent, and what the caller has heard of its answers.

import type { Session } from "./session.js";
import { Utterance } from "./speech.js";

/** A message in the form that chat APIs take. */
export interface ChatMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

/**
 * The conversation of a session, from when it is made.
 *
 * The user's messages are whole turns, without backchannels. The assistant's are what was heard: all of an utterance that
 * was played, the beginning of one that was interrupted, and nothing of one that goes on.
 */
export class History {
  // An utterance has its place from when it is said, however late it ends.
  #entries: (ChatMessage | Utterance)[] = [];
  readonly #system: string | undefined;
  readonly #max: number;
  readonly #removers: (() => void)[];

  constructor(session: Session, options: { system?: string; maxMessages?: number } = {}) {
    this.#system = options.system;
    this.#max = options.maxMessages ?? 1000;
    this.#removers = [
      session.on("stt_result", ({ is_speech_final, turn_transcript, backchannel }) => {
        if (is_speech_final && turn_transcript && !backchannel) this.add("user", turn_transcript);
      }),
      session.on("utterance_queued", ({ utterance }) => this.#push(utterance)),
      session.on("utterance_ended", ({ utterance, outcome }) => {
        const content = outcome.heardText.trim();
        const at = this.#entries.indexOf(utterance);
        if (at >= 0) this.#entries.splice(at, 1, ...(content ? [{ role: "assistant" as const, content }] : []));
      }),
    ];
  }

  /** A copy of it, with the system's message first. */
  get messages(): ChatMessage[] {
    const said = this.#entries.filter((entry): entry is ChatMessage => !(entry instanceof Utterance));
    return this.#system === undefined ? said : [{ role: "system", content: this.#system }, ...said];
  }

  /** Adds a message: what somebody typed, say. */
  add(role: ChatMessage["role"], content: string): void {
    this.#push({ role, content });
  }

  /** It grows no more. */
  detach(): void {
    for (const remove of this.#removers.splice(0)) remove();
  }

  #push(entry: ChatMessage | Utterance): void {
    this.#entries.push(entry);
    if (this.#entries.length > this.#max) this.#entries.shift();
  }
}
