//! One fuzz target per parser of outside input: a name, a function that accepts any bytes, and valid sample inputs (the
//! seed corpus). `./test` runs seeded mutations of the samples through every target; `fuzz/` passes the same functions
//! to libFuzzer, and is built of this file and the crates that it names. A target fails by panicking; limits of size and time
//! are the parsers' own.
//!
//! The targets of embedded rooms that need a whole server are in `src/rooms/tests/fuzz`.

#[cfg(test)]
mod tests;

use std::io::Cursor;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::actors::session::Clip;
use crate::actors::session::protocol::ClientMessage;
use crate::audio::decode::{FileDecoder, FileLimits, StreamDecoder};
use crate::audio::ogg::{OggOpusWriter, OpusHead};
use crate::audio::opus::{self, FRAME, OpusDecoder};
use crate::audio::{AudioFormat, Channels, Encoding, Layout, SampleRate, ogg};
use crate::hooks::announcement;
use crate::http::fuzzing as http;
use crate::recordings::Metadata;
use crate::recordings::recording_location::RecordingLocation;
use livekit_protocol::WebhookEvent;
use vivavoce_core::fuzzing::{Target, binary, text};

/// The maximum number of chunks decoded from one input: a few bytes of Opus may be minutes.
const MAX_CHUNKS: usize = 256;

/// The targets declared here; others are declared beside their parsers.
const TARGETS: [Target; 16] = [
    text("socket_message", socket_message, socket_messages),
    text("given_session", given_session, given_sessions),
    binary("socket_frames", http::frames, http::frame_samples),
    text("http_headers", http::headers, http::header_samples),
    text("settings_file", settings_file, settings_files),
    text("phone_number", phone_number, phone_numbers),
    text("ssml", ssml, ssml_documents),
    binary("sound_stream", sound_stream, sounds),
    binary("sound_file", sound_file, sounds),
    binary("ogg_opus", ogg_opus, ogg_streams),
    binary("wav", wav, wav_files),
    binary("mp3", mp3, mp3_streams),
    binary("opus_packet", opus_packet, opus_packets),
    text("twirp_json", http::twirp_json, http::twirp_json_samples),
    text("room_webhook", room_webhook, room_webhooks),
    binary("recording_journal", recording_journal, recording_journals),
];

/// All targets.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    const ALL: [&[Target]; 7] = [
        &TARGETS,
        &crate::carriers::fuzzing::TARGETS,
        &crate::models::fuzzing::TARGETS,
        &crate::realtime::fuzzing::TARGETS,
        &crate::rooms::fuzzing::TARGETS,
        &crate::telephony::agent::fuzzing::TARGETS,
        &crate::telephony::media::fuzzing::TARGETS,
    ];
    ALL.into_iter().flatten()
}

/// Runs the target with this name, for libFuzzer.
///
/// # Panics
///
/// If there is no such target, and if the target finds a bug.
pub fn run(name: &str, input: &[u8]) {
    let target = targets().find(|target| target.name == name);
    let target = target.expect("there should be a target of this name");
    (target.run)(input);
}

fn socket_message(input: &[u8]) {
    let Ok(message) = ClientMessage::parse(input) else {
        return;
    };
    if let ClientMessage::Config(config) = message
        && let Some(audio) = config.loading_audio
    {
        let _clip = Clip::decode(&audio, SampleRate::HZ_24000);
    }
}

fn socket_messages() -> Vec<Vec<u8>> {
    let clip = BASE64.encode(vec![0u8; 8_000]);
    let config = format!(
        r#"{{"type":"config","stream_id":"a-1","stt_config":{{"provider":"local","sample_rate":16000,"channels":1,"language":"en-US",
"keyterms":["a"],"fallback":[{{"provider":"null"}}],"auth":{{"api_key":"k"}}}},"tts_config":{{"provider":"local","model":"",
"speaking_rate":1.5,"pronunciations":[{{"word":"a","pronunciation":"b"}}]}},"rtc":{{"room_name":"r","stt_mode":"mixed"}},
"loading_audio":{{"data":"{clip}","format":"pcm","sample_rate":8000,"channels":1,"volume":0.5}},"vad":{{"threshold":0.5,"silence_ms":300}}}}"#
    );
    [
        config.as_str(),
        r#"{"type":"update_config","stt_config":{"language":"de-DE"},"vad":{"interruption":"duck"}}"#,
        r#"{"type":"speak","text":"Hello.","flush":false,"id":"1","allow_interruption":true,"replace":false}"#,
        r#"{"type":"send_message","message":"m","role":"user","topic":"t","debug":{"a":[1,2,{"b":null}]}}"#,
        r#"{"type":"sip_transfer","transfer_to":"+14155550100","participant_identity":"a"}"#,
        r#"{"type":"send_dtmf","digits":"12*#"}"#,
        r#"{"type":"clear"}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn given_session(input: &[u8]) {
    let _is_one = crate::actors::session::fuzz_given(&String::from_utf8_lossy(input));
}

