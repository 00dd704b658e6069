"""An agent that answers telephone calls: Vivavoce dials it (AGENT_URL=ws://127.0.0.1:8000/) for each call that comes in."""
import asyncio, hashlib, hmac, itertools, json, os, sys, time
from websockets import ConnectionClosed
from websockets.asyncio.server import serve
PORT, SECRET = int(os.getenv("PORT", "8000")), os.environ.get("AGENT_SECRET", "").encode() or sys.exit("AGENT_SECRET is needed")

async def reply(text):
    yield f"You said: {text}. "  # Call a language model here, and yield each sentence as soon as it is complete.
    yield "What else can I do for you?"

def check(connection, request):
    """Refuses whoever is not our server: the signature covers the time, so an old one does not help."""
    headers = request.headers
    stamp, event = headers.get("X-Service-Timestamp", "0"), headers.get("X-Service-Event-Id", "")
    expected = "v1=" + hmac.new(SECRET, f"v1:{stamp}:{event}:".encode(), hashlib.sha256).hexdigest()
    fresh = stamp.isdigit() and abs(time.time() - int(stamp)) < 300
    if not fresh or not hmac.compare_digest(headers.get("X-Service-Signature", ""), expected):
        return connection.respond(403, "this is not signed by our server\n")

async def answer(send, id, text):
    await send(type="clear")  # what is left of the answer before
    async for sentence in reply(text):  # All are one utterance; each is synthesised when it arrives.
        await send(type="speak", id=id, text=sentence, flush=False)
    await send(type="speak", id=id, text="", flush=True)

async def take(socket):
    call = json.loads(await socket.recv())
    print(f"call: from {call['from']} to {call['to']} in {call['room_name']}", flush=True)
    send = lambda **message: socket.send(json.dumps(message))
    # The room and the session's id are filled in by the server.
    await send(type="config", stt_config={"provider": "local"}, tts_config={"provider": "local", "model": ""},
               vad={"interruption": "pause"})
    answers = itertools.count(1)
    async for message in socket:
        match json.loads(message):
            case {"type": "ready"}: await send(type="speak", id="greeting", text="Hello, how can I help you?")
            case {"type": "stt_result", "is_speech_final": True, "turn_transcript": text}:
                print("heard:", text, flush=True)
                if "bye" in text.lower():
                    await send(type="speak", id="farewell", text="Goodbye.", allow_interruption=False)
                else:
                    await answer(send, f"answer-{next(answers)}", text)
            case {"type": "tts_playback_complete", "id": "farewell"}: await send(type="hangup")
            case {"type": "sip_call", "status": "hangup", "cause": cause}:
                print("over:", cause, flush=True)
                return  # The socket closes with 1000: the work is done.
            case {"type": "error", "code": code, "message": problem}:
                print(f"error: {code}: {problem}", flush=True)

async def handle(socket):
    try: await take(socket)
    except ConnectionClosed as closed: print(f"the server has gone: {closed}", flush=True)

async def main():
    async with serve(handle, "127.0.0.1", PORT, process_request=check) as server:
        print(f"waiting for calls at ws://127.0.0.1:{PORT}/", flush=True)
        await server.serve_forever()

try: asyncio.run(main())
except KeyboardInterrupt: pass
