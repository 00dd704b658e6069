"""A hundred sounds in which nobody says a word, seeded, 0.5–5 s: what a recogniser is given when the voice activity
detector is wrong."""

import numpy as np

from sounds import RATE_HZ, coloured, street


def envelope(length, attack_s, decay_s):
    time = np.arange(length) / RATE_HZ
    return (np.minimum(1, time / attack_s) * np.exp(-time / decay_s)).astype(np.float32)


def babble_like(length, random):
    """Many voices far away: buzzes of changing pitch through changing formants, at the rhythm of syllables."""
    time = np.arange(length) / RATE_HZ
    out = np.zeros(length)
    for _ in range(8):
        pitch = random.uniform(90, 240) * (1 + 0.1 * np.sin(2 * np.pi * random.uniform(0.2, 0.8) * time))
        phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
        formant = random.uniform(300, 900, 2) * (1 + 0.4 * np.sin(2 * np.pi * random.uniform(1, 3, 2) * time[:, None]))
        voice = sum(
            np.sin(k * phase) * sum(1 / (1 + ((k * pitch - formant[:, i] * (1 + 2 * i)) / 150) ** 2) for i in range(2))
            for k in range(1, 20)
        )
        out += voice * np.maximum(0, np.sin(2 * np.pi * random.uniform(2, 5) * time + random.uniform(0, 6)))
    return out


def door(length, random):
    out = coloured(length, 1.8, random) * envelope(length, 0.002, random.uniform(0.05, 0.3))
    out += np.sin(2 * np.pi * random.uniform(60, 140) * np.arange(length) / RATE_HZ) * envelope(length, 0.002, 0.1) * 2
    return np.roll(out, int(random.integers(length // 2)))


def breath(length, random):
    time = np.arange(length) / RATE_HZ
    return coloured(length, 0.6, random) * np.maximum(0, np.sin(2 * np.pi * random.uniform(0.2, 0.6) * time)) ** 2


def music(length, random):
    time = np.arange(length) / RATE_HZ
    out = np.zeros(length)
    step = random.uniform(0.15, 0.5)
    for at in np.arange(0, length / RATE_HZ, step):
        pitch = 220 * 2 ** (random.integers(0, 25) / 12)
        note = np.maximum(0, time - at)
        out += sum(np.sin(2 * np.pi * pitch * k * note) / k**1.5 for k in range(1, 6)) * np.exp(-note / 0.4) * (time >= at)
    return out


def tones(length, random):
    time = np.arange(length) / RATE_HZ
    low, high = random.choice([697, 770, 852, 941, 350, 440]), random.choice([1209, 1336, 1477, 440, 480])
    on = (time % random.uniform(0.3, 2)) < 0.25
    return (np.sin(2 * np.pi * low * time) + np.sin(2 * np.pi * high * time)) * on


def keys(length, random):
    out = np.zeros(length)
    for _ in range(1 + length // (RATE_HZ // 4)):
        at = int(random.integers(length))
        n = min(800, length - at)
        out[at : at + n] += coloured(max(n, 2), 0.2, random)[:n] * envelope(n, 0.001, 0.01)
    return out


KINDS = {
    "white": lambda n, r: coloured(n, 0, r),
    "pink": lambda n, r: coloured(n, 1, r),
    "brown": lambda n, r: coloured(n, 2, r),
    "babble": babble_like,
    "street": street,
    "door": door,
    "breath": breath,
    "music": music,
    "tones": tones,
    "keys": keys,
}


def noises(seed=21, each=10):
    """(name, sound) pairs; one of each ten is next to silence."""
    for kind, make in KINDS.items():
        for number in range(each):
            random = np.random.default_rng([seed, number, sum(map(ord, kind))])
            length = int(random.uniform(0.5, 5) * RATE_HZ)
            sound = make(length, random)
            level_db = -75 if number == each - 1 else random.uniform(-45, -15)
            yield f"{kind}-{number}", (sound / (np.sqrt(np.mean(sound**2)) + 1e-9) * 10 ** (level_db / 20)).astype(np.float32)
