"""The innocent tenant: a session, a room, a call, and somebody who asks for things. Each is a process of its own and says
as JSON lines when it was kept waiting; `run.py` starts them and decides what that means.

A line is {"at": seconds of the monotonic clock, "what": …}: `ready`, `gap` (sound was away for `ms`, since `at`), `asked`
(`name`, `ok`, `ms`, `status`), `late` (this machine let a process sleep so much longer), `over` (it was ended by the server).

    innocent.py session|room|call|asker|clock '{"port": …, "sip": …, "token": …, "room": …, "number": …, "another": …}'
"""

import asyncio
import itertools
import json
import select
import signal
import socket
import struct
import sys
import threading
import time

import wire

FRAME_MS = 20
# What a chunk may be later than its time without being a gap worth a line.
SMALL_MS = 22
SO_TIMESTAMPNS = 35
WRITING = threading.Lock()
STOPPING = threading.Event()


def say(what, at=None, **more):
    with WRITING:
        print(json.dumps({"at": at or time.monotonic(), "what": what, **more}), flush=True)


class Gaps:
    """Tells of everything between two arrivals that is longer than a frame, also of the last."""

    def __init__(self, of):
        self.of, self.last = of, None

    def arrived(self, at):
        if self.last is not None and (at - self.last) * 1_000 > SMALL_MS:
            say("gap", self.last, of=self.of, ms=round((at - self.last) * 1_000, 1))
        self.last = at

    def stop(self):
        if self.last is not None:
            self.arrived(time.monotonic())


def session(given):
    """Listens to a tone at `/ws`: gaps between chunks of 20 ms, which are sent at the pace at which they are played."""
    web = wire.Web(given["port"], "/ws", given["token"])
    assert web.status == 101, web.status
    null = {"provider": "null"}
    web.send({"type": "config", "stt_config": null, "tts_config": {**null, "model": "", "sample_rate": 16_000}})
    web.until("ready")
    # A minute is the longest.
    text = {"type": "speak", "text": "x" * 980}
    for _ in range(2):
        web.send(text)
    gaps = Gaps("session")
    ready = False
    try:
        while not STOPPING.is_set():
            try:
                got = web.next(0.25)
            except TimeoutError:
                continue
            if got is None:
                say("over", of="session")
                break
            if got[0] == 2:
                gaps.arrived(time.monotonic())
                if not ready:
                    ready = True
                    say("ready")
            elif (event := json.loads(got[1]))["type"] == "tts_playback_complete":
                web.send(text)
            elif event["type"] == "error":
                say("error", message=event["message"])
    except OSError as error:
        say("over", of="session", message=str(error))
    STOPPING.wait()
    gaps.stop()


def sounds(payload):
    """Whether there is more than noise in a packet of PCMU: the codes of samples from about 500 on."""
    return sum((~code & 0x7F) >= 0x20 for code in payload) > len(payload) // 4


def call(given):
    """A call into the room: gaps between the packets that come, and between those with the tone of the room in them. The
    time of arrival is the kernel's."""
    one = wire.Call(given["sip"], given["number"], "innocent")
    one.media.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    one.media.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    status = one.make(10)
    assert status == 200, status

    def speak():
        began = time.monotonic()
        for sequence in itertools.count(1):
            if STOPPING.wait(max(0.0, began + sequence * FRAME_MS / 1_000 - time.monotonic())):
                break
            try:
                one.media.sendto(wire.rtp(sequence, 77), (wire.HOST, one.there))
            except OSError:
                break

    threading.Thread(target=speak, daemon=True).start()
    packets, tone = Gaps("call"), Gaps("call sound")
    offset = time.time() - time.monotonic()
    ready = False
    while not STOPPING.is_set():
        readable = select.select([one.media, one.signalling], [], [], 0.25)[0]
        if one.media in readable:
            packet, extra, _, _ = one.media.recvmsg(2_048, 128)
            seconds, nanoseconds = struct.unpack("qq", extra[0][2][:16])
            at = seconds + nanoseconds / 1e9 - offset
            if len(packet) >= 160 and packet[1] & 0x7F == 0:
                packets.arrived(at)
                if sounds(packet[12:]):
                    tone.arrived(at)
                if not ready:
                    ready = True
                    say("ready", media=one.there)
        if one.signalling in readable:
            try:
                text = one.signalling.recv(65_536).decode(errors="replace")
            except ConnectionError:
                continue
            if text.startswith("SIP/2.0 200") and " INVITE" in wire.field(text, "CSeq"):
                one.signalling.send(one.request("ACK", 1, one.id + "ACK"))
            elif not text.startswith("SIP/2.0"):
                copied = "".join(
                    f"{name}: {wire.field(text, name)}\r\n" for name in ("Via", "From", "To", "Call-ID", "CSeq")
                )
                one.signalling.send(f"SIP/2.0 200 OK\r\n{copied}Content-Length: 0\r\n\r\n".encode())
                if text.startswith("BYE"):
                    say("over", of="call")
    packets.stop()
    tone.stop()
    one.end()


