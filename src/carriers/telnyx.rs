//! Telnyx' media streaming with `bidirectionalMode` `rtp`. Its webhooks are signed (Ed25519); its sockets are not, and carry the
//! secret of the account in their path or in the header of `stream_auth_token`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;

use super::signatures::is_fresh;
use super::wire::{Message, base64, no_format};
use super::{
    Account, Becomes, Carrier, Codec, Document, Event, Frame, Misfit, Request, Row, Signature,
    Start, Stream,
};

pub struct Telnyx;

impl Carrier for Telnyx {
    fn kind(&self) -> &'static str {
        "telnyx"
    }

    fn name(&self) -> &'static str {
        "Telnyx"
    }

    fn codec(&self, _: &str) -> Box<dyn Codec> {
        Box::new(Messages)
    }

    fn signs_sockets(&self) -> bool {
        false
    }

    fn secret(&self, request: &Request<'_>) -> Option<String> {
        let token = request.header("x-telnyx-streaming-auth-token");
        token.map(str::to_owned)
    }

    /// Ed25519 over the time and the body.
    /// Telnyx repeats webhooks that were not answered, so that one may come twice.
    fn signed(
        &self,
        account: &Account,
        request: &Request<'_>,
        now: SystemTime,
    ) -> Option<Signature> {
        let signature = STANDARD
            .decode(request.header("telnyx-signature-ed25519")?)
            .ok()?;
        let time = request.header("telnyx-timestamp")?;
        let key = STANDARD.decode(account.key()?).ok()?;
        let text = [time.as_bytes(), b"|", request.body].concat();
        let key = UnparsedPublicKey::new(&ED25519, key);
        let is_fresh = is_fresh(time.parse().ok()?, now);
        (is_fresh && key.verify(&text, &signature).is_ok()).then_some(Signature::Repeated)
    }

    fn answer(&self, stream: &Stream<'_>, _: &BTreeMap<String, String>) -> Document {
        Document::xml(|xml| {
            xml.open("Response", &[]);
            xml.open("Connect", &[]);
            let codec = "PCMU";
            let attributes = [
                ("url", stream.url),
                ("track", "inbound_track"),
                ("codec", codec),
                ("bidirectionalMode", "rtp"),
                ("bidirectionalCodec", codec),
            ];
            xml.open("Stream", &attributes);
            // The numbers are in `start`.
            for (name, value) in &stream.parameters(&BTreeMap::new(), []) {
                xml.empty("Parameter", &[("name", name), ("value", value)]);
            }
        })
    }

    fn rows(&self) -> &'static [Row] {
        ROWS
    }

    fn setup(&self) -> &'static str {
        "A TeXML application's voice webhook is `https://voice.example.com/carrier/telnyx/answer`; `signing_key` is the account's public key (base64), \
and `secret` is needed as well: it is in the URL of the socket that the document names. With Call Control give `stream_url` (the document's), \
`stream_track` `inbound_track`, `stream_codec` `PCMU`, `stream_bidirectional_mode` `rtp`, `stream_bidirectional_codec` `PCMU`; the secret may be `stream_auth_token` then."
    }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("`connected`", Becomes::Ignored, "the call begins with `start`"),
    Row("`start`", Becomes::Honoured, "`call_control_id`, `from`, `to`, `custom_parameters`; `media_format` PCMU or PCMA at 8 kHz, L16 at 8, 16 or 24 kHz, which must be the `bidirectionalCodec` too"),
    Row("`media`", Becomes::Honoured, "of the track `inbound`, in the order in which it comes"),
    Row("`dtmf`", Becomes::Honoured, "event `dtmf`"),
    Row("`mark`", Becomes::Honoured, "a call is hung up when what was said has been played"),
    Row("`error`", Becomes::Ignored, "it is in the log"),
    Row("`stop`", Becomes::Honoured, "the caller has hung up"),
    Row("`media`, `mark`, `clear` to Telnyx", Becomes::Honoured, "20 ms a message"),
    Row("`bidirectionalMode` `mp3`, streams of one direction", Becomes::Ignored, "they look like others: the caller is heard, and hears nothing"),
    Row("hanging up", Becomes::Honoured, "the socket is closed; the call ends after the verbs that follow `<Connect>`, of which the document has none"),
    Row("pressing keys, transfer", Becomes::Ignored, "there is no message for it: `call_failed`, `sip_transfer_error`"),
];