fn given_sessions() -> Vec<Vec<u8>> {
    [
        r#"{"type":"given_session","format":1,"given":{"messages":[{"type":"config","tts_config":{"provider":"null"}},
{"type":"speak","text":"Hello.","id":"1"}],"configs":1,"heard":{"secs":3,"nanos":20000000},"usage":{"lasted":{"secs":4,"nanos":0},
"characters":12},"cut_ids":{"ids":[]},"conversation":null,"unanswered":null,
"recording":{"started_at":5,"ended_at":7,"recorded":{"secs":0,"nanos":2},"paused":false,"store":null}},"sent":{"seq":2,"forgotten":0,"sound_before":640,
"sent":[{"event":{"seq":1,"text":"{\"type\":\"ready\"}"}},{"sound":{"bytes":4,"audio":"AAAAAA==","microseconds":250}},
{"event":{"seq":2,"text":"{}"}},{"sound":{"bytes":8,"audio":null,"microseconds":500}}]}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn settings_file(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    crate::config::fuzz_yaml(&text);
}

fn settings_files() -> Vec<Vec<u8>> {
    vec![
        b"server:\n  port: 3001\n  trusted_proxies: [10.0.0.0/8]\nlimits:\n  sessions: 5\n".to_vec(),
        b"sip:\n  listen: udp:127.0.0.1:5060\n  hooks_json: '[{\"host\":\"a\",\"url\":\"https://b\"}]'\n".to_vec(),
    ]
}

fn phone_number(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let _ = crate::phone::PhoneNumber::parse(&text);
    let _ = crate::hooks::Host::parse(&text);
    let _ = crate::hooks::Host::of_header(&text);
}

fn phone_numbers() -> Vec<Vec<u8>> {
    [
        "tel:+49 (30) 123-456",
        "*123#",
        "0049",
        "\"A\" <sip:+1415@[2001:db8::1]:5060;user=phone>;tag=1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn ssml(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(document) = crate::ssml::Ssml::parse(&text) else {
        return;
    };
    let again = crate::ssml::Ssml::parse(&document.document());
    let again = again.expect("what was read is well formed");
    assert_eq!(again.text(), document.text());
    let half = document.rest(document.text().len() / 2);
    assert!(document.text().ends_with(half.text()));
    crate::ssml::Ssml::parse(&half.document()).expect("a rest is well formed");
}

