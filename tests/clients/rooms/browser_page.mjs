// The page that browser_client.mjs opens: livekit-client with the commands and events of python_client.py.

import { LocalAudioTrack, LocalVideoTrack, Room, RoomEvent, RpcError, Track, createLocalAudioTrack, createLocalVideoTrack } from 'livekit-client';

const say = (event, more = {}) => window.sayToTest(JSON.stringify({ event, ...more }));
const { url, token, options } = window.given;
const room = new Room({ adaptiveStream: false, dynacast: options.dynacast ?? false, singlePeerConnection: !options.two });
const SCENARIOS = {
  resume: 'signal-reconnect',
  'failing resume': 'disconnect-signal-on-resume-no-messages',
  full: 'leave-full-reconnect',
  migration: 'migration',
  'node failure': 'node-failure',
  'server leave': 'server-leave',
  speaker: 'speaker',
  'force tcp': 'force-tcp',
  'force tls': 'force-tls',
};
const context = new AudioContext();
const tones = new Map();
const analysers = new Map();
// Samples that were received since they were to be kept, by identity.
const kept = new Map();

const on = (event, name, describe = () => ({})) => room.on(event, (...given) => say(name, describe(...given)));
on(RoomEvent.ParticipantConnected, 'participant_connected', (p) => ({ identity: p.identity }));
on(RoomEvent.ParticipantDisconnected, 'participant_disconnected', (p) => ({ identity: p.identity }));
on(RoomEvent.TrackPublished, 'track_published', (t, p) => ({ sid: t.trackSid, identity: p.identity }));
on(RoomEvent.TrackUnpublished, 'track_unpublished', (t, p) => ({ sid: t.trackSid, identity: p.identity }));
on(RoomEvent.TrackMuted, 'track_muted', (t, p) => ({ sid: t.trackSid, identity: p.identity }));
on(RoomEvent.TrackUnmuted, 'track_unmuted', (t, p) => ({ sid: t.trackSid, identity: p.identity }));
on(RoomEvent.TrackUnsubscribed, 'track_unsubscribed', (_, t, p) => ({ sid: t.trackSid, identity: p.identity }));
on(RoomEvent.LocalTrackSubscribed, 'local_track_subscribed', (t) => ({ sid: t.trackSid }));
on(RoomEvent.ActiveSpeakersChanged, 'active_speakers_changed', (s) => ({ identities: s.map((p) => p.identity) }));
on(RoomEvent.ConnectionQualityChanged, 'connection_quality_changed', (quality, p) => ({ identity: p.identity, quality }));
on(RoomEvent.ParticipantMetadataChanged, 'participant_metadata_changed', (_, p) => ({ identity: p.identity, metadata: p.metadata }));
on(RoomEvent.ParticipantNameChanged, 'participant_name_changed', (name, p) => ({ identity: p.identity, name }));
on(RoomEvent.ParticipantAttributesChanged, 'participant_attributes_changed', (changed, p) => ({ identity: p.identity, changed }));
on(RoomEvent.RoomMetadataChanged, 'room_metadata_changed', (metadata) => ({ metadata }));
on(RoomEvent.ParticipantPermissionsChanged, 'participant_permissions_changed', (_, p) => ({ identity: p.identity, can_publish: p.permissions?.canPublish }));
on(RoomEvent.TrackSubscriptionPermissionChanged, 'subscription_permission', (t, status, p) => ({ sid: t.trackSid, status, identity: p.identity }));
on(RoomEvent.TrackSubscriptionFailed, 'subscription_failed', (sid, p) => ({ sid, identity: p.identity }));
on(RoomEvent.LocalTrackUnpublished, 'local_track_unpublished', (t) => ({ sid: t.trackSid }));
on(RoomEvent.Moved, 'moved', (name) => ({ room: name }));
on(RoomEvent.Reconnecting, 'reconnecting');
on(RoomEvent.SignalReconnecting, 'reconnecting');
on(RoomEvent.Reconnected, 'reconnected', () => ({ sid: room.localParticipant.sid }));
on(RoomEvent.Disconnected, 'disconnected', (reason) => ({ reason }));
on(RoomEvent.DataReceived, 'data', (payload, p, kind, topic) => ({
  text: new TextDecoder().decode(payload), identity: p?.identity ?? null, kind, topic,
}));
on(RoomEvent.TrackStreamStateChanged, 'stream_state', (t, state, p) => ({ sid: t.trackSid, state, identity: p.identity }));
room.on(RoomEvent.TrackSubscribed, (track, publication, participant) => {
  say('track_subscribed', { sid: publication.trackSid, identity: participant.identity, kind: track.kind });
  const element = track.attach();
  document.body.append(element);
  if (track.kind === Track.Kind.Video) return void watch(element, participant.identity);
  const analyser = context.createAnalyser();
  analyser.fftSize = 16384;
  const heard = context.createMediaStreamSource(new MediaStream([track.mediaStreamTrack]));
  heard.connect(analyser);
  analysers.set(participant.identity, analyser);
  const tap = context.createScriptProcessor(4096, 1, 1);
  tap.onaudioprocess = ({ inputBuffer }) => kept.get(participant.identity)?.push(inputBuffer.getChannelData(0).slice());
  heard.connect(tap).connect(context.destination);
});
room.registerTextStreamHandler('chat', async (reader, sender) => {
  say('text_stream', { text: await reader.readAll(), topic: reader.info.topic, identity: sender.identity });
});

