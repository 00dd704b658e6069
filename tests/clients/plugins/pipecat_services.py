"""Pipecat's services of six vendors with their default models and voices, pointed at the emulators by nothing but address and key."""

import asyncio
import sys
import time

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    InputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.azure.stt import AzureSTTService
from pipecat.services.azure.tts import AzureHttpTTSService, AzureTTSService
from pipecat.services.cartesia.stt import CartesiaSTTService
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.cartesia.turns.stt import CartesiaTurnsSTTService
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
from pipecat.services.elevenlabs.stt import ElevenLabsRealtimeSTTService, ElevenLabsSTTService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.google.stt import GoogleSTTService
from pipecat.services.google.tts import GeminiTTSService, GoogleHttpTTSService, GoogleTTSService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.workers.runner import WorkerRunner

from emulators import ACCOUNT, HTTP, KEY, TLS, run, socket

RATE, SPEECH_RATE = 16_000, 24_000
# These have no default voice: one that the vendor's pages name, and the one that programs of `pipecat init` have.
ELEVENLABS_VOICE, CARTESIA_VOICE = "SAz9YHcvj6GT2YYXdXww", "86e30c1d-714b-4074-a1f2-1cb6b552fb49"


def elevenlabs_voice(service):
    return service.Settings(voice=ELEVENLABS_VOICE)


HEARS = {
    "deepgram": lambda url, http: DeepgramSTTService(api_key=KEY, base_url=socket(url)),
    "deepgram flux": lambda url, http: DeepgramFluxSTTService(api_key=KEY, url=socket(url) + "/v2/listen"),
    "elevenlabs": lambda url, http: ElevenLabsSTTService(api_key=KEY, aiohttp_session=http, base_url=url),
    # It is always TLS.
    "elevenlabs realtime": lambda url, http: ElevenLabsRealtimeSTTService(api_key=KEY, base_url=TLS),
    "cartesia": lambda url, http: CartesiaSTTService(api_key=KEY, base_url=socket(url)),
    "cartesia turns": lambda url, http: CartesiaTurnsSTTService(api_key=KEY, url=socket(url) + "/stt/turns/websocket"),
    "google": lambda url, http: GoogleSTTService(credentials_path=ACCOUNT),
    "azure": lambda url, http: AzureSTTService(api_key=KEY, private_endpoint=socket(url)),
    "openai": lambda url, http: OpenAISTTService(api_key=KEY, base_url=url + "/v1"),
    "openai realtime": lambda url, http: OpenAIRealtimeSTTService(api_key=KEY, base_url=socket(url) + "/v1/realtime"),
}
# What the service has to resample it forgets in part, where frames come 0.2 s apart: on a busy machine.
RATES = {"openai realtime": 24_000}
SPEAKS = {
    "deepgram": lambda url, http: DeepgramTTSService(api_key=KEY, base_url=socket(url)),
    "deepgram http": lambda url, http: DeepgramHttpTTSService(api_key=KEY, base_url=url, aiohttp_session=http),
    "deepgram flux": lambda url, http: DeepgramFluxTTSService(api_key=KEY, url=socket(url) + "/v2/speak"),
    "elevenlabs": lambda url, http: ElevenLabsTTSService(
        api_key=KEY, url=socket(url), settings=elevenlabs_voice(ElevenLabsTTSService)
    ),
    "elevenlabs http": lambda url, http: ElevenLabsHttpTTSService(
        api_key=KEY, base_url=url, aiohttp_session=http, settings=elevenlabs_voice(ElevenLabsHttpTTSService)
    ),
    "elevenlabs dialogue": lambda url, http: ElevenLabsDialogueTTSService(
        api_key=KEY, url=socket(url), settings=elevenlabs_voice(ElevenLabsDialogueTTSService)
    ),
    "cartesia": lambda url, http: CartesiaTTSService(
        api_key=KEY, url=socket(url) + "/tts/websocket", settings=CartesiaTTSService.Settings(voice=CARTESIA_VOICE)
    ),
    "cartesia http": lambda url, http: CartesiaHttpTTSService(
        api_key=KEY,
        base_url=url,
        aiohttp_session=http,
        settings=CartesiaHttpTTSService.Settings(voice=CARTESIA_VOICE),
    ),
    "google": lambda url, http: GoogleTTSService(credentials_path=ACCOUNT),
    "google http": lambda url, http: GoogleHttpTTSService(credentials_path=ACCOUNT),
    "google gemini": lambda url, http: GeminiTTSService(credentials_path=ACCOUNT),
    "azure": lambda url, http: AzureTTSService(api_key=KEY, private_endpoint=socket(url)),
    "azure http": lambda url, http: AzureHttpTTSService(api_key=KEY, private_endpoint=url),
    "openai": lambda url, http: OpenAITTSService(api_key=KEY, base_url=url + "/v1"),
}


