// The HTTP API: speech without a session, voices, rooms, recordings, telephone calls and sessions. On `fetch`.

import { ApiError, ConnectionFailed } from "./errors.js";
import type { TextType, TtsConfig } from "./messages.js";
import type {
  Call, RecordingPage, RoomDetails, RoomSummary, RoomToken, SessionList, Transfer, Voice,
} from "./resources.js";

/** Options of a `Client`. */
export interface ClientOptions {
  /** Sent as `Authorization: Bearer`. */
  token?: string | undefined;
  /** Milliseconds that a request may take (60,000). */
  timeoutMs?: number;
}

/** A telephone call that is to be made. */
export interface CallOptions {
  to_phone_number: string;
  from_phone_number: string;
  participant_identity: string;
  /** The identity by default. */
  participant_name?: string;
  /** A gateway of the caller's own. */
  sip?: { outbound_address?: string; auth_username?: string; auth_password?: string };
  /** Whether a `call_classified` event tells who has answered. */
  classify?: boolean;
  /** Whether a `beep` event tells when a machine's beep is over. Only with `classify`. */
  wait_for_beep?: boolean;
}

const quoted = encodeURIComponent;

/** A client of the HTTP API. Methods reject with `ApiError` or `ConnectionFailed`. */
export class Client {
  readonly #url: string;
  readonly #token: string | undefined;
  readonly #timeoutMs: number;

  /** @param url - The server, `http(s)://host`. */
  constructor(url: string, { token, timeoutMs = 60_000 }: ClientOptions = {}) {
    const parsed = new URL(url);
    if (!/^https?:$/.test(parsed.protocol)) throw new TypeError("url: http(s)://host is needed");
    this.#url = parsed.origin + parsed.pathname.replace(/\/+$/, "");
    this.#token = token;
    this.#timeoutMs = timeoutMs;
  }

  /** The sound of a text, in the format of `tts_config`; by default a WAV file in the local voice. */
  async speak(text: string, tts_config?: TtsConfig, text_type: TextType = "plain"): Promise<Uint8Array> {
    const config = tts_config ?? { provider: "local", model: "", audio_format: "wav" };
    return bytes(await this.#request("POST", "/speak", { text, tts_config: config, text_type }));
  }

  /** The voices by provider. */
  voices(provider?: string): Promise<Record<string, Voice[]>> {
    return this.#json("GET", "/voices", undefined, { provider });
  }

  /** A token with which somebody joins a room. */
  roomToken(room_name: string, participant_identity: string, participant_name?: string): Promise<RoomToken> {
    const name = participant_name ?? participant_identity;
    return this.#json("POST", "/rtc/token", { room_name, participant_identity, participant_name: name });
  }

  /** The rooms of the caller. */
  async rooms(): Promise<RoomSummary[]> {
    return (await this.#json<{ rooms: RoomSummary[] }>("GET", "/rtc/rooms")).rooms;
  }

  /** A room and its participants. */
  room(room_name: string): Promise<RoomDetails> {
    return this.#json("GET", `/rtc/rooms/${quoted(room_name)}`);
  }

  /** Puts somebody out of a room. */
  async removeParticipant(room_name: string, participant_identity: string): Promise<void> {
    await this.#json("DELETE", "/rtc/participant", { room_name, participant_identity });
  }

  /** Mutes a track of a participant. */
  async muteParticipant(
    room_name: string, participant_identity: string, track_sid: string, muted = true,
  ): Promise<void> {
    await this.#json("POST", "/rtc/participant/mute", { room_name, participant_identity, track_sid, muted });
  }

  /** A page of recordings; its `next`, where there is one, is the `after` of the next page. */
  recordings(page: { limit?: number; after?: string } = {}): Promise<RecordingPage> {
    return this.#json("GET", "/recordings", undefined, page);
  }

  /** The sound of a recorded session, Ogg/Opus. */
  async recording(stream_id: string): Promise<Uint8Array> {
    return bytes(await this.#request("GET", `/recording/${quoted(stream_id)}`));
  }

  /** The lines of a recorded session's transcript. */
  async transcript(stream_id: string): Promise<Record<string, unknown>[]> {
    const lines = await (await this.#request("GET", `/recording/${quoted(stream_id)}/transcript`)).text();
    return lines.split("\n").filter(Boolean).map((line) => JSON.parse(line) as Record<string, unknown>);
  }

  /** Deletes a recording and its transcript. */
  async deleteRecording(stream_id: string): Promise<void> {
    await this.#json("DELETE", `/recording/${quoted(stream_id)}`);
  }

  /** Calls a number, as a participant of a room. */
  sipCall(room_name: string, call: CallOptions): Promise<Call> {
    return this.#json("POST", "/sip/call", { room_name, participant_name: call.participant_identity, ...call });
  }

  /** Begins to transfer a call. */
  sipTransfer(room_name: string, participant_identity: string, transfer_to: string): Promise<Transfer> {
    return this.#json("POST", "/sip/transfer", { room_name, participant_identity, transfer_to });
  }

  /** Live sessions and telephone calls. */
  sessions(): Promise<SessionList> {
    return this.#json("GET", "/sessions");
  }

  /** Ends a session. */
  async endSession(stream_id: string): Promise<void> {
    await this.#json("DELETE", `/sessions/${quoted(stream_id)}`);
  }

  async #json<T>(method: string, path: string, body?: object, query?: object): Promise<T> {
    return (await (await this.#request(method, path, body, query)).json()) as T;
  }

  async #request(method: string, path: string, body?: object, query: object = {}): Promise<Response> {
    const url = new URL(this.#url + path);
    for (const [name, value] of Object.entries(query)) if (value != null) url.searchParams.set(name, String(value));
    const headers: Record<string, string> = {};
    if (this.#token) headers.authorization = `Bearer ${this.#token}`;
    if (body) headers["content-type"] = "application/json";
    let response: Response;
    try {
      response = await fetch(url, {
        method, headers, redirect: "error", signal: AbortSignal.timeout(this.#timeoutMs),
        ...(body ? { body: JSON.stringify(body) } : {}),
      });
    } catch (error) {
      throw new ConnectionFailed(`${this.#url}: ${String((error as Error).cause ?? error)}`);
    }
    if (response.ok) return response;
    throw ApiError.from(response.status, await response.text(), response.headers.get("x-request-id"));
  }
}

async function bytes(response: Response): Promise<Uint8Array> {
  return new Uint8Array(await response.arrayBuffer());
}
