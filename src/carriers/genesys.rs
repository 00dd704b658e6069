//! Genesys Cloud's AudioHook protocol, version 2, as its audio connector speaks it: binary messages are µ-law, text messages
//! control messages with sequence numbers. The handshake carries an API key and, with a client secret, an HTTP message signature
//! (draft of RFC 9421).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::signatures::{is_fresh, signed_once};
use super::wire::{Object, key, misfit_of_type, missing, no_format};
use super::{
    Account, Becomes, Carrier, Codec, Document, Event, Format, Frame, Misfit, Request, Row,
    Signature, Start, Stream, misfit,
};

pub struct Genesys;

impl Carrier for Genesys {
    fn kind(&self) -> &'static str {
        "genesys"
    }

    fn name(&self) -> &'static str {
        "Genesys Cloud"
    }

    fn codec(&self, _: &str) -> Box<dyn Codec> {
        Box::new(Messages::default())
    }

    fn signs_webhooks(&self) -> bool {
        false
    }

    fn has_secret_in_header(&self) -> bool {
        true
    }

    fn secret(&self, request: &Request<'_>) -> Option<String> {
        request.header("x-api-key").map(str::to_owned)
    }

    /// HMAC-SHA256 with the client secret, which is base64, over what `Signature-Input` names.
    fn signed(
        &self,
        account: &Account,
        request: &Request<'_>,
        now: SystemTime,
    ) -> Option<Signature> {
        let (label, input) = request.header("signature-input")?.trim().split_once('=')?;
        let (text, parameters) = signature_base(input.trim(), request)?;
        let fresh = parameters.get("alg").is_none_or(|alg| alg == "hmac-sha256")
            && is_fresh(parameters.get("created")?.parse().ok()?, now);
        let signatures = request.header("signature")?.trim();
        let signature = signatures
            .strip_prefix(label.trim())?
            .trim_start()
            .strip_prefix('=')?;
        let signature = signature.trim().strip_prefix(':')?.strip_suffix(':')?;
        let key = STANDARD.decode(account.key()?).ok()?;
        if !fresh {
            return None;
        }
        signed_once(&key, text.as_bytes(), &STANDARD.decode(signature).ok()?)
    }

    fn answer(&self, stream: &Stream<'_>, _: &BTreeMap<String, String>) -> Document {
        Document {
            content_type: "text/plain; charset=utf-8",
            body: format!("{}\n", stream.url),
        }
    }

    /// Genesys takes few messages a second.
    fn packet(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn rows(&self) -> &'static [Row] {
        ROWS
    }

    fn setup(&self) -> &'static str {
        "The *Audio Connector* integration's base connection URI is `wss://voice.example.com/carrier/genesys/media`; `secret` is its API key, and `signing_key` its client secret \
(base64), with which Genesys signs. An account with a `signing_key` needs the signature; one with a `secret` alone is known by the API key."
    }
}

/// What must be signed.
const SIGNED: [&str; 3] = ["@request-target", "@authority", "audiohook-session-id"];

/// The text that is signed, and the parameters of the signature; `None` where it is not over enough.
fn signature_base(
    input: &str,
    request: &Request<'_>,
) -> Option<(String, BTreeMap<String, String>)> {
    let (names, parameters) = input.strip_prefix('(')?.split_once(')')?;
    let (_, rest) = request.url.split_once("://")?;
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let authority = authority.to_ascii_lowercase();
    let authority = authority.strip_suffix(":443").unwrap_or(&authority);
    let mut text = String::new();
    let mut named = Vec::new();
    for name in names.split_ascii_whitespace() {
        let name = name.strip_prefix('"')?.strip_suffix('"')?;
        let value = match name {
            "@request-target" => target,
            "@authority" => authority,
            header if header.starts_with('@') => return None,
            header => request.header(header)?.trim(),
        };
        text.push_str(&format!("\"{name}\": {value}\n"));
        named.push(name);
    }
    if SIGNED.iter().any(|name| !named.contains(name)) {
        return None;
    }
    text.push_str(&format!("\"@signature-params\": {input}"));
    let parameters = parameters
        .split(';')
        .filter_map(|parameter| parameter.split_once('='));
    let parameters = parameters.map(|(name, value)| {
        (
            name.trim().to_owned(),
            value.trim().trim_matches('"').to_owned(),
        )
    });
    Some((text, parameters.collect()))
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("`open`", Becomes::Honoured, "`conversationId` is the id of the call, `participant.ani` and `.dnis` its numbers; `inputVariables` are passed on; of `media` PCMU at 8 kHz is chosen, of the caller alone where that is offered. A probe (the conversation of zeros) is answered and is no call"),
    Row("binary", Becomes::Honoured, "sound of the caller; of two channels the first one"),
    Row("`ping`", Becomes::Honoured, "`pong`"),
    Row("`dtmf`", Becomes::Honoured, "event `dtmf`"),
    Row("`close`", Becomes::Honoured, "`closed`; the call is over"),
    Row("`paused`, `resumed`, `discarded`, `update`, `playback_started`, `playback_completed`", Becomes::Ignored, "nothing waits for them"),
    Row("`error`", Becomes::Ignored, "it is in the log"),
    Row("binary, `event` `barge_in`, `disconnect` to Genesys", Becomes::Honoured, "100 ms a message; `barge_in` drops what Genesys has not played"),
    Row("hanging up", Becomes::Honoured, "`disconnect` with `completed`; the flow goes on"),
    Row("media other than PCMU", Becomes::Refused, "the socket is closed with 1007"),
    Row("pressing keys, transfer, `outputVariables`", Becomes::Ignored, "there is no message of `/ws` for them: `call_failed`, `sip_transfer_error`"),
    Row("reconnecting", Becomes::Ignored, "the next socket is the next call"),
];

