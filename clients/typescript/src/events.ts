// The events of a session: what the server sends, and what the library itself tells.

import type { SessionClosed } from "./errors.js";
import type { ServerMessage } from "./messages.js";
import type { Outcome, Utterance } from "./speech.js";

/** Sound to be played, in the format of `tts_config`. */
export interface AudioEvent {
  type: "audio";
  data: Uint8Array;
}

/** The connection broke, or could not be made again; another attempt follows. */
export interface ReconnectingEvent {
  type: "reconnecting";
  /** From 1, in each gap. */
  attempt: number;
  delay_ms: number;
  reason: string;
}

/** The session goes on at another connection. */
export interface ResumedEvent {
  type: "resumed";
  attempts: number;
  /** Sound that was not kept in the gap, as it was too long. */
  dropped_bytes: number;
}

/** `Session.say` was called. */
export interface UtteranceQueuedEvent {
  type: "utterance_queued";
  utterance: Utterance;
}

/** An utterance has ended. */
export interface UtteranceEndedEvent {
  type: "utterance_ended";
  utterance: Utterance;
  outcome: Outcome;
}

/** The session is over. The last event. */
export interface ClosedEvent {
  type: "closed";
  code: number;
  reason: string;
  /** Absent where client or server ended it in order. */
  error?: SessionClosed;
}

/** What the library itself tells. */
export type LocalEvent =
  | AudioEvent
  | ReconnectingEvent
  | ResumedEvent
  | UtteranceQueuedEvent
  | UtteranceEndedEvent
  | ClosedEvent;

/** Anything that a session tells; `type` says which. */
export type Event = ServerMessage | LocalEvent;

/** The event of a type. */
export type EventOf<T extends Event["type"]> = Extract<Event, { type: T }>;
