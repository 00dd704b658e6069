"""A support agent of LiveKit's agents framework that hands its caller over to a person by the framework's own warm transfer,
as a test drives it: events as JSON lines out.

Arguments: URL, token (not used) and options: `key`, `secret`, `trunk` (that calls the person), `number` (of the person), `model`
(the address of the language model). It asks its model for the transfer as soon as a caller is there; what the person says, it
hears and answers by the plugin of this server.
"""

import asyncio
import json
import os
import sys

URL, OPTIONS = sys.argv[1], json.loads(sys.argv[3])
# The warm transfer joins another room with a token of its own.
os.environ |= {
    "LIVEKIT_URL": URL,
    "LIVEKIT_API_KEY": OPTIONS["key"],
    "LIVEKIT_API_SECRET": OPTIONS["secret"],
    "VIVAVOCE_URL": URL,
}

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, JobExecutorType, ToolError, function_tool, room_io  # noqa: E402
from livekit.agents.beta.workflows import WarmTransferTask  # noqa: E402
from livekit.plugins import openai, vivavoce  # noqa: E402


def say(event, **more):
    # One write: several threads write lines.
    os.write(1, (json.dumps({"event": event, **more}) + "\n").encode())


class Support(Agent):
    def __init__(self):
        super().__init__(instructions="You are a support agent.")

    async def on_enter(self):
        self.session.generate_reply(user_input="May I talk to a person?")

    @function_tool
    async def transfer_to_person(self) -> None:
        """Called when the caller wants to talk to a person."""
        say("asked_for_a_person")
        try:
            handed_over = await WarmTransferTask(
                sip_call_to=OPTIONS["number"],
                sip_trunk_id=OPTIONS["trunk"],
                ringing_timeout=20,
                chat_ctx=self.chat_ctx,
            )
        except ToolError as error:
            say("not_transferred", error=str(error.message))
            raise
        say("transferred", identity=handed_over.human_agent_identity)
        self.session.shutdown()


async def entrypoint(ctx: JobContext):
    say("job", room=ctx.room.name)
    session = AgentSession(
        stt=vivavoce.STT(provider="deepgram"),
        llm=openai.LLM(model="small", base_url=OPTIONS["model"], api_key="any"),
        tts=vivavoce.TTS(provider="elevenlabs"),
        vad=None,
        turn_handling={"turn_detection": "stt"},
    )
    ctx.add_shutdown_callback(over)
    await session.start(agent=Support(), room=ctx.room, room_options=room_io.RoomOptions(delete_room_on_close=False))


async def over(reason):
    say("over", reason=str(reason))


async def main():
    server = AgentServer(
        ws_url=URL,
        host="127.0.0.1",
        port=0,
        job_executor_type=JobExecutorType.THREAD,
        load_fnc=lambda: 0.0,
        num_idle_processes=0,
    )
    server.rtc_session(entrypoint, agent_name="support")
    server.on("worker_registered", lambda worker, info: say("connected", sid=worker))
    running = asyncio.create_task(server.run(devmode=False))
    reader = asyncio.StreamReader()
    await asyncio.get_event_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    # Until nobody is there to read of it.
    await reader.read()
    await server.aclose()
    running.cancel()


if __name__ == "__main__":
    asyncio.run(main())
