"""The vendor's own client against our emulator.

Takes the address, a key and a list of tasks in JSON, each a name and its arguments; prints what came of them, in order.
Sound is read from and written to files; an error of the client's is its status and body.
"""

import asyncio
import base64
import json
import sys

from elevenlabs import AudioFormat, CommitStrategy, RealtimeEvents
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.types import VoiceSettings

VOICE = "JBFqnCBsd6RMkjVDRZzb"
MODEL = "eleven_flash_v2_5"
TEXT_FORMS = {
    "convert": lambda speech, **asked: speech.convert(VOICE, **asked),
    "stream": lambda speech, **asked: speech.stream(VOICE, **asked),
    "realtime": lambda speech, text, **asked: speech.convert_realtime(VOICE, text=iter(text.split("|")), **asked),
}


class Tasks:
    def __init__(self, url: str, key: str):
        self.url, self.key = url, key
        self.client = ElevenLabs(base_url=url, api_key=key)

    def speech(self, form: str, output_format: str, text: str, path: str):
        asked = {"text": text, "output_format": output_format, "model_id": MODEL}
        with open(path, "wb") as file:
            for chunk in TEXT_FORMS[form](self.client.text_to_speech, **asked):
                file.write(chunk)

    def slow(self, path: str):
        settings = VoiceSettings(speed=0.7)
        asked = {"text": "1 2 3 4", "output_format": "pcm_8000", "model_id": MODEL, "voice_settings": settings}
        with open(path, "wb") as file:
            for chunk in self.client.text_to_speech.convert(VOICE, **asked):
                file.write(chunk)

    def timed(self, text: str):
        whole = self.client.text_to_speech.convert_with_timestamps(VOICE, text=text, output_format="pcm_16000")
        streamed = self.client.text_to_speech.stream_with_timestamps(VOICE, text=text, output_format="pcm_16000")
        characters = [chunk.alignment.characters for chunk in streamed if chunk.alignment]
        return {
            "characters": "".join(whole.alignment.characters),
            "starts": whole.alignment.character_start_times_seconds,
            "bytes": len(base64.b64decode(whole.audio_base_64)),
            "streamed": "".join(map("".join, characters)),
        }

    def voices(self, size: int):
        ids, token = [], None
        while True:
            page = self.client.voices.search(page_size=size, next_page_token=token)
            ids += [voice.voice_id for voice in page.voices]
            token = page.next_page_token
            if not page.has_more:
                return {"ids": ids, "total": page.total_count}

    def models(self):
        return [model.model_id for model in self.client.models.list()]

    def hear(self, rate: int, strategy: str, path: str, more: dict = {}):
        return asyncio.run(self.heard(rate, strategy, path, more))

    async def heard(self, rate: int, strategy: str, path: str, more: dict):
        client = AsyncElevenLabs(base_url=self.url, api_key=self.key)
        connection = await client.speech_to_text.realtime.connect({
            "model_id": "scribe_v2_realtime",
            "audio_format": AudioFormat(f"pcm_{rate}"),
            "sample_rate": rate,
            "commit_strategy": CommitStrategy(strategy),
            "include_timestamps": True,
            **more,
        })
        heard = {"session": [], "partial": [], "committed": [], "timed": [], "error": [], "throttled": [], "closed": []}
        timed, ended, throttled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        connection.on(RealtimeEvents.SESSION_STARTED, lambda said: heard["session"].append(said["config"]))
        connection.on(RealtimeEvents.PARTIAL_TRANSCRIPT, lambda said: heard["partial"].append(said["text"]))
        connection.on(RealtimeEvents.COMMITTED_TRANSCRIPT, lambda said: heard["committed"].append(said["text"]))
        connection.on(RealtimeEvents.COMMIT_THROTTLED, lambda said: (heard["throttled"].append(said["error"]), throttled.set()))
        for name in ["auth_error", "invalid_request", "input_error", "session_time_limit_exceeded"]:
            connection.on(RealtimeEvents(name), lambda said: heard["error"].append(said))
        connection.on(RealtimeEvents.CLOSE, lambda said: (heard["closed"].append(said), ended.set()))
        connection.on(
            RealtimeEvents.COMMITTED_TRANSCRIPT_WITH_TIMESTAMPS, lambda said: (heard["timed"].append(said), timed.set())
        )
        waiting = [asyncio.create_task(event.wait()) for event in (timed, ended)]
        try:
            with open(path, "rb") as file:
                while chunk := file.read(rate // 5):
                    await connection.send({"audio_base_64": base64.b64encode(chunk).decode()})
            if strategy == "manual":
                await connection.commit()
        except Exception as problem:
            heard["broken"] = str(problem)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if strategy == "manual" and not heard["error"]:
            # At once again: there is nothing to commit.
            await connection.commit()
            await throttled.wait()
        await connection.close()
        for task in waiting:
            task.cancel()
        return heard


def main(url: str, key: str, tasks: str):
    client = Tasks(url, key)
    results = []
    for name, *arguments in json.loads(tasks):
        try:
            results.append(getattr(client, name)(*arguments))
        except ApiError as problem:
            results.append({"status": problem.status_code, "body": problem.body})
    print(json.dumps(results))


main(*sys.argv[1:])
