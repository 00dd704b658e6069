//! Plivo's audio streaming, both ways. Its requests, and the handshakes of its sockets, carry `X-Plivo-Signature-V3`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;

use super::signatures::signed_once;
use super::wire::{Message, base64, bounded, no_format, numbers};
use super::{
    Account, Becomes, Carrier, Codec, Document, Encoding, Event, Format, Frame, Misfit, Request,
    Row, Signature, Start, Stream,
};

pub struct Plivo;

impl Carrier for Plivo {
    fn kind(&self) -> &'static str {
        "plivo"
    }

    fn name(&self) -> &'static str {
        "Plivo"
    }

    fn codec(&self, _: &str) -> Box<dyn Codec> {
        Box::new(Messages {
            stream: String::new(),
            format: Format::MULAW,
        })
    }

    /// HMAC-SHA256 over the URL, whose query is sorted, the names and values of a form, and a nonce; one of several signatures.
    fn signed(&self, account: &Account, request: &Request<'_>, _: SystemTime) -> Option<Signature> {
        let signatures = request.header("x-plivo-signature-v3")?;
        let nonce = request.header("x-plivo-signature-v3-nonce")?;
        let key = account.key()?.as_bytes();
        request.urls().iter().find_map(|url| {
            let text = signed_text(url, request.form, nonce);
            signatures.split(',').find_map(|signature| {
                let signature = STANDARD.decode(signature.trim()).ok()?;
                signed_once(key, text.as_bytes(), &signature)
            })
        })
    }

    fn answer(&self, stream: &Stream<'_>, asked: &BTreeMap<String, String>) -> Document {
        let parameters = stream.parameters(asked, [("from", "From"), ("to", "To")]);
        let fits = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        // Plivo takes letters and digits only, so the numbers go without their sign.
        let headers: Vec<String> = parameters
            .iter()
            .map(|(name, value)| (name, value.trim_start_matches('+')))
            .filter(|(name, value)| fits(name) && fits(value))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let headers = headers.join(",");
        Document::xml(|xml| {
            xml.open("Response", &[]);
            let mut attributes = vec![
                ("bidirectional", "true"),
                ("keepCallAlive", "true"),
                ("contentType", "audio/x-mulaw;rate=8000"),
            ];
            if !headers.is_empty() {
                attributes.push(("extraHeaders", &headers));
            }
            xml.text("Stream", &attributes, stream.url);
        })
    }

    fn rows(&self) -> &'static [Row] {
        ROWS
    }

    fn setup(&self) -> &'static str {
        "The application's *Answer URL* is `https://voice.example.com/carrier/plivo/answer`; `signing_key` is the account's auth token. \
Where handshakes come without a signature, give the account a `secret` and no `signing_key`."
    }
}

fn signed_text(url: &str, form: &BTreeMap<String, String>, nonce: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut pairs: Vec<_> = form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect();
    pairs.sort();
    let query: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut text = base.to_owned();
    if !query.is_empty() || !form.is_empty() {
        text.push('?');
        text.push_str(&query.join("&"));
    }
    if !query.is_empty() && !form.is_empty() {
        text.push('.');
    }
    text.extend(form.iter().flat_map(|(name, value)| [name.as_str(), value]));
    format!("{text}.{nonce}")
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("`start`", Becomes::Honoured, "`callId` is the id of the call; `extra_headers` `from` and `to` are its numbers, the others are passed on; µ-law at 8 kHz, 16-bit samples at 8 or 16 kHz"),
    Row("`media`", Becomes::Honoured, "of the track `inbound`"),
    Row("`dtmf`", Becomes::Honoured, "event `dtmf`"),
    Row("`playedStream`", Becomes::Honoured, "a call is hung up when what was said has been played"),
    Row("`clearedAudio`", Becomes::Ignored, "nothing waits for it"),
    Row("`playAudio`, `checkpoint`, `clearAudio`, `sendDTMF` to Plivo", Becomes::Honoured, "20 ms a message; `send_dtmf` presses keys"),
    Row("hanging up", Becomes::Honoured, "the socket is closed; the call ends after the elements that follow `<Stream>`, of which the document has none"),
    Row("transfer", Becomes::Ignored, "there is no message for it: `sip_transfer_error`"),
    Row("`extraHeaders` with other signs than letters, digits, `-`, `_`, `.`", Becomes::Ignored, "Plivo does not take them: the document leaves them out, and the `+` of numbers"),
];

struct Messages {
    stream: String,
    format: Format,
}

