//! Vonage's WebSockets: binary messages are 16-bit samples, text messages are events and commands. Webhooks are signed with a
//! JWT, and so are handshakes where the document asks for it (`authorization` of type `vonage`).

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use vivavoce_core::hash::hex;

use super::signatures::{is_fresh, signed_once};
use super::wire::{Object, bounded, key, missing, no_format, numbers};
use super::{
    Account, Becomes, Carrier, Codec, Document, Encoding, Event, Format, Frame, Misfit, Request,
    Row, Signature, Start, Stream, misfit,
};

pub struct Vonage;

impl Carrier for Vonage {
    fn kind(&self) -> &'static str {
        "vonage"
    }

    fn name(&self) -> &'static str {
        "Vonage"
    }

    fn codec(&self, _: &str) -> Box<dyn Codec> {
        Box::new(Messages)
    }

    /// A JWT of `Authorization`, signed with HMAC-SHA256, for five minutes; one that names the body's digest is for that body.
    fn signed(
        &self,
        account: &Account,
        request: &Request<'_>,
        now: SystemTime,
    ) -> Option<Signature> {
        let authorization = request.header("authorization")?;
        let (scheme, token) = authorization.split_once(' ')?;
        let (text, signature) = token.trim().rsplit_once('.')?;
        let (head, claims) = text.split_once('.')?;
        let read = |part: &str| URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok();
        let head: Value = serde_json::from_slice(&read(head)?).ok()?;
        let claims: Claims = serde_json::from_slice(&read(claims)?).ok()?;
        let hash = claims.payload_hash.unwrap_or_default();
        let body = digest(&SHA256, request.body);
        let body = hex(body.as_ref());
        let known = scheme.eq_ignore_ascii_case("bearer")
            && head["alg"] == "HS256"
            && is_fresh(claims.iat, now)
            && (hash.is_empty() && request.body.is_empty() || hash.eq_ignore_ascii_case(&body));
        if !known {
            return None;
        }
        let signature = signed_once(
            account.key()?.as_bytes(),
            text.as_bytes(),
            &read(signature)?,
        )?;
        // Without an id two calls of a second have the same.
        Some(match claims.jti {
            Some(_) => signature,
            None => Signature::Repeated,
        })
    }

    fn answer(&self, stream: &Stream<'_>, asked: &BTreeMap<String, String>) -> Document {
        let mut headers = stream.parameters(asked, [("from", "from"), ("to", "to")]);
        if let Some(id) = asked.get("uuid") {
            headers.insert("uuid".to_owned(), id.clone());
        }
        let endpoint = json!({
            "type": "websocket",
            "uri": stream.url,
            "content-type": "audio/l16;rate=16000",
            "headers": headers,
            "authorization": {"type": "vonage"},
        });
        Document::json(&json!([{"action": "connect", "endpoint": [endpoint]}]))
    }

    fn rows(&self) -> &'static [Row] {
        ROWS
    }

    fn setup(&self) -> &'static str {
        "The application's *Answer URL* is `https://voice.example.com/carrier/vonage/answer` (GET or POST); `signing_key` is the account's signature secret. \
Where signed webhooks are off, give the account a `secret` and no `signing_key`, and the Answer URL `…/answer/<secret>`."
    }
}

#[derive(Deserialize)]
struct Claims {
    iat: u64,
    jti: Option<String>,
    payload_hash: Option<String>,
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("`websocket:connected`", Becomes::Honoured, "`content-type` `audio/l16` at 8, 16 or 24 kHz; of the `headers` `uuid` is the id of the call, `from` and `to` are its numbers, the others are passed on"),
    Row("binary", Becomes::Honoured, "sound"),
    Row("`websocket:dtmf`", Becomes::Honoured, "event `dtmf`"),
    Row("`websocket:notify`", Becomes::Honoured, "a call is hung up when what was said has been played"),
    Row("`websocket:cleared`", Becomes::Ignored, "nothing waits for it"),
    Row("binary, `notify`, `clear` to Vonage", Becomes::Honoured, "20 ms a message"),
    Row("hanging up", Becomes::Honoured, "the socket is closed; the call ends after the actions that follow `connect`, of which the document has none"),
    Row("pressing keys, transfer", Becomes::Ignored, "there is no message for it: `call_failed`, `sip_transfer_error`"),
];

struct Messages;

/// Fields of `websocket:connected` that are no headers.
const OWN: [&str; 2] = ["event", "content-type"];

impl Codec for Messages {
    fn text(&mut self, text: &str) -> Result<Option<Event>, Misfit> {
        let message: Value = vivavoce_core::json::parse(text.as_bytes())?;
        let object = Object {
            place: "message",
            value: &message,
        };
        match message["event"].as_str().ok_or_else(|| missing("event"))? {
            "websocket:connected" => {
                let kind = object.text("content-type")?;
                let fields = message.as_object().into_iter().flatten();
                let headers = fields.filter(|(name, _)| !OWN.contains(&name.as_str()));
                let headers = headers
                    .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
                let mut parameters = bounded(headers)?;
                // They may also be in an object of their own.
                parameters.extend(object.parameters("headers")?);
                let (from, to) = numbers(&mut parameters);
                Ok(Some(Event::Start(Box::new(Start {
                    call_id: parameters.remove("uuid").unwrap_or_default(),
                    from,
                    to,
                    parameters,
                    format: format(&kind).ok_or_else(|| no_format("content-type"))?,
                }))))
            }
            "websocket:dtmf" => {
                let digit = message
                    .get("digit")
                    .or_else(|| message["dtmf"].get("digit"));
                Ok(key(digit.ok_or_else(|| missing("digit"))?))
            }
            "websocket:notify" => {
                let name = message["payload"]["mark"].as_str();
                Ok(name.map(|name| Event::Mark(name.to_owned())))
            }
            _ => Ok(None),
        }
    }

