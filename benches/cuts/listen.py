"""A listener with LiveKit's client for Python, for run.py: tells how loud each 10 ms are that it would play, and when."""

import asyncio
import json
import sys
import time

import numpy as np
from livekit import rtc


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def listen(track):
    async for event in rtc.AudioStream(track, sample_rate=48_000, num_channels=1):
        samples = np.frombuffer(event.frame.data, dtype=np.int16).astype(float)
        say("heard", at=time.time(), seconds=len(samples) / 48_000, rms=float(np.sqrt(np.mean(samples**2))))


async def main(url, token):
    room, tasks = rtc.Room(), []

    @room.on("track_subscribed")
    def subscribed(track, _publication, _participant):
        say("listens")
        tasks.append(asyncio.ensure_future(listen(track)))

    await room.connect(url, token)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
