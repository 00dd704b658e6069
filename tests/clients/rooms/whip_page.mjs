// A page without any SDK: publishes a tone by WHIP or plays what it hears by WHEP, with the browser's own RTCPeerConnection. It
// takes commands and tells events as browser_page.mjs does. Options: `hertz` to publish, or `listen`, the path to play from.

const say = (event, more = {}) => window.sayToTest(JSON.stringify({ event, ...more }));
const { url, token, options } = window.given;
const context = new AudioContext();
const connection = new RTCPeerConnection();
const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/sdp' };
let resource;
let analyser;

connection.ontrack = ({ track }) => {
  const stream = new MediaStream([track]);
  const element = document.createElement('audio');
  Object.assign(element, { srcObject: stream, muted: true });
  element.play();
  analyser = context.createAnalyser();
  analyser.fftSize = 16384;
  context.createMediaStreamSource(stream).connect(analyser);
};
connection.onconnectionstatechange = () => say('state', { state: connection.connectionState });

async function begin() {
  if (options.hertz) {
    const tone = context.createOscillator();
    const gain = new GainNode(context, { gain: 0.25 });
    const out = context.createMediaStreamDestination();
    tone.frequency.value = options.hertz;
    tone.connect(gain).connect(out);
    tone.start();
    connection.addTransceiver(out.stream.getAudioTracks()[0], { direction: 'sendonly', streams: [out.stream] });
  } else {
    connection.addTransceiver('audio', { direction: 'recvonly' });
  }
  await connection.setLocalDescription(await connection.createOffer());
  const answer = await fetch(url + (options.listen ?? '/whip'), { method: 'POST', headers, body: connection.localDescription.sdp });
  const body = await answer.text();
  if (answer.status !== 201) return say('refused', { status: answer.status, body });
  resource = new URL(answer.headers.get('location'), url);
  await connection.setRemoteDescription({ type: 'answer', sdp: body });
  say('connected', { sid: resource.pathname, type: answer.headers.get('content-type') });
}

function measure() {
  if (!analyser) return { hertz: 0 };
  const bins = new Float32Array(analyser.frequencyBinCount);
  analyser.getFloatFrequencyData(bins);
  const width = context.sampleRate / analyser.fftSize;
  const at = bins.indexOf(Math.max(...bins));
  const level = (hertz) => bins[Math.round(hertz / width)];
  return { hertz: bins[at] > -70 ? at * width : 0, levels: (options.tones ?? []).map(level) };
}

async function leave() {
  const answer = resource && await fetch(resource, { method: 'DELETE', headers: { authorization: headers.authorization } });
  connection.close();
  return { status: answer?.status };
}

const commands = {
  measure,
  leave,
  patch: async () => ({ status: (await fetch(resource, { method: 'PATCH', headers: { ...headers, 'content-type': 'application/trickle-ice-sdpfrag' }, body: '' })).status }),
};
window.obey = async (command) => {
  try {
    say('done', { id: command.id, ...(await commands[command.do]()) });
  } catch (error) {
    say('failed', { id: command.id, error: String(error) });
  }
};
begin().catch((error) => say('refused', { status: 0, body: String(error) }));