const hex = async (bytes) => [...new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))].map((b) => b.toString(16).padStart(2, '0')).join('');
room.registerByteStreamHandler('file', async (reader, sender) => {
  const bytes = new Uint8Array(await new Blob(await reader.readAll()).arrayBuffer());
  say('byte_stream', { sha256: await hex(bytes), length: bytes.length, name: reader.info.name, identity: sender.identity });
});

function watch(video, identity) {
  let frames = 0;
  video.muted = true;
  const seen = () => {
    frames += 1;
    if (frames === 1 || frames === 10) {
      const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
      const picture = canvas.getContext('2d');
      picture.drawImage(video, 0, 0);
      const pixels = picture.getImageData(0, 0, canvas.width, canvas.height).data;
      let sum = 0;
      for (let at = 0; at < pixels.length; at += 4) sum += (pixels[at] + pixels[at + 1] + pixels[at + 2]) / 3;
      say('video', { identity, frames, width: canvas.width, height: canvas.height, luma: (sum * 4) / pixels.length });
    }
    video.requestVideoFrameCallback(seen);
  };
  video.requestVideoFrameCallback(seen);
  video.play();
}

function measure(identity) {
  const analyser = analysers.get(identity);
  if (!analyser) return { hertz: 0, rms: 0 };
  const levels = new Float32Array(analyser.frequencyBinCount);
  analyser.getFloatFrequencyData(levels);
  let best = 1;
  for (let bin = 1; bin < levels.length; bin++) if (levels[bin] > levels[best]) best = bin;
  return { hertz: levels[best] > -70 ? (best * context.sampleRate) / analyser.fftSize : 0, rms: levels[best] };
}

