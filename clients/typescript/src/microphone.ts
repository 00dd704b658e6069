// A browser's microphone as frames that a session takes.

import type { Session } from "./session.js";
import { addProcessor, MICROPHONE } from "./worklets.js";

/** What a browser is asked for. Not the browser's own type: programs for Node have none of that name. */
export interface MicrophoneConstraints {
  deviceId?: string | { exact: string };
  /** All three are on by default. */
  echoCancellation?: boolean;
  noiseSuppression?: boolean;
  autoGainControl?: boolean;
}

/** Options of `Microphone.open`. */
export interface MicrophoneOptions {
  /** Of the frames: the `sample_rate` of `stt_config` (16,000). */
  sampleRate?: number;
  /** Which microphone, and what is done to its sound. */
  constraints?: MicrophoneConstraints;
}

/** A microphone: 16-bit samples, mono, in frames of 20 ms. To be opened in answer to a click, and on a secure page. */
export class Microphone {
  /** Called with each frame. */
  onframe: ((frame: ArrayBuffer) => void) | null = null;

  private constructor(
    private readonly context: AudioContext,
    private readonly stream: MediaStream,
    private readonly node: AudioWorkletNode,
  ) {
    node.port.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => this.onframe?.(data);
  }

  /** Asks the user for the microphone, and begins to listen. */
  static async open({ sampleRate = 16_000, constraints = {} }: MicrophoneOptions = {}): Promise<Microphone> {
    const audio = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true, ...constraints };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    const context = new AudioContext();
    try {
      await addProcessor(context, MICROPHONE);
      const node = new AudioWorkletNode(context, MICROPHONE, {
        numberOfInputs: 1, numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit",
        processorOptions: { rate: sampleRate },
      });
      context.createMediaStreamSource(stream).connect(node);
      void context.resume();
      return new Microphone(context, stream, node);
    } catch (error) {
      stream.getTracks().forEach((track) => track.stop());
      await context.close();
      throw error;
    }
  }

  /** Sends all frames to a session until that ends. */
  pipe(session: Session): this {
    this.onframe = (frame) => {
      if (session.isOver) this.onframe = null;
      else session.sendAudio(frame).catch(() => {});
    };
    return this;
  }

  /** Whether silence is sent instead. */
  get muted(): boolean {
    return !this.stream.getAudioTracks().some((track) => track.enabled);
  }

  set muted(muted: boolean) {
    for (const track of this.stream.getAudioTracks()) track.enabled = !muted;
  }

  /** Gives the microphone back. */
  async close(): Promise<void> {
    this.onframe = null;
    this.node.port.postMessage("close");
    this.stream.getTracks().forEach((track) => track.stop());
    if (this.context.state !== "closed") await this.context.close();
  }
}
