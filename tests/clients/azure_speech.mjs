// Azure's own client for JavaScript: `azure_speech.mjs recognise|synthesise|voices HOST KEY ...`, results as JSON.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

// Unlike `import`, this looks where NODE_PATH says.
const sdk = createRequire(import.meta.url)("microsoft-cognitiveservices-speech-sdk");
const [action, host, key, ...rest] = process.argv.slice(2);

const config = sdk.SpeechConfig.fromHost(new URL(host), key);
config.speechRecognitionLanguage = "en-US";

// Sends 16 kHz linear16 and tells what is understood until the sound is over.
async function recognise(soundFile) {
  config.outputFormat = sdk.OutputFormat.Detailed;
  config.requestWordLevelTimestamps();
  const sound = sdk.AudioInputStream.createPushStream(sdk.AudioStreamFormat.getWaveFormatPCM(16000, 16, 1));
  const recogniser = new sdk.SpeechRecognizer(config, sdk.AudioConfig.fromStreamInput(sound));
  const result = { partials: [], finals: [], words: [], error: null };
  recogniser.recognizing = (_, event) => result.partials.push(event.result.text);
  recogniser.recognized = (_, event) => {
    const best = JSON.parse(event.result.json).NBest?.[0];
    result.words.push(...(best?.Words ?? []).map((word) => [word.Word, word.Offset, word.Duration]));
    if (event.result.text) result.finals.push([event.result.text, event.result.offset, event.result.duration]);
  };
  const bytes = readFileSync(soundFile);
  sound.write(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  sound.close();
  await new Promise((over) => {
    recogniser.sessionStopped = over;
    recogniser.canceled = (_, event) => {
      if (event.reason === sdk.CancellationReason.Error) {
        result.error = { code: sdk.CancellationErrorCode[event.errorCode], details: event.errorDetails };
        over();
      }
    };
    recogniser.startContinuousRecognitionAsync();
  });
  recogniser.close();
  return result;
}

async function synthesise(text, soundFormat, soundFile) {
  config.speechSynthesisOutputFormat = sdk.SpeechSynthesisOutputFormat[soundFormat];
  const synthesiser = new sdk.SpeechSynthesizer(config, null);
  const words = [];
  synthesiser.wordBoundary = (_, event) => {
    if (event.boundaryType === sdk.SpeechSynthesisBoundaryType.Word) words.push([event.text, event.audioOffset]);
  };
  const result = await new Promise((done, failed) => synthesiser.speakTextAsync(text, done, failed));
  writeFileSync(soundFile, Buffer.from(result.audioData ?? []));
  synthesiser.close();
  return { reason: sdk.ResultReason[result.reason], words, error: result.errorDetails ?? null };
}

async function voices() {
  const synthesiser = new sdk.SpeechSynthesizer(config, null);
  const result = await synthesiser.getVoicesAsync();
  synthesiser.close();
  return { voices: result.voices.map((voice) => [voice.shortName, voice.locale]), error: result.errorDetails ?? null };
}

const actions = { recognise, synthesise, voices };
process.stdout.write(JSON.stringify(await actions[action](...rest)), () => process.exit(0));