async def room(given):
    """Two of LiveKit's clients: one publishes a tone, the other hears it. A gap is what the listener's jitter buffer had to
    make up, without a pause of more than 100 ms; one that is longer than it makes up is silence in what is heard."""
    import numpy as np
    from livekit import rtc

    rate = 48_000
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, STOPPING.set)
    rooms = {}
    heard = asyncio.get_running_loop().create_future()

    def subscribed(track, *_):
        if track.kind == rtc.TrackKind.KIND_AUDIO and not heard.done():
            heard.set_result(track)

    for identity in ("speaker", "listener"):
        rooms[identity] = one = rtc.Room()
        if identity == "listener":
            one.on("track_subscribed", lambda track, publication, participant: participant.identity == "speaker" and subscribed(track))
        one.on("disconnected", lambda *why, who=identity: STOPPING.is_set() or say("over", of="room", who=who))
        one.on("reconnecting", lambda who=identity: say("reconnecting", who=who))
        token = wire.room_token(given["port"], given["token"], given["room"], identity)
        await one.connect(f"ws://{wire.HOST}:{given['port']}", token, rtc.RoomOptions(auto_subscribe=identity == "listener"))
    source = rtc.AudioSource(rate, 1, queue_size_ms=100)
    track = rtc.LocalAudioTrack.create_audio_track("tone", source)
    options = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE, dtx=False, red=False)
    await rooms["speaker"].local_participant.publish_track(track, options)

    async def speak():
        samples = rate * FRAME_MS // 1_000
        frame = rtc.AudioFrame.create(rate, 1, samples)
        tone = np.sin(2 * np.pi * 400 * np.arange(samples) / rate) * 8_000
        np.copyto(np.frombuffer(frame.data, dtype=np.int16), tone.astype(np.int16))
        while not STOPPING.is_set():
            await source.capture_frame(frame)

    speaking = asyncio.ensure_future(speak())
    track = await asyncio.wait_for(heard, 20)

    # Silence, by the samples and by the clock.
    tone = Gaps("room silence")

    async def listen():
        loud = False
        async for event in rtc.AudioStream(track, sample_rate=rate, num_channels=1):
            samples = np.frombuffer(event.frame.data, dtype=np.int16).astype(np.float32)
            if np.sqrt(np.mean(samples**2)) > 1_500:
                tone.arrived(time.monotonic())
                if not loud:
                    loud = True
                    say("ready")

    async def count():
        """What the jitter buffer made up, in runs."""
        before = run = began = last = None
        while not STOPPING.is_set():
            await asyncio.sleep(0.05)
            made_up = None
            for stat in await track.get_stats():
                if stat.HasField("inbound_rtp"):
                    made_up = stat.inbound_rtp.inbound.concealed_samples
            now = time.monotonic()
            if made_up is None:
                continue
            if before is not None and made_up > before:
                if run is None:
                    run, began = 0, now
                run += made_up - before
                last = now
            elif run is not None and now - last > 0.1:
                say("gap", began, of="room", ms=round(run * 1_000 / rate, 1))
                run = None
            before = made_up
        if run is not None:
            say("gap", began, of="room", ms=round(run * 1_000 / rate, 1))

    tasks = [asyncio.ensure_future(listen()), asyncio.ensure_future(count())]
    while not STOPPING.is_set():
        await asyncio.sleep(0.05)
        for task in (*tasks, speaking):
            if task.done() and not STOPPING.is_set() and task.exception():
                say("error", message=repr(task.exception()))
                STOPPING.wait(0)
                tasks = [one for one in tasks if one is not task]
    tone.stop()
    for one in rooms.values():
        try:
            await asyncio.wait_for(one.disconnect(), 1)
        except Exception:  # the server may be gone
            pass


