//! What is shown when the server has started: where it listens, what it can do, what to try.

use std::io::{self, Write};
use std::net::SocketAddr;

use serde_json::json;

use super::engines;
use crate::config::{
    LogFormat, OptionalPort, Providers, RecordingBackend, RtcMode, Settings, SocketAuth,
};
use crate::providers::livekit;

/// Tells the user where the server listens, what it can do and what to try; programs, which read JSON, in one line.
pub(super) fn show(address: SocketAddr, settings: &Settings) {
    let open = unauthenticated_access(settings);
    if !address.ip().is_loopback() && !open.is_empty() {
        tracing::warn!(
            "listening on {address}: anybody who can reach this address can, without a token, {open}"
        );
    }
    let text = match settings.log.format {
        LogFormat::Text => text(address, settings),
        LogFormat::Json => line(address, settings),
    };
    // A closed standard output does not prevent serving.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

fn title(address: SocketAddr, settings: &Settings) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("Vivavoce {version} listens on {}", url(address, settings))
}

fn url(address: SocketAddr, settings: &Settings) -> String {
    let tls = settings.server.tls_cert.is_some();
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

fn line(address: SocketAddr, settings: &Settings) -> String {
    let parts = parts(settings).into_iter();
    let parts: serde_json::Map<_, _> = parts
        .map(|(name, what)| (name.to_owned(), what.into()))
        .collect();
    let engines = engines(settings).into_iter();
    let engines: Vec<_> = engines.map(|engine| engine.to_string()).collect();
    let mut line = json!({
        "level": "INFO", "target": "vivavoce", "message": title(address, settings), "engines": engines, "parts": parts,
    })
    .to_string();
    line.push('\n');
    line
}

fn text(address: SocketAddr, settings: &Settings) -> String {
    // A shell variable, so that no secret is printed.
    let token = if settings.auth.required {
        " -H \"authorization: Bearer $TOKEN\""
    } else {
        ""
    };
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "vivavoce".to_owned());
    let mut text = title(address, settings) + "\n\n";
    for engine in engines(settings) {
        text += &format!("  {engine}\n");
    }
    for (name, what) in parts(settings) {
        text += &format!("  {name}  {what}\n");
    }
    let url = url(address, settings);
    text += &format!(
        "\nTry, in another terminal:\n\n  \
         curl {url}/speak{token} -H 'content-type: application/json' -o hello.wav \\\n    \
         -d '{{\"text\": \"Hello, I can speak.\", \"tts_config\": {{\"provider\": \"local\", \"audio_format\": \"wav\"}}}}'\n  \
         {program} transcribe hello.wav\n  \
         curl {url}/voices{token}\n\n\
         Or talk to it in a browser: {url}/console#/talk\n\
         API reference: {url}/docs\n\n"
    );
    text
}

/// The parts of the server beside its local engines, and how each is set up.
fn parts(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut parts = Vec::new();
    let vendors = with_credentials(&settings.providers);
    if !vendors.is_empty() {
        parts.push(("vendors", vendors.join(", ")));
    }
    let mode = livekit::mode(&settings.rtc);
    parts.push(("rooms", rooms(settings, mode)));
    if mode != RtcMode::Off {
        parts.push(("telephone", telephone(settings, mode)));
    }
    let recordings = match settings.recording.backend {
        RecordingBackend::Off => "off".to_owned(),
        RecordingBackend::File => {
            let folder = settings.storage.data_dir.join(&settings.recording.prefix);
            format!("in {}", folder.display())
        }
        RecordingBackend::S3 => {
            let bucket = settings.recording.s3_bucket.as_deref().unwrap_or_default();
            format!("in the bucket {bucket}")
        }
    };
    parts.push(("recordings", recordings));
    parts
}

/// The vendors for which the server has a credential, or an address of the operator's own.
pub fn with_credentials(providers: &Providers) -> Vec<&'static str> {
    let openai = [
        &providers.openai_api_key,
        &providers.openai_stt_api_key,
        &providers.openai_tts_api_key,
    ];
    let openai = openai.into_iter().any(Option::is_some)
        || providers.openai_stt_url.is_some()
        || providers.openai_tts_url.is_some();
    let vendors = [
        ("deepgram", providers.deepgram_api_key.is_some()),
        ("elevenlabs", providers.elevenlabs_api_key.is_some()),
        ("google", providers.google_credentials.is_some()),
        ("azure", providers.azure_subscription_key.is_some()),
        ("cartesia", providers.cartesia_api_key.is_some()),
        ("openai", openai),
    ];
    let with = vendors.into_iter().filter(|(_, has)| *has);
    with.map(|(vendor, _)| vendor).collect()
}

