"""Where turns end in human speech: silence alone beside Smart Turn, which is asked 200 ms into a pause.

    python3 benches/turns/human.py MODEL.onnx PROMPTS TEXTS [LIBRIVOX]

PROMPTS is the folder of Debian's asterisk-core-sounds-en-wav (one professional speaker, 8 kHz, CC-BY-SA, downloaded and
never committed), TEXTS its core-sounds-en.txt, LIBRIVOX the folder test/data/librivox of pocketsphinx' source distribution.
Needs numpy, librosa, soundfile and onnxruntime. Everything is seeded.

An end is a prompt that ends like a sentence, and then silence. A hold is a prompt that was recorded to be continued ("The
number is"), or a sentence cut at the quietest place of its second or third quarter. Both are heard clean, with steady noise 10 dB
below the speech, and through G.711. What follows a hold comes after 250, 500, 1000 or 1500 ms, a quarter each.
"""

import sys
import time
from pathlib import Path

import librosa
import numpy as np
import onnxruntime
import soundfile

RATE = 16_000
ASKED_MS = 200
PAUSES_MS = (250, 500, 1_000, 1_500)
CONDITIONS = ("clean", "noise, 10 dB", "G.711")
RNG = np.random.default_rng(7)


def read(file):
    sound, rate = soundfile.read(file, dtype="float32")
    return librosa.resample(sound, orig_sr=rate, target_sr=RATE) if rate != RATE else sound


def levels(sound):
    """Energy of every 10 ms, in dB."""
    frames = sound[: len(sound) // 160 * 160].reshape(-1, 160)
    return 10 * np.log10((frames**2).mean(axis=1) + 1e-10)


def trimmed(sound):
    loud = np.flatnonzero(levels(sound) > levels(sound).max() - 35)
    return sound[loud[0] * 160 : (loud[-1] + 1) * 160]


def cuts_in(sound):
    """Where a sentence can be cut: the quietest 60 ms of its second and of its third quarter, if they are 20 dB below its
    loudest."""
    level = levels(sound)
    smooth = np.convolve(level, np.ones(6) / 6, mode="same")
    quarters = np.linspace(0, len(level), 5).astype(int)
    for first, last in zip(quarters[1:3], quarters[2:4]):
        at = first + int(np.argmin(smooth[first:last]))
        if smooth[at] < level.max() - 20:
            yield at * 160


def condition(sound, kind):
    if kind == "noise, 10 dB":
        noise = RNG.standard_normal(len(sound)).astype(np.float32)
        return sound + noise * np.sqrt((sound**2).mean() / 10)
    if kind == "G.711":
        narrow = np.clip(librosa.resample(sound, orig_sr=RATE, target_sr=8_000), -1, 1)
        code = np.round(np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) * 127) / 127
        wide = np.sign(code) * (256 ** np.abs(code) - 1) / 255
        return librosa.resample(wide.astype(np.float32), orig_sr=8_000, target_sr=RATE)
    return sound


def features(sound):
    sound = np.pad(sound[-8 * RATE :], (max(0, 8 * RATE - len(sound)), 0))
    sound = (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)
    mel = librosa.feature.melspectrogram(
        y=sound, sr=RATE, n_fft=400, hop_length=160, n_mels=80, pad_mode="reflect"
    )
    mel = np.log10(np.maximum(mel, 1e-10))[:, :-1]
    return ((np.maximum(mel, mel.max() - 8) + 4) / 4).astype(np.float32)[None]


class Model:
    def __init__(self, file):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options)
        self.cpu = []

    def finished(self, sound):
        given = features(sound)
        began = time.process_time()
        probability = self.session.run(None, {"input_features": given})[0].item()
        self.cpu.append(time.process_time() - began)
        return probability


GOES_ON = "a and are at by for from in is number of or press than the to with".split()


