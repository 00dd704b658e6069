"""LiveKit's server API client for Python as a test drives it: calls as JSON lines in, what they bring as JSON lines out.

Arguments: URL, token (not used) and options: `key` and `secret`, or a `token` of its own.
"""

import asyncio
import json
import sys

from google.protobuf.json_format import MessageToDict
from livekit import api


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def call(client, command):
    rooms = client.room
    room, identity = command.get("room", ""), command.get("identity", "")
    match command["do"]:
        case "create":
            return await rooms.create_room(api.CreateRoomRequest(name=room, metadata=command.get("metadata", ""), empty_timeout=command.get("empty_timeout", 0)))
        case "list":
            return await rooms.list_rooms(api.ListRoomsRequest(names=command["names"]))
        case "delete":
            return await rooms.delete_room(api.DeleteRoomRequest(room=room))
        case "room metadata":
            return await rooms.update_room_metadata(api.UpdateRoomMetadataRequest(room=room, metadata=command["metadata"]))
        case "participants":
            return await rooms.list_participants(api.ListParticipantsRequest(room=room))
        case "participant":
            return await rooms.get_participant(api.RoomParticipantIdentity(room=room, identity=identity))
        case "remove":
            return await rooms.remove_participant(api.RoomParticipantIdentity(room=room, identity=identity))
        case "forward":
            return await rooms.forward_participant(api.ForwardParticipantRequest(room=room, identity=identity, destination_room=command["to"]))
        case "mute":
            return await rooms.mute_published_track(api.MuteRoomTrackRequest(room=room, identity=identity, track_sid=command["sid"], muted=command["muted"]))
        case "update":
            permission = None
            if "can_publish" in command:
                permission = api.ParticipantPermission(can_publish=command["can_publish"], can_subscribe=True, can_publish_data=True)
            request = api.UpdateParticipantRequest(room=room, identity=identity, metadata=command.get("metadata", ""), attributes=command.get("attributes", {}), permission=permission)
            return await rooms.update_participant(request)
        case "subscribe":
            return await rooms.update_subscriptions(api.UpdateSubscriptionsRequest(room=room, identity=identity, track_sids=[command["sid"]], subscribe=command["on"]))
        case "send":
            return await rooms.send_data(api.SendDataRequest(room=room, data=command["text"].encode(), kind=api.DataPacket.Kind.RELIABLE, topic="t", destination_identities=command["to"]))
        case "egress":
            return await client.egress.list_egress(api.ListEgressRequest())
        case "layout":
            return await client.egress.update_layout(api.UpdateLayoutRequest(egress_id="EG_x", layout="grid"))
        case "record room":
            output = api.EncodedFileOutput(filepath=command["filepath"])
            return await client.egress.start_room_composite_egress(api.RoomCompositeEgressRequest(room_name=room, audio_only=True, file_outputs=[output]))
        case "record participant":
            output = api.EncodedFileOutput(file_type=api.EncodedFileType.OGG, filepath=command["filepath"])
            return await client.egress.start_participant_egress(api.ParticipantEgressRequest(room_name=room, identity=identity, file_outputs=[output]))
        case "record track":
            output = api.DirectFileOutput(filepath=command["filepath"])
            return await client.egress.start_track_egress(api.TrackEgressRequest(room_name=room, track_id=command["sid"], file=output))
        case "stop egress":
            return await client.egress.stop_egress(api.StopEgressRequest(egress_id=command["sid"]))
        case "make trunk":
            trunk = api.SIPOutboundTrunkInfo(name=command["name"], address=command["address"], numbers=["+14155550100"], auth_username="ann", auth_password="secret")
            return await client.sip.create_outbound_trunk(api.CreateSIPOutboundTrunkRequest(trunk=trunk))
        case "rename trunk":
            return await client.sip.update_outbound_trunk_fields(command["sid"], name=command["name"])
        case "drop trunk":
            return await client.sip.delete_trunk(api.DeleteSIPTrunkRequest(sip_trunk_id=command["sid"]))
        case "trunks":
            return await client.sip.list_outbound_trunk(api.ListSIPOutboundTrunkRequest())
        case "make rule":
            rule = api.SIPDispatchRule(dispatch_rule_individual=api.SIPDispatchRuleIndividual(room_prefix=command["name"]))
            return await client.sip.create_dispatch_rule(api.CreateSIPDispatchRuleRequest(dispatch_rule=api.SIPDispatchRuleInfo(rule=rule, name=command["name"])))
        case "rules":
            return await client.sip.list_dispatch_rule(api.ListSIPDispatchRuleRequest())
        case "drop rule":
            return await client.sip.delete_dispatch_rule(api.DeleteSIPDispatchRuleRequest(sip_dispatch_rule_id=command["sid"]))
        case "dial":
            request = api.CreateSIPParticipantRequest(sip_trunk_id=command["sid"], sip_call_to=command["to"], room_name=room, participant_identity=identity, wait_until_answered=command["wait"])
            return await client.sip.create_sip_participant(request)
        case "transfer":
            return await client.sip.transfer_sip_participant(api.TransferSIPParticipantRequest(room_name=room, participant_identity=identity, transfer_to=command["to"]))


async def main():
    options = json.loads(sys.argv[3])
    client = api.LiveKitAPI(sys.argv[1], options.get("key"), options.get("secret"), token=options.get("token"))
    say("connected", sid="")
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_event_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        try:
            answer = await call(client, command)
            say("done", id=command["id"], answer=MessageToDict(answer) if answer is not None else {})
        except api.TwirpError as error:
            say("done", id=command["id"], code=error.code, status=error.status)
        except Exception as error:  # the test decides what an error means
            say("failed", id=command["id"], error=f"{type(error).__name__}: {error}")
    await client.aclose()


asyncio.run(main())
