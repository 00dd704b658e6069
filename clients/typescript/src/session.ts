// A session: full-duplex speech over one WebSocket that is made anew when it breaks. It owns the socket and keeps the order
// of what goes out and comes in; utterances are in speech.ts, the history of a language model is in history.ts.

import {
  ApiError, CannotResume, ConnectionFailed, ServerError, SessionClosed, TransferError, VivavoceError,
} from "./errors.js";
import type { Event, EventOf } from "./events.js";
import { Inbox } from "./inbox.js";
import type {
  ClientMessage, ConfigMessage, ErrorMessage, ReadyMessage, RoomParticipant, ServerMessage, SttConfig, UpdateConfigMessage,
} from "./messages.js";
import { Outbox } from "./outbox.js";
import { openSocket, socketUrl, type Socket } from "./socket.js";
import { Speech, type SayOptions, type Text, type Utterance } from "./speech.js";

/** Close codes after which the session may wait at the server. */
const RESUMABLE = new Set([1001, 1006, 1011, 1012, 4409]);
/** HTTP answers to a handshake that may be others soon. */
const TRANSIENT = new Set([429, 502, 503, 504]);
/** Errors about `config` that do not refuse it. */
const HARMLESS = new Set(["invalid_loading_audio"]);
/** Sound is sent in pieces of this many bytes at most. */
const MAX_PIECE = 32 << 10;
/** After which a server that neither takes nor refuses a configuration is given up: it waits for rooms and providers. */
const READY_TIMEOUT_MS = 60_000;
/** Bytes that are given to the socket ahead; what is not can still be kept when it breaks. */
const AHEAD_BYTES = 64 << 10;

/** Where the library says what is wrong. `console` will do. */
export interface Logger {
  warn(message: string): void;
  error(message: string, error?: unknown): void;
}

/** How a session comes back after its connection broke. */
export interface Reconnect {
  /** After which it is given up (30,000); the server waits for 30 seconds by default. */
  timeoutMs?: number;
  /** Before the second attempt at most (250), doubled with each further one. The first one follows at once. */
  firstDelayMs?: number;
  /** Between attempts at most (5,000). */
  maxDelayMs?: number;
  /** Sound that is kept meanwhile (10,000). */
  keptAudioMs?: number;
}

/** The fields of `config`, and what the library needs. */
export interface ConnectOptions extends Omit<ConfigMessage, "type"> {
  /** Sent as `Authorization: Bearer`, by browsers as `?api_key=`. */
  token?: string | undefined;
  /** How it comes back when its connection breaks. `resume: false` turns that off. */
  reconnect?: Reconnect;
  /** Milliseconds that connecting may take (10,000). */
  openTimeoutMs?: number;
  /** Where warnings and errors go (`console`). */
  logger?: Logger;
}

/** What may be changed in a running session. */
export type Update = { [K in "stt_config" | "tts_config" | "vad"]?: NonNullable<UpdateConfigMessage[K]> };

/** Waits for an answer of the server. */
interface Waiting<T> {
  promise: Promise<T>;
  resolve(value: T): void;
  reject(error: Error): void;
}

function waiting<T>(): Waiting<T> {
  const made = {} as Waiting<T>;
  made.promise = new Promise<T>((resolve, reject) => Object.assign(made, { resolve, reject }));
  made.promise.catch(() => {});
  return made;
}

/** Milliseconds before an attempt, by chance, so that clients do not come all at once. */
export function delayBefore(attempt: number, { firstDelayMs = 250, maxDelayMs = 5_000 }: Reconnect = {}): number {
  if (attempt === 1) return 0;
  const most = Math.min(maxDelayMs, firstDelayMs * 2 ** (attempt - 2));
  return 50 + Math.random() * Math.max(0, most - 50);
}

/** Of what is sent; of Opus, which has no fixed rate, what speech takes at most. */
export function bytesPerSecond(stt: Partial<SttConfig> | null | undefined): number {
  const { encoding, sample_rate, channels } = stt ?? {};
  if (encoding === "opus" || encoding === "ogg_opus") return 8_000;
  const samples = (sample_rate ?? 16_000) * (channels ?? 1);
  return encoding === "mulaw" || encoding === "alaw" ? samples : samples * 2;
}

/**
 * A session with a server; `connect` makes one.
 *
 * Iterate over it for its events (`for await (const event of session)`), or call `on` for some of them. The iteration ends
 * with the session, and throws `SessionClosed` where neither side ended it in order.
 */
