// A WebSocket wherever this runs: the platform's own where there is one, else the package `ws`. Authentication, and why a
// handshake was refused, are where they differ.

import { ApiError, ConnectionFailed, VivavoceError } from "./errors.js";

/** What the session needs of a socket. */
export interface Socket {
  readonly bufferedAmount: number;
  readonly isOpen: boolean;
  send(data: string | Uint8Array): void;
  /** `onclose` is called by then, at the latest. */
  close(code: number): void;
  /** Leaves it behind without a word; nothing is called any more. */
  abandon(): void;
  onmessage: ((data: string | Uint8Array) => void) | null;
  onclose: ((code: number, reason: string) => void) | null;
}

/** A broken network is found out before the speaker gives up. Browsers have no pings: there the server's timeout counts. */
const PING_INTERVAL_MS = 5_000;
const PONG_TIMEOUT_MS = 10_000;
const CLOSE_TIMEOUT_MS = 5_000;

interface NodeSocket extends WebSocket {
  on?(event: "unexpected-response", call: (request: { destroy(): void }, response: NodeResponse) => void): void;
  on?(event: "pong", call: () => void): void;
  ping?(): void;
  terminate?(): void;
}

interface NodeResponse extends AsyncIterable<Uint8Array> {
  statusCode?: number;
  headers: Record<string, string | string[] | undefined>;
}

const isNode = typeof (globalThis as { process?: { versions?: { node?: string } } }).process?.versions?.node === "string";

/** The address of the socket: `http://host` as `ws://host/ws`. */
export function socketUrl(url: string): URL {
  const parsed = new URL(url);
  parsed.protocol = parsed.protocol.replace(/^http/, "ws");
  if (!/^wss?:$/.test(parsed.protocol)) throw new TypeError("url: http(s)://host or ws(s)://host/ws is needed");
  if (parsed.pathname === "/") parsed.pathname = "/ws";
  parsed.hash = "";
  return parsed;
}

/** Opens a socket; rejects with `ApiError` where the server says why it refuses, else with `ConnectionFailed`. */
export async function openSocket(
  url: URL, token: string | undefined, timeoutMs: number, cancel: AbortSignal,
): Promise<Socket> {
  const socket = await create(url, token);
  socket.binaryType = "arraybuffer";
  const refused = new Promise<never>((_, reject) => {
    socket.on?.("unexpected-response", (request, response) => {
      void answer(response).then(reject, reject).finally(() => request.destroy());
    });
  });
  refused.catch(() => {});
  const opened = new Promise<void>((resolve, reject) => {
    socket.onopen = () => resolve();
    socket.onclose = () => reject(new ConnectionFailed(`${url.origin}: the connection was refused or broke`));
    // Not every platform tells the end of a connection that never was, and only `ws` says why.
    socket.onerror = (event) => {
      const why = (event as { message?: string }).message || "the connection was refused or broke";
      reject(new ConnectionFailed(`${url.origin}: ${why}`));
    };
  });
  let timer: ReturnType<typeof setTimeout> | undefined;
  let cancelled: () => void = () => {};
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new ConnectionFailed(`${url.origin}: no answer in time`)), timeoutMs);
    cancelled = () => reject(new ConnectionFailed("closed"));
    cancel.addEventListener("abort", cancelled);
  });
  try {
    await Promise.race([opened, refused, late]);
  } catch (error) {
    leave(socket);
    if (!socket.on && error instanceof ConnectionFailed) throw await reason(url, token, error);
    throw error;
  } finally {
    clearTimeout(timer);
    cancel.removeEventListener("abort", cancelled);
  }
  return served(socket);
}

async function create(url: URL, token: string | undefined): Promise<NodeSocket> {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (typeof WebSocket === "undefined") {
    const { WebSocket: FromPackage } = await import("ws");
    return new FromPackage(url, { headers, perMessageDeflate: false, maxPayload: 8 << 20 }) as unknown as NodeSocket;
  }
  if (isNode) {
    const Own = WebSocket as unknown as new (url: URL, options: object) => WebSocket;
    return new Own(url, { headers });
  }
  // A page cannot set headers.
  return new WebSocket(withKey(url, token));
}

function withKey(url: URL, token: string | undefined): URL {
  const keyed = new URL(url);
  if (token) keyed.searchParams.set("api_key", token);
  return keyed;
}

async function answer(response: NodeResponse): Promise<ApiError> {
  const decoder = new TextDecoder();
  let body = "";
  for await (const part of response) {
    body += decoder.decode(part, { stream: true });
    if (body.length > 65536) break;
  }
  return ApiError.from(response.statusCode ?? 0, body, response.headers["x-request-id"]?.toString());
}

/** Why a handshake was refused, by asking for the same without one: the platform's sockets do not tell. */
async function reason(url: URL, token: string | undefined, failed: VivavoceError): Promise<VivavoceError> {
  const plain = withKey(url, token);
  plain.protocol = plain.protocol.replace(/^ws/, "http");
  try {
    const response = await fetch(plain, { signal: AbortSignal.timeout(5_000) });
    const body = await response.text();
    const tells = [401, 403, 404, 429, 502, 503, 504].includes(response.status);
    return tells ? ApiError.from(response.status, body, response.headers.get("x-request-id")) : failed;
  } catch {
    return failed;
  }
}

function leave(socket: NodeSocket): void {
  socket.onopen = socket.onmessage = socket.onclose = null;
  socket.onerror = () => {};
  if (socket.terminate) socket.terminate();
  else socket.close();
}

function served(socket: NodeSocket): Socket {
  let over = false;
  const made: Socket = {
    get bufferedAmount() { return socket.bufferedAmount; },
    get isOpen() { return !over && socket.readyState === 1; },
    send: (data) => socket.send(data as string | Uint8Array<ArrayBuffer>),
    close(code) {
      socket.close(code);
      // The other side may not answer.
      timers.push(setTimeout(() => ended(1006, ""), CLOSE_TIMEOUT_MS));
    },
    abandon() {
      made.onmessage = made.onclose = null;
      ended(1006, "");
    },
    onmessage: null,
    onclose: null,
  };
  const timers: ReturnType<typeof setTimeout>[] = [];
  const ended = (code: number, reason: string) => {
    if (over) return;
    over = true;
    timers.forEach(clearTimeout);
    clearInterval(pings);
    globalThis.removeEventListener?.("offline", offline);
    leave(socket);
    made.onclose?.(code, reason);
  };
  const offline = () => ended(1006, "the network is gone");
  if (!isNode) globalThis.addEventListener?.("offline", offline);
  let ponged = Date.now();
  socket.on?.("pong", () => (ponged = Date.now()));
  const pings = setInterval(() => {
    if (!socket.ping || socket.readyState !== 1) return;
    if (Date.now() - ponged > PONG_TIMEOUT_MS) ended(1006, "no answer to a ping");
    else socket.ping();
  }, PING_INTERVAL_MS);
  socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) =>
    made.onmessage?.(typeof data === "string" ? data : new Uint8Array(data));
  socket.onclose = ({ code, reason }) => ended(code, reason);
  socket.onerror = () => {};
  return made;
}
