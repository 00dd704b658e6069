/**
 * The client library of Vivavoce, a real-time voice server, for browsers and Node.
 *
 * `connect` opens a session, `History` keeps what a language model should know of it, `Microphone` and `Player` are a
 * browser's ears and mouth, `Client` is the HTTP API.
 *
 * @packageDocumentation
 */

export { Client, type CallOptions, type ClientOptions } from "./client.js";
export {
  ApiError, CannotResume, ConnectionFailed, Overloaded, ServerError, SessionClosed, TransferError, VivavoceError,
} from "./errors.js";
export type * from "./events.js";
export { History, type ChatMessage } from "./history.js";
export type * from "./messages.js";
export { Microphone, type MicrophoneConstraints, type MicrophoneOptions } from "./microphone.js";
export { Player, type PlayerOptions, type PlayerStats } from "./player.js";
export type * from "./resources.js";
export { connect, Session, type ConnectOptions, type Logger, type Reconnect, type Update } from "./session.js";
export { Utterance, type Outcome, type SayOptions, type Text, type Tokens } from "./speech.js";
