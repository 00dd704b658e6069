// LiveKit's Node client as a test drives it, with the same commands and events as python_client.py.
// Arguments: URL, token and options, as there.

import { createHash, randomBytes } from 'node:crypto';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.env.NODE_CLIENTS ?? process.cwd()}/`);
const rtc = require('@livekit/rtc-node');
const RATE = 48000;
const SCENARIOS = {
  resume: 'SIMULATE_SIGNAL_RECONNECT',
  'failing resume': 'SIMULATE_DISCONNECT_SIGNAL_ON_RESUME',
  full: 'SIMULATE_FULL_RECONNECT',
  migration: 'SIMULATE_MIGRATION',
  'node failure': 'SIMULATE_NODE_FAILURE',
  'server leave': 'SIMULATE_SERVER_LEAVE',
  speaker: 'SIMULATE_SPEAKER',
};
const say = (event, more = {}) => console.log(JSON.stringify({ event, ...more }));

const [url, token, options = '{}'] = process.argv.slice(2);
const room = new rtc.Room();
const tones = new Map();
const heard = new Map();
const heardAt = new Map();
const streams = new Map();

const on = (name, event, describe = () => ({})) => room.on(rtc.RoomEvent[name], (...given) => say(event, describe(...given)));
on('ParticipantConnected', 'participant_connected', (p) => ({ identity: p.identity }));
on('ParticipantDisconnected', 'participant_disconnected', (p) => ({ identity: p.identity }));
on('TrackPublished', 'track_published', (t, p) => ({ sid: t.sid, identity: p.identity }));
on('TrackUnpublished', 'track_unpublished', (t, p) => ({ sid: t.sid, identity: p.identity }));
on('TrackMuted', 'track_muted', (t, p) => ({ sid: t.sid, identity: p.identity }));
on('TrackUnmuted', 'track_unmuted', (t, p) => ({ sid: t.sid, identity: p.identity }));
on('TrackUnsubscribed', 'track_unsubscribed', (_, t, p) => ({ sid: t.sid, identity: p.identity }));
on('LocalTrackSubscribed', 'local_track_subscribed');
on('ActiveSpeakersChanged', 'active_speakers_changed', (s) => ({ identities: s.map((p) => p.identity) }));
on('ConnectionQualityChanged', 'connection_quality_changed', (q, p) => ({ identity: p?.identity, quality: q }));
on('ParticipantMetadataChanged', 'participant_metadata_changed', (_, p) => ({ identity: p.identity, metadata: p.metadata }));
on('ParticipantNameChanged', 'participant_name_changed', (name, p) => ({ identity: p.identity, name: p.name }));
on('ParticipantAttributesChanged', 'participant_attributes_changed', (changed, p) => ({ identity: p.identity, changed }));
on('RoomMetadataChanged', 'room_metadata_changed', (metadata) => ({ metadata }));
on('LocalTrackUnpublished', 'local_track_unpublished', (t) => ({ sid: t?.sid }));
on('Reconnecting', 'reconnecting');
on('Reconnected', 'reconnected', () => ({ sid: room.localParticipant?.sid }));
on('Disconnected', 'disconnected', (reason) => ({ reason }));
on('DataReceived', 'data', (payload, p, kind, topic) => ({
  text: new TextDecoder().decode(payload), identity: p?.identity ?? null, kind, topic,
}));
room.on(rtc.RoomEvent.TrackSubscribed, async (track, publication, participant) => {
  say('track_subscribed', { sid: publication.sid, identity: participant.identity, kind: track.kind });
  if (track.kind !== rtc.TrackKind.KIND_AUDIO) return void watch(track, participant.identity);
  // A participant's newest track is the one that counts.
  const stream = new rtc.AudioStream(track, RATE, 1);
  streams.set(participant.identity, stream);
  for await (const frame of stream) {
    if (streams.get(participant.identity) !== stream) break;
    const before = heard.get(participant.identity) ?? [];
    heard.set(participant.identity, before.concat(Array.from(frame.data)).slice(-RATE / 4));
    heardAt.set(participant.identity, Date.now());
  }
});
room.registerTextStreamHandler('chat', async (reader, sender) => {
  say('text_stream', { text: await reader.readAll(), topic: reader.info.topic, identity: sender.identity });
});

room.registerByteStreamHandler('file', async (reader, sender) => {
  const hash = createHash('sha256');
  let length = 0;
  for await (const chunk of reader) {
    hash.update(chunk);
    length += chunk.length;
  }
  say('byte_stream', { sha256: hash.digest('hex'), length, name: reader.info.name, identity: sender.identity });
});

async function watch(track, identity) {
  let frames = 0;
  for await (const { frame } of new rtc.VideoStream(track)) {
    frames += 1;
    if (frames !== 1 && frames !== 10) continue;
    const luma = frame.convert(rtc.VideoBufferType.I420).data.subarray(0, frame.width * frame.height);
    const mean = luma.reduce((sum, y) => sum + y, 0) / luma.length;
    say('video', { identity, frames, width: frame.width, height: frame.height, luma: mean });
  }
}

async function play(tone) {
  const samples = RATE / 50;
  let at = 0;
  while (tone.running) {
    const data = new Int16Array(samples);
    for (let i = 0; i < samples; i++) data[i] = Math.sin((2 * Math.PI * tone.hertz * (at + i)) / RATE) * 8000;
    at += samples;
    await tone.source.captureFrame(new rtc.AudioFrame(data, RATE, 1, samples));
  }
}

// The loudest frequency, by Goertzel's algorithm over the candidates that tests use.
function measure(identity) {
  const samples = heard.get(identity) ?? [];
  if (samples.length < RATE / 4 || Date.now() - heardAt.get(identity) > 250) return { hertz: 0, rms: 0 };
  const rms = Math.sqrt(samples.reduce((sum, s) => sum + s * s, 0) / samples.length);
  let best = { hertz: 0, power: 0 };
  for (let hertz = 100; hertz <= 2000; hertz += 4) {
    const k = 2 * Math.cos((2 * Math.PI * hertz) / RATE);
    let [a, b] = [0, 0];
    for (const s of samples) [a, b] = [s + k * a - b, a];
    const power = a * a + b * b - k * a * b;
    if (power > best.power) best = { hertz, power };
  }
  return { hertz: rms > 50 ? best.hertz : 0, rms };
}

const actions = {
  async publish({ hertz }) {
    const source = new rtc.AudioSource(RATE, 1);
    const track = rtc.LocalAudioTrack.createAudioTrack('tone', source);
    const publication = await room.localParticipant.publishTrack(track, new rtc.TrackPublishOptions({ source: rtc.TrackSource.SOURCE_MICROPHONE }));
    const tone = { hertz, source, track, running: true };
    tones.set(publication.sid, tone);
    play(tone);
    return { sid: publication.sid };
  },
  async publish_video({ codec = 'VP8', luma = 200 }) {
    const [width, height] = [320, 240];
    const source = new rtc.VideoSource(width, height);
    const track = rtc.LocalVideoTrack.createVideoTrack('picture', source);
    const options = new rtc.TrackPublishOptions({ source: rtc.TrackSource.SOURCE_CAMERA, videoCodec: rtc.VideoCodec[codec] });
    const publication = await room.localParticipant.publishTrack(track, options);
    const picture = new Uint8Array((width * height * 3) / 2).fill(128).fill(luma, 0, width * height);
    setInterval(() => source.captureFrame(new rtc.VideoFrame(picture, width, height, rtc.VideoBufferType.I420)), 50);
    return { sid: publication.sid };
  },
  async unpublish({ sid }) {
    tones.get(sid).running = false;
    await room.localParticipant.unpublishTrack(sid);
  },
  async mute({ sid }) { tones.get(sid).track.mute?.(); },
  async unmute({ sid }) { tones.get(sid).track.unmute?.(); },
  async subscribe({ sid, on: wanted }) {
    for (const p of room.remoteParticipants.values()) p.trackPublications.get(sid)?.setSubscribed(wanted);
  },
  async measure({ identity }) { return measure(identity); },
  async send({ text, reliable = true, to = [], topic = '' }) {
    await room.localParticipant.publishData(new TextEncoder().encode(text), { reliable, destination_identities: to, topic });
  },
  async text({ text, to }) { await room.localParticipant.sendText(text, { topic: 'chat', destinationIdentities: to }); },
  async bytes({ length }) {
    const noise = randomBytes(length);
    const writer = await room.localParticipant.streamBytes({ name: 'noise', topic: 'file', totalSize: length });
    await writer.write(noise);
    await writer.close();
    return { sha256: createHash('sha256').update(noise).digest('hex') };
  },
  async fill({ length }) { await room.localParticipant.publishData(new Uint8Array(length), { reliable: true }); },
  async rpc({ to, payload, method = 'echo', timeout }) {
    try {
      const responseTimeout = timeout && timeout * 1000;
      return { payload: await room.localParticipant.performRpc({ destinationIdentity: to, method, payload, responseTimeout }) };
    } catch (error) {
      if (!(error instanceof rtc.RpcError)) throw error;
      return { code: error.code, message: error.message, details: error.data };
    }
  },
  async simulate({ scenario }) { await room.simulateScenario(rtc.SimulateScenarioKind[SCENARIOS[scenario]]); },
  async participants() {
    const tracks = (p) => [...p.trackPublications.values()].map((t) => ({ sid: t.sid, muted: t.muted, mime: t.mimeType }));
    const of = (p) => ({ sid: p.sid, metadata: p.metadata, name: p.name, attributes: p.attributes, tracks: tracks(p) });
    return { participants: Object.fromEntries([...room.remoteParticipants.values()].map((p) => [p.identity, of(p)])) };
  },
  async metadata({ metadata }) { await room.localParticipant.updateMetadata(metadata); },
  async name({ name }) { await room.localParticipant.updateName(name); },
  async attributes({ attributes }) { await room.localParticipant.setAttributes(attributes); },
  async leave() { await room.disconnect(); },
};

say('connecting');
try {
  const { auto_subscribe: autoSubscribe = true, two = false } = JSON.parse(options);
  await room.connect(url, token, { autoSubscribe, dynacast: false, ...(two && { singlePeerConnection: false }) });
} catch (error) {
  say('refused', { error: String(error) });
  process.exit(0);
}
room.localParticipant.registerRpcMethod('echo', async (call) => call.payload);
room.localParticipant.registerRpcMethod('fail', async () => { throw new rtc.RpcError(101, 'it does not work', 'because'); });
room.localParticipant.registerRpcMethod('sleep', () => new Promise(() => {}));
say('connected', { sid: room.localParticipant.sid, identity: room.localParticipant.identity, room: room.name });
for (const p of room.remoteParticipants.values()) say('present', { identity: p.identity });
const lines = createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const command = JSON.parse(line);
  try {
    say('done', { id: command.id, ...(await actions[command.do](command)) });
  } catch (error) {
    say('failed', { id: command.id, error: String(error) });
  }
});
lines.on('close', async () => { await room.disconnect(); await rtc.dispose(); process.exit(0); });