/// The conversation of a probe.
const NOBODYS: &str = "00000000-0000-0000-0000-000000000000";

#[derive(Default)]
struct Messages {
    id: String,
    /// That of the last message of Genesys.
    heard: u64,
    said: u64,
    /// Sound comes in two channels.
    is_stereo: bool,
    is_over: bool,
}

#[derive(Deserialize)]
struct Message {
    r#type: String,
    seq: u64,
    id: Option<String>,
    #[serde(default)]
    parameters: Value,
}

impl Messages {
    fn say(&mut self, kind: &str, parameters: &Value) -> Frame {
        self.said += 1;
        let told = json!({
            "version": "2", "type": kind, "seq": self.said, "clientseq": self.heard, "id": self.id,
            "parameters": parameters,
        });
        Frame::Text(told.to_string())
    }

    fn open(&mut self, message: &Message) -> Result<Event, Misfit> {
        self.id = message.id.clone().ok_or_else(|| missing("id"))?;
        let parameters = Object {
            place: "parameters",
            value: &message.parameters,
        };
        let call_id = parameters.text("conversationId")?;
        let media = message.parameters["media"]
            .as_array()
            .ok_or_else(|| misfit_of_type("parameters.media", "a list"))?;
        let channels = |one: &Value| one["channels"].as_array().map_or(0, Vec::len);
        let offered = media
            .iter()
            .filter(|one| one["format"] == "PCMU" && one["rate"] == 8_000);
        let offered = offered.filter(|one| one["channels"][0] == "external" && channels(one) <= 2);
        let chosen = offered
            .min_by_key(|one| channels(one))
            .ok_or_else(|| no_format("parameters.media"))?;
        self.is_stereo = channels(chosen) == 2;
        let opened = self.say("opened", &json!({"startPaused": false, "media": [chosen]}));
        if call_id == NOBODYS {
            return Ok(Event::Reply(opened));
        }
        let participant = parameters.object("participant", "parameters.participant");
        let number = |name| {
            let text: Option<String> = participant.maybe(name)?;
            Ok(text.map(|text| text.trim_start_matches("tel:").to_owned()))
        };
        Ok(Event::Opened(
            opened,
            Box::new(Start {
                call_id,
                from: number("ani")?,
                to: number("dnis")?,
                parameters: parameters.parameters("inputVariables")?,
                format: Format::MULAW,
            }),
        ))
    }
}

