"""Python's own WebRTC (aiortc) publishing a tone by WHIP or playing what it hears by WHEP, without any SDK of rooms. It takes
commands and tells events as python_client.py does.

Arguments: URL, token and options: `hertz` to publish, or `listen`, the path to play from.
"""

import asyncio
import fractions
import json
import sys

import aiohttp
import numpy as np
from aiortc import MediaStreamTrack, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler

RATE = 48_000
PART = RATE // 50


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


class Tone(MediaStreamTrack):
    kind = "audio"

    def __init__(self, hertz):
        super().__init__()
        self.hertz, self.at, self.start = hertz, 0, None

    async def recv(self):
        clock = asyncio.get_event_loop().time
        self.start = self.start or clock()
        await asyncio.sleep(max(0, self.start + self.at / RATE - clock()))
        phase = 2 * np.pi * self.hertz * (np.arange(PART) + self.at) / RATE
        samples = (np.sin(phase) * 8_000).astype(np.int16).reshape(1, -1)
        frame = AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self.at, fractions.Fraction(1, RATE)
        self.at += PART
        return frame


class Heard:
    def __init__(self):
        self.samples = np.zeros(0)

    async def listen(self, track):
        mono = AudioResampler(format="s16", layout="mono", rate=RATE)
        try:
            while True:
                for frame in mono.resample(await track.recv()):
                    self.samples = np.concatenate([self.samples, frame.to_ndarray()[0].astype(np.float64)])[-RATE // 4 :]
        except MediaStreamError:
            pass  # the end of the track

    def measure(self):
        if len(self.samples) < RATE // 4:
            return {"hertz": 0}
        spectrum = np.abs(np.fft.rfft(self.samples * np.hanning(len(self.samples))))
        loud = np.sqrt(np.mean(self.samples**2)) > 50
        return {"hertz": float(np.argmax(spectrum) * RATE / len(self.samples)) if loud else 0}


async def main():
    url, token, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    headers = {"authorization": f"Bearer {token}"}
    connection, heard = RTCPeerConnection(), Heard()
    connection.on("track", lambda track: asyncio.ensure_future(heard.listen(track)))
    connection.on("connectionstatechange", lambda: say("state", state=connection.connectionState))
    if options.get("hertz"):
        connection.addTransceiver(Tone(options["hertz"]), direction="sendonly")
    else:
        connection.addTransceiver("audio", direction="recvonly")
    await connection.setLocalDescription(await connection.createOffer())
    async with aiohttp.ClientSession(headers=headers) as http:
        offer = connection.localDescription.sdp
        async with http.post(url + options.get("listen", "/whip"), data=offer, headers={"content-type": "application/sdp"}) as answer:
            body = await answer.text()
            if answer.status != 201:
                return say("refused", status=answer.status, body=body)
            place = url + answer.headers["location"]
        await connection.setRemoteDescription(RTCSessionDescription(body, "answer"))
        say("connected", sid=place)
        reader = asyncio.StreamReader()
        await asyncio.get_event_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            say("done", id=command["id"], **heard.measure())
        async with http.delete(place) as ended:
            say("left", status=ended.status)
    await connection.close()


asyncio.run(main())
