"""What a recogniser has understood of each sound of `generate.py`, and by when: `words.py FOLDER SERVER [MODEL] > words.json`.

The server's local recogniser hears the beginnings of each sound as it would in a call, where it is asked for all of an utterance
again while somebody speaks: the first 1.9, 2.3, 4 and 7 s of sound. Words count from 350 ms behind the end of such a beginning. English only: it is
what the small models understand.
"""

import audioop
import io
import json
import sys
import urllib.request
import uuid
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

folder, server = Path(sys.argv[1]), sys.argv[2]
model = sys.argv[3] if len(sys.argv) > 3 else "gpt-4o-mini-transcribe"
BEGINNINGS = (1_900, 2_300, 4_000, 7_000)
LATE = 350


def transcribed(sound, rate):
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound)
    boundary = uuid.uuid4().hex
    part = f'--{boundary}\r\ncontent-disposition: form-data; name="{{}}"{{}}\r\n\r\n'
    body = part.format("model", "").encode() + model.encode() + b"\r\n"
    body += part.format("file", '; filename="a.wav"').encode() + data.getvalue() + f"\r\n--{boundary}--\r\n".encode()
    kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
    request = urllib.request.Request(server + "/v1/audio/transcriptions", body, kind)
    return json.loads(urllib.request.urlopen(request, timeout=300).read())["text"]


def words(entry):
    with wave.open(str(folder / entry["file"])) as file:
        rate, sound = file.getframerate(), file.readframes(file.getnframes())
    step = 2 * rate // 50
    loud = (at for at in range(0, len(sound) - step, step) if audioop.rms(sound[at : at + step], 2) > 1_200)
    first = next(loud, 0)
    told, before = [], None
    for ms in BEGINNINGS:
        end = first + 2 * rate * ms // 1000
        if end > len(sound) + 2 * rate:
            break
        text = transcribed(sound[:end], rate)
        if text and text != before:
            told.append([end * 1000 // (2 * rate) + LATE, text])
        before = text
    return entry["file"], told


entries = [one for one in json.loads((folder / "manifest.json").read_text()) if one["language"] == "en"]
with ThreadPoolExecutor(2) as pool:
    json.dump(dict(pool.map(words, entries)), sys.stdout, indent=1)
