"""LiveKit's plugins of six vendors with their default models and voices, pointed at the emulators by nothing but address and key."""

import asyncio

from livekit import rtc
from livekit.agents import APIConnectOptions, utils
from livekit.agents.stt import SpeechEventType
from livekit.plugins import azure, cartesia, deepgram, elevenlabs, google, openai

from emulators import HTTP, KEY, run, socket

ONCE = APIConnectOptions(max_retry=0)
RATE = 16_000

HEARS = {
    "deepgram": lambda url, http: deepgram.STT(api_key=KEY, base_url=f"{url}/v1/listen", http_session=http),
    "deepgram flux": lambda url, http: deepgram.STTv2(
        api_key=KEY, base_url=socket(url) + "/v2/listen", http_session=http
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
    "azure": lambda url, http: azure.STT(speech_key=KEY, speech_host=socket(url)),
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
# What these ask for by default. The framework's decoder drops the first frame of MP3, which takes its first word apart.
MP3 = {"elevenlabs", "elevenlabs v3", "openai"}


async def hear_stream(stt, sentence):
    samples = await sentence.spoken(RATE) + bytes(4 * RATE)
    step = RATE // 50 * 2
    text = ""
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
                text += f" {event.alternatives[0].text}"
                if sentence.is_over(text):
                    break
        pushing.cancel()
    sentence.check(text)


async def hear_whole(stt, sentence):
    samples = await sentence.spoken(RATE)
    event = await stt.recognize([rtc.AudioFrame(samples, RATE, 1, len(samples) // 2)], conn_options=ONCE)
    sentence.check(event.alternatives[0].text)


async def speak_stream(tts, sentence):
    async with tts.stream(conn_options=ONCE) as stream:
        for word in sentence.text.split(" "):
            stream.push_text(word + " ")
        stream.end_input()
        frames = [event.frame async for event in stream]
    await check_frames(frames, sentence)


async def speak_whole(tts, sentence):
    frames = [event.frame async for event in tts.synthesize(sentence.text, conn_options=ONCE)]
    await check_frames(frames, sentence)


async def check_frames(frames, sentence):
    assert frames, "no sound"
    sound = rtc.combine_audio_frames(frames)
    await sentence.check_sound(bytes(sound.data), sound.sample_rate)


def test(make, how, is_mp3):
    async def run(sentence, http):
        sentence.may_begin_late = is_mp3
        plugin = make(HTTP, http)
        await how(plugin, sentence)
        await plugin.aclose()

    return run


def modes(kind, name):
    """What a plugin offers: some stream, some take a whole, most do both."""
    streams = name not in {"elevenlabs", "openai"} if kind == "hears" else name not in {"azure", "openai"}
    whole = (
        name not in {"deepgram flux", "elevenlabs realtime", "cartesia", "cartesia whisper", "azure", "openai realtime"}
        if kind == "hears"
        else name != "deepgram flux"
    )
    return [mode for mode, has in (("stream", streams), ("whole", whole)) if has]


async def main():
    # What needs a session of HTTP and takes none gets the framework's.
    async with utils.http_context.open():
        await run(
            {
                f"{kind} {name} {mode}": test(make, how[mode], kind == "speaks" and name in MP3)
                for kind, plugins, how in (
                    ("hears", HEARS, {"stream": hear_stream, "whole": hear_whole}),
                    ("speaks", SPEAKS, {"stream": speak_stream, "whole": speak_whole}),
                )
                for name, make in plugins.items()
                for mode in modes(kind, name)
            }
        )


if __name__ == "__main__":
    asyncio.run(main())