PATIENCE_S = 5.0
# When what is not answered yet was asked, and its name.
WAITING = {}


def asked(name, ask):
    """Asks in a thread, so that one that waits does not keep the next."""

    def run():
        began = time.monotonic()
        WAITING[began] = name
        try:
            status, took = ask()
        except Exception as error:  # whatever kept it from being answered
            status, took = type(error).__name__, time.monotonic() - began
        if WAITING.pop(began, None) is None:
            return
        say("asked", began, name=name, status=status, ms=round(took * 1_000, 1))

    threading.Thread(target=run, daemon=True).start()


def asker(given):
    """Asks 5 times a second for `/healthz` and `/voices`, once a second for a token of a new room, and every two seconds for
    speech, a new session and a new call."""
    port, token = given["port"], given["token"]

    def get(path):
        def ask():
            answer = wire.ask(port, "GET", path, token, timeout=PATIENCE_S)
            return answer.status, answer.whole_s

        return ask

    def new_room(number):
        def ask():
            wish = {"room_name": f"innocent-{number}", "participant_identity": "ann", "participant_name": "Ann"}
            answer = wire.ask(port, "POST", "/rtc/token", token, wish, timeout=PATIENCE_S)
            return answer.status, answer.whole_s

        return ask

    def speech(number):
        def ask():
            wish = {"text": f"Hello, number {number}.", "tts_config": {"provider": "local", "model": ""}}
            answer = wire.ask(port, "POST", "/speak?stream=true", token, wish, timeout=PATIENCE_S)
            return answer.status, answer.first_s

        return ask

    def new_session():
        began = time.monotonic()
        web = wire.Web(port, "/ws", token, timeout=PATIENCE_S)
        try:
            if web.status != 101:
                return web.status, time.monotonic() - began
            web.send({"type": "config", "audio": False})
            web.until("ready", PATIENCE_S)
            return 200, time.monotonic() - began
        finally:
            web.close()

    def new_call():
        began = time.monotonic()
        one = wire.Call(given["sip"], given["another"], "new")
        try:
            return one.make(PATIENCE_S) or "no answer", time.monotonic() - began
        finally:
            one.end()

    say("ready")
    began = time.monotonic()
    for tick in itertools.count():
        if STOPPING.wait(max(0.0, began + tick * 0.1 - time.monotonic())):
            break
        asked(*(("healthz", get("/healthz")) if tick % 2 else ("voices", get("/voices"))))
        if tick % 10 == 3:
            asked("room", new_room(tick))
        if tick % 20 == 5:
            asked("speak", speech(tick))
        if tick % 20 == 11:
            asked("session", new_session)
        if tick % 20 == 17:
            asked("call", new_call)
    while WAITING:
        began, name = WAITING.popitem()
        say("asked", began, name=name, status="waits", ms=round((time.monotonic() - began) * 1_000, 1))


def clock(_):
    """Does nothing but sleep: how late it wakes is how far this machine's other work reaches into all that is measured."""
    say("ready")
    while not STOPPING.is_set():
        before = time.monotonic()
        time.sleep(0.005)
        late = time.monotonic() - before - 0.005
        if late > 0.003:
            say("late", before, ms=round(late * 1_000, 1))


def main():
    role, given = sys.argv[1], json.loads(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: STOPPING.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if role == "room":
            asyncio.run(room(given))
        else:
            {"session": session, "call": call, "asker": asker, "clock": clock}[role](given)
    except Exception as error:  # told, so that a row says why there is nothing in it
        say("error", message=f"{role}: {type(error).__name__}: {error}")
        raise


main()