    fn binary(&mut self, bytes: Bytes) -> Result<Option<Event>, Misfit> {
        if !bytes.len().is_multiple_of(2) {
            return Err(misfit("binary message", "must be whole samples of 16 bits"));
        }
        Ok(Some(Event::Sound(bytes)))
    }

    fn sound(&mut self, sound: Bytes) -> Frame {
        Frame::Binary(sound)
    }

    fn mark(&mut self, name: &str) -> Option<Frame> {
        let told = json!({"action": "notify", "payload": {"mark": name}});
        Some(Frame::Text(told.to_string()))
    }

    fn clear(&mut self) -> Option<Frame> {
        Some(Frame::Text(json!({"action": "clear"}).to_string()))
    }
}

/// `audio/l16;rate=16000`.
fn format(kind: &str) -> Option<Format> {
    let (name, rate) = kind.split_once(';').unwrap_or((kind, "rate=16000"));
    let rate = rate.trim().strip_prefix("rate=")?.parse().ok()?;
    let format = super::wire::format(name.trim(), rate)?;
    (format.encoding == Encoding::Linear16).then_some(format)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use aws_lc_rs::hmac;

    use super::*;

    /// Of the vendor's pages.
    #[test]
    fn a_call_of_vonage_is_understood() {
        let mut codec = Vonage.codec("");
        let start = r#"{"event":"websocket:connected","content-type":"audio/l16;rate=16000","uuid":"u-1","from":"4940","to":"4930","prop1":"value1"}"#;
        let Ok(Some(Event::Start(start))) = codec.text(start) else {
            panic!("no call")
        };
        let wide = Format {
            encoding: Encoding::Linear16,
            rate: 16_000,
        };
        assert_eq!((start.call_id.as_str(), start.format), ("u-1", wide));
        assert_eq!(
            (start.to.as_deref(), start.parameters["prop1"].as_str()),
            (Some("4930"), "value1")
        );
        let sound = Bytes::from_static(&[1, 2, 3, 4]);
        assert_eq!(codec.binary(sound.clone()), Ok(Some(Event::Sound(sound))));
        assert!(codec.binary(Bytes::from_static(&[1])).is_err());
        assert_eq!(
            codec.text(r#"{"event":"websocket:dtmf","digit":"5","duration":260}"#),
            Ok(Some(Event::Pressed('5')))
        );
        let Some(Frame::Text(asked)) = codec.mark("a") else {
            panic!("no mark")
        };
        let payload: Value = serde_json::from_str(&asked).unwrap();
        let told = json!({"event": "websocket:notify", "payload": payload["payload"]}).to_string();
        assert_eq!(codec.text(&told), Ok(Some(Event::Mark("a".to_owned()))));
        assert_eq!(codec.text(r#"{"event":"websocket:cleared"}"#), Ok(None));
    }

    #[test]
    fn a_token_is_for_its_body_and_for_five_minutes() {
        let token = |head: &str, claims: Value| {
            let text = format!(
                "{}.{}",
                URL_SAFE_NO_PAD.encode(head),
                URL_SAFE_NO_PAD.encode(claims.to_string())
            );
            let signature = hmac::sign(
                &hmac::Key::new(hmac::HMAC_SHA256, b"secret"),
                text.as_bytes(),
            );
            format!(
                "Bearer {text}.{}",
                URL_SAFE_NO_PAD.encode(signature.as_ref())
            )
        };
        let account = Account::of("vonage", "secret");
        let form = BTreeMap::new();
        let signed = |authorization: &str, body: &[u8], after: u64| {
            let header = |name: &str| (name == "authorization").then_some(authorization);
            let request = Request {
                method: "POST",
                url: "wss://a.example/",
                header: &header,
                form: &form,
                body,
            };
            Vonage.signed(
                &account,
                &request,
                UNIX_EPOCH + Duration::from_secs(1_700_000_000 + after),
            )
        };
        let head = r#"{"alg":"HS256","typ":"JWT"}"#;
        let socket = token(head, json!({"iat": 1_700_000_000}));
        assert_eq!(signed(&socket, b"", 10), Some(Signature::Repeated));
        let once = token(head, json!({"iat": 1_700_000_000, "jti": "1"}));
        let first = signed(&once, b"", 10);
        assert!(matches!(first, Some(Signature::Once(_))));
        // The same one, however it is written.
        assert_eq!(signed(&once.replace("Bearer", "bearer "), b"", 10), first);
        assert!(signed(&socket, b"a", 10).is_none() && signed(&socket, b"", 400).is_none());
        assert!(signed(&socket.replace("Bearer", "Basic"), b"", 10).is_none());
        let hash = hex(digest(&SHA256, b"a").as_ref());
        let webhook = token(head, json!({"iat": 1_700_000_000, "payload_hash": hash}));
        assert!(signed(&webhook, b"a", 10).is_some() && signed(&webhook, b"b", 10).is_none());
        let bare = token(r#"{"alg":"none"}"#, json!({"iat": 1_700_000_000}));
        assert!(signed(&bare, b"", 10).is_none());
        assert!(signed("Bearer a.b.c", b"", 10).is_none());
    }
}
