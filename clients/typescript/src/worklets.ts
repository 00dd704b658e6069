// The code that runs on the browser's audio thread. As text, because it becomes a module of its own (a Blob URL), with and
// without a bundler; and so in plain JavaScript.

/** The name of a microphone's processor. */
export const MICROPHONE = "vivavoce-microphone";
/** The name of a player's processor. */
export const PLAYER = "vivavoce-player";

// Frames of 20 ms at the session's rate. Resampled here, because not every browser connects a microphone to a context of
// another rate. A windowed sinc, so that nothing above half the rate is folded into speech.
const MICROPHONE_CODE = `
class Resampler {
  constructor(from, to) {
    this.step = from / to;
    const cutoff = Math.min(1, to / from) * 0.92;
    this.half = Math.ceil(12 / cutoff);
    this.phases = 128;
    this.table = [];
    for (let phase = 0; phase <= this.phases; phase++) {
      const taps = new Float32Array(2 * this.half);
      let sum = 0;
      for (let tap = 0; tap < taps.length; tap++) {
        const x = tap - this.half + 1 - phase / this.phases;
        const window = Math.abs(x) < this.half ? 0.5 + 0.5 * Math.cos(Math.PI * x / this.half) : 0;
        const angle = Math.PI * x * cutoff;
        taps[tap] = window * (angle ? Math.sin(angle) / angle : 1);
        sum += taps[tap];
      }
      this.table.push(taps.map((tap) => tap / sum));
    }
    this.kept = new Float32Array(2 * this.half);
    this.at = 0;
  }
  run(input, take) {
    if (this.step === 1) return input.forEach(take);
    const samples = new Float32Array(this.kept.length + input.length);
    samples.set(this.kept);
    samples.set(input, this.kept.length);
    while (this.at + 2 * this.half <= samples.length) {
      const whole = Math.floor(this.at);
      const taps = this.table[Math.round((this.at - whole) * this.phases)];
      let sum = 0;
      for (let tap = 0; tap < taps.length; tap++) sum += taps[tap] * samples[whole + tap];
      take(sum);
      this.at += this.step;
    }
    const used = Math.min(Math.floor(this.at), samples.length);
    this.kept = samples.slice(used);
    this.at -= used;
  }
}
registerProcessor("${MICROPHONE}", class extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate } }) {
    super();
    this.resampler = new Resampler(sampleRate, rate);
    this.size = Math.round(rate / 50);
    this.frame = new Int16Array(this.size);
    this.filled = 0;
    this.port.onmessage = () => { this.closed = true; };
  }
  process([input]) {
    if (this.closed) return false;
    if (input[0]) this.resampler.run(input[0], (sample) => {
      this.frame[this.filled++] = Math.max(-1, Math.min(1, sample)) * 32767;
      if (this.filled < this.size) return;
      this.port.postMessage(this.frame.buffer, [this.frame.buffer]);
      this.frame = new Int16Array(this.size);
      this.filled = 0;
    });
    return true;
  }
});`;

// Sound is played without gaps as long as there is any. When it has run out, it goes on when some has been gathered, or when
// nothing more has come for a while: the end of an utterance is short.
const PLAYER_CODE = `
registerProcessor("${PLAYER}", class extends AudioWorkletProcessor {
  constructor({ processorOptions: { gather, most } }) {
    super();
    this.gather = gather * sampleRate;
    this.most = most * sampleRate;
    this.chunks = [];
    this.offset = this.buffered = this.played = this.underruns = this.dropped = 0;
    this.gathering = true;
    this.lastCame = this.ranOut = -Infinity;
    this.port.onmessage = ({ data }) => this.take(data);
  }
  take(message) {
    if (message instanceof Int16Array) {
      if (this.buffered + message.length > this.most) return void (this.dropped += message.length);
      if (currentTime - this.ranOut < 0.3) { this.underruns++; this.ranOut = -Infinity; }
      this.chunks.push(message);
      this.buffered += message.length;
      this.lastCame = currentTime;
    } else if (message.clear) {
      this.chunks = [];
      this.offset = this.buffered = 0;
      this.gathering = true;
      this.ranOut = -Infinity;
    } else if ("paused" in message) {
      this.paused = message.paused;
    } else if (message.stats) {
      const { played, buffered, underruns, dropped } = this;
      this.port.postMessage({ played, buffered, underruns, dropped });
    } else if (message.close) {
      this.closed = true;
    }
  }
  process(_, [[output]]) {
    if (this.closed) return false;
    if (this.gathering && (this.buffered >= this.gather || (this.buffered && currentTime - this.lastCame > 0.1))) {
      this.gathering = false;
    }
    if (this.paused || this.gathering) return true;
    for (let at = 0; at < output.length;) {
      const chunk = this.chunks[0];
      if (!chunk) { this.gathering = true; this.ranOut = currentTime; break; }
      const count = Math.min(output.length - at, chunk.length - this.offset);
      for (let one = 0; one < count; one++) output[at + one] = chunk[this.offset + one] / 32768;
      at += count;
      this.offset += count;
      this.buffered -= count;
      this.played += count;
      if (this.offset === chunk.length) { this.chunks.shift(); this.offset = 0; }
    }
    return true;
  }
});`;

/** Makes a processor known to a context. */
export async function addProcessor(context: AudioContext, name: typeof MICROPHONE | typeof PLAYER): Promise<void> {
  const code = name === MICROPHONE ? MICROPHONE_CODE : PLAYER_CODE;
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  try {
    await context.audioWorklet.addModule(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}
