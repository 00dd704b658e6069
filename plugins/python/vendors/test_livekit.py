"""LiveKit's plugins of six vendors with their default models and voices, pointed at the emulators by nothing but address and key."""

import asyncio
import unittest

import aiohttp
from livekit import rtc
from livekit.agents import APIConnectOptions, utils
from livekit.agents.stt import SpeechEventType
from livekit.plugins import azure, cartesia, deepgram, elevenlabs, google, openai

from emulators import HTTP, KEY, SENTENCE, google_here, log, required, shown, spoken, within

ONCE = APIConnectOptions(max_retry=0)
RATE = 16_000

HEARS = {
    "deepgram": lambda url, http: deepgram.STT(api_key=KEY, base_url=f"{url}/v1/listen", http_session=http),
    "deepgram flux": lambda url, http: deepgram.STTv2(
        api_key=KEY, base_url=url.replace("http", "ws", 1) + "/v2/listen", http_session=http
    ),
    "elevenlabs": lambda url, http: elevenlabs.STT(api_key=KEY, base_url=f"{url}/v1", http_session=http),
    "elevenlabs realtime": lambda url, http: elevenlabs.STT(
        api_key=KEY, base_url=f"{url}/v1", http_session=http, model="scribe_v2_realtime"
    ),
    "cartesia": lambda url, http: cartesia.STT(api_key=KEY, base_url=url, http_session=http),
    "cartesia whisper": lambda url, http: cartesia.STT(
        api_key=KEY, base_url=url, http_session=http, model="ink-whisper"
    ),
    "google": lambda url, http: google.STT(),
    "google chirp": lambda url, http: google.STT(model="chirp_2", location="us-central1"),
    "azure": lambda url, http: azure.STT(speech_key=KEY, speech_host=url.replace("http", "ws", 1)),
    "openai": lambda url, http: openai.STT(api_key=KEY, base_url=f"{url}/v1"),
    "openai realtime": lambda url, http: openai.STT(api_key=KEY, base_url=f"{url}/v1", use_realtime=True),
}
SPEAKS = {
    "deepgram": lambda url, http: deepgram.TTS(api_key=KEY, base_url=f"{url}/v1/speak", http_session=http),
    "deepgram flux": lambda url, http: deepgram.TTSv2(api_key=KEY, base_url=f"{url}/v2/speak", http_session=http),
    "elevenlabs": lambda url, http: elevenlabs.TTS(api_key=KEY, base_url=f"{url}/v1", http_session=http),
    "elevenlabs v3": lambda url, http: elevenlabs.TTS(
        api_key=KEY, base_url=f"{url}/v1", http_session=http, model="eleven_v3"
    ),
    "cartesia": lambda url, http: cartesia.TTS(api_key=KEY, base_url=url, http_session=http),
    "google": lambda url, http: google.TTS(),
    "google gemini": lambda url, http: google.TTS(model_name="gemini-2.5-flash-tts"),
    "azure": lambda url, http: azure.TTS(
        speech_key=KEY, speech_endpoint=f"{url}/cognitiveservices/v1", http_session=http
    ),
    "openai": lambda url, http: openai.TTS(api_key=KEY, base_url=f"{url}/v1"),
}

# What the emulators do not have yet. A test that succeeds all the same fails: its line has to go.
MISSING = {}


async def hear_stream(stt):
    samples = await spoken(RATE) + bytes(4 * RATE)
    step = RATE // 50 * 2
    text = []
    async with stt.stream(conn_options=ONCE) as stream:

        async def push():
            for at in range(0, len(samples), step):
                piece = samples[at : at + step]
                stream.push_frame(rtc.AudioFrame(piece, RATE, 1, len(piece) // 2))
                await asyncio.sleep(0.01)
            stream.end_input()

        pushing = asyncio.create_task(push())
        async for event in stream:
            if event.type == SpeechEventType.FINAL_TRANSCRIPT:
                text.append(event.alternatives[0].text)
                if "morning" in event.alternatives[0].text.lower():
                    break
        pushing.cancel()
    return " ".join(text)


async def hear_whole(stt):
    samples = await spoken(RATE)
    event = await stt.recognize([rtc.AudioFrame(samples, RATE, 1, len(samples) // 2)], conn_options=ONCE)
    return event.alternatives[0].text


async def speak_stream(tts):
    length = 0.0
    async with tts.stream(conn_options=ONCE) as stream:
        for word in SENTENCE.split(" "):
            stream.push_text(word + " ")
        stream.end_input()
        async for event in stream:
            length += event.frame.duration
    return length


async def speak_whole(tts):
    return (await tts.synthesize(SENTENCE, conn_options=ONCE).collect()).duration


class Vendors(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        required()
        self.enterContext(google_here())
        self.http = aiohttp.ClientSession()
        self.addAsyncCleanup(self.http.close)
        # What needs a session of HTTP and takes none gets the framework's.
        await self.enterAsyncContext(utils.http_context.open())
        await log()

    async def tell(self, failure):
        raise AssertionError(f"{failure!r}\n{shown(await log())}") from None

    async def hears(self, make, hear):
        stt = make(HTTP, self.http)
        try:
            text = await within(hear(stt))
            await stt.aclose()
        except Exception as failure:  # noqa: BLE001 -- whatever it is, it is told with what was asked for
            await self.tell(failure)
        self.assertIn("monday", text.lower())

    async def speaks(self, make, speak):
        tts = make(HTTP, self.http)
        try:
            length = await within(speak(tts))
            await tts.aclose()
        except Exception as failure:  # noqa: BLE001 -- whatever it is, it is told with what was asked for
            await self.tell(failure)
        self.assertGreater(length, 1.0)


def test(run, make, how):
    async def case(self):
        await getattr(self, run)(make, how)

    return case


def modes(kind, name):
    """What a plugin offers: some stream, some take a whole, most do both."""
    streams = name not in {"elevenlabs", "openai"} if kind == "hears" else name not in {"azure", "openai"}
    whole = (
        name not in {"deepgram flux", "elevenlabs realtime", "cartesia", "cartesia whisper", "azure", "openai realtime"}
        if kind == "hears"
        else name != "deepgram flux"
    )
    return [mode for mode, has in (("stream", streams), ("whole", whole)) if has]


for kind, plugins, how in (
    ("hears", HEARS, {"stream": hear_stream, "whole": hear_whole}),
    ("speaks", SPEAKS, {"stream": speak_stream, "whole": speak_whole}),
):
    for name, make in plugins.items():
        for mode in modes(kind, name):
            case = test(kind, make, how[mode])
            if f"{kind} {name} {mode}" in MISSING:
                case = unittest.expectedFailure(case)
            setattr(Vendors, f"test_{kind}_{name}_{mode}".replace(" ", "_"), case)

if __name__ == "__main__":
    unittest.main()
