//! The vendors: their own clients, unmodified, against our emulators, which makes those honest; then our clients and
//! whole sessions against the same. Each vendor has a module; here is what they share.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tokio::process::Command;
use vivavoce::audio::{AudioFormat, Encoding, SampleRate, linear16};
use vivavoce::config::Config;
use vivavoce::emulators::engine::Engine;
use vivavoce::emulators::tone_words::{Listener, speak};
use vivavoce::emulators::{Emulators, Settings, Vendor};
use vivavoce::providers::local::pocketsphinx::Pocketsphinx;
use vivavoce::providers::local::pocketsphinx::pool::PoolSettings;
use vivavoce::providers::local::tts::{LocalTts, LocalTtsSettings};
use vivavoce::providers::{
    ProviderError, ProviderTable, SttEvent, SttRequest, SttStream, TtsEvent, TtsStream,
};
use vivavoce::server;

use crate::harness::{PATIENCE, Server, VIVAVOCE};

mod azure;
mod cartesia;
mod deepgram;
mod elevenlabs;
mod endurance;
mod faults;
mod google;
mod heard;
mod openai;
mod plugins;
mod rows;
mod secrets;
mod secured;
mod silent;
mod ssml;
mod streamed;
mod updates;

/// The providers of a server that talks to these emulators in place of all vendors, with keys of its own.
pub fn all_providers(emulators: &Emulators) -> ProviderTable {
    let (_account, file) = google::credential(emulators, "server");
    let sockets = format!("http://{}", emulators.plain);
    let grpc = format!("http://{}", emulators.grpc);
    providers(&[
        ("providers.deepgram.api_key", "key"),
        ("providers.deepgram.tts_url", &sockets),
        ("providers.elevenlabs.api_key", "key"),
        ("providers.elevenlabs.tts_url", &sockets),
        ("providers.cartesia.api_key", "key"),
        ("providers.cartesia.tts_url", &sockets),
        ("providers.azure.subscription_key", "key"),
        ("providers.azure.tts_url", &sockets),
        ("providers.google.credentials", file.to_str().unwrap()),
        ("providers.google.tts_url", &grpc),
    ])
}

/// Emulators that hear and say tone-words, with these faults.
pub async fn scripted(faults: &[&str]) -> Emulators {
    let mut settings = Settings::new(Engine::Scripted);
    settings.faults = faults.iter().map(|fault| fault.parse().unwrap()).collect();
    start(settings).await
}

/// Emulators that hear and say English.
pub async fn english() -> Emulators {
    start(Settings::new(Engine::Local {
        stt: Arc::new(Pocketsphinx::new(PoolSettings::new(VIVAVOCE))),
        tts: Arc::new(LocalTts::new(LocalTtsSettings::default())),
    }))
    .await
}

/// Emulators with any settings.
pub async fn start(settings: Settings) -> Emulators {
    // The first one in the process stays; all are the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Emulators::start(settings).await.unwrap()
}

/// The providers of a server with these settings, by their keys.
pub fn providers(settings: &[(&str, &str)]) -> ProviderTable {
    let flags: Vec<_> = settings
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let config = Config::load(&flags, None).unwrap();
    server::providers(&config.settings).unwrap()
}

/// Runs a script of `tests/clients`, by Python or Node, to its end; gives the JSON that it prints. Its failure fails the
/// test.
pub async fn client(script: &str, arguments: &[&str]) -> Value {
    client_in(&[], script, arguments).await
}

/// How long a client's script may take. It is shorter-tempered itself, and says what it has waited for.
const SCRIPT: Duration = Duration::from_mins(3);

/// The same with these environment variables.
pub async fn client_in(environment: &[(&str, &str)], script: &str, arguments: &[&str]) -> Value {
    let root = env!("CARGO_MANIFEST_DIR");
    let program = match Path::new(script).extension() {
        Some(extension) if extension == "py" => format!("{root}/.clients/python/bin/python"),
        _ => "node".to_owned(),
    };
    let mut command = Command::new(program);
    command
        .arg(format!("{root}/tests/clients/{script}"))
        .args(arguments)
        .envs(environment.iter().copied())
        .env("NODE_PATH", format!("{root}/.clients/node/node_modules"));
    let output = ended(&mut command, script, SCRIPT).await;
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {complaints}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{script} printed no JSON: {error}; {complaints}"))
}

/// What the client's script left when it had ended, which it does within this time.
async fn ended(command: &mut Command, script: &str, patience: Duration) -> Output {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    tokio::time::timeout(patience, output)
        .await
        .unwrap_or_else(|_| panic!("{script} hangs"))
        .unwrap_or_else(|error| panic!("{script}: {error}; ./test installs the vendors' clients"))
}

/// A request for linear16 at this rate, with everything else at its usual value.
pub fn stt_request(rate: SampleRate) -> SttRequest {
    SttRequest {
        party: vivavoce::quotas::Party::Operator,
        language: "en-US".to_owned(),
        model: String::new(),
        punctuation: true,
        format: AudioFormat::mono(Encoding::Linear16, rate),
        keyterms: Vec::new(),
        languages: Vec::new(),
        diarize: false,
        translate: false,
        credential: None,
    }
}

/// Numbers as tone-words, in linear16.
pub fn tone_words(numbers: impl IntoIterator<Item = u16>, rate: SampleRate) -> Vec<i16> {
    numbers
        .into_iter()
        .flat_map(|number| speak(number, rate))
        .collect()
}

