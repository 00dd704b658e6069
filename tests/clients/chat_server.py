"""A language model for tests: a chat-completions endpoint that streams, and answers by what it was told last.

chat_server.py [CALLS]    prints its port, then serves until it is ended
GET /requests             every request so far, as JSON

It says "You said: ..." to everything but: the words of CALLS (JSON), for which it calls the function that stands there, where
it was given that; "weather", for which it calls the one that it was given; what a function returned, which it repeats;
"story", which is long; "nothing", which is empty; "wait", to which it says its first word and then nothing; "fail" and
"break", which are errors.
"""

import asyncio
import json
import sys

REQUESTS = []
CALLS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
STORY = " ".join(f"This is sentence number {n} of the story." for n in "one two three four five six seven eight nine ten".split())


def chunk(delta, finish=None):
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def words(text):
    pieces = text.split(" ")
    for at, piece in enumerate(pieces):
        yield chunk({"content": piece if at == len(pieces) - 1 else piece + " "})


def said(message):
    content = message.get("content") or ""
    if isinstance(content, list):
        content = " ".join(part.get("text", "image") for part in content)
    return content


def answer(request):
    last = request["messages"][-1]
    text = said(last)
    given = [tool["function"]["name"] for tool in request.get("tools") or []]
    wanted = [name for word, name in CALLS.items() if word in text and name in given]
    if last["role"] == "user" and wanted:
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": wanted[0], "arguments": "{}"}}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
        yield chunk({}, "tool_calls")
        return
    if last["role"] == "tool":
        yield from words(f"The function says: {text}.")
    elif "weather" in text.lower() and request.get("tools"):
        name = request["tools"][0]["function"]["name"]
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
        for piece in ['{"city": ', '"Bonn"}']:
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield chunk({}, "tool_calls")
        return
    elif "story" in text.lower():
        yield from words(STORY)
    elif "nothing" not in text.lower():
        yield from words(f"You said: {text}")
    yield chunk({}, "stop")


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.decode().split("\r\n"):
                name, _, value = line.partition(":")
                if name.lower() == "content-length":
                    length = int(value)
            body = await reader.readexactly(length)
            if head.startswith(b"GET"):
                text = json.dumps(REQUESTS).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
                await writer.drain()
                continue
            request = json.loads(body)
            request["authorization"] = [line for line in head.decode().split("\r\n") if line.lower().startswith("authorization")]
            REQUESTS.append(request)
            last = said(request["messages"][-1]).lower() if request["messages"] else ""
            if "fail" in last:
                text = b'{"error": {"message": "this model cannot", "type": "invalid_request_error"}}'
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
                await writer.drain()
                continue
            limits = b"x-ratelimit-limit-requests: 100\r\nx-ratelimit-remaining-requests: 99\r\nx-ratelimit-reset-requests: 1s\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + limits + b"transfer-encoding: chunked\r\n\r\n")

            async def event(data):
                line = f"data: {data}\n\n".encode()
                writer.write(b"%x\r\n" % len(line) + line + b"\r\n")
                await writer.drain()

            for number, piece in enumerate(answer(request)):
                await event(json.dumps(piece))
                if number == 1 and "break" in last:
                    writer.close()
                    return
                if number == 1 and "wait" in last:
                    await asyncio.sleep(3600)
                await asyncio.sleep(0.005)
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            await event(json.dumps({"id": "chatcmpl-1", "choices": [], "usage": usage}))
            await event("[DONE]")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(0)
