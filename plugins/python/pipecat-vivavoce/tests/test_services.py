"""The services and the transport one by one, in small pipelines."""

import asyncio
import unittest
import uuid

from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    STTMetadataFrame,
    STTUpdateSettingsFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.workers.runner import WorkerRunner

from device import RATE
from harness import PATIENCE, SENTENCE, STORY, Case, Proxy, share, spoken, understood, until
from pipecat_vivavoce import VivavoceParams, VivavoceSTTService, VivavoceTransport, VivavoceTTSService
from room import Person


class Sink(FrameProcessor):
    def __init__(self):
        super().__init__()
        self.frames = []

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        await self.push_frame(frame, direction)

    def of(self, *kinds):
        return [frame for frame in self.frames if isinstance(frame, kinds)]

    def text(self, kind):
        return " ".join(frame.text for frame in self.of(kind))

    def sound(self):
        return b"".join(frame.audio for frame in self.of(TTSAudioRawFrame))


class Running:
    """A pipeline of some processors and a sink, until it is left."""

    def __init__(self, *processors):
        self.sink, self.errors = Sink(), []
        self.worker = PipelineWorker(
            Pipeline([*processors, self.sink]),
            params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
            enable_rtvi=False,
            idle_timeout_secs=None,
        )

        @self.worker.event_handler("on_pipeline_error")
        async def on_pipeline_error(worker, frame: ErrorFrame):
            self.errors.append(frame)

    async def __aenter__(self):
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)
        self._running = asyncio.create_task(runner.run())
        return self

    async def __aexit__(self, *_):
        await self.worker.queue_frame(EndFrame())
        await asyncio.wait_for(self._running, PATIENCE)

    async def queue(self, *frames):
        await self.worker.queue_frames(list(frames))

    async def gets(self, kind, number=1):
        await until(lambda: len(self.sink.of(kind)) >= number, f"{number} {kind.__name__}, errors: {self.errors}")


