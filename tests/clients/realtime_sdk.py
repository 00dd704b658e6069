"""OpenAI's own client against a server with its Realtime interface. Prints what came of it as JSON.

realtime_sdk.py CASE URL KEY [SOUND]     SOUND: a file of 16-bit samples, mono, 24 kHz
"""

import asyncio
import base64
import json
import sys

from openai import AsyncOpenAI

CHUNK = 960  # 20 ms
PATIENCE = 50


class Talk:
    """A connection, and all events that came."""

    def __init__(self, connection):
        self.connection = connection
        self.events = []
        self.changed = asyncio.Event()
        self.reading = asyncio.create_task(self.read())

    async def read(self):
        async for event in self.connection:
            self.events.append(event)
            self.changed.set()

    async def wait(self, kind, count=1):
        """The event of this kind that comes as the `count`th."""
        return (await self.wait_all(kind, count))[count - 1]

    async def wait_all(self, kind, count):
        try:
            async with asyncio.timeout(PATIENCE):
                while len(found := self.all(kind)) < count:
                    if self.reading.done():
                        raise SystemExit(f"closed before {kind}: {self.types()}")
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            heard = [event.transcript for event in self.events if hasattr(event, "transcript")]
            raise SystemExit(f"no {kind}: {self.types()}, {heard}") from None
        return found

    def all(self, kind):
        return [event for event in self.events if event.type == kind]

    def types(self):
        types = []
        for event in self.events:
            if not types or types[-1] != event.type:
                types.append(event.type)
        return types

    def sound(self, response=None):
        deltas = self.all("response.output_audio.delta")
        return b"".join(base64.b64decode(event.delta) for event in deltas if response in (None, event.response_id))

    async def say(self, sound, silence=1.5):
        """At the pace at which people speak."""
        sound = sound + bytes(int(48_000 * silence) // 2 * 2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for at in range(0, len(sound), CHUNK):
            audio = base64.b64encode(sound[at : at + CHUNK]).decode()
            await self.connection.input_audio_buffer.append(audio=audio)
            await asyncio.sleep(max(0, began + (at + CHUNK) / 48_000 - loop.time()))


def session(**own):
    audio = {
        "input": {"transcription": {"model": "whisper-1", "language": "en"}, "turn_detection": {"type": "server_vad"}},
        "output": {"voice": "marin"},
    }
    return {"type": "realtime", "instructions": "You are brief.", "audio": audio, **own}


async def conversation(talk, sound):
    await talk.connection.session.update(session=session())
    updated = await talk.wait("session.updated")
    await talk.say(sound)
    done = await talk.wait("response.done")
    heard = await talk.wait("conversation.item.input_audio_transcription.completed")
    return {
        "types": talk.types(),
        "session": updated.session.to_dict(),
        "heard": heard.transcript,
        "response": done.response.to_dict(),
        "seconds": len(talk.sound()) / 48_000,
        "limits": talk.all("rate_limits.updated")[0].to_dict()["rate_limits"],
    }


async def text(talk, _):
    """By text, without sound; then an answer apart, and two items by reference."""
    await talk.connection.session.update(session=session(output_modalities=["text"]))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Good day."}]}
    await talk.connection.conversation.item.create(item=item)
    await talk.connection.response.create()
    first = await talk.wait("response.done")
    created = talk.all("conversation.item.added")[0].item.id
    await talk.connection.response.create(
        response={
            "conversation": "none",
            "metadata": {"topic": "test"},
            "input": [{"type": "item_reference", "id": created}],
            "instructions": "Elsewhere.",
        }
    )
    apart = await talk.wait("response.done", 2)
    await talk.connection.conversation.item.retrieve(item_id=created)
    retrieved = await talk.wait("conversation.item.retrieved")
    await talk.connection.conversation.item.delete(item_id=created)
    await talk.wait("conversation.item.deleted")
    items = [event.item.id for event in talk.all("conversation.item.added")]
    return {
        "types": talk.types(),
        "first": first.response.to_dict(),
        "apart": apart.response.to_dict(),
        "deltas": "".join(e.delta for e in talk.all("response.output_text.delta")),
        "retrieved": retrieved.item.to_dict(),
        "items": len(items),
    }


TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def tools(talk, sound):
    await talk.connection.session.update(session=session(tools=[TOOL], tool_choice="auto"))
    await talk.say(sound)
    called = await talk.wait("response.function_call_arguments.done")
    first = await talk.wait("response.done")
    output = {"type": "function_call_output", "call_id": called.call_id, "output": "It rains in Bonn"}
    await talk.connection.conversation.item.create(item=output)
    await talk.connection.response.create()
    second = await talk.wait("response.done", 2)
    return {
        "called": called.to_dict(),
        "first": first.response.to_dict(),
        "second": second.response.to_dict(),
        "seconds": len(talk.sound()) / 48_000,
    }


async def interrupt(talk, sound):
    """The caller speaks over a long answer, and then cuts the next one off by hand."""
    await talk.connection.session.update(session=session())
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}
    await talk.connection.conversation.item.create(item=item)
    await talk.connection.response.create()
    # About three seconds of it are heard.
    await talk.wait_all("response.output_audio.delta", 150)
    await talk.say(sound)
    cut = await talk.wait("response.done")
    truncated = await talk.wait("conversation.item.truncated")
    answered = await talk.wait("response.done", 2)
    await talk.connection.conversation.item.create(item=item)
    await talk.connection.response.create()
    begun = await talk.wait("response.created", 3)
    while len(talk.sound(begun.response.id)) < 96_000:
        talk.changed.clear()
        await talk.changed.wait()
    third = [e for e in talk.all("response.output_item.added") if e.response_id == begun.response.id][0].item.id
    await talk.connection.response.cancel()
    cancelled = await talk.wait("response.done", 3)
    # It has played less than was sent.
    await talk.connection.conversation.item.truncate(item_id=third, content_index=0, audio_end_ms=700)
    while not [e for e in talk.all("conversation.item.truncated") if e.item_id == third and e.audio_end_ms == 700]:
        talk.changed.clear()
        await talk.changed.wait()
    await talk.connection.conversation.item.retrieve(item_id=third)
    shorter = await talk.wait("conversation.item.retrieved")
    after = [e.type for e in talk.events[talk.events.index(cancelled) :]]
    return {
        "cut": cut.response.to_dict(),
        "truncated": truncated.to_dict(),
        "answered": answered.response.to_dict(),
        "cancelled": cancelled.response.to_dict(),
        "shorter": shorter.item.to_dict(),
        "sound_after": after.count("response.output_audio.delta"),
    }


