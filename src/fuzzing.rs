//! One fuzz target for each parser of what comes from outside: a name, a function that takes any bytes, and samples of what
//! is really sent. `./test` runs a seeded sample of changed samples through every target; `fuzz/` hands the same functions to
//! libFuzzer. A target fails by panicking; the bounds of bytes and time are the parsers' own, so none is added here.
//!
//! The targets of embedded rooms that need a whole server around them are in `src/rooms/tests/fuzz`.

#[cfg(test)]
mod tests;

use std::io::Cursor;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::actors::session::Clip;
use crate::actors::session::messages::ClientMessage;
use crate::audio::decode::{FileDecoder, FileLimits, StreamDecoder};
use crate::audio::ogg::{OggOpusWriter, OpusHead};
use crate::audio::{AudioFormat, Channels, Encoding, SampleRate};
use crate::http::fuzzing as http;
use vivavoce_core::fuzzing::{Target, binary, text};

/// Chunks of sound that are decoded of one input: a few bytes of Opus may be minutes.
const MOST_CHUNKS: usize = 256;

/// Those that are declared here; others are declared beside their parsers.
const TARGETS: [Target; 7] = [
    text("socket_message", socket_message, socket_messages),
    binary("socket_frames", http::frames, http::frame_samples),
    text("http_headers", http::headers, http::header_samples),
    text("settings_file", settings_file, settings_files),
    text("phone_number", phone_number, phone_numbers),
    binary("sound_stream", sound_stream, sounds),
    binary("sound_file", sound_file, sounds),
];

/// All targets.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    const ALL: [&[Target]; 4] = [
        &TARGETS,
        &crate::rooms::fuzzing::TARGETS,
        &crate::telephony::agent::fuzzing::TARGETS,
        &crate::telephony::media::fuzzing::TARGETS,
    ];
    ALL.into_iter().flatten()
}

/// Runs the target of a name, for libFuzzer.
///
/// # Panics
///
/// Where there is none of this name, and where the target finds something.
pub fn run(name: &str, input: &[u8]) {
    let target = targets().find(|target| target.name == name);
    #[expect(clippy::expect_used, reason = "a file of fuzz/ names no target")]
    let target = target.expect("a target of this name");
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

/// The first byte says in which format it comes, the second in pieces of which size.
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
    let Ok(mut decoder) = StreamDecoder::new(AudioFormat::mono(encoding, SampleRate::HZ_16000))
    else {
        return;
    };
    let mut chunks = 0;
    for piece in bytes.chunks(1 + usize::from(*size) * 16) {
        chunks += decoder.push(piece).take(MOST_CHUNKS).count();
        if chunks > MOST_CHUNKS {
            return;
        }
    }
    let _ended = decoder.finish().take(MOST_CHUNKS).count();
}

fn sound_file(input: &[u8]) {
    let limits = FileLimits {
        duration: Duration::from_secs(5),
    };
    let bytes = input.get(2..).unwrap_or_default().to_vec();
    if let Ok(file) = FileDecoder::open(Cursor::new(bytes), limits) {
        let _ended = file.take(MOST_CHUNKS).count();
    }
}

/// A few hundred milliseconds in each format, behind the two bytes of [`sound_stream`].
fn sounds() -> Vec<Vec<u8>> {
    let wav: &[u8] = b"RIFF\x34\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x10\0\0\0\0\0\x01\0\x02\0\x03\0\x04\0\x05\0\x06\0\x07\0";
    let adpcm: &[u8] = b"RIFF\x3c\0\0\0WAVEfmt \x14\0\0\0\x11\0\x01\0\x40\x1f\0\0\x00\x10\0\0\x00\x01\x04\0\x02\0\xf9\x01data\x10\0\0\0\0\0\x01\0\x02\0\x03\0\x04\0\x05\0\x06\0\x07\0";
    let mp3: &[u8] = &[0xff, 0xfb, 0x90, 0x64, 0, 0, 0, 0, 0, 0, 0, 0];
    let flac: &[u8] = b"fLaC\0\0\0\x22\x10\0\x10\0\0\0\x0e\0\0\x10\x0a\xc4\x42\xf0\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xf8\x69\x18\0\0\xbf";
    let opus: &[u8] = &[0x78, 0x0b, 0xe4, 0xc1, 0x36, 0xec, 0xc5, 0x80];
    let ogg = ogg_opus(opus);
    [
        (3u8, wav),
        (3, adpcm),
        (6, mp3),
        (0, flac),
        (5, opus),
        (4, &ogg),
        (1, &[0x7f; 40]),
    ]
    .into_iter()
    .map(|(format, bytes)| [&[format, 4], bytes].concat())
    .collect()
}

/// A stream of two packets.
fn ogg_opus(packet: &[u8]) -> Vec<u8> {
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
