"""Sound for the ears' bench: files to 16 kHz mono, utterances cut as a voice activity detector would cut them, and
the conditions under which they are heard: babble, street noise, a telephone line. Everything random is seeded."""

import subprocess

import numpy as np

RATE_HZ = 16_000
FRAME = RATE_HZ // 100
BEFORE_S, AFTER_S = 0.3, 0.5
PAUSE_S = 0.5
LONGEST_S = 10.0


def read(path, raw_rate_hz=None):
    """Any sound file, or raw 16-bit samples of a rate, as 16 kHz mono floats."""
    layout = ["-f", "s16le", "-ar", str(raw_rate_hz), "-ac", "1"] if raw_rate_hz else []
    command = ["ffmpeg", "-v", "error", *layout, "-i", str(path), "-ac", "1", "-ar", str(RATE_HZ), "-f", "s16le", "-"]
    sound = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(sound, np.int16).astype(np.float32) / 32_768


def to_int16(sound):
    return np.clip(np.round(sound * 32_768), -32_768, 32_767).astype("<i2")


def write(path, sound):
    import wave

    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        out.writeframes(to_int16(sound).tobytes())


def active(sound):
    """Frames of 10 ms in which somebody speaks, by energy above the recording's own floor."""
    frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME)
    if not len(frames):
        return np.zeros(0, bool)
    level = 10 * np.log10(np.mean(frames**2, axis=1) + 1e-9)
    loud, floor = np.percentile(level, 95), np.percentile(level, 5)
    threshold = max(min(floor + 12, loud - 20), loud - 40)
    speech = np.convolve(level > threshold, np.ones(5), "same") >= 2
    return speech


def utterances(sound):
    """Pieces between pauses, at most ten seconds where a shorter pause allows, with a little of what is around them."""
    speech = active(sound)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], speech.astype(int), [0]))))
    runs = [list(run) for run in edges.reshape(-1, 2)]
    joined = []
    for start, end in runs:
        if joined and (start - joined[-1][1]) * 0.01 < PAUSE_S:
            joined[-1].append((start, end))
            joined[-1][1] = end
        else:
            joined.append([start, end, (start, end)])
    pieces = []

    def split(parts):
        start, end = parts[0][0], parts[-1][1]
        if (end - start) * 0.01 > LONGEST_S and len(parts) > 1:
            # At the longest of the pauses that leave something on both sides.
            gaps = [
                (parts[i + 1][0] - parts[i][1], i)
                for i in range(len(parts) - 1)
                if parts[i][1] - start > 100 and end - parts[i + 1][0] > 100
            ]
            if gaps and max(gaps)[0] >= 8:
                at = max(gaps)[1] + 1
                return split(parts[:at]) + split(parts[at:])
        return [(start, end)]

    for _, _, *parts in joined:
        pieces += split(parts)
    cut = []
    for i, (start, end) in enumerate(pieces):
        before = pieces[i - 1][1] if i else -10_000
        after = pieces[i + 1][0] if i + 1 < len(pieces) else 10**9
        first = max(start - int(BEFORE_S * 100), (before + start) // 2 if i else -10_000)
        last = min(end + int(AFTER_S * 100), (end + after) // 2)
        if end - start < 8:
            continue
        lead, tail = max(0, -first) * FRAME, max(0, last * FRAME - len(sound))
        piece = sound[max(0, first) * FRAME : last * FRAME]
        # A recording that begins or ends with speech: the room goes on, very quietly.
        quiet = np.random.default_rng(start).normal(0, 1e-4, lead + tail).astype(np.float32)
        cut.append(np.concatenate((quiet[:lead], piece, quiet[lead:])))
    return cut


def speech_level(sound):
    """Root mean square of where somebody speaks."""
    speech = np.repeat(active(sound), FRAME)
    spoken = sound[: len(speech)][speech]
    return float(np.sqrt(np.mean((spoken if len(spoken) else sound) ** 2)) + 1e-9)


def mixed(sound, noise, snr_db):
    noise = noise * (speech_level(sound) / (np.sqrt(np.mean(noise**2)) + 1e-9) / 10 ** (snr_db / 20))
    both = sound + noise
    return both * min(1.0, 0.99 / (np.max(np.abs(both)) + 1e-9))


def babble(length, voices, random):
    """Six others talking at once, each as loud as the next: `voices` have been brought to one level."""
    out = np.zeros(length, np.float32)
    for _ in range(6):
        voice = voices[random.integers(len(voices))]
        at = random.integers(max(1, len(voice)))
        out += voice.take(np.arange(at, at + length), mode="wrap")
    return out


def coloured(length, slope, random):
    """Noise whose power falls with frequency to the given power: 0 white, 1 pink, 2 brown."""
    spectrum = np.fft.rfft(random.normal(size=length))
    frequency = np.maximum(np.fft.rfftfreq(length, 1 / RATE_HZ), 20)
    out = np.fft.irfft(spectrum / frequency ** (slope / 2), length)
    return (out / (np.sqrt(np.mean(out**2)) + 1e-12)).astype(np.float32)


def street(length, random):
    """A street: rumble, tyres that swell and pass, now and then a horn and a clatter."""
    time = np.arange(length) / RATE_HZ
    out = coloured(length, 1.6, random)
    for _ in range(1 + length // (3 * RATE_HZ)):
        middle, width = random.uniform(0, length / RATE_HZ), random.uniform(0.4, 1.5)
        out += coloured(length, 0.8, random) * 1.5 * np.exp(-(((time - middle) / width) ** 2)).astype(np.float32)
    for _ in range(random.poisson(length / RATE_HZ / 8)):
        start, tone = random.uniform(0, length / RATE_HZ), random.uniform(350, 550)
        inside = (time > start) & (time < start + random.uniform(0.2, 0.6))
        horn = sum(np.sin(2 * np.pi * tone * ratio * k * time) / k for ratio in (1, 1.26) for k in (1, 2, 3, 4))
        out += (0.5 * horn * inside).astype(np.float32)
    for _ in range(random.poisson(length / RATE_HZ / 4)):
        start = int(random.integers(length))
        n = min(length - start, RATE_HZ // 5)
        out[start : start + n] += coloured(max(n, 2), 0.3, random)[:n] * 2 * np.exp(-np.arange(n) / 800)
    return out


def telephone(sound):
    """G.711 µ-law at 8 kHz, and back."""
    line = ["ffmpeg", "-v", "error", "-f", "s16le", "-ar", str(RATE_HZ), "-ac", "1", "-i", "-"]
    coded = subprocess.run(
        [*line, "-ar", "8000", "-c:a", "pcm_mulaw", "-f", "mulaw", "-"],
        input=to_int16(sound).tobytes(), check=True, capture_output=True,
    ).stdout
    decode = ["ffmpeg", "-v", "error", "-f", "mulaw", "-ar", "8000", "-ac", "1", "-i", "-"]
    decoded = subprocess.run(
        [*decode, "-ar", str(RATE_HZ), "-f", "s16le", "-"], input=coded, check=True, capture_output=True
    ).stdout
    return np.frombuffer(decoded, "<i2").astype(np.float32) / 32_768