def prompts_in(folder, texts):
    """Recordings, and whether each is finished: its text ends like a sentence, or in a word after which one goes on ("There
    are currently two" is not told from "The conference is now muted", so that such prompts are left out)."""
    for line in Path(texts).read_text(errors="replace").splitlines():
        name, _, text = line.partition(":")
        words = text.split()
        file = Path(folder) / f"{name.strip()}.wav"
        if len(words) < 3 or "[" in text or not file.exists():
            continue
        last = words[-1].strip('"').lower()
        if last.endswith("...") or last in GOES_ON:
            yield file, False, len(words)
        elif last.endswith((".", "!", "?")):
            yield file, True, len(words)


def main():
    model_file, prompts, texts, *librivox = sys.argv[1:]
    model = Model(model_file)
    files = list(prompts_in(prompts, texts))
    print(f"{len(files)} prompts, {sum(not finished for _, finished, _ in files)} of them unfinished", flush=True)
    files += [(file, True, 9) for folder in librivox for file in sorted(Path(folder).glob("*.wav"))]
    quiet = np.zeros(RATE // 2, dtype=np.float32)
    asked = np.zeros(RATE * ASKED_MS // 1_000, dtype=np.float32)
    scores = {kind: ([], []) for kind in CONDITIONS}
    for count, (file, finished, words) in enumerate(files):
        sound = trimmed(read(file))
        cuts = list(cuts_in(sound)) if finished and words >= 5 else []
        for kind in CONDITIONS:
            ends, holds = scores[kind]
            whole = condition(np.concatenate([quiet, sound, asked]), kind)
            (ends if finished else holds).append(model.finished(whole))
            for cut in cuts:
                part = np.concatenate([quiet, sound[:cut], asked])
                holds.append(model.finished(condition(part, kind)))
        if count % 50 == 0:
            print(count, flush=True)
    report(scores, model)


def false_cutoffs(holds, threshold, silence_ms, decided_ms):
    """The share of holds that are cut: by the model, or because their pause is longer than silence is waited for."""
    cut = [
        pause > silence_ms or (pause > decided_ms and score > threshold)
        for score in holds
        for pause in PAUSES_MS
    ]
    return np.mean(cut)


def latency(ends, threshold, silence_ms, decided_ms):
    return np.mean([decided_ms if score > threshold else silence_ms for score in ends])


def report(scores, model):
    cost = np.array(model.cpu) * 1_000
    print(f"decisions: {len(cost)}, CPU median {np.median(cost):.0f} ms, p95 {np.percentile(cost, 95):.0f} ms")
    decided = ASKED_MS + 100
    never = 2.0
    for kind, (ends, holds) in scores.items():
        ends, holds = np.array(ends), np.array(holds)
        print(f"\n{kind}: {len(ends)} ends, {len(holds)} holds x {len(PAUSES_MS)} pauses")
        print(f"  called finished: {np.mean(ends > 0.5):.0%} of ends, {np.mean(holds > 0.5):.0%} of holds")
        for answer in (300, 600):
            silence = false_cutoffs(holds, never, answer - 1, decided)
            # Until then the model alone has ended turns.
            model_alone = np.mean([pause >= answer and score > 0.5 for score in holds for pause in PAUSES_MS])
            print(f"  pauses of {answer} ms and more that are cut: silence {silence:.0%}, smart-turn {model_alone:.0%}")
        options = [
            (latency(ends, threshold, silence, decided), threshold, silence)
            for threshold in (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, never)
            for silence in (500, 1_000, 1_500, 1_800, 2_400)
            if false_cutoffs(holds, threshold, silence, decided - 1) <= 0.05
        ]
        print("  at 5 %%: silence 1500 ms; smart-turn %.0f ms (threshold %.2f, then silence %d ms)" % min(options))
        at_half = (false_cutoffs(holds, 0.5, 1_800, decided - 1), latency(ends, 0.5, 1_800, decided))
        print("  as shipped (0.5, bound 1800 ms): %.0f %% of holds cut, mean latency %.0f ms" % (100 * at_half[0], at_half[1]))


if __name__ == "__main__":
    main()
