// A telephone in a browser, by SIP.js or JsSIP (`library` of the options), unmodified. It says a tone (`hertz`), takes every
// call, and tells events and takes commands as ../rooms/browser_page.mjs does. `url` is where SIP over WebSocket is spoken;
// `token` is not used.

import JsSIP from 'jssip';
import { Inviter, Registerer, RegistererState, SessionState, UserAgent } from 'sip.js';

const say = (event, more = {}) => window.sayToTest(JSON.stringify({ event, ...more }));
const { url, options } = window.given;
const { user, password, hertz, library } = options;
const context = new AudioContext();

// In place of a microphone.
navigator.mediaDevices.getUserMedia = async () => {
  const tone = context.createOscillator();
  const gain = new GainNode(context, { gain: 0.25 });
  const out = context.createMediaStreamDestination();
  tone.frequency.value = hertz;
  tone.connect(gain).connect(out);
  tone.start();
  return out.stream;
};

let analyser;
function listen(connection) {
  const { track } = connection.getReceivers().find((receiver) => receiver.track.kind === 'audio');
  const stream = new MediaStream([track]);
  const element = document.createElement('audio');
  Object.assign(element, { srcObject: stream, muted: true });
  element.play();
  analyser = context.createAnalyser();
  analyser.fftSize = 16384;
  context.createMediaStreamSource(stream).connect(analyser);
}

function sipjs() {
  const host = new URL(url).host;
  let session;
  const follow = (began) => {
    session = began;
    session.stateChange.addListener((state) => {
      if (state === SessionState.Established) {
        listen(session.sessionDescriptionHandler.peerConnection);
        say('established');
      }
      if (state === SessionState.Terminated) say('over');
    });
  };
  const agent = new UserAgent({
    uri: UserAgent.makeURI(`sip:${user}@${host}`),
    transportOptions: { server: url, keepAliveInterval: 1 },
    authorizationUsername: user,
    authorizationPassword: password,
    logLevel: 'error',
    delegate: {
      onInvite(invitation) {
        say('incoming', { from: invitation.remoteIdentity.uri.user });
        follow(invitation);
        invitation.accept();
      },
    },
  });
  const registerer = new Registerer(agent, { expires: 60 });
  registerer.stateChange.addListener((state) => {
    if (state === RegistererState.Registered) say('registered');
  });
  const connection = () => session.sessionDescriptionHandler.peerConnection;
  return {
    async register() {
      await agent.start();
      await registerer.register({ requestDelegate: { onReject: ({ message }) => say('refused', { status: message.statusCode }) } });
    },
    async call({ to }) {
      const inviter = new Inviter(agent, UserAgent.makeURI(`sip:${to}@${host}`));
      follow(inviter);
      await inviter.invite({ requestDelegate: { onReject: ({ message }) => say('refused', { status: message.statusCode }) } });
    },
    press: ({ digits }) => { session.sessionDescriptionHandler.sendDtmf(digits); },
    hangUp: () => { session.bye(); },
    hold: ({ held }) => session.invite({ sessionDescriptionHandlerOptions: { hold: held } }).then(() => {}),
    connection,
  };
}

function jssip() {
  const host = new URL(url).host;
  const mediaConstraints = { audio: true, video: false };
  let session;
  const agent = new JsSIP.UA({
    sockets: [new JsSIP.WebSocketInterface(url)], uri: `sip:${user}@${host}`, password, register: false, register_expires: 60,
  });
  const follow = (began) => {
    session = began;
    session.on('confirmed', () => {
      listen(session.connection);
      say('established');
    });
    session.on('ended', () => say('over'));
    session.on('failed', ({ message, cause }) => say('refused', { status: message?.status_code ?? 0, cause }));
  };
  agent.on('registered', () => say('registered'));
  agent.on('registrationFailed', ({ response }) => say('refused', { status: response?.status_code ?? 0 }));
  agent.on('newRTCSession', ({ session: began, originator, request }) => {
    if (originator !== 'remote') return;
    say('incoming', { from: request.from.uri.user });
    follow(began);
    began.answer({ mediaConstraints });
  });
  return {
    register: () => new Promise((connected) => {
      agent.once('connected', () => {
        agent.register();
        connected();
      });
      agent.start();
    }),
    async call({ to }) { follow(agent.call(`sip:${to}@${host}`, { mediaConstraints })); },
    press: ({ digits }) => { session.sendDTMF(digits, { transportType: 'RFC2833' }); },
    hangUp: () => { session.terminate(); },
    hold: ({ held }) => new Promise((done) => { held ? session.hold({}, done) : session.unhold({}, done); }),
    connection: () => session.connection,
  };
}

const phone = library === 'jssip' ? jssip() : sipjs();

async function measure() {
  if (!analyser) return { hertz: 0 };
  const bins = new Float32Array(analyser.frequencyBinCount);
  analyser.getFloatFrequencyData(bins);
  const at = bins.indexOf(Math.max(...bins));
  return { hertz: bins[at] > -70 ? (at * context.sampleRate) / analyser.fftSize : 0 };
}

// How the media is carried.
async function path() {
  const reports = [...(await phone.connection().getStats()).values()];
  const transport = reports.find(({ type }) => type === 'transport');
  const codec = reports.find(({ type }) => type === 'codec');
  return { dtls: transport?.dtlsState, srtp: transport?.srtpCipher, codec: codec?.mimeType };
}

const commands = { ...phone, measure, path, leave: () => {} };
window.obey = async (command) => {
  try {
    say('done', { id: command.id, ...(await commands[command.do](command)) });
  } catch (error) {
    say('failed', { id: command.id, error: String(error) });
  }
};
say('connected', { sid: '' });