class Services(Case):
    async def frames(self, text, *, silence=0.0):
        samples = await spoken(self.http, text, RATE) + bytes(2 * int(RATE * silence))
        step = RATE // 50 * 2
        return [InputAudioRawFrame(samples[at : at + step], RATE, 1) for at in range(0, len(samples), step)]

    async def test_turns_begin_and_end_where_the_server_says(self):
        async with Running(VivavoceSTTService()) as pipeline:
            for frame in await self.frames(SENTENCE, silence=3):
                await pipeline.queue(frame)
                # As from a microphone: interim results are of what is being said.
                await asyncio.sleep(0.02)
            await pipeline.gets(ProposedUserStoppedSpeakingFrame)
        sink = pipeline.sink
        self.assertTrue(sink.of(InterimTranscriptionFrame))
        [metadata] = sink.of(STTMetadataFrame)
        self.assertIsNotNone(metadata.user_turn_strategies)
        kinds = [type(frame) for frame in sink.frames]
        self.assertLess(kinds.index(ProposedUserStartedSpeakingFrame), kinds.index(TranscriptionFrame))
        self.assertLess(kinds.index(TranscriptionFrame), kinds.index(ProposedUserStoppedSpeakingFrame))
        self.assertGreaterEqual(share(SENTENCE, sink.text(TranscriptionFrame)), 0.7)
        final = sink.of(TranscriptionFrame)[0]
        self.assertEqual(final.language, "en")
        self.assertEqual(" ".join(word["word"] for word in final.result["words"]), final.text)
        self.assertFalse(pipeline.errors)

    async def test_the_end_of_a_pipeline_waits_for_the_last_words(self):
        async with Running(VivavoceSTTService()) as pipeline:
            await pipeline.queue(*await self.frames(SENTENCE))
        self.assertGreaterEqual(share(SENTENCE, pipeline.sink.text(TranscriptionFrame)), 0.7)

    async def test_settings_change_while_a_pipeline_runs(self):
        stt, tts = VivavoceSTTService(), VivavoceTTSService()
        async with Running(stt, tts) as pipeline:
            await pipeline.queue(
                STTUpdateSettingsFrame(delta=stt.Settings(language="en-GB", endpointing={"silence_ms": 300})),
                TTSSpeakFrame(SENTENCE),
            )
            await pipeline.gets(TTSStoppedFrame)
            before = len(pipeline.sink.sound())
            await pipeline.queue(
                TTSUpdateSettingsFrame(delta=tts.Settings(voice="flite-rms", speed=2.0)), TTSSpeakFrame(SENTENCE)
            )
            await pipeline.gets(TTSStoppedFrame, 2)
            self.assertLess(len(pipeline.sink.sound()) - before, 0.75 * before)
            await pipeline.queue(*await self.frames(SENTENCE))
        self.assertGreaterEqual(share(SENTENCE, pipeline.sink.text(TranscriptionFrame)), 0.7)
        self.assertFalse(pipeline.errors)

    async def test_speech_comes_with_its_words(self):
        async with Running(VivavoceTTSService()) as pipeline:
            await pipeline.queue(TTSSpeakFrame(SENTENCE))
            await pipeline.gets(TTSStoppedFrame)
        self.assertEqual(pipeline.sink.text(TTSTextFrame), SENTENCE)
        times = [frame.pts for frame in pipeline.sink.of(TTSTextFrame)]
        self.assertEqual(times, sorted(times))
        self.assertEqual({frame.sample_rate for frame in pipeline.sink.of(TTSAudioRawFrame)}, {RATE})
        heard = await understood(self.http, pipeline.sink.sound(), RATE)
        self.assertGreaterEqual(share(SENTENCE, heard), 0.6, heard)

    async def test_nothing_of_an_interrupted_utterance_is_heard_in_the_next(self):
        async with Running(VivavoceTTSService()) as pipeline:
            await pipeline.queue(TTSSpeakFrame(STORY))
            await pipeline.gets(TTSAudioRawFrame)
            await pipeline.queue(InterruptionFrame())
            await pipeline.gets(InterruptionFrame)
            pipeline.sink.frames.clear()
            await pipeline.queue(TTSSpeakFrame(SENTENCE))
            await pipeline.gets(TTSStoppedFrame)
        self.assertEqual(pipeline.sink.text(TTSTextFrame), SENTENCE)
        heard = await understood(self.http, pipeline.sink.sound(), RATE)
        self.assertGreaterEqual(share(SENTENCE, heard), 0.6, heard)
        self.assertNotIn("letter", heard.lower())

    async def test_what_cannot_succeed_makes_a_service_unusable(self):
        unusable = [
            VivavoceSTTService(settings=VivavoceSTTService.Settings(provider="nobody")),
            VivavoceTTSService(settings=VivavoceTTSService.Settings(provider="nobody")),
        ]
        for service in unusable:
            async with Running(service) as pipeline:
                await until(lambda service=service: not service.is_usable, "the service to give up")
            self.assertTrue(pipeline.errors)

    async def test_broken_connections_are_made_anew(self):
        soon = {"reconnect_backoff_min_wait": 0.1, "reconnect_backoff_max_wait": 0.5}
        async with Proxy() as proxy:
            stt = VivavoceSTTService(base_url=proxy.url, **soon)
            tts = VivavoceTTSService(base_url=proxy.url, **soon)
            async with Running(stt, tts) as pipeline:
                await pipeline.queue(TTSSpeakFrame("Yes."))
                await pipeline.gets(TTSStoppedFrame)
                sockets = stt._websocket, tts._websocket
                proxy.cut()
                await until(
                    lambda: stt._websocket not in (None, sockets[0]) and tts._websocket not in (None, sockets[1]),
                    "new connections",
                )
                await pipeline.queue(TTSSpeakFrame(SENTENCE))
                await pipeline.gets(TTSStoppedFrame, 2)
                self.assertIn(SENTENCE, pipeline.sink.text(TTSTextFrame))
                await pipeline.queue(*await self.frames(SENTENCE))
            self.assertGreaterEqual(share(SENTENCE, pipeline.sink.text(TranscriptionFrame)), 0.7)

    async def test_a_room_goes_on_when_the_connection_breaks(self):
        room_name = f"kitchen-{uuid.uuid4().hex[:8]}"
        ann = Person(self.http, "ann")
        async with Proxy() as proxy:
            transport = VivavoceTransport(room_name, base_url=proxy.url, params=VivavoceParams(name="Robot"))
            connected = []

            @transport.event_handler("on_client_connected")
            async def on_client_connected(transport, participant):
                connected.append(participant["identity"])

            async with Running(transport.input(), transport.output()) as pipeline:
                await ann.join(room_name)
                await until(lambda: connected == ["ann"], "ann to be there")
                await pipeline.queue(TTSSpeakFrame(STORY))
                await pipeline.gets(TTSStartedFrame)
                proxy.cut()
                await ann.say(SENTENCE)
                await pipeline.gets(TranscriptionFrame)
                await pipeline.queue(InterruptionFrame())
                await pipeline.gets(BotStoppedSpeakingFrame)
                since = len(ann.heard)
                await pipeline.queue(TTSSpeakFrame(SENTENCE))
                await ann.hears(SENTENCE, max(0, since - ann.rate))
                await ann.leave()
        self.assertFalse(pipeline.errors)
        said = pipeline.sink.text(TTSTextFrame)
        self.assertTrue(said.endswith(SENTENCE), said)

    async def test_secrets_are_not_shown(self):
        stt = VivavoceSTTService(api_key="hush")
        tts = VivavoceTTSService(api_key="hush")
        self.assertNotIn("hush", repr([stt._server, tts._server, stt.settings, tts.settings]))


if __name__ == "__main__":
    unittest.main()
