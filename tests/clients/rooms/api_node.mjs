// LiveKit's server API client for Node as a test drives it, with the same calls as api_python.py.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.env.NODE_CLIENTS ?? process.cwd()}/`);
const sdk = require('livekit-server-sdk');
const say = (event, more = {}) => console.log(JSON.stringify({ event, ...more }, (_, value) => (typeof value === 'bigint' ? String(value) : value)));

const [url, , options] = process.argv.slice(2);
const { key, secret, token } = JSON.parse(options);
const given = [url.replace(/^ws/, 'http'), key, secret, { token }];
const rooms = new sdk.RoomServiceClient(...given);
const egress = new sdk.EgressClient(...given);
const sip = new sdk.SipClient(...given);
const permission = (canPublish) => ({ canPublish, canSubscribe: true, canPublishData: true });

const calls = {
  create: ({ room, metadata, empty_timeout: emptyTimeout }) => rooms.createRoom({ name: room, metadata, emptyTimeout }),
  list: async ({ names }) => ({ rooms: await rooms.listRooms(names) }),
  delete: ({ room }) => rooms.deleteRoom(room),
  'room metadata': ({ room, metadata }) => rooms.updateRoomMetadata(room, metadata),
  participants: async ({ room }) => ({ participants: await rooms.listParticipants(room) }),
  participant: ({ room, identity }) => rooms.getParticipant(room, identity),
  remove: ({ room, identity }) => rooms.removeParticipant(room, identity),
  forward: ({ room, identity, to }) => rooms.forwardParticipant(room, identity, to),
  mute: async ({ room, identity, sid, muted }) => ({ track: await rooms.mutePublishedTrack(room, identity, sid, muted) }),
  update: ({ room, identity, metadata, attributes, can_publish: can }) => rooms.updateParticipant(room, identity, {
    metadata, attributes, ...(can !== undefined && { permission: permission(can) }),
  }),
  subscribe: ({ room, identity, sid, on }) => rooms.updateSubscriptions(room, identity, [sid], on),
  send: ({ room, text, to }) => rooms.sendData(room, new TextEncoder().encode(text), sdk.DataPacket_Kind.RELIABLE, { destinationIdentities: to, topic: 't' }),
  egress: () => egress.listEgress({}),
  layout: () => egress.updateLayout('EG_x', 'grid'),
  'make trunk': ({ name, address }) => sip.createSipOutboundTrunk(name, address, ['+14155550100'], { authUsername: 'ann', authPassword: 'secret' }),
  'rename trunk': ({ sid, name }) => sip.updateSipOutboundTrunkFields(sid, { name }),
  'drop trunk': ({ sid }) => sip.deleteSipTrunk(sid),
  trunks: async () => ({ items: await sip.listSipOutboundTrunk() }),
  'make rule': ({ name }) => sip.createSipDispatchRule({ type: 'individual', roomPrefix: name }, { name }),
  rules: async () => ({ items: await sip.listSipDispatchRule() }),
  'drop rule': ({ sid }) => sip.deleteSipDispatchRule(sid),
  dial: ({ sid, to, room, identity, wait }) => sip.createSipParticipant(sid, to, room, { participantIdentity: identity, waitUntilAnswered: wait }),
  transfer: ({ room, identity, to }) => sip.transferSipParticipant(room, identity, to),
};

say('connected', { sid: '' });
createInterface({ input: process.stdin }).on('line', async (line) => {
  const command = JSON.parse(line);
  try {
    say('done', { id: command.id, answer: (await calls[command.do](command)) ?? {} });
  } catch (error) {
    if (error.code && error.status) say('done', { id: command.id, code: error.code, status: error.status });
    else say('failed', { id: command.id, error: String(error) });
  }
});
