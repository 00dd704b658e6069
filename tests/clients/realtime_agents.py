"""OpenAI's agents SDK as a voice agent on a server with the Realtime interface. It checks every event against the interface's
types. Prints what came of it as JSON.

realtime_agents.py URL KEY WEATHER HELLO     URL: of the WebSocket; two files of samples, mono, 24 kHz
"""

import asyncio
import json
import sys

from agents import function_tool, set_tracing_disabled
from agents.realtime import RealtimeAgent, RealtimeRunner

CHUNK = 960  # 20 ms
CALLED = []


@function_tool
def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    CALLED.append(city)
    return f"It rains in {city}"


async def say(session, file):
    sound = open(file, "rb").read() + bytes(72_000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for at in range(0, len(sound), CHUNK):
        await session.send_audio(sound[at : at + CHUNK])
        await asyncio.sleep(max(0, began + (at + CHUNK) / 48_000 - loop.time()))


async def main():
    url, key, weather, hello = sys.argv[1:]
    set_tracing_disabled(True)
    agent = RealtimeAgent(name="Assistant", instructions="You are brief.", tools=[get_weather])
    runner = RealtimeRunner(starting_agent=agent)
    settings = {
        "model_name": "gpt-realtime",
        "audio": {
            "input": {
                "format": "pcm16",
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
            },
            "output": {"format": "pcm16", "voice": "marin"},
        },
    }
    session = await runner.run(model_config={"url": url, "api_key": key, "initial_model_settings": settings})
    told = {"types": [], "errors": [], "sound": 0, "interrupted": 0, "transcripts": []}
    done = asyncio.Event()
    answers = 0
    history = []

    async def read():
        nonlocal answers, history
        async for event in session:
            if event.type not in told["types"]:
                told["types"].append(event.type)
            if event.type == "audio":
                told["sound"] += len(event.audio.data)
            elif event.type == "audio_interrupted":
                told["interrupted"] += 1
            elif event.type == "error":
                told["errors"].append(str(event.error))
            elif event.type == "history_updated":
                history = event.history
            elif event.type == "raw_model_event":
                raw = getattr(event.data, "data", None)
                if isinstance(raw, dict) and raw.get("type") == "response.done":
                    answers += 1
                    done.set()

    async def wait(count):
        async with asyncio.timeout(50):
            while answers < count:
                done.clear()
                await done.wait()

    async with session:
        reading = asyncio.create_task(read())
        # The function is called, and what it returns is said.
        await say(session, weather)
        await wait(2)
        # A long answer, over which somebody speaks.
        before = told["sound"]
        await session.send_message("Tell me a story.")
        async with asyncio.timeout(50):
            while told["sound"] < before + 150_000:
                await asyncio.sleep(0.05)
        await say(session, hello)
        await wait(4)
        reading.cancel()
    for item in history:
        if item.type == "message":
            texts = [getattr(part, "transcript", None) or getattr(part, "text", None) or "" for part in item.content]
            told["transcripts"].append([item.role, " ".join(texts)])
    told["called"] = CALLED
    told["seconds"] = told["sound"] / 48_000
    print(json.dumps(told))


asyncio.run(main())