class Sink(FrameProcessor):
    """The end of a pipeline; what waits for it looks again at each frame."""

    def __init__(self):
        super().__init__()
        self.frames = []
        self.came = asyncio.Event()

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        self.came.set()
        await self.push_frame(frame, direction)

    def of(self, kind):
        return [frame for frame in self.frames if isinstance(frame, kind)]


async def run_service(service, rate, drive, done):
    """Runs a service alone in a pipeline until it has done what it shall."""
    sink, errors = Sink(), []
    worker = PipelineWorker(
        Pipeline([service, sink]),
        params=PipelineParams(audio_in_sample_rate=rate, audio_out_sample_rate=SPEECH_RATE),
        enable_rtvi=False,
        idle_timeout_secs=None,
    )

    @worker.event_handler("on_pipeline_error")
    async def on_pipeline_error(worker, frame):
        errors.append(frame.error)
        sink.came.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    driving = asyncio.create_task(drive(worker))
    try:
        while not done(sink):
            await sink.came.wait()
            sink.came.clear()
            assert not errors, errors
        await worker.queue_frame(EndFrame())
        await running
    except BaseException:
        await worker.cancel()
        raise
    finally:
        driving.cancel()
    return sink


def hears(make, rate):
    async def run(sentence, http):
        samples = await sentence.spoken(rate)
        step = rate // 50 * 2
        service = make(HTTP, http)

        async def drive(worker):
            # What is said before a session is configured has no transcript. Most services have no such time.
            while not getattr(service, "_session_ready", True):
                await asyncio.sleep(0.02)
            await worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=0.2, timestamp=time.time()))
            # As fast as it is taken: some services fill what they take for a gap with silence.
            for at in range(0, len(samples), step):
                await worker.queue_frame(InputAudioRawFrame(samples[at : at + step], rate, 1))
            await worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=0.2, timestamp=time.time()))
            while True:
                await worker.queue_frame(InputAudioRawFrame(bytes(step), rate, 1))
                await asyncio.sleep(0.02)

        def text(sink):
            return " ".join(frame.text for frame in sink.of(TranscriptionFrame))

        sink = await run_service(service, rate, drive, lambda sink: sentence.is_over(text(sink)))
        sentence.check(text(sink))

    return run


def speaks(make):
    async def run(sentence, http):
        async def drive(worker):
            await worker.queue_frame(TTSSpeakFrame(sentence.text))

        sink = await run_service(make(HTTP, http), RATE, drive, lambda sink: bool(sink.of(TTSStoppedFrame)))
        sound = sink.of(TTSAudioRawFrame)
        assert {frame.sample_rate for frame in sound} == {SPEECH_RATE}
        await sentence.check_sound(b"".join(frame.audio for frame in sound), SPEECH_RATE)

    return run


if __name__ == "__main__":
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    tests = {f"hears {name}": hears(make, RATES.get(name, RATE)) for name, make in HEARS.items()}
    tests |= {f"speaks {name}": speaks(make) for name, make in SPEAKS.items()}
    asyncio.run(run(tests))
