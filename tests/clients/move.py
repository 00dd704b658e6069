"""A session of the Python library that says three sentences, whatever becomes of its connection: move.py URL."""

import asyncio
import json
import sys

from vivavoce import connect

SENTENCES = ["This is the first sentence.", "This is the second one.", "And this is the third."]


async def main() -> None:
    resumed, sound, speaking = 0, 0, False
    async with connect(sys.argv[1], recording=True, stream_id="python") as session:
        utterances = [session.say(sentence) for sentence in SENTENCES]

        async def read() -> None:
            nonlocal resumed, sound, speaking
            async for event in session:
                match event:
                    case {"type": "audio", "data": data}:
                        sound += len(data)
                        if not speaking:
                            speaking = True
                            print("speaking", flush=True)
                    case {"type": "resumed"}:
                        resumed += 1

        reading = asyncio.create_task(read())
        outcomes = [await utterance for utterance in utterances]
        reading.cancel()
    ends = [outcome.status for outcome in outcomes]
    played = sum(outcome.played_ms for outcome in outcomes)
    print(json.dumps({"ends": ends, "played_ms": played, "sound_ms": sound / 48, "resumed": resumed}), flush=True)


asyncio.run(main())