const sidOf = (sid) => room.localParticipant.getTrackPublications().find((p) => p.trackSid === sid);
const actions = {
  async publish({ hertz }) {
    await context.resume();
    const oscillator = new OscillatorNode(context, { frequency: hertz });
    const gain = new GainNode(context, { gain: 0.25 });
    const out = context.createMediaStreamDestination();
    oscillator.connect(gain).connect(out);
    oscillator.start();
    const track = new LocalAudioTrack(out.stream.getAudioTracks()[0], undefined, true);
    const publication = await room.localParticipant.publishTrack(track, { source: Track.Source.Microphone });
    tones.set(publication.trackSid, track);
    return { sid: publication.trackSid };
  },
  async publish_camera({ codec = 'vp8', simulcast = true }) {
    const track = await createLocalVideoTrack({ resolution: { width: 640, height: 480 } });
    const publication = await room.localParticipant.publishTrack(track, { videoCodec: codec.toLowerCase(), simulcast });
    return { sid: publication.trackSid };
  },
  async publish_video({ codec = 'vp8', simulcast = true }) {
    const canvas = Object.assign(document.createElement('canvas'), { width: 640, height: 480 });
    const picture = canvas.getContext('2d');
    let shade = 0;
    setInterval(() => {
      picture.fillStyle = 'rgb(200,200,200)';
      picture.fillRect(0, 0, 640, 480);
      shade = (shade + 8) % 640;
      picture.fillStyle = 'rgb(180,200,200)';
      picture.fillRect(shade, 0, 8, 480);
    }, 50);
    const track = new LocalVideoTrack(canvas.captureStream(20).getVideoTracks()[0], undefined, true);
    const publication = await room.localParticipant.publishTrack(track, { source: Track.Source.Camera, videoCodec: codec.toLowerCase(), simulcast });
    return { sid: publication.trackSid };
  },
  // A picture that moves everywhere, so that each layer has as much to say as it may.
  async publish_film({ codec = 'vp8', simulcast = true, width = 960, height = 540 }) {
    const canvas = Object.assign(document.createElement('canvas'), { width, height });
    const picture = canvas.getContext('2d');
    setInterval(() => {
      for (let box = 0; box < 6; box++) {
        picture.fillStyle = `hsl(${Math.random() * 360},80%,${30 + Math.random() * 40}%)`;
        picture.fillRect(Math.random() * width, Math.random() * height, width / 12, height / 12);
      }
    }, 50);
    const track = new LocalVideoTrack(canvas.captureStream(20).getVideoTracks()[0], undefined, true);
    const publication = await room.localParticipant.publishTrack(track, { source: Track.Source.Camera, videoCodec: codec, simulcast });
    return { sid: publication.trackSid };
  },
  // What is wanted of somebody's video.
  async ask({ identity, quality, width, height, fps, enabled }) {
    const publication = room.getParticipantByIdentity(identity).getTrackPublication(Track.Source.Camera);
    if (enabled !== undefined) publication.setEnabled(enabled);
    if (quality !== undefined) publication.setVideoQuality(quality);
    if (width) publication.setVideoDimensions({ width, height });
    if (fps) publication.setVideoFPS(fps);
  },
  // What has come of somebody so far.
  async received({ identity }) {
    const of = async (source, kind) => {
      const track = room.getParticipantByIdentity(identity)?.getTrackPublication(source)?.track;
      const stats = [...((await track?.receiver?.getStats()) ?? new Map()).values()];
      const stream = stats.find((one) => one.type === 'inbound-rtp' && one.kind === kind) ?? {};
      return { ...stream, mime: stats.find((one) => one.id === stream.codecId)?.mimeType };
    };
    const video = await of(Track.Source.Camera, 'video');
    const audio = await of(Track.Source.Microphone, 'audio');
    return {
      frames: video.framesDecoded ?? 0, height: video.frameHeight ?? 0, keyframes: video.keyFramesDecoded ?? 0, bytes: video.bytesReceived ?? 0,
      mime: video.mime, plis: video.pliCount ?? 0, freezes: video.freezeCount ?? 0, lost: video.packetsLost ?? 0,
      samples: audio.totalSamplesReceived ?? 0, concealed: audio.concealedSamples ?? 0,
    };
  },
  // What has been sent of each layer so far.
  async sent() {
    const track = room.localParticipant.getTrackPublication(Track.Source.Camera).track;
    const senders = [track.sender, ...[...track.simulcastCodecs.values()].map((one) => one.sender)].filter((one) => one);
    const layers = {};
    for (const sender of senders) {
      const stats = [...(await sender.getStats()).values()];
      for (const one of stats) {
        if (one.type !== 'outbound-rtp') continue;
        const mime = stats.find((other) => other.id === one.codecId)?.mimeType ?? '';
        layers[`${mime.split('/')[1] ?? ''} ${one.rid ?? ''}`.trim()] = { bytes: one.bytesSent, height: one.frameHeight ?? 0, frames: one.framesSent, mode: one.scalabilityMode };
      }
    }
    return { layers };
  },
  async unpublish({ sid }) { await room.localParticipant.unpublishTrack(tones.get(sid)); },
  async mute({ sid }) { await sidOf(sid).mute(); },
  async unmute({ sid }) { await sidOf(sid).unmute(); },
  async wait_subscribed() {},
  async subscribe({ sid, on: wanted }) {
    for (const p of room.remoteParticipants.values()) {
      for (const t of p.getTrackPublications()) if (t.trackSid === sid) t.setSubscribed(wanted);
    }
  },
  async measure({ identity }) { return measure(identity); },
  // What the browser takes for a microphone.
  async publish_microphone() {
    await context.resume();
    const track = await createLocalAudioTrack({ echoCancellation: false, noiseSuppression: false, autoGainControl: false });
    const publication = await room.localParticipant.publishTrack(track);
    return { sid: publication.trackSid };
  },
  async keep({ identity }) { kept.set(identity, []); },
  // 16-bit samples in Base64, and their rate.
  async taken({ identity }) {
    const chunks = kept.get(identity);
    kept.delete(identity);
    const samples = Int16Array.from(chunks.flatMap((chunk) => [...chunk]), (value) => Math.max(-1, Math.min(1, value)) * 32767);
    let text = '';
    for (const byte of new Uint8Array(samples.buffer)) text += String.fromCharCode(byte);
    return { sound: btoa(text), rate: context.sampleRate };
  },
  async send({ text, reliable = true, to = [], topic = '' }) {
    await room.localParticipant.publishData(new TextEncoder().encode(text), { reliable, destinationIdentities: to, topic });
  },
  async text({ text, to }) { await room.localParticipant.sendText(text, { topic: 'chat', destinationIdentities: to }); },
  async bytes({ length }) {
    const noise = new Uint8Array(length);
    for (let at = 0; at < length; at += 65536) crypto.getRandomValues(noise.subarray(at, Math.min(at + 65536, length)));
    const writer = await room.localParticipant.streamBytes({ name: 'noise', topic: 'file', totalSize: length });
    await writer.write(noise);
    await writer.close();
    return { sha256: await hex(noise) };
  },
  async fill({ length }) { await room.localParticipant.publishData(new Uint8Array(length), { reliable: true }); },
  async rpc({ to, payload, method = 'echo', timeout }) {
    try {
      const responseTimeout = timeout && timeout * 1000;
      return { payload: await room.localParticipant.performRpc({ destinationIdentity: to, method, payload, responseTimeout }) };
    } catch (error) {
      if (!(error instanceof RpcError)) throw error;
      return { code: error.code, message: error.message, details: error.data };
    }
  },
  async permit({ all, identities = [] }) {
    room.localParticipant.setTrackSubscriptionPermissions(all, identities.map((participantIdentity) => ({ participantIdentity, allowAll: true })));
  },
  async participants() {
    const tracks = (p) => p.getTrackPublications().map((t) => ({ sid: t.trackSid, muted: t.isMuted, mime: t.mimeType }));
    const of = (p) => ({ sid: p.sid, metadata: p.metadata, name: p.name, attributes: p.attributes, tracks: tracks(p) });
    return { participants: Object.fromEntries([...room.remoteParticipants.values()].map((p) => [p.identity, of(p)])) };
  },
  async metadata({ metadata }) { await room.localParticipant.setMetadata(metadata); },
  async name({ name }) { await room.localParticipant.setName(name); },
  async attributes({ attributes }) { await room.localParticipant.setAttributes(attributes); },
  async simulate({ scenario }) { await room.simulateScenario(SCENARIOS[scenario]); },
  // How media goes now.
  async way() {
    const connection = room.engine.pcManager?.publisher;
    // There is none while it begins anew.
    const stats = connection ? [...(await connection.getStats()).values()] : [];
    const byId = (id) => stats.find((one) => one.id === id);
    const transport = stats.find((one) => one.type === 'transport' && one.selectedCandidatePairId);
    const local = transport && byId(byId(transport.selectedCandidatePairId).localCandidateId);
    return { type: local?.candidateType, protocol: local?.protocol, relay: local?.relayProtocol };
  },
  async leave() { await room.disconnect(); },
};
window.obey = async (command) => {
  try {
    say('done', { id: command.id, ...(await actions[command.do](command)) });
  } catch (error) {
    say('failed', { id: command.id, error: String(error) });
  }
};

async function connect() {
  try {
    await context.resume();
    say('connecting');
    await room.connect(url, token, { autoSubscribe: options.auto_subscribe ?? true });
    room.registerRpcMethod('echo', async (call) => call.payload);
    room.registerRpcMethod('fail', async () => { throw new RpcError(101, 'it does not work', 'because'); });
    room.registerRpcMethod('sleep', () => new Promise(() => {}));
    say('connected', { sid: room.localParticipant.sid, identity: room.localParticipant.identity, room: room.name });
    for (const p of room.remoteParticipants.values()) say('present', { identity: p.identity });
  } catch (error) {
    say('refused', { error: String(error) });
  }
}
void connect();
