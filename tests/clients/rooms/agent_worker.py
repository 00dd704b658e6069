"""A worker of LiveKit's agents framework for Python as a test drives it: commands as JSON lines in, events as JSON lines out.

Arguments: URL, token (not used) and options: `key`, `secret`, `agent_name`, `type` (room, publisher), `load`, `processes`
(a process per job instead of a thread), `refuse` (declines every job), `hidden`.
"""

import asyncio
import json
import os
import sys

from livekit.agents import AgentServer, JobContext, JobExecutorType, JobRequest, WorkerPermissions, WorkerType

OPTIONS = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
LOAD = {"now": OPTIONS.get("load", 0.0)}


def say(event, **more):
    # One write: several threads and processes write lines.
    os.write(1, (json.dumps({"event": event, **more}) + "\n").encode())


async def entrypoint(ctx: JobContext):
    ended = asyncio.Event()
    ctx.room.on("data_received", lambda packet: ended.set() if packet.data == b"leave" else None)
    await ctx.connect()
    me = ctx.room.local_participant
    publisher = ctx.job.participant.identity if ctx.job.HasField("participant") else None
    say("job", job=ctx.job.id, room=ctx.room.name, metadata=ctx.job.metadata, identity=me.identity, participant=publisher, agent=ctx.job.agent_name)
    await me.set_attributes({"lk.agent.state": "listening"})
    ctx.add_shutdown_callback(lambda reason: ended_with(ctx, reason))
    await ended.wait()
    ctx.shutdown("asked to")


async def ended_with(ctx, reason):
    say("over", job=ctx.job.id, reason=str(reason))


async def on_request(request: JobRequest):
    say("asked", job=request.id, room=request.room.name)
    if OPTIONS.get("refuse"):
        # By default nobody else is asked either.
        await request.reject(terminate=OPTIONS["refuse"] == "for all")
    else:
        await request.accept(name="Agent", attributes={"flavour": "salt"})


async def obey(server, line):
    command = json.loads(line)
    match command["do"]:
        case "load":
            LOAD["now"] = command["load"]
        case "drain":
            await server.drain(timeout=60)
    say("done", id=command.get("id"))


async def main():
    server = AgentServer(
        ws_url=sys.argv[1],
        api_key=OPTIONS.get("key"),
        api_secret=OPTIONS.get("secret"),
        host="127.0.0.1",
        port=0,
        job_executor_type=JobExecutorType.PROCESS if OPTIONS.get("processes") else JobExecutorType.THREAD,
        load_fnc=lambda: LOAD["now"],
        load_threshold=0.7,
        num_idle_processes=OPTIONS.get("idle", 0),
        permissions=WorkerPermissions(hidden=OPTIONS.get("hidden", False)),
    )
    kind = WorkerType.PUBLISHER if OPTIONS.get("type") == "publisher" else WorkerType.ROOM
    server.rtc_session(entrypoint, agent_name=OPTIONS.get("agent_name", ""), type=kind, on_request=on_request)
    server.on("worker_registered", lambda worker, info: say("connected", sid=worker, protocol=info.agent_protocol))
    running = asyncio.create_task(server.run(devmode=False))
    reader = asyncio.StreamReader()
    await asyncio.get_event_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()
    while line := await reader.readline():
        task = asyncio.create_task(obey(server, line))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await server.aclose()
    running.cancel()


if __name__ == "__main__":
    asyncio.run(main())