/// The numbers that are said in some sound.
pub fn numbers_in(sound: &[i16], rate: SampleRate) -> Vec<u16> {
    let mut listener = Listener::new(rate);
    let mut words = listener.hear(sound);
    words.extend(listener.finish());
    words.into_iter().map(|word| word.number).collect()
}

/// Sends sound in frames of 20 ms, as fast as it is taken, and ends the stream; gives everything that was understood.
pub async fn understood(
    stream: SttStream,
    sound: &[i16],
    rate: SampleRate,
) -> Result<Vec<SttEvent>, ProviderError> {
    let SttStream { sink, mut events } = stream;
    let frame = rate.hz() as usize / 50;
    let sending = async {
        for frame in sound.chunks(frame) {
            // Why it takes no more, its events say.
            if sink.send(linear16::encode(frame)).await.is_err() {
                break;
            }
        }
        sink.close();
    };
    let hearing = async {
        let mut heard = Vec::new();
        while let Some(event) = events.next().await {
            heard.push(event?);
        }
        Ok(heard)
    };
    let both = async { tokio::join!(sending, hearing).1 };
    let ended = tokio::time::timeout(PATIENCE, both).await;
    ended.expect("the recogniser comes to an end")
}

/// The words of the finals, one after the other.
pub fn finals(events: &[SttEvent]) -> Vec<String> {
    let texts = events.iter().filter_map(|event| match event {
        SttEvent::Final(transcript) => Some(transcript.text.as_str()),
        _ => None,
    });
    texts
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

/// Everything that a synthesiser says: its bytes, and that it was all.
pub async fn said(stream: TtsStream) -> Result<Vec<u8>, ProviderError> {
    let mut events = stream.events;
    let mut sound = Vec::new();
    let all = async {
        while let Some(event) = events.next().await {
            match event? {
                TtsEvent::Audio(bytes) => sound.extend_from_slice(&bytes),
                TtsEvent::Word { .. } => {}
                TtsEvent::Done => return Ok(()),
            }
        }
        panic!("the synthesis ended without Done")
    };
    let ended = tokio::time::timeout(PATIENCE, all).await;
    ended.expect("the synthesis ends")?;
    Ok(sound)
}

/// A server that talks to emulators in place of all vendors.
pub struct Backed {
    /// The server.
    pub server: Server,
    /// What is behind it.
    pub emulators: Emulators,
    _account: tempfile::TempDir,
}

impl Backed {
    /// A server with these emulators behind it.
    pub fn by(emulators: Emulators) -> Self {
        Self::with(emulators, &[])
    }

    /// The same, with more environment variables.
    pub fn with(emulators: Emulators, more: &[(&str, &str)]) -> Self {
        let urls = [emulators.plain, emulators.grpc].map(|address| format!("http://{address}"));
        Self::quietly_at(urls, emulators, more)
    }

    /// The same over TLS, with the emulators' own authority.
    pub fn securely_by(emulators: Emulators) -> Self {
        let authority = emulators.ca_file().display().to_string();
        Self::secured(emulators, &[("OUTGOING_CA_FILE", &authority)])
    }

    /// Over TLS, with emulators whose authority the server does not know.
    pub fn with_unknown_authority(emulators: Emulators) -> Self {
        Self::secured(emulators, &[])
    }

    fn secured(emulators: Emulators, more: &[(&str, &str)]) -> Self {
        let urls = [emulators.tls, emulators.grpc].map(|address| format!("https://{address}"));
        Self::quietly_at(urls, emulators, more)
    }

    fn quietly_at(urls: [String; 2], emulators: Emulators, more: &[(&str, &str)]) -> Self {
        let more = [&[("LOG_LEVEL", "error")], more].concat();
        let key = |_| "key".to_owned();
        Self::at(urls, emulators, key, &more, Server::start_with)
    }

    /// With a credential of its own at each vendor (at Google the name of its account), and more environment variables.
    pub fn keyed(
        emulators: Emulators,
        key: impl Fn(Vendor) -> String,
        more: &[(&str, &str)],
        start: impl FnOnce(&[(&str, &str)]) -> Server,
    ) -> Self {
        let urls = [emulators.plain, emulators.grpc].map(|address| format!("http://{address}"));
        Self::at(urls, emulators, key, more, start)
    }

    /// With the addresses of the sockets and of gRPC.
    fn at(
        [sockets, grpc]: [String; 2],
        emulators: Emulators,
        key: impl Fn(Vendor) -> String,
        more: &[(&str, &str)],
        start: impl FnOnce(&[(&str, &str)]) -> Server,
    ) -> Self {
        let (account, file) = google::credential(&emulators, &key(Vendor::Google));
        let mut environment = vec![(
            "GOOGLE_APPLICATION_CREDENTIALS".to_owned(),
            file.display().to_string(),
        )];
        for vendor in Vendor::ALL {
            let name = vendor.slug().to_uppercase();
            let url = match vendor {
                Vendor::Google => grpc.clone(),
                Vendor::OpenAi => format!("{sockets}/v1"),
                _ => sockets.clone(),
            };
            environment.push((format!("{name}_STT_URL"), url.clone()));
            environment.push((format!("{name}_TTS_URL"), url));
            let name = match vendor {
                Vendor::Google => continue,
                Vendor::Azure => "AZURE_SPEECH_SUBSCRIPTION_KEY".to_owned(),
                _ => format!("{name}_API_KEY"),
            };
            environment.push((name, key(vendor)));
        }
        environment.push(("CACHE_ENABLED".to_owned(), "false".to_owned()));
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .chain(more.iter().copied())
            .collect();
        Self {
            server: start(&environment),
            emulators,
            _account: account,
        }
    }
}
