"""Sessions with a running server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from support import CALL_ME, PATIENCE, TOKEN, URL, WEATHER, Caller, Proxy, Test, soon, spoken, tokens
from vivavoce import (
    ApiError,
    CannotResume,
    Client,
    ConnectionFailed,
    History,
    Reconnect,
    ServerError,
    Session,
    SessionClosed,
    connect,
)

LONG = "One two three four five six seven eight nine ten. Eleven twelve thirteen fourteen fifteen. " * 4


async def first(session: Session, type: str, **fields: object) -> dict[str, object]:
    """The first event like this from now on."""
    found: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()

    def look(event: dict[str, object]) -> None:
        if not found.done() and all(event.get(name) == value for name, value in fields.items()):
            found.set_result(event)

    remove = session.on(type, look)  # type: ignore[call-overload]
    try:
        return await soon(found)
    finally:
        remove()


class Talking(Test):
    async def test_a_caller_is_heard_and_answered(self) -> None:
        question = await spoken(WEATHER)
        async with connect(URL, token=TOKEN) as session, Caller(session) as caller:
            history = History(session, system="Be brief.")
            caller.say(question)
            sound, outcome = 0, None

            async def talk() -> None:
                nonlocal sound
                async for event in session:
                    match event:
                        case {"type": "audio", "data": data}:
                            sound += len(data)
                        case {"type": "stt_result", "is_speech_final": True, "turn_transcript": text}:
                            session.say(tokens(f"You said: {text}."), id="answer")
                        case {"type": "utterance_ended", "outcome": ended}:
                            nonlocal outcome
                            outcome = ended
                            return

            await soon(talk())
            assert outcome
            self.assertEqual(outcome.status, "complete")
            system, user, assistant = history.messages
            self.assertEqual((system["role"], user["role"], assistant["role"]), ("system", "user", "assistant"))
            self.assertSounds(user["content"], WEATHER)
            self.assertEqual(assistant["content"], f"You said: {user['content']}.")
            self.assertGreaterEqual(sound, outcome.played_ms * 24_000 // 1000 * 2)

    async def test_tokens_are_one_utterance(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            started: list[object] = []
            session.on("tts_started", lambda event: started.append(event["id"]))
            one = session.say(tokens("Good morning to you. How are you?"), id="one")
            two = session.say(["And ", "so ", "on."])
            nothing = session.say([])
            self.assertEqual((await soon(one)).heard_text.strip(), "Good morning to you. How are you?")
            self.assertEqual((await soon(two)).heard_text, "And so on.")
            self.assertEqual((await soon(nothing)).status, "complete")
            self.assertEqual(started, ["one", two.id])

    async def test_who_speaks_over_the_agent_cuts_it_and_its_language_model(self) -> None:
        closed = asyncio.Event()

        async def model() -> AsyncIterator[str]:
            try:
                async for token in tokens(LONG):
                    yield token
                await asyncio.sleep(PATIENCE)
            finally:
                closed.set()

        barge_in = await spoken(CALL_ME)
        vad = {"interruption": "pause"}
        async with connect(URL, token=TOKEN, vad=vad) as session, Caller(session) as caller:  # type: ignore[arg-type]
            history = History(session)
            utterance = session.say(model())
            waits = session.say("This is never said.")
            await first(session, "tts_started")
            turn = asyncio.create_task(first(session, "stt_result", is_speech_final=True))
            caller.say(barge_in)
            outcome = await soon(utterance)
            await soon(closed.wait())
            self.assertEqual(outcome.status, "interrupted")
            self.assertTrue(LONG.startswith(outcome.heard_text))
            self.assertLess(len(outcome.heard_text), len(LONG))
            self.assertEqual((await soon(waits)).heard_text, "")
            await soon(turn)
            expected = ["assistant", "user"] if outcome.heard_text else ["user"]
            self.assertEqual([message["role"] for message in history.messages], expected)
            self.assertSounds(history.messages[-1]["content"], CALL_ME, wrong=3)

    async def test_the_place_of_an_answer_is_where_it_was_said(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            history = History(session)
            history.add("user", "First?")
            answer = session.say(LONG)
            await first(session, "tts_started")
            await asyncio.sleep(1)
            history.add("user", "Second?")
            answer.interrupt()
            outcome = await soon(answer)
            self.assertEqual(outcome.status, "interrupted")
            contents = [message["content"] for message in history.messages]
            self.assertEqual(contents, ["First?", outcome.heard_text.strip(), "Second?"])

    async def test_a_protected_utterance_is_not_cut(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            notice = session.say("This call is recorded.", allow_interruption=False)
            await first(session, "tts_started")
            other = session.say(LONG)
            last = session.say("Hello.", replace=True)
            self.assertEqual((await soon(notice)).status, "complete")
            self.assertEqual((await soon(other)).status, "interrupted")
            self.assertEqual((await soon(last)).status, "complete")

    async def test_a_language_model_that_fails_ends_its_utterance(self) -> None:
        async def model() -> AsyncIterator[str]:
            yield "Good morning. "
            raise ValueError("no more tokens")

        async with connect(URL, token=TOKEN) as session:
            with self.assertLogs("vivavoce"):
                outcome = await soon(session.say(model()))
            self.assertEqual((outcome.status, outcome.heard_text.strip()), ("failed", "Good morning."))
            self.assertIsInstance(outcome.error, ValueError)

    async def test_sessions_do_not_mix(self) -> None:
        async def one(number: int) -> str:
            async with connect(URL, token=TOKEN) as session:
                return (await soon(session.say(tokens(f"I am number {number}.")))).heard_text.strip()

        heard = await asyncio.gather(*map(one, range(4)))
        self.assertEqual(heard, [f"I am number {number}." for number in range(4)])

    async def test_a_session_can_be_changed(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            ready = await soon(session.update_config(vad={"silence_ms": 700}))
            self.assertEqual(ready["stream_id"], session.stream_id)
            with self.assertRaises(ServerError) as refused, self.assertLogs("vivavoce"):
                await soon(session.update_config(tts_config={"provider": "nobody"}))
            self.assertEqual(refused.exception.code, "unsupported_provider")
            self.assertEqual(refused.exception.in_reply_to, "update_config")


class Refusals(Test):
    async def test_a_wrong_token(self) -> None:
        with self.assertRaises(ApiError) as refused:
            await soon(connect(URL, token="wrong")._connect())
        self.assertEqual((refused.exception.status, refused.exception.code), (401, "unauthorized"))
        self.assertTrue(refused.exception.request_id)
        self.assertNotIn("wrong", str(refused.exception))

    async def test_nobody_is_there(self) -> None:
        async with Proxy() as proxy:
            url = proxy.url
        with self.assertRaises(ConnectionFailed):
            await soon(connect(url)._connect())

    async def test_a_configuration_that_is_refused(self) -> None:
        with self.assertRaises(ServerError) as refused, self.assertLogs("vivavoce"):
            await soon(connect(URL, token=TOKEN, vad={"threshold": 7})._connect())
        error = refused.exception
        self.assertEqual((error.code, error.in_reply_to), ("invalid_message", "config"))
        self.assertIn("threshold", error.message)

    async def test_an_utterance_that_is_refused_has_failed(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            error = asyncio.create_task(first(session, "error"))
            with self.assertLogs("vivavoce"):
                outcome = await soon(session.say("<speak>Hello.</speak>", id="tags", text_type="ssml"))
            self.assertEqual(outcome.status, "failed")
            assert isinstance(outcome.error, ServerError)
            self.assertEqual((outcome.error.code, outcome.error.id), ("invalid_message", "tags"))
            self.assertEqual((await error)["id"], "tags")

    async def test_a_warning_is_logged_and_told(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            warning = asyncio.create_task(first(session, "warning"))
            await asyncio.sleep(0)
            with self.assertLogs("vivavoce") as logged:
                session.say("?!")
                self.assertEqual((await warning)["code"], "nothing_to_say")
            self.assertIn("nothing_to_say", logged.output[0])

    async def test_credentials_are_not_shown(self) -> None:
        with self.assertLogs(level="DEBUG") as logged:
            async with connect(URL, token=TOKEN) as session:
                logging.info("there is one line at least")
                await soon(session.say("Confidential."))
        self.assertNotIn("onfidential", str(logged.output))
        async with connect(URL, token=TOKEN) as session:
            shown = repr(session) + str(session) + repr(Client(URL, token=TOKEN)) + str(logged.output)
            self.assertNotIn(TOKEN, shown)
            self.assertNotIn(session.ready["resume_token"], shown)

    async def test_after_its_end_a_session_says_so(self) -> None:
        async with connect(URL, token=TOKEN) as session:
            utterance = session.say(LONG)
            await first(session, "tts_started")
        self.assertIsInstance((await utterance).error, SessionClosed)
        with self.assertRaises(SessionClosed):
            session.say("Hello.")
        self.assertEqual([event["type"] async for event in session][-1], "closed")


    async def test_sound_may_come_faster_than_it_is_spoken(self) -> None:
        question = await spoken(WEATHER)
        async with connect(URL, token=TOKEN) as session:
            turn = asyncio.create_task(first(session, "stt_result", is_speech_final=True))
            await asyncio.sleep(0)
            await soon(session.send_audio(bytes(16_000 * 2 * 20) + question + bytes(16_000 * 2 * 3)))
            self.assertSounds(str((await turn)["turn_transcript"]), WEATHER)


class Resuming(Test):
    async def test_speech_goes_on_at_the_sample_where_the_connection_broke(self) -> None:
        async with Proxy() as proxy, connect(proxy.url, token=TOKEN) as session:
            history = History(session)
            sound = 0

            def count(event: object) -> None:
                nonlocal sound
                sound += len(event["data"])  # type: ignore[index]

            session.on("audio", count)
            utterance = session.say(tokens(LONG[:180], 0.02))
            for _ in range(2):
                await first(session, "audio")
                await asyncio.sleep(0.5)
                resumed = asyncio.create_task(first(session, "resumed"))
                proxy.break_all()
                await soon(resumed)
            outcome = await soon(utterance)
            self.assertEqual(outcome.status, "complete")
            self.assertEqual(history.messages[0]["content"], LONG[:180].strip())
            # Chunks of 20 ms; the last one is padded.
            self.assertAlmostEqual(sound / (480 * 2), outcome.played_ms / 20, delta=1)
            self.assertEqual(proxy.connections, 3)

    async def test_what_is_said_in_the_gap_is_heard_and_done_afterwards(self) -> None:
        question = await spoken(WEATHER)
        async with Proxy() as proxy, connect(proxy.url, token=TOKEN) as session, Caller(session) as caller:
            reconnecting = asyncio.create_task(first(session, "reconnecting", attempt=2))
            await asyncio.sleep(0)
            proxy.cut()
            await reconnecting
            turn = asyncio.create_task(first(session, "stt_result", is_speech_final=True))
            caller.say(question)
            utterance = session.say("I am still here.", id="queued")
            await asyncio.sleep(1)
            await proxy.mend()
            self.assertSounds(str((await turn)["turn_transcript"]), WEATHER)
            self.assertEqual((await soon(utterance)).status, "complete")

    async def test_a_session_that_is_gone_cannot_be_resumed(self) -> None:
        async with Proxy() as proxy:
            session = await connect(proxy.url, token=TOKEN)
            proxy.cut()
            await first(session, "reconnecting", attempt=2)
            await Client(URL, token=TOKEN).end_session(session.stream_id)
            await proxy.mend()
            with self.assertRaises(CannotResume) as ended:
                await soon(session.wait_closed())
            assert ended.exception.error
            self.assertEqual(ended.exception.error.code, "cannot_resume")

    async def test_who_cannot_come_back_in_time_gives_up(self) -> None:
        async with Proxy() as proxy:
            session = await connect(proxy.url, token=TOKEN, reconnect=Reconnect(timeout=0.5))
            waits = session.say(LONG)
            proxy.cut()
            with self.assertRaises(CannotResume):
                async for _ in session:
                    pass
            self.assertEqual((await waits).status, "failed")

    async def test_a_session_can_be_closed_in_a_gap(self) -> None:
        async with Proxy() as proxy:
            for comes_back in (False, True):
                session = await connect(proxy.url, token=TOKEN)
                proxy.cut()
                await first(session, "reconnecting", attempt=2)
                if comes_back:
                    await proxy.mend()
                    # Between the socket and `ready`, or somewhere near.
                    while proxy.connections < 3:
                        await asyncio.sleep(0)
                await soon(session.close())
                last = [event async for event in session][-1]
                self.assertEqual((last["type"], last.get("error")), ("closed", None))
                if not comes_back:
                    await proxy.mend()

    async def test_without_resume_a_broken_connection_is_the_end(self) -> None:
        async with Proxy() as proxy, connect(proxy.url, token=TOKEN, resume=False) as session:
            proxy.break_all()
            with self.assertRaises(SessionClosed) as ended:
                await soon(session.wait_closed())
            self.assertNotIsInstance(ended.exception, CannotResume)


class Rooms(Test):
    async def test_sessions_in_a_room_write_to_each_other(self) -> None:
        room = "clients-python-room"
        async with connect(URL, token=TOKEN, rtc={"room_name": room}) as one:
            joined = asyncio.create_task(first(one, "participant_connected"))
            await asyncio.sleep(0)
            rtc = {"room_name": room, "service_participant_identity": "second"}
            async with connect(URL, token=TOKEN, rtc=rtc) as two:  # type: ignore[arg-type]
                await joined
                self.assertIn("second", one.participants)
                message = asyncio.create_task(first(one, "message"))
                await asyncio.sleep(0)
                two.send_message("Good morning", topic="chat")
                text = (await message)["message"]
                assert isinstance(text, dict)
                self.assertEqual((text["identity"], text["topic"]), ("second", "chat"))
                details = await Client(URL, token=TOKEN).room(room)
                self.assertEqual(details["num_participants"], 2)
            await first(one, "participant_disconnected") if one.participants else None
            self.assertEqual(dict(one.participants), {})

    async def test_without_a_telephone_there_is_no_call(self) -> None:
        async with connect(URL, token=TOKEN, rtc={"room_name": "clients-python-nobody"}) as session:
            with self.assertRaises(Exception) as refused:
                await soon(session.sip_transfer("+14155550100"))
            self.assertEqual(getattr(refused.exception, "code", ""), "participant_not_found")
            for press in (lambda: session.send_dtmf("12#"), session.hangup):
                error = asyncio.create_task(first(session, "error"))
                await asyncio.sleep(0)
                with self.assertLogs("vivavoce"):
                    press()
                    self.assertEqual((await error)["code"], "participant_not_found")