impl Messages {
    fn start(&mut self, message: &Message<'_>) -> Result<Start, Misfit> {
        let start = message.start()?;
        self.stream = start.text("streamId")?;
        let media = start.object("mediaFormat", "start.mediaFormat");
        let encoding = media
            .maybe("encoding")?
            .unwrap_or_else(|| "audio/x-mulaw".to_owned());
        let format = super::wire::format(&encoding, media.rate("sampleRate")?.unwrap_or(8_000));
        self.format = format
            .filter(|format| format.encoding != Encoding::Alaw && format.rate <= 16_000)
            .ok_or_else(|| no_format("start.mediaFormat"))?;
        let headers = message.extra_headers.as_deref().unwrap_or_default();
        let headers = headers
            .split([';', ','])
            .filter_map(|pair| pair.split_once('='));
        let headers =
            headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        let mut parameters = bounded(headers.filter(|(name, _)| !name.is_empty()))?;
        let (from, to) = numbers(&mut parameters);
        Ok(Start {
            call_id: start.text("callId")?,
            from,
            to,
            parameters,
            format: self.format,
        })
    }
}

impl Codec for Messages {
    fn text(&mut self, text: &str) -> Result<Option<Event>, Misfit> {
        let message = Message::parse(text)?;
        match &*message.event {
            "media" => message.sound(),
            "dtmf" => message.key(),
            "playedStream" => message.mark(),
            "stop" => Ok(Some(Event::Stop)),
            "start" => Ok(Some(Event::Start(Box::new(self.start(&message)?)))),
            _ => Ok(None),
        }
    }

    fn sound(&mut self, sound: Bytes) -> Frame {
        let kind = match self.format.encoding {
            Encoding::Linear16 => "audio/x-l16",
            Encoding::Mulaw | Encoding::Alaw => "audio/x-mulaw",
        };
        let media =
            json!({"contentType": kind, "sampleRate": self.format.rate, "payload": base64(&sound)});
        Frame::Text(
            json!({"event": "playAudio", "media": media, "streamId": self.stream}).to_string(),
        )
    }

    fn mark(&mut self, name: &str) -> Option<Frame> {
        let told = json!({"event": "checkpoint", "streamId": self.stream, "name": name});
        Some(Frame::Text(told.to_string()))
    }

    fn clear(&mut self) -> Option<Frame> {
        let told = json!({"event": "clearAudio", "streamId": self.stream});
        Some(Frame::Text(told.to_string()))
    }

    fn press(&mut self, digits: &str) -> Option<Frame> {
        let told = json!({"event": "sendDTMF", "streamId": self.stream, "dtmf": digits});
        Some(Frame::Text(told.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the vendor's pages.
    #[test]
    fn a_call_of_plivo_is_understood() {
        let mut codec = Plivo.codec("");
        let start = r#"{"event":"start","sequenceNumber":1,"start":{"callId":"12","streamId":"87","accountId":"MA","tracks":["inbound"],
            "mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000}},"extra_headers":"userId=12345;to=4930;from=4940"}"#;
        let Ok(Some(Event::Start(start))) = codec.text(start) else {
            panic!("no call")
        };
        assert_eq!(
            (start.call_id.as_str(), start.to.as_deref()),
            ("12", Some("4930"))
        );
        assert_eq!(start.parameters["userId"], "12345");
        let media = r#"{"event":"media","sequenceNumber":42,"streamId":"87","media":{"track":"inbound","timestamp":"1705312200000","chunk":41,"payload":"f38="},"extra_headers":""}"#;
        assert_eq!(
            codec.text(media),
            Ok(Some(Event::Sound(Bytes::from_static(&[0x7f, 0x7f]))))
        );
        let played = r#"{"event":"playedStream","sequenceNumber":50,"streamId":"87","name":"a"}"#;
        assert_eq!(codec.text(played), Ok(Some(Event::Mark("a".to_owned()))));
        let dtmf = r#"{"event":"dtmf","sequenceNumber":5,"streamId":"87","dtmf":{"track":"inbound","digit":5,"timestamp":"1"}}"#;
        assert_eq!(codec.text(dtmf), Ok(Some(Event::Pressed('5'))));
    }

    #[test]
    fn what_is_signed_is_the_url_sorted_then_the_form_then_the_nonce() {
        let none = BTreeMap::new();
        let form = BTreeMap::from(
            [("To", "1"), ("From", "2")].map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        for (url, form, text) in [
            ("wss://a.example/b", &none, "wss://a.example/b.n"),
            (
                "https://a.example/b?d=2&c=1",
                &none,
                "https://a.example/b?c=1&d=2.n",
            ),
            (
                "https://a.example/b",
                &form,
                "https://a.example/b?From2To1.n",
            ),
            (
                "https://a.example/b?c=1",
                &form,
                "https://a.example/b?c=1.From2To1.n",
            ),
        ] {
            assert_eq!(signed_text(url, form, "n"), text);
        }
    }
}
