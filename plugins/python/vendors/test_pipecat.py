"""Pipecat's services of six vendors with their default models and voices, pointed at the emulators by nothing but address and key."""

import asyncio
import os
import time
import unittest

import aiohttp
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

from emulators import HTTP, KEY, PATIENCE, SENTENCE, google_here, log, required, shown, spoken

RATE = 16_000
# These have no default voice: one that the vendor's pages name, and the one that programs of `pipecat init` have.
ELEVENLABS_VOICE, CARTESIA_VOICE = "SAz9YHcvj6GT2YYXdXww", "86e30c1d-714b-4074-a1f2-1cb6b552fb49"


def socket(url):
    return url.replace("http", "ws", 1)


def account():
    return {"credentials_path": os.environ["GOOGLE_APPLICATION_CREDENTIALS"]}


def elevenlabs_voice(service):
    return service.Settings(voice=ELEVENLABS_VOICE)


HEARS = {
    "deepgram": lambda url, http: DeepgramSTTService(api_key=KEY, base_url=socket(url)),
    "deepgram flux": lambda url, http: DeepgramFluxSTTService(api_key=KEY, url=socket(url) + "/v2/listen"),
    "elevenlabs": lambda url, http: ElevenLabsSTTService(api_key=KEY, aiohttp_session=http, base_url=url),
    # It is always TLS.
    "elevenlabs realtime": lambda url, http: ElevenLabsRealtimeSTTService(
        api_key=KEY, base_url=os.environ["EMULATE_TLS"]
    ),
    "cartesia": lambda url, http: CartesiaSTTService(api_key=KEY, base_url=socket(url)),
    "cartesia turns": lambda url, http: CartesiaTurnsSTTService(api_key=KEY, url=socket(url) + "/stt/turns/websocket"),
    "google": lambda url, http: GoogleSTTService(**account()),
    "azure": lambda url, http: AzureSTTService(api_key=KEY, private_endpoint=socket(url)),
    "openai": lambda url, http: OpenAISTTService(api_key=KEY, base_url=url + "/v1"),
    "openai realtime": lambda url, http: OpenAIRealtimeSTTService(api_key=KEY, base_url=socket(url) + "/v1/realtime"),
}
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
    "google": lambda url, http: GoogleTTSService(**account()),
    "google http": lambda url, http: GoogleHttpTTSService(**account()),
    "google gemini": lambda url, http: GeminiTTSService(**account()),
    "azure": lambda url, http: AzureTTSService(api_key=KEY, private_endpoint=socket(url)),
    "azure http": lambda url, http: AzureHttpTTSService(api_key=KEY, private_endpoint=url),
    "openai": lambda url, http: OpenAITTSService(api_key=KEY, base_url=url + "/v1"),
}

# What the emulators do not have yet. A test that succeeds all the same fails: its line has to go.
MISSING = {}


class Sink(FrameProcessor):
    def __init__(self):
        super().__init__()
        self.frames = []

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        await self.push_frame(frame, direction)

    def of(self, kind):
        return [frame for frame in self.frames if isinstance(frame, kind)]


class Vendors(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        required()
        self.enterContext(google_here())
        self.http = aiohttp.ClientSession()
        self.addAsyncCleanup(self.http.close)
        await log()

    async def run_service(self, make, drive, done):
        sink, errors = Sink(), []
        worker = PipelineWorker(
            Pipeline([make(HTTP, self.http), sink]),
            params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=24_000),
            enable_rtvi=False,
            idle_timeout_secs=None,
        )

        @worker.event_handler("on_pipeline_error")
        async def on_pipeline_error(worker, frame):
            errors.append(frame.error)

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        running = asyncio.create_task(runner.run())
        driving = asyncio.create_task(drive(worker))
        for _ in range(10 * PATIENCE):
            await asyncio.sleep(0.1)
            if done(sink) or errors:
                break
        driving.cancel()
        if not done(sink):
            await worker.cancel()
        else:
            await worker.queue_frame(EndFrame())
        await asyncio.wait([running], timeout=PATIENCE)
        if not done(sink):
            raise AssertionError(f"{errors}\n{shown(await log())}")

    async def hears(self, make):
        samples = await spoken(RATE)
        step = RATE // 50 * 2

        def frame(at, source):
            return InputAudioRawFrame(source[at : at + step], RATE, 1)

        async def drive(worker):
            await worker.queue_frames([VADUserStartedSpeakingFrame(start_secs=0.2, timestamp=time.time())])
            for at in range(0, len(samples) - step, step):
                await worker.queue_frame(frame(at, samples))
                await asyncio.sleep(0.01)
            await worker.queue_frames([VADUserStoppedSpeakingFrame(stop_secs=0.2, timestamp=time.time())])
            while True:
                await worker.queue_frame(frame(0, bytes(step)))
                await asyncio.sleep(0.02)

        def done(sink):
            return "monday" in " ".join(frame.text for frame in sink.of(TranscriptionFrame)).lower()

        await self.run_service(make, drive, done)

    async def speaks(self, make):
        async def drive(worker):
            await worker.queue_frames([TTSSpeakFrame(SENTENCE)])

        def done(sink):
            sound = sum(len(frame.audio) for frame in sink.of(TTSAudioRawFrame))
            return sound > 48_000 and bool(sink.of(TTSStoppedFrame))

        await self.run_service(make, drive, done)


def test(run, make):
    async def case(self):
        await getattr(self, run)(make)

    return case


for kind, services in (("hears", HEARS), ("speaks", SPEAKS)):
    for name, make in services.items():
        case = test(kind, make)
        if f"{kind} {name}" in MISSING:
            case = unittest.expectedFailure(case)
        setattr(Vendors, f"test_{kind}_{name}".replace(" ", "_"), case)

if __name__ == "__main__":
    unittest.main()