impl Codec for Messages {
    fn text(&mut self, text: &str) -> Result<Option<Event>, Misfit> {
        let message: Message = vivavoce_core::json::parse(text.as_bytes())?;
        self.heard = message.seq;
        match message.r#type.as_str() {
            "open" if self.id.is_empty() => self.open(&message).map(Some),
            "open" => Err(misfit("type", "open: the session is open")),
            "ping" => Ok(Some(Event::Reply(self.say("pong", &json!({}))))),
            "dtmf" => Ok(key(message
                .parameters
                .get("digit")
                .ok_or_else(|| missing("parameters.digit"))?)),
            "close" => {
                self.is_over = true;
                Ok(Some(Event::Closed(self.say("closed", &json!({})))))
            }
            _ => Ok(None),
        }
    }

    fn binary(&mut self, bytes: Bytes) -> Result<Option<Event>, Misfit> {
        if self.id.is_empty() {
            return Err(misfit("binary message", "comes before open"));
        }
        let sound = if self.is_stereo {
            bytes.iter().copied().step_by(2).collect()
        } else {
            bytes
        };
        Ok(Some(Event::Sound(sound)))
    }

    fn sound(&mut self, sound: Bytes) -> Frame {
        Frame::Binary(sound)
    }

    fn mark(&mut self, _: &str) -> Option<Frame> {
        None
    }

    fn clear(&mut self) -> Option<Frame> {
        Some(self.say(
            "event",
            &json!({"entities": [{"type": "barge_in", "data": {}}]}),
        ))
    }

    fn hang_up(&mut self) -> Option<Frame> {
        if self.is_over || self.id.is_empty() {
            return None;
        }
        self.is_over = true;
        Some(self.say("disconnect", &json!({"reason": "completed"})))
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const OPEN: &str = r#"{"version":"2","type":"open","seq":1,"serverseq":0,"id":"e160e428","position":"PT0S","parameters":{"organizationId":"d793",
        "conversationId":"090e","participant":{"id":"883e","ani":"tel:+1555","aniName":"John","dnis":"+1800"},
        "media":[{"type":"audio","format":"PCMU","channels":["external","internal"],"rate":8000},{"type":"audio","format":"PCMU","channels":["external"],"rate":8000}],
        "inputVariables":{"a":"b"}}}"#;

    /// Of the vendor's pages.
    #[test]
    fn a_call_of_genesys_is_opened_kept_and_closed() {
        let mut codec = Genesys.codec("");
        assert!(codec.binary(Bytes::from_static(&[1])).is_err());
        let Ok(Some(Event::Opened(Frame::Text(opened), start))) = codec.text(OPEN) else {
            panic!("no call")
        };
        let opened: Value = serde_json::from_str(&opened).unwrap();
        let expected = json!({"version": "2", "type": "opened", "seq": 1, "clientseq": 1, "id": "e160e428", "parameters":
            {"startPaused": false, "media": [{"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}]}});
        assert_eq!(opened, expected);
        assert_eq!(
            (start.from.as_deref(), start.to.as_deref()),
            (Some("+1555"), Some("+1800"))
        );
        assert_eq!(start.parameters["a"], "b");
        let ping = r#"{"version":"2","type":"ping","seq":2,"serverseq":1,"id":"e160e428","position":"PT5S","parameters":{}}"#;
        let Ok(Some(Event::Reply(Frame::Text(pong)))) = codec.text(ping) else {
            panic!("no pong")
        };
        assert!(
            pong.contains(r#""clientseq":2"#) && pong.contains(r#""seq":2"#),
            "{pong}"
        );
        let dtmf = r#"{"version":"2","type":"dtmf","seq":3,"serverseq":2,"id":"e160e428","position":"PT6S","parameters":{"digit":"5"}}"#;
        assert_eq!(codec.text(dtmf), Ok(Some(Event::Pressed('5'))));
        let close = r#"{"version":"2","type":"close","seq":4,"serverseq":2,"id":"e160e428","position":"PT7S","parameters":{"reason":"end"}}"#;
        assert!(
            matches!(codec.text(close), Ok(Some(Event::Closed(Frame::Text(told)))) if told.contains("\"closed\""))
        );
        assert_eq!(codec.hang_up(), None);
    }

    #[test]
    fn a_probe_is_no_call_and_of_two_channels_the_callers_is_heard() {
        let probe = OPEN.replace("090e", NOBODYS);
        assert!(matches!(
            Genesys.codec("").text(&probe),
            Ok(Some(Event::Reply(_)))
        ));
        let two = OPEN.replace(
            r#",{"type":"audio","format":"PCMU","channels":["external"],"rate":8000}"#,
            "",
        );
        let mut codec = Genesys.codec("");
        codec.text(&two).unwrap();
        let heard = codec.binary(Bytes::from_static(&[1, 9, 2, 9]));
        assert_eq!(heard, Ok(Some(Event::Sound(Bytes::from_static(&[1, 2])))));
        let none = OPEN.replace("PCMU", "L16");
        assert_eq!(
            Genesys.codec("").text(&none).unwrap_err().place,
            "parameters.media"
        );
    }

    /// Of the vendor's session walk-through (with the ids in the right order, as its forum says).
    #[test]
    fn the_signature_of_the_vendors_page_is_right() {
        let input = "sig1=(\"@request-target\" \"@authority\" \"audiohook-organization-id\" \"audiohook-session-id\" \"audiohook-correlation-id\" \"x-api-key\");\
keyid=\"SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh\";nonce=\"VGhpc0lzQVVuaXF1ZU5vbmNl\";alg=\"hmac-sha256\";created=1641013200;expires=3282026430";
        let header = |name: &str| match name {
            "audiohook-organization-id" => Some("d7934305-0972-4844-938e-9060eef73d05"),
            "audiohook-correlation-id" => Some("e160e428-53e2-487c-977d-96989bf5c99d"),
            "audiohook-session-id" => Some("30b0e395-84d3-4570-ac13-9a62d8f514c0"),
            "x-api-key" => Some("SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh"),
            "signature" => Some("sig1=:NZBwyBHRRyRoeLqy1IzOa9VYBuI8TgMFt2GRDkDuJh4=:"),
            "signature-input" => Some(input),
            _ => None,
        };
        let form = BTreeMap::new();
        let url = "wss://audiohook.example.com/api/v1/voicebiometrics/ws";
        let mut request = Request {
            method: "GET",
            url,
            header: &header,
            form: &form,
            body: b"",
        };
        let account = Account::of("genesys", "TXlTdXBlclNlY3JldEtleVRlbGxOby0xITJAMyM0JDU=");
        let at = UNIX_EPOCH + Duration::from_secs(1_641_013_210);
        assert!(Genesys.signed(&account, &request, at).is_some());
        assert!(
            Genesys
                .signed(&account, &request, at + Duration::from_hours(1))
                .is_none()
        );
        request.url = "wss://audiohook.example.com/other";
        assert!(Genesys.signed(&account, &request, at).is_none());
    }
}
