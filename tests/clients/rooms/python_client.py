"""LiveKit's Python client as a test drives it: commands as JSON lines on standard input, events as JSON lines out.

Arguments: URL, token and options: `auto_subscribe`, and `two` for the older protocol with two peer connections.
Tones are told by their frequency, measured in the received samples.
"""

import asyncio
import hashlib
import json
import sys
import time
import wave

import numpy as np
from livekit import rtc

RATE = 48_000
SCENARIOS = {
    "resume": "SIMULATE_SIGNAL_RECONNECT",
    "failing resume": "SIMULATE_DISCONNECT_SIGNAL_ON_RESUME",
    "full": "SIMULATE_FULL_RECONNECT",
    "migration": "SIMULATE_MIGRATION",
    "node failure": "SIMULATE_NODE_FAILURE",
    "server leave": "SIMULATE_SERVER_LEAVE",
    "speaker": "SIMULATE_SPEAKER",
}


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


class Tone:
    """A sine that is published until it is stopped."""

    def __init__(self, hertz):
        self.hertz = hertz
        self.source = rtc.AudioSource(RATE, 1, queue_size_ms=200)
        self.running = True

    async def play(self):
        samples = RATE // 10
        at = 0
        while self.running:
            phase = 2 * np.pi * self.hertz * (np.arange(samples) + at) / RATE
            frame = rtc.AudioFrame.create(RATE, 1, samples)
            np.copyto(np.frombuffer(frame.data, dtype=np.int16), (np.sin(phase) * 8_000).astype(np.int16))
            at += samples
            await self.source.capture_frame(frame)