fn ssml_documents() -> Vec<Vec<u8>> {
    [
        "<speak>One &amp; <emphasis level='strong'>two</emphasis><break time=\"1s\"/></speak>",
        "<?xml version='1.0'?><speak xml:lang='en'><!-- a --><p><s>It is &#x33;.</s></p></speak>",
        "<speak><sub alias='W W W'>WWW</sub><audio src='a'><desc>bell</desc></audio></speak>",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Decodes a stream in chunks of `size` bytes.
fn decode_stream(encoding: Encoding, size: usize, bytes: &[u8]) {
    let Ok(mut decoder) = StreamDecoder::new(AudioFormat::mono(encoding, SampleRate::HZ_16000))
    else {
        return;
    };
    let mut chunks = 0;
    for piece in bytes.chunks(size) {
        chunks += decoder.push(piece).take(MAX_CHUNKS).count();
        if chunks > MAX_CHUNKS {
            return;
        }
    }
    let _ended = decoder.finish().take(MAX_CHUNKS).count();
}

/// The first byte selects the encoding, the second the chunk size.
fn sound_stream(input: &[u8]) {
    let [format, size, bytes @ ..] = input else {
        return;
    };
    let encodings = [
        Encoding::Linear16,
        Encoding::Mulaw,
        Encoding::Alaw,
        Encoding::Wav,
        Encoding::OggOpus,
        Encoding::Opus,
        Encoding::Mp3,
    ];
    let encoding = encodings[usize::from(*format) % encodings.len()];
    decode_stream(encoding, 1 + usize::from(*size) * 16, bytes);
}

fn sound_file(input: &[u8]) {
    decode_file(input.get(2..).unwrap_or_default());
}

fn decode_file(bytes: &[u8]) {
    let limits = FileLimits {
        duration: Duration::from_secs(5),
    };
    if let Ok(file) = FileDecoder::open(Cursor::new(bytes.to_vec()), limits) {
        let _ended = file.take(MAX_CHUNKS).count();
    }
}

/// The stream reader, and the repair of streams that were cut off.
fn ogg_opus(input: &[u8]) {
    decode_stream(Encoding::OggOpus, 97, input);
    if let Ok(Some(repaired)) = ogg::repair(&mut Cursor::new(input.to_vec())) {
        assert!(repaired.channels > 0, "{repaired:?}");
    }
    let _joined = ogg::join(input, FRAME, input, std::io::sink());
}

fn ogg_streams() -> Vec<Vec<u8>> {
    let whole = ogg_opus_stream(OPUS);
    let cut = whole.len() - 7;
    vec![whole[..cut].to_vec(), whole]
}

fn wav(input: &[u8]) {
    decode_stream(Encoding::Wav, 97, input);
    decode_file(input);
}

fn wav_files() -> Vec<Vec<u8>> {
    vec![WAV.to_vec(), ADPCM.to_vec()]
}

fn mp3(input: &[u8]) {
    decode_stream(Encoding::Mp3, 97, input);
    decode_file(input);
}

/// A frame behind an ID3 tag.
fn mp3_streams() -> Vec<Vec<u8>> {
    let mut silent = vec![0; 417];
    silent[..MP3.len()].copy_from_slice(MP3);
    let tagged = [&b"ID3\x04\0\0\0\0\0\x02\0\0"[..], &silent, &silent].concat();
    vec![silent, tagged]
}

/// Our own parsing of a packet's first bytes, and libopus.
fn opus_packet(input: &[u8]) {
    let duration = opus::packet_duration(input);
    let _redundancy = opus::carries_redundancy(input);
    let layout = Layout::new(SampleRate::HZ_48000, Channels::Stereo);
    let Ok(mut decoder) = OpusDecoder::new(layout) else {
        return;
    };
    let mut samples = Vec::new();
    if decoder.decode(input, &mut samples).is_ok() {
        let frames = duration.map(|duration| layout.rate.frames_in(duration));
        assert_eq!(frames.ok(), Some(samples.len() / 2));
    }
    let frame = Duration::from_millis(20);
    let _recovered = decoder.recover(input, frame, &mut samples);
}

fn opus_packets() -> Vec<Vec<u8>> {
    // One, two equal, two different and three frames.
    let code = |code: u8, rest: &[u8]| [&[(OPUS[0] & 0xfc) | code], rest].concat();
    vec![
        OPUS.to_vec(),
        code(1, &[1, 2, 3, 1, 2, 3]),
        code(2, &[2, 1, 2, 3, 4]),
        code(3, &[3, 1, 1, 1]),
    ]
}

/// The body of a webhook from a LiveKit deployment, as it is parsed once its signature has been verified, and what call
/// hooks read from it: the attributes of telephone participants contain SIP headers that callers choose.
fn room_webhook(input: &[u8]) {
    let Ok(event) = serde_json::from_slice::<WebhookEvent>(input) else {
        return;
    };
    let _is_call = announcement::is_call(&event);
    let _id = announcement::event_id(&event);
    if let Some(announcement) = announcement::announcement(&event, Some("call-")) {
        let body = serde_json::to_vec(&announcement);
        assert!(body.is_ok(), "{announcement:?}");
    }
}

fn room_webhooks() -> Vec<Vec<u8>> {
    [
        r#"{"event":"room_started","id":"EV_1","createdAt":"1700000000","room":{"sid":"RM_1","name":"kitchen","metadata":"{}"}}"#,
        r#"{"event":"participant_joined","id":"EV_2","createdAt":"1700000001","room":{"sid":"RM_1","name":"call-1"},
"participant":{"sid":"PA_1","identity":"sip_1","name":"Phone","kind":"SIP","attributes":{"sip.phoneNumber":"+14155550100",
"sip.trunkPhoneNumber":"+14155550199","sip.h.to":"\"A\" <sip:100@gateway.example:5060;user=phone>;tag=1","sip.h.x-to-ip":"192.0.2.1"}}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// What a killed process may have left of a journal: the metadata on the first line, the audio after it.
fn recording_journal(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n');
    let (text, audio) = input.split_at(end.unwrap_or(input.len()));
    if let Ok(metadata) = serde_json::from_slice::<Metadata>(text) {
        let location = RecordingLocation::of(&metadata);
        assert!(
            location
                .key("recordings", "audio.ogg")
                .starts_with("recordings/")
        );
    }
    let mut audio = Cursor::new(audio.get(1..).unwrap_or_default().to_vec());
    if let Ok(Some(repaired)) = ogg::repair(&mut audio) {
        // The repaired stream is complete, so repairing it again changes nothing.
        let again = ogg::repair(&mut audio).ok().flatten();
        assert_eq!(again.map(|again| again.size), Some(repaired.size));
    }
}

fn recording_journals() -> Vec<Vec<u8>> {
    let metadata = br#"{"stream_id":"call-1","tenant":"acme","started_at":1,"duration_ms":0,"size":0,"sha256":"","channels":1,"participants":[{"identity":"client"}],"complete":false}"#;
    let whole = ogg_opus_stream(OPUS);
    [whole.len(), whole.len() - 7]
        .map(|length| [&metadata[..], b"\n", &whole[..length]].concat())
        .to_vec()
}

const WAV: &[u8] = b"RIFF\x34\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x10\0\0\0\0\0\x01\0\x02\0\x03\0\x04\0\x05\0\x06\0\x07\0";
const ADPCM: &[u8] = b"RIFF\x3c\0\0\0WAVEfmt \x14\0\0\0\x11\0\x01\0\x40\x1f\0\0\x00\x10\0\0\x00\x01\x04\0\x02\0\xf9\x01data\x10\0\0\0\0\0\x01\0\x02\0\x03\0\x04\0\x05\0\x06\0\x07\0";
const MP3: &[u8] = &[0xff, 0xfb, 0x90, 0x64, 0, 0, 0, 0, 0, 0, 0, 0];
const FLAC: &[u8] = b"fLaC\0\0\0\x22\x10\0\x10\0\0\0\x0e\0\0\x10\x0a\xc4\x42\xf0\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xf8\x69\x18\0\0\xbf";
const OPUS: &[u8] = &[0x78, 0x0b, 0xe4, 0xc1, 0x36, 0xec, 0xc5, 0x80];

/// Up to a few hundred milliseconds in each format, after the two bytes of [`sound_stream`].
fn sounds() -> Vec<Vec<u8>> {
    let ogg = ogg_opus_stream(OPUS);
    [
        (3u8, WAV),
        (3, ADPCM),
        (6, MP3),
        (0, FLAC),
        (5, OPUS),
        (4, &ogg),
        (1, &[0x7f; 40]),
    ]
    .into_iter()
    .map(|(format, bytes)| [&[format, 4], bytes].concat())
    .collect()
}

/// A stream of two packets.
fn ogg_opus_stream(packet: &[u8]) -> Vec<u8> {
    let head = OpusHead {
        channels: Channels::Mono,
        pre_skip: 0,
        input_hz: 16_000,
    };
    let Ok(mut writer) = OggOpusWriter::new(head, "fuzz", &[], 1, Duration::ZERO) else {
        return Vec::new();
    };
    let mut bytes = writer.headers().to_vec();
    for _ in 0..2 {
        bytes.extend(writer.push(packet).unwrap_or_default());
    }
    bytes.extend(writer.finish(None));
    bytes
}
