// What tests/clients/rooms/browser_client.mjs opens for run.py: Chromium with LiveKit's client, which tells how loud each
// 10 ms are that it would play, and when.

import { Room, RoomEvent } from 'livekit-client';

const say = (event, more = {}) => window.sayToTest(JSON.stringify({ event, ...more }));
const { url, token } = window.given;
const room = new Room();

async function listen(track) {
  const frames = new MediaStreamTrackProcessor({ track }).readable.getReader();
  for (;;) {
    const { value, done } = await frames.read();
    if (done) return;
    const samples = new Float32Array(value.numberOfFrames);
    value.copyTo(samples, { planeIndex: 0, format: 'f32-planar' });
    const seconds = value.numberOfFrames / value.sampleRate;
    value.close();
    const rms = Math.sqrt(samples.reduce((sum, one) => sum + one * one, 0) / samples.length) * 32768;
    say('heard', { at: (performance.timeOrigin + performance.now()) / 1000, seconds, rms });
  }
}

room.on(RoomEvent.TrackSubscribed, (track) => {
  document.body.append(track.attach());
  say('listens');
  void listen(track.mediaStreamTrack);
});
void room.connect(url, token);
