// Sound in the browser. Both worklets are in one module. The playing context runs at the wire's rate and the browser resamples;
// the hearing one runs at the device's, because not every browser resamples a microphone, and the server takes any rate.

const MAX_INPUT_HZ = 48000;
const WORKLETS = `
registerProcessor("capture", class extends AudioWorkletProcessor {
  constructor() { super(); this.frame = new Int16Array(sampleRate / 50); this.filled = 0; }
  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.frame[this.filled++] = Math.max(-1, Math.min(1, sample)) * 32767;
      if (this.filled === this.frame.length) { this.port.postMessage(this.frame.slice()); this.filled = 0; }
    }
    return true;
  }
});
// A small jitter buffer: playing begins when 80 ms are there, or 120 ms after the first sample; it begins anew when it ran dry.
registerProcessor("player", class extends AudioWorkletProcessor {
  constructor() {
    super(); this.reset(); this.quanta = this.peak = 0;
    this.port.onmessage = ({ data }) => {
      if (data === null) return this.reset();
      if (this.buffered === 0 && !this.playing) this.since = currentTime;
      this.chunks.push(data); this.buffered += data.length;
    };
  }
  reset() { this.chunks = []; this.at = 0; this.buffered = 0; this.playing = false; this.since = 0; }
  process(_, [[out]]) {
    this.playing ||= this.buffered > 0 && (this.buffered >= 0.08 * sampleRate || currentTime - this.since > 0.12);
    let i = 0;
    while (this.playing && i < out.length && this.chunks.length) {
      const chunk = this.chunks[0], take = Math.min(out.length - i, chunk.length - this.at);
      for (let n = 0; n < take; n++) { const s = chunk[this.at + n]; out[i + n] = s; this.peak = Math.max(this.peak, Math.abs(s)); }
      i += take; this.at += take; this.buffered -= take;
      if (this.at === chunk.length) { this.chunks.shift(); this.at = 0; }
    }
    if (!this.chunks.length) this.playing = false;
    if (++this.quanta % 8 === 0) { this.port.postMessage({ peak: this.peak, ms: this.buffered / sampleRate * 1000 }); this.peak = 0; }
    return true;
  }
});`;
const workletUrl = URL.createObjectURL(new Blob([WORKLETS], { type: "text/javascript" }));

export async function context(sampleRate) {
  if (!isSecureContext) throw new Error("browsers give sound to https pages and to localhost only");
  const made = new AudioContext({ sampleRate, latencyHint: "interactive" });
  await made.audioWorklet.addModule(workletUrl);
  return made;
}
export async function hearingContext() {
  const made = await context();
  if (made.sampleRate <= MAX_INPUT_HZ) return made;
  made.close();
  return context(MAX_INPUT_HZ);
}

// ITU-T G.711, as floats.
const G711 = {
  mulaw: Float32Array.from({ length: 256 }, (_, code) => {
    const c = ~code & 255, value = ((((c & 15) << 3) + 132) << ((c >> 4) & 7)) - 132;
    return (c & 128 ? -value : value) / 32768;
  }),
  alaw: Float32Array.from({ length: 256 }, (_, code) => {
    const c = code ^ 0x55, exponent = (c >> 4) & 7, low = ((c & 15) << 4) + 8;
    const value = exponent ? (low + 256) << (exponent - 1) : low;
    return (c & 128 ? value : -value) / 32768;
  }),
};
// The samples of a message, or null for a format that is not played here.
export function samples(format, bytes) {
  if (G711[format]) return Float32Array.from(new Uint8Array(bytes), (code) => G711[format][code]);
  if (format !== "linear16") return null;
  const view = new DataView(bytes);
  return Float32Array.from({ length: bytes.byteLength >> 1 }, (_, i) => view.getInt16(2 * i, true) / 32768);
}
