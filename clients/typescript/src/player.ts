// A browser's loudspeaker for what a session says.

import type { Session } from "./session.js";
import { addProcessor, PLAYER } from "./worklets.js";

/** Options of `Player.open`. */
export interface PlayerOptions {
  /** Of the sound: the `sample_rate` of `tts_config` (24,000). */
  sampleRate?: number;
  /** Sound that is gathered before it begins, and after it has run out (60). */
  gatherMs?: number;
  /** Sound that waits at most; what is more is dropped (120,000). The server paces: much waits only without its pacing. */
  maxBufferedMs?: number;
}

/** What a player has done. */
export interface PlayerStats {
  playedMs: number;
  bufferedMs: number;
  /** How often sound had run out while more was on its way. */
  underruns: number;
  droppedMs: number;
}

/** Plays 16-bit samples, mono, without gaps. To be opened in answer to a click. */
export class Player {
  #stats: ((stats: PlayerStats) => void)[] = [];
  #removers: (() => void)[] = [];
  #sounding: string | null | undefined;
  /** The first byte of a sample that came in two parts. */
  #odd: number | undefined;

  private constructor(
    private readonly context: AudioContext,
    private readonly node: AudioWorkletNode,
    private readonly gain: GainNode,
  ) {
    node.port.onmessage = ({ data }: MessageEvent<Record<"played" | "buffered" | "underruns" | "dropped", number>>) => {
      const ms = (samples: number) => Math.round((samples / context.sampleRate) * 1000);
      this.#stats.shift()?.({
        playedMs: ms(data.played), bufferedMs: ms(data.buffered), underruns: data.underruns, droppedMs: ms(data.dropped),
      });
    };
  }

  /** Opens the loudspeaker. */
  static async open({ sampleRate = 24_000, gatherMs = 60, maxBufferedMs = 120_000 }: PlayerOptions = {}): Promise<Player> {
    // The browser converts to what the loudspeaker takes.
    const context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    try {
      await addProcessor(context, PLAYER);
    } catch (error) {
      await context.close();
      throw error;
    }
    const node = new AudioWorkletNode(context, PLAYER, {
      numberOfInputs: 0, numberOfOutputs: 1, outputChannelCount: [1],
      processorOptions: { gather: gatherMs / 1000, most: maxBufferedMs / 1000 },
    });
    const gain = new GainNode(context);
    node.connect(gain).connect(context.destination);
    void context.resume();
    return new Player(context, node, gain);
  }

  /** Plays what a session says, drops what was cut, and waits while the server finds out whether it is interrupted. */
  attach(session: Session): this {
    this.detach();
    const pauses = session.config.vad?.interruption === "pause";
    this.#removers = [
      session.on("audio", ({ data }) => this.play(data)),
      session.on("tts_started", ({ id }) => (this.#sounding = id)),
      session.on("tts_interrupted", ({ id }) => {
        // One that was cut before it began has no sound here; another's may be.
        if (id === this.#sounding) this.clear();
      }),
      session.on("interruption", ({ state }) => {
        if (!pauses) return;
        if (state === "suspected") return this.pause();
        // Not to be heard for the moment until `tts_interrupted`.
        if (state === "confirmed") this.clear();
        this.resume();
      }),
      session.on("closed", () => this.resume()),
    ];
    return this;
  }

  /** Plays no session any more. */
  detach(): void {
    for (const remove of this.#removers.splice(0)) remove();
  }

  /** Plays samples after those that wait. */
  play(sound: ArrayBuffer | ArrayBufferView): void {
    let bytes = ArrayBuffer.isView(sound)
      ? new Uint8Array(sound.buffer, sound.byteOffset, sound.byteLength)
      : new Uint8Array(sound);
    if (this.#odd !== undefined) {
      bytes = Uint8Array.of(this.#odd, ...bytes);
      this.#odd = undefined;
    }
    if (bytes.length % 2) this.#odd = bytes[bytes.length - 1];
    const samples = new Int16Array(bytes.length >> 1);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let at = 0; at < samples.length; at++) samples[at] = view.getInt16(2 * at, true);
    if (samples.length) this.node.port.postMessage(samples, [samples.buffer]);
  }

  /** Drops what waits. */
  clear(): void {
    this.#odd = undefined;
    this.node.port.postMessage({ clear: true });
  }

  /** Holds what waits. */
  pause(): void {
    this.node.port.postMessage({ paused: true });
  }

  /** Goes on after `pause`. */
  resume(): void {
    this.node.port.postMessage({ paused: false });
  }

  /** 0–1. */
  get volume(): number {
    return this.gain.gain.value;
  }

  set volume(volume: number) {
    this.gain.gain.value = volume;
  }

  /** What it has done. */
  stats(): Promise<PlayerStats> {
    return new Promise((resolve) => {
      this.#stats.push(resolve);
      this.node.port.postMessage({ stats: true });
    });
  }

  /** Gives the loudspeaker back. */
  async close(): Promise<void> {
    this.detach();
    this.node.port.postMessage({ close: true });
    if (this.context.state !== "closed") await this.context.close();
  }
}
