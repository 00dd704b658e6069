"""STT, TTS and VAD as programs use them without a room."""

import asyncio
import unittest

from livekit import rtc
from livekit.agents import APIConnectOptions, APIStatusError
from livekit.agents.stt import SpeechEventType
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.agents.vad import VADEventType
from livekit.plugins import vivavoce

from harness import PATIENCE, SENTENCE, STORY, Case, Proxy, share, spoken, understood, until

RATE = 24_000


class Speech(Case):
    async def frames(self, text, *, silence=0.0):
        samples = await spoken(self.http, text, RATE) + bytes(2 * int(RATE * silence))
        step = RATE // 50 * 2
        pieces = [samples[at : at + step] for at in range(0, len(samples), step)]
        return [rtc.AudioFrame(piece, RATE, 1, len(piece) // 2) for piece in pieces]

    async def said(self, stream, *texts):
        for text in texts:
            stream.push_text(text)
        stream.end_input()
        sound, timed = bytearray(), []
        async with asyncio.timeout(PATIENCE), stream:
            async for event in stream:
                sound += event.frame.data.tobytes()
                timed += event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
        return bytes(sound), timed

    async def test_a_stream_tells_what_is_said_and_when(self):
        async with vivavoce.STT(http_session=self.http) as stt:
            frames = await self.frames(SENTENCE, silence=3)
            stream, events = stt.stream(), []

            async def push():
                for frame in frames:
                    stream.push_frame(frame)
                    # As from a microphone: interim results are of what is being said.
                    await asyncio.sleep(0.02)
                stream.end_input()

            pushing = asyncio.create_task(push())
            async with asyncio.timeout(PATIENCE), stream:
                events = [event async for event in stream]
            await pushing
        kinds = [event.type for event in events]
        self.assertIn(SpeechEventType.INTERIM_TRANSCRIPT, kinds)
        self.assertIn(SpeechEventType.RECOGNITION_USAGE, kinds)
        start = kinds.index(SpeechEventType.START_OF_SPEECH)
        final = kinds.index(SpeechEventType.FINAL_TRANSCRIPT)
        self.assertLess(start, final)
        # The server ends the turn while the stream goes on.
        self.assertLess(final, kinds.index(SpeechEventType.END_OF_SPEECH))
        data = events[final].alternatives[0]
        self.assertGreaterEqual(share(SENTENCE, data.text), 0.7, data.text)
        self.assertEqual(data.language.language, "en")
        self.assertTrue(0 < data.confidence <= 1)
        self.assertEqual(" ".join(data.words), data.text)
        times = [time for word in data.words for time in (word.start_time, word.end_time)]
        self.assertEqual(times, sorted(times))
        self.assertLess(data.end_time, sum(frame.duration for frame in frames))

    async def test_the_end_of_input_and_a_flush_end_what_is_being_said(self):
        async with vivavoce.STT(http_session=self.http) as stt:
            frames = await self.frames(SENTENCE)
            stream, finals = stt.stream(), []
            async with asyncio.timeout(PATIENCE), stream:
                for frame in frames:
                    stream.push_frame(frame)
                # As a button that is released: no silence follows.
                stream.flush()
                async for event in stream:
                    if event.type == SpeechEventType.FINAL_TRANSCRIPT:
                        finals.append(event.alternatives[0])
                    if event.type == SpeechEventType.END_OF_SPEECH:
                        break
                for frame in frames:
                    stream.push_frame(frame)
                stream.end_input()
                async for event in stream:
                    if event.type == SpeechEventType.FINAL_TRANSCRIPT:
                        finals.append(event.alternatives[0])
        length = sum(frame.duration for frame in frames)
        text = " ".join(data.text for data in finals)
        self.assertGreaterEqual(len(finals), 2)
        self.assertGreaterEqual(share(SENTENCE, text), 0.7, text)
        # Times are those of what was pushed, whatever the flush has inserted.
        self.assertLess(finals[0].end_time, length)
        self.assertGreater(finals[-1].start_time, length * 0.9)
        self.assertLess(finals[-1].end_time, 2 * length)

    async def test_a_recording_is_recognised_whole(self):
        async with vivavoce.STT(http_session=self.http) as stt:
            event = await stt.recognize(await self.frames(SENTENCE))
        data = event.alternatives[0]
        self.assertGreaterEqual(share(SENTENCE, data.text), 0.7, data.text)
        self.assertEqual(len(data.words), len(data.text.split()))

    async def test_options_change_in_a_running_stream(self):
        async with vivavoce.STT(http_session=self.http, keyterms=["Monday"]) as stt:
            frames = await self.frames(SENTENCE)
            async with asyncio.timeout(PATIENCE), stt.stream() as stream:
                stream.push_frame(frames[0])
                await until(lambda: stream._session is not None, "a session")
                stt.update_options(language="en-GB", endpointing={"silence_ms": 300}, keyterms=["letter"])
                # A language that nobody hears changes nothing, and the stream goes on.
                with self.assertLogs("livekit.plugins.vivavoce", "ERROR"):
                    stt.update_options(language="xx-YY")
                    await stream._session.send({"type": "update_config"})
                    for frame in frames[1:]:
                        stream.push_frame(frame)
                    stream.end_input()
                    events = [event async for event in stream]
            text = " ".join(e.alternatives[0].text for e in events if e.type == SpeechEventType.FINAL_TRANSCRIPT)
            self.assertGreaterEqual(share(SENTENCE, text), 0.7, text)

    async def test_a_broken_connection_is_made_anew(self):
        async with Proxy() as proxy, vivavoce.STT(http_session=self.http, base_url=proxy.url) as stt:
            errors = []
            stt.on("error", errors.append)
            async with asyncio.timeout(PATIENCE), stt.stream() as stream:
                stream.push_frame((await self.frames(SENTENCE))[0])
                await until(lambda: stream._session is not None, "a session")
                proxy.cut()
                await until(lambda: errors, "the framework to be told")
                self.assertTrue(errors[0].recoverable)
                for frame in await self.frames(SENTENCE):
                    stream.push_frame(frame)
                stream.end_input()
                events = [event async for event in stream]
        text = " ".join(e.alternatives[0].text for e in events if e.type == SpeechEventType.FINAL_TRANSCRIPT)
        self.assertGreaterEqual(share(SENTENCE, text), 0.7, text)

    async def test_voice_activity_is_followed_with_and_without_an_stt(self):
        frames = await self.frames(SENTENCE, silence=2)
        async with vivavoce.STT(http_session=self.http) as stt:
            for detector in (vivavoce.VAD(stt=stt), vivavoce.VAD(http_session=self.http)):
                hearing, watching = stt.stream(), detector.stream()
                for frame in frames:
                    hearing.push_frame(frame)
                    watching.push_frame(frame)
                    await asyncio.sleep(0.02)
                watching.end_input()
                hearing.end_input()
                async with asyncio.timeout(PATIENCE):
                    events = [event async for event in watching]
                    [event async for event in hearing]
                await watching.aclose()
                await hearing.aclose()
                kinds = [event.type for event in events]
                start = kinds.index(VADEventType.START_OF_SPEECH)
                end = kinds.index(VADEventType.END_OF_SPEECH)
                self.assertLess(start, end)
                self.assertTrue(events[end].frames)
                self.assertTrue(any(e.speaking and e.speech_duration > 0.5 for e in events[start:end]))

    async def test_a_stream_speaks_tokens_with_the_times_of_words(self):
        async with vivavoce.TTS(http_session=self.http) as tts:
            tts.prewarm()
            sound, timed = await self.said(tts.stream(), "Please call ", "me back on", " Monday mor", "ning.")
            self.assertGreaterEqual(share(SENTENCE, await understood(self.http, sound, RATE)), 0.6)
            self.assertEqual("".join(timed).strip(), SENTENCE)
            starts = [word.start_time for word in timed]
            self.assertEqual(starts, sorted(starts))
            # The next one has the same session.
            reused = []
            tts.on("metrics_collected", lambda metrics: reused.append(metrics.connection_reused))
            await self.said(tts.stream(), "Yes.")
            self.assertEqual(reused, [True])

    async def test_nothing_of_a_cut_utterance_is_heard_in_the_next(self):
        async with vivavoce.TTS(http_session=self.http) as tts:
            stream = tts.stream()
            stream.push_text(STORY)
            async with asyncio.timeout(PATIENCE):
                async for _ in stream:
                    break
                await stream.aclose()
            stream = tts.stream()
            sound, timed = await self.said(stream, SENTENCE)
            self.assertTrue(stream._connection_reused)
            self.assertEqual("".join(timed).strip(), SENTENCE)
            heard = await understood(self.http, sound, RATE)
            self.assertGreaterEqual(share(SENTENCE, heard), 0.6, heard)
            self.assertNotIn("letter", heard.lower())

    async def test_a_whole_text_has_the_rate_and_the_voice_that_are_asked_for(self):
        async with vivavoce.TTS(http_session=self.http, sample_rate=16_000) as tts:
            frame = await tts.synthesize(SENTENCE).collect()
            self.assertEqual(frame.sample_rate, 16_000)
            heard = await understood(self.http, frame.data.tobytes(), 16_000)
            self.assertGreaterEqual(share(SENTENCE, heard), 0.6, heard)
            tts.update_options(speed=2.0, voice="flite-rms")
            faster = await tts.synthesize(SENTENCE).collect()
            self.assertLess(faster.duration, 0.75 * frame.duration)
            sound, _ = await self.said(tts.stream(), SENTENCE)
            self.assertLess(len(sound) / 32_000, 0.75 * frame.duration)

    async def test_what_cannot_succeed_is_not_tried_again(self):
        once = APIConnectOptions(max_retry=3, retry_interval=PATIENCE)
        for options in ({"provider": "nobody"}, {"voice": "nobody"}):
            async with vivavoce.TTS(http_session=self.http, **options) as tts:
                with self.assertRaises(APIStatusError) as refused:
                    await tts.synthesize("Yes.", conn_options=once).collect()
                self.assertFalse(refused.exception.retryable)
                with self.assertRaises(APIStatusError) as refused:
                    await self.said(tts.stream(conn_options=once), "Yes.")
                self.assertFalse(refused.exception.retryable)
        frames = await self.frames("Yes.")
        async with vivavoce.STT(http_session=self.http, provider="nobody") as stt:
            with self.assertRaises(APIStatusError):
                await stt.recognize(frames, conn_options=once)
            async with asyncio.timeout(PATIENCE), stt.stream(conn_options=once) as stream:
                stream.push_frame(frames[0])
                with self.assertRaises(APIStatusError):
                    [event async for event in stream]

    async def test_secrets_are_not_shown(self):
        stt = vivavoce.STT(http_session=self.http, api_key="hush", auth={"api_key": "hush"})
        tts = vivavoce.TTS(http_session=self.http, api_key="hush", auth={"api_key": "hush"})
        self.assertNotIn("hush", repr([stt._server, stt._options, tts._server, tts._options]))


if __name__ == "__main__":
    unittest.main()