class Client:
    def __init__(self):
        self.room = rtc.Room()
        self.tones = {}
        self.heard = {}
        self.heard_at = {}
        self.kept = {}
        self.streams = {}
        self.tasks = set()

    def task(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def listen(self):
        room = self.room

        def on(name, describe):
            room.on(name, lambda *given: say(name, **(describe(*given) or {})))

        on("participant_connected", lambda p: {"identity": p.identity})
        on("participant_disconnected", lambda p: {"identity": p.identity, "reason": int(p.disconnect_reason or 0)})
        on("track_published", lambda t, p: {"sid": t.sid, "identity": p.identity, "muted": t.muted})
        on("track_unpublished", lambda t, p: {"sid": t.sid, "identity": p.identity})
        on("track_muted", lambda p, t: {"sid": t.sid, "identity": p.identity})
        on("track_unmuted", lambda p, t: {"sid": t.sid, "identity": p.identity})
        on("track_unsubscribed", lambda track, t, p: {"sid": t.sid, "identity": p.identity})
        on("local_track_subscribed", lambda t: {"sid": t.sid})
        on("active_speakers_changed", lambda speakers: {"identities": [s.identity for s in speakers]})
        on("connection_quality_changed", lambda p, q: {"identity": p.identity, "quality": int(q)})
        on("participant_metadata_changed", lambda p, old, new: {"identity": p.identity, "metadata": new})
        on("participant_name_changed", lambda p, old, new: {"identity": p.identity, "name": new})
        on("participant_attributes_changed", lambda changed, p: {"identity": p.identity, "changed": changed})
        on("room_metadata_changed", lambda old, new: {"metadata": new})
        on("participant_permissions_changed", lambda p, new: {"identity": p.identity, "can_publish": new.can_publish})
        on("local_track_unpublished", lambda t: {"sid": t.sid})
        on("moved", lambda: {"room": room.name})
        on("token_refreshed", lambda: {})
        on("reconnecting", lambda: {})
        on("reconnected", lambda: {"sid": room.local_participant.sid})
        on("disconnected", lambda reason=None: {"reason": int(reason or 0)})

        def data(packet):
            sender = packet.participant.identity if packet.participant else None
            say("data", text=packet.data[:200].decode(), length=len(packet.data), topic=packet.topic, kind=int(packet.kind), identity=sender)

        room.on("data_received", data)

        def subscribed(track, publication, participant):
            say("track_subscribed", sid=publication.sid, identity=participant.identity, kind=int(track.kind))
            if track.kind == rtc.TrackKind.KIND_AUDIO:
                self.task(self.hear(track, participant.identity))
            else:
                self.task(self.watch(track, participant.identity))

        room.on("track_subscribed", subscribed)

        def text(reader, identity):
            async def read():
                say("text_stream", text=await reader.read_all(), topic=reader.info.topic, identity=identity)

            self.task(read())

        room.register_text_stream_handler("chat", text)

        def file(reader, identity):
            async def read():
                digest, length = hashlib.sha256(), 0
                async for chunk in reader:
                    digest.update(chunk)
                    length += len(chunk)
                say("byte_stream", sha256=digest.hexdigest(), length=length, name=reader.info.name, identity=identity)

            self.task(read())

        room.register_byte_stream_handler("file", file)

        async def echo(call):
            return call.payload

        async def fail(call):
            raise rtc.RpcError(101, "it does not work", "because")

        async def sleep(call):
            await asyncio.sleep(60)
            return ""

        self.methods = {"echo": echo, "fail": fail, "sleep": sleep}

    async def hear(self, track, identity):
        """Keeps the newest second of a track's samples; a participant's newest track is the one that counts."""
        # Larger frames than the usual 10 ms: each costs this process, not the server, and many of it run at once.
        stream = rtc.AudioStream(track, sample_rate=RATE, num_channels=1, frame_size_ms=100)
        self.streams[identity] = stream
        self.heard[identity] = np.zeros(0, dtype=np.int16)
        async for event in stream:
            if self.streams[identity] is not stream:
                break
            samples = np.frombuffer(event.frame.data, dtype=np.int16)
            self.heard[identity] = np.concatenate([self.heard[identity], samples])[-RATE:]
            if identity in self.kept:
                self.kept[identity].append(samples)
            self.heard_at[identity] = time.monotonic()

    async def watch(self, track, identity):
        frames = 0
        async for event in rtc.VideoStream(track):
            frames += 1
            if frames in (1, 10):
                frame = event.frame
                luma = np.frombuffer(frame.convert(rtc.VideoBufferType.I420).data, dtype=np.uint8)[: frame.width * frame.height]
                say("video", identity=identity, frames=frames, width=frame.width, height=frame.height, luma=float(luma.mean()))

    def measure(self, identity):
        samples = self.heard.get(identity)
        stale = time.monotonic() - self.heard_at.get(identity, 0) > 0.25
        if samples is None or stale or len(samples) < RATE // 4:
            return {"hertz": 0, "rms": 0}
        part = samples[-RATE // 4 :].astype(np.float64)
        spectrum = np.abs(np.fft.rfft(part * np.hanning(len(part))))
        rms = float(np.sqrt(np.mean(part**2)))
        return {"hertz": float(np.argmax(spectrum) * RATE / len(part)) if rms > 50 else 0, "rms": rms}

    async def do(self, command):
        me = self.room.local_participant
        match command["do"]:
            case "publish":
                tone = Tone(command["hertz"])
                track = rtc.LocalAudioTrack.create_audio_track("tone", tone.source)
                publication = await me.publish_track(track, rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE))
                self.tones[publication.sid] = (tone, track)
                if tone.hertz:
                    self.task(tone.play())
                return {"sid": publication.sid}
            case "publish_video":
                source = rtc.VideoSource(320, 240)
                track = rtc.LocalVideoTrack.create_video_track("picture", source)
                options = rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_CAMERA, video_codec=rtc.VideoCodec.Value(command.get("codec", "VP8")))
                publication = await me.publish_track(track, options)
                self.task(self.film(source, command.get("luma", 200)))
                return {"sid": publication.sid}
            case "unpublish":
                self.tones[command["sid"]][0].running = False
                await me.unpublish_track(command["sid"])
            case "mute":
                self.tones[command["sid"]][1].mute()
            case "unmute":
                self.tones[command["sid"]][1].unmute()
            case "wait_subscribed":
                publication = me.track_publications[command["sid"]]
                await publication.wait_for_subscription()
            case "subscribe":
                for participant in self.room.remote_participants.values():
                    for publication in participant.track_publications.values():
                        if publication.sid == command["sid"]:
                            publication.set_subscribed(command["on"])
            case "permit":
                me.set_track_subscription_permissions(
                    allow_all_participants=command["all"],
                    participant_permissions=[rtc.ParticipantTrackPermission(participant_identity=i, allow_all=True) for i in command.get("identities", [])],
                )
            case "measure":
                return self.measure(command["identity"])
            case "say":
                # A file of 16-bit mono at 48 kHz, as a person would say it; ends when it is said.
                with wave.open(command["file"]) as file:
                    assert (file.getframerate(), file.getnchannels()) == (RATE, 1)
                    sound = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
                if "sid" not in command:
                    source = rtc.AudioSource(RATE, 1, queue_size_ms=100)
                    track = rtc.LocalAudioTrack.create_audio_track("microphone", source)
                    publication = await me.publish_track(track, rtc.TrackPublishOptions(source=rtc.TrackSource.SOURCE_MICROPHONE))
                    self.tones[publication.sid] = (source, track)
                    await publication.wait_for_subscription()
                    command["sid"] = publication.sid
                source = self.tones[command["sid"]][0]
                step = RATE // 50
                for at in range(0, len(sound) - step, step):
                    frame = rtc.AudioFrame.create(RATE, 1, step)
                    np.copyto(np.frombuffer(frame.data, dtype=np.int16), sound[at : at + step])
                    await source.capture_frame(frame)
                return {"sid": command["sid"]}
            case "keep":
                self.kept[command["identity"]] = []
            case "save":
                # What was received since it was to be kept.
                samples = np.concatenate([*self.kept.pop(command["identity"]), np.zeros(0, dtype=np.int16)])
                with wave.open(command["file"], "wb") as file:
                    file.setnchannels(1)
                    file.setsampwidth(2)
                    file.setframerate(RATE)
                    file.writeframes(samples.tobytes())
                return {"samples": len(samples)}
            case "send":
                await me.publish_data(command["text"], reliable=command.get("reliable", True), destination_identities=command.get("to", []), topic=command.get("topic", ""))
            case "text":
                await me.send_text(command["text"], topic="chat", destination_identities=command.get("to") or None)
            case "bytes":
                # Noise, which no compression makes smaller.
                noise = np.random.default_rng(1).bytes(command["length"])
                writer = await me.stream_bytes("noise", total_size=len(noise), topic="file")
                await writer.write(noise)
                await writer.aclose()
                return {"sha256": hashlib.sha256(noise).hexdigest()}
            case "burst":
                first = command.get("from", 0)
                for number in range(first, first + command["count"]):
                    await me.publish_data(f"{number} ".ljust(command["length"], "."), reliable=True)
            case "fill":
                await me.publish_data(bytes(command["length"]), reliable=True)
            case "rpc":
                try:
                    answer = await me.perform_rpc(
                        destination_identity=command["to"],
                        method=command.get("method", "echo"),
                        payload=command["payload"],
                        response_timeout=command.get("timeout"),
                    )
                except rtc.RpcError as error:
                    return {"code": error.code, "message": error.message, "details": error.data}
                return {"payload": answer}
            case "metadata":
                await me.set_metadata(command["metadata"])
            case "name":
                await me.set_name(command["name"])
            case "attributes":
                await me.set_attributes(command["attributes"])
            case "participants":
                tracks = lambda p: [{"sid": t.sid, "muted": t.muted, "mime": t.mime_type} for t in p.track_publications.values()]
                return {"participants": {p.identity: {"sid": p.sid, "metadata": p.metadata, "name": p.name, "attributes": dict(p.attributes), "tracks": tracks(p)} for p in self.room.remote_participants.values()}, "sid": me.sid}
            case "simulate":
                await self.room.simulate_scenario(rtc.SimulateScenarioKind.Value(SCENARIOS[command["scenario"]]))
            case "leave":
                await self.room.disconnect()
        return {}

    async def film(self, source, luma):
        while True:
            frame = rtc.VideoFrame(320, 240, rtc.VideoBufferType.I420, bytes([luma]) * (320 * 240) + bytes([128]) * (320 * 240 // 2))
            source.capture_frame(frame)
            await asyncio.sleep(0.05)

    async def obey(self, line):
        command = json.loads(line)
        try:
            say("done", id=command.get("id"), **await self.do(command))
        except Exception as error:  # the test decides what an error means
            say("failed", id=command.get("id"), error=f"{type(error).__name__}: {error}")


async def main():
    url, token = sys.argv[1:3]
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    client = Client()
    client.listen()
    room_options = rtc.RoomOptions(auto_subscribe=options.get("auto_subscribe", True))
    if options.get("two"):
        room_options.single_peer_connection = False
    say("connecting")
    try:
        await client.room.connect(url, token, room_options)
    except Exception as error:
        say("refused", error=f"{type(error).__name__}: {error}")
        return
    for name, method in client.methods.items():
        client.room.local_participant.register_rpc_method(name)(method)
    say("connected", sid=client.room.local_participant.sid, identity=client.room.local_participant.identity, room=client.room.name)
    for participant in client.room.remote_participants.values():
        say("present", identity=participant.identity)
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_event_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        client.task(client.obey(line))
    await client.room.disconnect()


asyncio.run(main())
