"""A voice agent: hears a WAV file or a microphone, answers every turn, and writes what it says to a WAV file."""
import asyncio, itertools, json, os, sys, time, wave
from websockets import ConnectionClosed, InvalidHandshake, connect
URL, TOKEN = os.getenv("VIVAVOCE_URL", "ws://127.0.0.1:3001/ws"), os.getenv("VIVAVOCE_TOKEN")
SOURCE, OUT = (sys.argv[1:] + ["answer.wav"])[:2] if sys.argv[1:] else sys.exit("agent.py SOUND.wav|- [ANSWER.wav]")
RATE, SPEECH = 24_000, bytearray()  # what the agent has said: 16 bits, mono

async def reply(text):
    yield f"You said: {text}. "  # Call a language model here, and yield each sentence as soon as it is complete.
    yield "What else can I do for you?"
async def answer(send, id, text):
    await send(type="clear")  # what is left of the answer before
    async for sentence in reply(text):  # All are one utterance; each is synthesised when it arrives.
        await send(type="speak", id=id, text=sentence, flush=False)
    await send(type="speak", id=id, text="", flush=True)

async def listen(socket, read, frame, answers):
    due, silent = time.monotonic(), 0
    while silent < 150 or answers:  # After the input: 3 s of silence, which end the last turn.
        sound = await asyncio.to_thread(read, frame)
        await socket.send(sound or bytes(2 * frame))
        due, silent = due + 0.02, silent + (not sound)
        for task in answers.values(): task.done() and task.result()  # An error of reply() ends the session.
        await asyncio.sleep(due - time.monotonic())  # 20 ms of sound every 20 ms, as from a microphone
    await socket.close()

async def talk(socket, send, answers):
    starts, numbers, decision = {}, itertools.count(1), None
    async for message in socket:
        match message if isinstance(message, bytes) else json.loads(message):
            case bytes(sound): SPEECH.extend(sound)
            case {"type": "stt_result", "is_speech_final": True, "turn_transcript": text}:
                print("heard:", text)
                if answers and decision == "resumed": continue  # It was "uh huh": the answer goes on.
                while answers: answers.popitem()[1].cancel()
                answers[id] = asyncio.create_task(answer(send, id := f"answer-{next(numbers)}", text))
            case {"type": "interruption", "state": decision, "reason": reason}: print(f"{decision}: {reason}")
            case {"type": "tts_started", "id": id}: starts[id] = len(SPEECH)
            case {"type": "tts_playback_complete", "id": id}: answers.pop(id, None)
            case {"type": "tts_interrupted", "id": id, "played_ms": played, "heard_text": heard}:
                print("interrupted after:", heard)
                if id in answers: answers.pop(id).cancel()
                del SPEECH[starts.get(id, len(SPEECH)) + played * RATE // 1000 * 2:]  # The rest was not heard.
            case {"type": "error", "code": code, "message": problem}: print(f"error: {code}: {problem}")

async def main(read=lambda frames: sys.stdin.buffer.read(2 * frames), rate=16_000):
    async with connect(URL, additional_headers={"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}) as socket:
        send, answers = lambda **message: socket.send(json.dumps(message)), {}
        await send(type="config", stt_config={"provider": "local", "sample_rate": rate},
                   tts_config={"provider": "local", "model": "", "sample_rate": RATE}, vad={"interruption": "pause"})
        if (first := json.loads(await socket.recv()))["type"] == "error": sys.exit(f"config refused: {first['message']}")
        await asyncio.gather(listen(socket, read, rate // 50, answers), talk(socket, send, answers))
wav = None if SOURCE == "-" else wave.open(SOURCE)
if wav and wav.getparams()[:2] != (1, 2): sys.exit(f"{SOURCE}: one channel of 16 bits is needed")
try: asyncio.run(main(wav.readframes, wav.getframerate()) if wav else main())
except KeyboardInterrupt: pass
except (OSError, InvalidHandshake, ConnectionClosed) as error: sys.exit(f"{URL}: {error} (see ./start, VIVAVOCE_TOKEN)")
with wave.open(OUT, "wb") as file:
    file.setparams((1, 2, RATE, 0, "NONE", ""))
    file.writeframes(SPEECH)