async def manual(talk, sound):
    """Push to talk: the client ends the turn; then an item with its sound."""
    audio = {"input": {"turn_detection": None, "transcription": {"model": "local"}}}
    await talk.connection.session.update(session={"type": "realtime", "audio": audio})
    await talk.wait("session.updated")
    await talk.say(sound, silence=0.2)
    await talk.connection.input_audio_buffer.commit()
    await talk.connection.response.create()
    first = await talk.wait("response.done")
    heard = await talk.wait("conversation.item.input_audio_transcription.completed")
    await talk.connection.input_audio_buffer.commit()
    refused = await talk.wait("error")
    # All at once, and the end at once behind it.
    await talk.connection.input_audio_buffer.append(audio=base64.b64encode(sound).decode())
    await talk.connection.input_audio_buffer.commit()
    burst = await talk.wait("conversation.item.input_audio_transcription.completed", 2)
    content = [{"type": "input_audio", "audio": base64.b64encode(sound).decode()}]
    await talk.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    await talk.connection.response.create(response={"output_modalities": ["text"]})
    second = await talk.wait("response.done", 2)
    return {
        "types": talk.types(),
        "heard": heard.transcript,
        "burst": burst.transcript,
        "first": first.response.to_dict(),
        "refused": refused.error.to_dict(),
        "second": second.response.to_dict(),
    }


async def errors(talk, _):
    connection = talk.connection
    cases = [
        {"type": "session.update", "event_id": "a", "session": {"type": "realtime", "speed": 1}},
        {"type": "session.update", "event_id": "b", "session": {"type": "realtime", "audio": {"output": {"format": {"type": "mp3"}}}}},
        {"type": "session.update", "event_id": "c", "session": {"type": "transcription"}},
        {"type": "response.cancel", "event_id": "d"},
        {"type": "conversation.item.delete", "event_id": "e", "item_id": "nobody"},
        {"type": "input_audio_buffer.append", "event_id": "f", "audio": "###"},
        {"type": "nonsense", "event_id": "g"},
        {"type": "session.update", "event_id": "h", "session": {"type": "realtime", "tools": [{"type": "mcp", "server_label": "x"}]}},
        {"type": "input_audio_buffer.commit", "event_id": "i"},
    ]
    for case in cases:
        await connection._connection.send(json.dumps(case))
    await connection._connection.send("[")
    problems = await talk.wait_all("error", len(cases) + 1)
    told = {event.error.event_id: event.error.to_dict() for event in problems}
    # A model that fails, and one that breaks off: the connection goes on.
    statuses = []
    for number, words in enumerate(["fail", "break", "nothing", "well"], 1):
        content = [{"type": "input_text", "text": words}]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create(response={"output_modalities": ["text"]})
        done = await talk.wait("response.done", number)
        statuses.append(done.response.to_dict())
    return {"told": {str(name): error for name, error in told.items()}, "statuses": statuses}


async def transcription(client, sound):
    """Transcripts alone need no language model."""
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        talk = Talk(connection)
        created = await talk.wait("session.created")
        audio = {"input": {"transcription": {"model": "gpt-4o-transcribe", "language": "en"}}}
        await connection.session.update(session={"type": "transcription", "audio": audio})
        await talk.wait("session.updated")
        await talk.say(sound)
        heard = await talk.wait("conversation.item.input_audio_transcription.completed")
        await connection.response.create()
        refused = await talk.wait("error")
        deltas = "".join(e.delta for e in talk.all("conversation.item.input_audio_transcription.delta"))
        return {
            "types": talk.types(),
            "session": created.session.to_dict(),
            "heard": heard.to_dict(),
            "deltas": deltas,
            "refused": refused.error.to_dict(),
        }


async def secret(client, sound):
    """A key for a browser opens a session with what it was made for."""
    made = await client.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "instructions": "Of the key.", "output_modalities": ["text"]},
    )
    guest = AsyncOpenAI(base_url=str(client.base_url), api_key=made.value, max_retries=0)
    async with guest.realtime.connect(model="gpt-realtime") as connection:
        talk = Talk(connection)
        created = await talk.wait("session.created")
    try:
        await guest.models.list()
        elsewhere = None
    except Exception as error:
        elsewhere = type(error).__name__
    return {"made": made.to_dict(), "session": created.session.to_dict(), "elsewhere": elsewhere}


CASES = {name: globals()[name] for name in ["conversation", "text", "tools", "interrupt", "manual", "errors"]}


async def main():
    case, url, key, *rest = sys.argv[1:]
    sound = open(rest[0], "rb").read() if rest else b""
    client = AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    if case in ("transcription", "secret"):
        print(json.dumps(await globals()[case](client, sound)))
        return
    async with client.realtime.connect(model="gpt-realtime") as connection:
        talk = Talk(connection)
        await talk.wait("session.created")
        print(json.dumps(await CASES[case](talk, sound)))


asyncio.run(main())