export class Session implements AsyncIterable<Event> {
  readonly #url: URL;
  readonly #token: string | undefined;
  readonly #config: ConfigMessage;
  readonly #reconnect: Reconnect;
  readonly #openTimeoutMs: number;
  readonly #log: Logger;
  readonly #outbox: Outbox;
  readonly #inbox: Inbox;
  readonly #speech: Speech;
  readonly #callbacks = new Map<string, Set<(event: never) => unknown>>();
  readonly #participants = new Map<string, RoomParticipant>();
  readonly #cancel = new AbortController();
  readonly #over = waiting<SessionClosed | undefined>();
  #isOver = false;
  #error: SessionClosed | undefined;
  #isOpen = false;
  #closing = false;
  #socket: Socket | undefined;
  #pumping: ReturnType<typeof setTimeout> | undefined;
  #ready: ReadyMessage | undefined;
  #resumeToken: string | undefined;
  #lastEvent = 0;
  #receivedBytes = 0;
  #draining: number | undefined;
  #fatal: ServerError | undefined;
  #sounding: string | null = null;
  #reply: Waiting<ReadyMessage> | undefined;
  #update: object | undefined;
  #transfer: Waiting<void> | undefined;
  #resuming: Waiting<void> | undefined;
  #updates: Promise<unknown> = Promise.resolve();
  #transfers: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(url: string, options: ConnectOptions) {
    const { token, reconnect = {}, openTimeoutMs = 10_000, logger = console, ...config } = options;
    this.#url = socketUrl(url);
    this.#token = token;
    this.#reconnect = reconnect;
    this.#openTimeoutMs = openTimeoutMs;
    this.#log = logger;
    const hears = config.audio !== false;
    this.#config = {
      type: "config",
      resume: true,
      ...(hears ? { stt_config: { provider: "local" }, tts_config: { provider: "local", model: "" } } : {}),
      ...config,
    };
    const kept = (reconnect.keptAudioMs ?? 10_000) / 1000;
    this.#outbox = new Outbox(bytesPerSecond(this.#config.stt_config) * kept);
    this.#inbox = new Inbox((message) => this.#log.warn(message));
    this.#speech = new Speech(
      (message) => this.#put(message),
      () => this.#roomForText(),
      (id) => this.clear(id),
      (utterance, outcome) => this.#emit({ type: "utterance_ended", utterance, outcome }),
      (message) => this.#log.warn(message),
    );
  }

  // What is known of it.

  /** Its name: of its recording, and in `GET /sessions`. */
  get stream_id(): string {
    return this.#ready?.stream_id ?? "";
  }

  /** The last `ready`; with a room it says where clients join. */
  get ready(): ReadyMessage {
    if (!this.#ready) throw new TypeError("there is one from connect() on");
    return this.#ready;
  }

  /** Its configuration, as it was sent. */
  get config(): Readonly<ConfigMessage> {
    return this.#config;
  }

  /** Who else is in the room, by identity. */
  get participants(): ReadonlyMap<string, RoomParticipant> {
    return this.#participants;
  }

  /** When the server ends the session because it stops (Unix time in milliseconds), once it has said so. */
  get draining(): number | undefined {
    return this.#draining;
  }

  /** Whether the session has ended. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Its end. Rejects with `SessionClosed` where neither side ended it in order. */
  get closed(): Promise<void> {
    return this.#over.promise.then((error) => {
      if (error) throw error;
    });
  }

  // What it is told.

  /** Calls `callback` with each event of this type. Returns a function that removes it. */
  on<T extends Event["type"]>(type: T, callback: (event: EventOf<T>) => unknown): () => void {
    const callbacks = this.#callbacks.get(type) ?? new Set();
    this.#callbacks.set(type, callbacks);
    callbacks.add(callback);
    return () => callbacks.delete(callback);
  }

  /** Its events, from the beginning, each to one iteration. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    for (;;) {
      const event = await this.#inbox.take();
      yield event;
      if (event.type !== "closed") continue;
      // For whoever iterates once more.
      this.#inbox.put(event);
      if (event.error) throw event.error;
      return;
    }
  }

  /**
   * Says a text, or the tokens of a language model as they come, as one utterance.
   *
   * Returns at once; `ended` of what it returns tells how it ended. Utterances are said in the order of calls. When one is
   * cut its source of tokens is closed, and the signal that a source function was given aborts.
   */
  say(text: Text, options: SayOptions = {}): Utterance {
    this.#checkOpen();
    if (options.replace) this.clear();
    const utterance = this.#speech.say(text, options);
    this.#emit({ type: "utterance_queued", utterance });
    return utterance;
  }

  /** Cuts what is being said and what waits, or only the utterances with this id. */
  clear(id?: string): void {
    this.#speech.cut(id);
    this.#put(id === undefined ? { type: "clear" } : { type: "clear", id });
  }

  /**
   * Sends sound in the format of `stt_config`.
   *
   * Resolves when little waits to be sent; in a gap of the connection at once, and the last seconds are kept.
   */
  async sendAudio(sound: ArrayBuffer | ArrayBufferView): Promise<void> {
    const bytes = ArrayBuffer.isView(sound)
      ? new Uint8Array(sound.buffer, sound.byteOffset, sound.byteLength)
      : new Uint8Array(sound);
    this.#checkOpen();
    for (let at = 0; at < bytes.byteLength; at += MAX_PIECE) {
      // A copy: the caller may use the buffer again.
      this.#outbox.putAudio(bytes.slice(at, at + MAX_PIECE));
      this.#pump();
      while (this.#outbox.hasMuchAudio && this.#isOpen) await this.#outbox.changed();
      this.#checkOpen();
    }
  }

  /** Changes language, voice, provider or turn detection; what is not given stays. Rejects with `ServerError` when refused. */
  async updateConfig(update: Update): Promise<ReadyMessage> {
    const change = async () => {
      const reply = (this.#reply = waiting<ReadyMessage>());
      this.#update = { type: "update_config", ...update };
      try {
        this.#put(this.#update);
        return await reply.promise;
      } finally {
        this.#reply = this.#update = undefined;
      }
    };
    const changed = this.#updates.then(change, change);
    this.#updates = changed.catch(() => {});
    return changed;
  }

  /** Plays the loading sound until `loadingStop`. */
  loadingStart(): void {
    this.#put({ type: "loading_start" });
  }

  /** Ends the loading sound. */
  loadingStop(): void {
    this.#put({ type: "loading_stop" });
  }

  /** Sends a message into the room. */
  sendMessage(message: string, options: { role?: string; topic?: string; debug?: unknown } = {}): void {
    this.#put({ type: "send_message", message, role: "assistant", ...options });
  }

  /** Presses keys on a telephone call, the first one by default. */
  sendDtmf(digits: string, participant_identity?: string): void {
    this.#put({ type: "send_dtmf", digits, participant_identity: participant_identity ?? null });
  }

  /** Ends a telephone call, the first one by default; a `sip_call` event tells its end. */
  hangup(participant_identity?: string): void {
    this.#put({ type: "hangup", participant_identity: participant_identity ?? null });
  }

  /** Transfers a telephone call, the first one by default. Rejects with `TransferError`; the call goes on then. */
  async sipTransfer(transfer_to: string, participant_identity?: string): Promise<void> {
    const transfer = async () => {
      const outcome = (this.#transfer = waiting<void>());
      try {
        this.#put({ type: "sip_transfer", transfer_to, participant_identity: participant_identity ?? null });
        await outcome.promise;
      } finally {
        this.#transfer = undefined;
      }
    };
    const transferred = this.#transfers.then(transfer, transfer);
    this.#transfers = transferred.catch(() => {});
    return transferred;
  }

  /** Ends the session in order. What was queued before is sent. */
  async close(): Promise<void> {
    if (this.#isOver) return;
    const late = Date.now() + 2_000;
    while (this.#outbox.length && this.#isOpen && Date.now() < late) {
      await Promise.race([this.#outbox.changed(), sleep(100)]);
    }
    this.#closing = true;
    this.#cancel.abort();
    if (this.#socket?.isOpen) {
      this.#socket.close(1000);
      await this.#over.promise;
    }
    this.#finish(1000, "");
  }

  // Going out.

  #checkOpen(): void {
    if (this.#isOver) throw this.#error ?? new SessionClosed(1000, "");
  }

  #put(message: ClientMessage | object): void {
    this.#checkOpen();
    this.#outbox.put(JSON.stringify(message));
    this.#pump();
  }

  async #roomForText(): Promise<void> {
    while (this.#outbox.hasManyCommands && !this.#isOver) await this.#outbox.changed();
  }

  /** Gives the socket what waits, as far as it takes it. */
  #pump(): void {
    const socket = this.#socket;
    while (this.#isOpen && socket?.isOpen && this.#outbox.length) {
      if (socket.bufferedAmount > AHEAD_BYTES) {
        this.#pumping ??= setTimeout(() => {
          this.#pumping = undefined;
          this.#pump();
        }, 20);
        return;
      }
      socket.send(this.#outbox.take()!);
    }
  }

  // The connection.

  /** @internal Connects for the first time. */
  async open(): Promise<this> {
    const socket = await openSocket(this.#url, this.#token, this.#openTimeoutMs, this.#cancel.signal);
    const reply = (this.#reply = waiting<ReadyMessage>());
    this.#serve(socket);
    socket.send(JSON.stringify(this.#config));
    const late = setTimeout(
      () => reply.reject(new ConnectionFailed("the configuration was not answered in time")), READY_TIMEOUT_MS,
    );
    try {
      await reply.promise;
    } catch (error) {
      await this.close();
      throw error;
    } finally {
      clearTimeout(late);
      this.#reply = undefined;
    }
    return this;
  }

  #serve(socket: Socket): void {
    this.#socket = socket;
    socket.onmessage = (data) => this.#receive(data);
    socket.onclose = (code, reason) => {
      this.#isOpen = false;
      this.#outbox.wake();
      // In a gap: that attempt has failed.
      if (this.#resuming) this.#resuming.reject(new SessionClosed(code, reason));
      else if (this.#mayResume(code)) void this.#resume(code, reason);
      else this.#finish(code, reason);
    };
  }

  #mayResume(code: number): boolean {
    const asked = this.#config.resume === true && this.#resumeToken !== undefined;
    const ended = this.#closing || this.#fatal || (code === 1001 && this.#draining !== undefined);
    return asked && !ended && RESUMABLE.has(code);
  }

  /** Goes on at another socket, or ends the session. */
  async #resume(code: number, broke: string): Promise<void> {
    const giveUp = Date.now() + (this.#reconnect.timeoutMs ?? 30_000);
    const dropped = this.#outbox.droppedBytes;
    let reason = broke || "the connection broke";
    for (let attempt = 1; !this.#isOver; attempt++) {
      const delay = delayBefore(attempt, this.#reconnect);
      if (Date.now() + delay >= giveUp) return this.#finish(code, reason, CannotResume);
      this.#emit({ type: "reconnecting", attempt, delay_ms: delay, reason });
      await sleep(delay, this.#cancel.signal);
      if (this.#closing) return this.#finish(1000, "");
      const left = Math.max(100, giveUp - Date.now());
      let socket: Socket | undefined;
      try {
        socket = await openSocket(this.#url, this.#token, Math.min(this.#openTimeoutMs, left), this.#cancel.signal);
        await this.#askToResume(socket, left);
        this.#resuming = undefined;
        // It may have broken again by now.
        if (!socket.isOpen) throw new ConnectionFailed("the connection broke");
        this.#emit({ type: "resumed", attempts: attempt, dropped_bytes: this.#outbox.droppedBytes - dropped });
        // It may have been lost on its way, and has the same effect twice.
        if (this.#update) this.#put(this.#update);
        this.#pump();
        return;
      } catch (error) {
        this.#resuming = undefined;
        this.#isOpen = false;
        socket?.abandon();
        if (this.#closing) return this.#finish(1000, "");
        const refused = error instanceof ApiError && !TRANSIENT.has(error.status);
        const gone = error instanceof SessionClosed && [1008, 4404].includes(error.code);
        if (refused || gone || error instanceof ServerError) {
          const why = error as VivavoceError;
          return this.#finish(why instanceof SessionClosed ? why.code : code, why.message, CannotResume, why);
        }
        reason = error instanceof Error ? error.message : String(error);
      }
    }
  }

  /** Takes what was missed, up to `ready`. */
  async #askToResume(socket: Socket, patience: number): Promise<void> {
    const resuming = (this.#resuming = waiting<void>());
    this.#serve(socket);
    socket.send(JSON.stringify({
      type: "resume", token: this.#resumeToken, last_event: this.#lastEvent, received_bytes: this.#receivedBytes,
    }));
    const late = setTimeout(() => resuming.reject(new ConnectionFailed("no answer in time")), patience);
    try {
      await resuming.promise;
    } finally {
      clearTimeout(late);
    }
  }

  #finish(code: number, reason: string, Kind = SessionClosed, cause?: VivavoceError): void {
    if (this.#isOver) return;
    const inOrder = this.#closing || (code === 1000 && !this.#fatal);
    const error = inOrder ? undefined : new Kind(code, reason, cause ?? this.#fatal);
    this.#isOver = true;
    this.#isOpen = false;
    this.#error = error;
    this.#cancel.abort();
    clearTimeout(this.#pumping);
    this.#outbox.wake();
    const why = error ?? new SessionClosed(code, reason);
    this.#reply?.reject(why);
    this.#transfer?.reject(why);
    this.#speech.close(why);
    this.#emit({ type: "closed", code, reason, ...(error ? { error } : {}) });
    this.#over.resolve(error);
  }

  // Coming in.

  #receive(data: string | Uint8Array): void {
    if (typeof data !== "string") {
      this.#receivedBytes += data.byteLength;
      return this.#emit({ type: "audio", data });
    }
    let event: ServerMessage;
    try {
      event = JSON.parse(data) as ServerMessage;
    } catch {
      this.#log.error("a message of the server is not JSON, and is left out");
      return;
    }
    if (this.#resuming && event.type === "error" && event.code === "cannot_resume") {
      return this.#resuming.reject(new ServerError(event));
    }
    this.#lastEvent = Math.max(this.#lastEvent, event.seq ?? 0);
    // Those who are told of an event see the session as it is after it.
    this.#take(event);
    this.#emit(event);
  }

  #take(event: ServerMessage): void {
    switch (event.type) {
      case "ready":
        this.#ready = event;
        this.#resumeToken = event.resume_token;
        this.#isOpen = true;
        if (this.#resuming) this.#resuming.resolve();
        else this.#reply?.resolve(event);
        break;
      case "error":
        this.#takeError(event);
        break;
      case "warning":
        this.#log.warn(`${event.code}: ${event.message}`);
        break;
      case "draining":
        this.#draining = event.deadline;
        break;
      case "tts_started":
        this.#sounding = event.id;
        break;
      case "tts_playback_complete":
        this.#speech.complete(event.id, event.duration_ms);
        break;
      case "tts_interrupted":
        if (event.id === this.#sounding) this.#inbox.dropAudio();
        this.#speech.interrupted(event.id, event.heard_text, event.played_ms);
        break;
      case "interruption":
        // The server has cut everything; so is what it does not know yet.
        if (event.state === "confirmed") this.#speech.cut();
        break;
      case "participant_connected":
        this.#participants.set(event.participant.identity, event.participant);
        break;
      case "participant_disconnected":
        this.#participants.delete(event.participant.identity);
        break;
      case "sip_transfer_complete":
        this.#transfer?.resolve();
        break;
      case "sip_transfer_error":
        this.#transfer?.reject(new TransferError(event.code, event.message));
        break;
    }
  }

  #takeError(event: ErrorMessage): void {
    const error = new ServerError(event);
    this.#log.warn(`${error.code}: ${error.message}`);
    if (error.fatal) this.#fatal = error;
    const configures = error.in_reply_to === "config" || error.in_reply_to === "update_config";
    if (this.#reply && (error.fatal || (configures && !HARMLESS.has(error.code)))) this.#reply.reject(error);
    else if (error.in_reply_to === "sip_transfer") this.#transfer?.reject(error);
    else if (error.id !== undefined) this.#speech.failed(event);
  }

  #emit(event: Event): void {
    this.#inbox.put(event);
    for (const callback of [...(this.#callbacks.get(event.type) ?? [])]) {
      const failed = (error: unknown) => this.#log.error(`a callback for ${event.type} failed`, error);
      try {
        const result = (callback as (event: Event) => unknown)(event);
        if (result instanceof Promise) result.catch(failed);
      } catch (error) {
        failed(error);
      }
    }
  }
}

/**
 * Opens a session and waits until it is ready.
 *
 * @param url - The server, `http(s)://host`, or its socket, `ws(s)://host/ws`.
 * @param options - The fields of `config`, a token and more. Without `stt_config` and `tts_config` the server's local
 *   engines hear (16 kHz) and speak (24 kHz), 16 bits, mono.
 * @throws ConnectionFailed The server cannot be reached.
 * @throws ApiError It refuses the connection, for example for the token.
 * @throws ServerError It refuses the configuration.
 */
export function connect(url: string, options: ConnectOptions = {}): Promise<Session> {
  return new Session(url, options).open();
}

function sleep(ms: number, cancel?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const over = () => {
      clearTimeout(timer);
      cancel?.removeEventListener("abort", over);
      resolve();
    };
    const timer = setTimeout(over, ms);
    cancel?.addEventListener("abort", over);
  });
}