fn rooms(settings: &Settings, mode: RtcMode) -> String {
    let rtc = &settings.rtc;
    match mode {
        RtcMode::Off => "off".to_owned(),
        RtcMode::Livekit => {
            let url = rtc.url.as_ref().map(crate::config::VendorUrl::url);
            let host = url.and_then(|url| url.host_str()).unwrap_or_default();
            format!("at the LiveKit deployment {host}")
        }
        RtcMode::Embedded => {
            let port = |port: u16| match port {
                0 => "any free port".to_owned(),
                port => port.to_string(),
            };
            let mut ways = vec![format!("UDP {}", port(rtc.udp_port))];
            match rtc.tcp_port {
                Some(OptionalPort::Off) => {}
                Some(OptionalPort::At(tcp)) => ways.push(format!("TCP {}", port(tcp))),
                None if rtc.udp_port == 0 => ways.push("TCP any free port".to_owned()),
                None => ways.push("TCP 7881 (or a free port where that is taken)".to_owned()),
            }
            let turn = [rtc.turn_udp_port, rtc.turn_tcp_port, rtc.turn_tls_port];
            if turn.into_iter().any(|port| port.is_some()) {
                ways.push("TURN".to_owned());
            }
            format!("embedded, {}", ways.join(", "))
        }
    }
}

fn telephone(settings: &Settings, mode: RtcMode) -> String {
    let sip = &settings.sip;
    let calls_out = sip.outbound_address.is_some() || sip.gateways_json.is_some();
    let out = if calls_out { "calls out" } else { "" };
    let taken = if mode == RtcMode::Embedded && !sip.listen.0.is_empty() {
        format!("takes calls at {}", sip.listen.0.join(", "))
    } else {
        String::new()
    };
    match (taken.as_str(), out) {
        ("", "") => "none (sip.listen takes calls, sip.outbound_address makes them)".to_owned(),
        ("", out) => out.to_owned(),
        (taken, "") => taken.to_owned(),
        (taken, out) => format!("{taken}; {out}"),
    }
}

/// Describes what can be used without a token; empty if nothing.
fn unauthenticated_access(settings: &Settings) -> String {
    if settings.auth.required {
        return match settings.auth.socket() {
            SocketAuth::Public => "speak and listen (/ws)".to_owned(),
            SocketAuth::Required => String::new(),
        };
    }
    let mut open = vec![
        "speak and listen (/ws, /speak)",
        "list and end sessions (/sessions)",
        "watch them and read the log and the settings (/inspect, /console)",
        "list voices (/voices)",
    ];
    if settings.telemetry.metrics_address.is_none() {
        open.push("read metrics (/metrics)");
    }
    if settings.recording.backend != RecordingBackend::Off {
        open.push("fetch and delete recordings (/recordings)");
    }
    if livekit::mode(&settings.rtc) != RtcMode::Off {
        open.push("join rooms and remove participants (/rtc)");
        let gateway =
            settings.sip.outbound_address.is_some() || settings.sip.gateways_json.is_some();
        open.push(if gateway {
            "place telephone calls at your expense and change hooks (/sip)"
        } else {
            "change hooks (/sip)"
        });
    }
    open.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fields: &[(&str, &str)]) -> Settings {
        let fields: Vec<_> = fields
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        crate::server::settings::load(&fields, None)
            .unwrap()
            .settings
    }

    #[test]
    fn vendors_rooms_and_telephone_are_named_and_no_secret_is() {
        let address = "127.0.0.1:3000".parse().unwrap();
        let fields = [
            ("providers.deepgram.api_key", "secret-of-deepgram"),
            ("rtc.udp_port", "4000"),
            ("rtc.turn.udp_port", "3478"),
            ("sip.listen", "udp:127.0.0.1:5060"),
            ("sip.outbound_address", "gateway.example"),
            ("recording.backend", "off"),
        ];
        let shown = text(address, &settings(&fields));
        for line in [
            "Vivavoce 0.2.0 listens on http://127.0.0.1:3000\n",
            "  vendors  deepgram\n",
            "  rooms  embedded, UDP 4000, TCP 7881 (or a free port where that is taken), TURN\n",
            "  telephone  takes calls at udp:127.0.0.1:5060; calls out\n",
            "  recordings  off\n",
        ] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(!shown.contains("secret-of"), "{shown}");
    }

    #[test]
    fn programs_get_one_line_of_json() {
        let address = "127.0.0.1:3000".parse().unwrap();
        let shown = line(address, &settings(&[("rtc.mode", "off")]));
        assert_eq!(shown.matches('\n').count(), 1);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let message = shown["message"].as_str().unwrap();
        assert!(
            message.ends_with(" listens on http://127.0.0.1:3000"),
            "{shown}"
        );
        assert_eq!(shown["parts"]["rooms"], "off");
    }
}
