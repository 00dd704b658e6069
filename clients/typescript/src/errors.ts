// What can go wrong, as types. Messages are for people, codes for programs; no error holds a credential.

import type { ErrorCode, ErrorMessage } from "./messages.js";

/** The base of all errors of this library. */
export class VivavoceError extends Error {
  override readonly name: string = this.constructor.name;
}

/** The server cannot be reached. */
export class ConnectionFailed extends VivavoceError {}

/** A queue of the client is full: more was asked for than could be sent. */
export class Overloaded extends VivavoceError {}

/** The server refused an HTTP request, or the handshake of a session. */
export class ApiError extends VivavoceError {
  constructor(
    /** The HTTP status. */
    readonly status: number,
    /** For programs, for example `ROOM_NOT_FOUND` or `unauthorized`. */
    readonly code: string,
    message: string,
    /** What the server's log calls the request. */
    readonly request_id?: string,
  ) {
    super(message);
  }

  /** What an HTTP answer says was wrong. */
  static from(status: number, body: string, requestId?: string | null): ApiError {
    try {
      const { error, message } = JSON.parse(body) as { error?: unknown; message?: unknown };
      if (typeof error === "string" && typeof message === "string") {
        return new ApiError(status, error, message, requestId ?? undefined);
      }
    } catch {
      // Not the server's own answer: a proxy's, say.
    }
    return new ApiError(status, "HTTP_ERROR", body.slice(0, 200).trim(), requestId ?? undefined);
  }
}

/** The server refused a message of the session, or an utterance has failed: an `error` event. */
export class ServerError extends VivavoceError {
  /** For programs. */
  readonly code: ErrorCode;
  /** The `type` of the message that was refused, `binary` for sound. */
  readonly in_reply_to?: string;
  /** The utterance, where it is about one. */
  readonly id?: string;
  /** Whether the session ends. */
  readonly fatal: boolean;

  constructor(event: ErrorMessage) {
    super(event.message);
    this.code = event.code;
    this.fatal = event.fatal;
    if (event.in_reply_to != null) this.in_reply_to = event.in_reply_to;
    if (event.id != null) this.id = event.id;
  }
}

/** A telephone call was not transferred; it goes on as it was. */
export class TransferError extends VivavoceError {
  constructor(
    /** For example `destination_not_allowed`. */
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** The session is over. */
export class SessionClosed extends VivavoceError {
  constructor(
    /** The close code of the socket; 1006 where it broke. */
    readonly code: number,
    /** The reason in its close frame. */
    readonly reason: string,
    /** The fatal error that was told before. */
    readonly error?: VivavoceError,
  ) {
    const why = error?.message ?? reason;
    super(`the session has ended (${code})${why ? `: ${why}` : ""}`);
  }
}

/** The connection broke, and the session could not be resumed. */
export class CannotResume extends SessionClosed {}