struct Messages;

impl Codec for Messages {
    fn text(&mut self, text: &str) -> Result<Option<Event>, Misfit> {
        let message = Message::parse(text)?;
        match &*message.event {
            "media" => message.sound(),
            "dtmf" => message.key(),
            "mark" => message.mark(),
            "stop" => Ok(Some(Event::Stop)),
            "start" => {
                let start = message.start()?;
                let media = start.object("media_format", "start.media_format");
                let encoding = media
                    .maybe("encoding")?
                    .unwrap_or_else(|| "PCMU".to_owned());
                let rate = media.rate("sample_rate")?.unwrap_or(8_000);
                let format = super::wire::format(&encoding, rate);
                Ok(Some(Event::Start(Box::new(Start {
                    call_id: start.text("call_control_id")?,
                    from: start.maybe("from")?,
                    to: start.maybe("to")?,
                    parameters: start.parameters("custom_parameters")?,
                    format: format.ok_or_else(|| no_format("start.media_format"))?,
                }))))
            }
            _ => Ok(None),
        }
    }

    fn sound(&mut self, sound: Bytes) -> Frame {
        Frame::Text(json!({"event": "media", "media": {"payload": base64(&sound)}}).to_string())
    }

    fn mark(&mut self, name: &str) -> Option<Frame> {
        Some(Frame::Text(
            json!({"event": "mark", "mark": {"name": name}}).to_string(),
        ))
    }

    fn clear(&mut self) -> Option<Frame> {
        Some(Frame::Text(json!({"event": "clear"}).to_string()))
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::{Encoding, Format};

    /// Of the vendor's pages.
    #[test]
    fn a_call_of_telnyx_is_understood() {
        let mut codec = Telnyx.codec("");
        let start = r#"{"event":"start","sequence_number":"1","start":{"user_id":"3E","call_control_id":"v2:T0","from":"+1312","to":"+1313",
            "client_state":"aGF2ZQ==","custom_parameters":{"customer_id":"c"},"media_format":{"encoding":"PCMA","sample_rate":8000,"channels":1}},"stream_id":"32DE"}"#;
        let Ok(Some(Event::Start(start))) = codec.text(start) else {
            panic!("no call")
        };
        let alaw = Format {
            encoding: Encoding::Alaw,
            rate: 8_000,
        };
        assert_eq!((start.call_id.as_str(), start.format), ("v2:T0", alaw));
        assert_eq!(start.to.as_deref(), Some("+1313"));
        let media = r#"{"event":"media","sequence_number":"4","media":{"track":"inbound","chunk":"2","timestamp":"5","payload":"f38"},"stream_id":"32DE"}"#;
        assert_eq!(
            codec.text(media),
            Ok(Some(Event::Sound(Bytes::from_static(&[0x7f, 0x7f]))))
        );
        let dtmf = r#"{"event":"dtmf","stream_id":"32DE","occurred_at":"2024-02-07T15:59:15.646Z","sequence_number":"4","dtmf":{"digit":"1"}}"#;
        assert_eq!(codec.text(dtmf), Ok(Some(Event::Pressed('1'))));
    }

    #[test]
    fn webhooks_are_signed_for_five_minutes() {
        let pair = Ed25519KeyPair::generate().unwrap();
        let account = Account::of("telnyx", &STANDARD.encode(pair.public_key().as_ref()));
        let body = b"CallSid=v2";
        let signature = STANDARD.encode(pair.sign(b"1700000000|CallSid=v2").as_ref());
        let header = |name: &str| match name {
            "telnyx-timestamp" => Some("1700000000"),
            "telnyx-signature-ed25519" => Some(&*signature),
            _ => None,
        };
        let form = BTreeMap::new();
        let mut request = Request {
            method: "POST",
            url: "https://a.example/",
            header: &header,
            form: &form,
            body,
        };
        let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert!(Telnyx.signed(&account, &request, at).is_some());
        assert!(
            Telnyx
                .signed(&account, &request, at + Duration::from_secs(301))
                .is_none()
        );
        request.body = b"CallSid=v3";
        assert!(Telnyx.signed(&account, &request, at).is_none());
    }
}
