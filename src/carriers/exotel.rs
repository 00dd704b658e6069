//! Exotel's Voicebot applet. It signs nothing: its sockets carry the secret of the account in their path, or as the password of
//! the URL's user.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;

use super::wire::{Message, base64, no_format};
use super::{
    Account, Becomes, Carrier, Codec, Document, Encoding, Event, Frame, Misfit, Request, Row,
    Signature, Start, Stream,
};

pub struct Exotel;

impl Carrier for Exotel {
    fn kind(&self) -> &'static str {
        "exotel"
    }

    fn name(&self) -> &'static str {
        "Exotel"
    }

    fn codec(&self, query: &str) -> Box<dyn Codec> {
        let asked =
            form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "sample-rate");
        let rate = asked.and_then(|(_, rate)| rate.parse().ok());
        Box::new(Messages {
            stream: String::new(),
            rate: rate.unwrap_or(8_000),
        })
    }

    fn signs_sockets(&self) -> bool {
        false
    }

    fn signs_webhooks(&self) -> bool {
        false
    }

    fn secret(&self, request: &Request<'_>) -> Option<String> {
        let (scheme, user) = request.header("authorization")?.split_once(' ')?;
        let user = STANDARD
            .decode(user.trim())
            .ok()
            .filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        let user = String::from_utf8(user).ok()?;
        Some(user.split_once(':')?.1.to_owned())
    }

    fn signed(&self, _: &Account, _: &Request<'_>, _: SystemTime) -> Option<Signature> {
        None
    }

    /// The address alone; parameters are its query.
    fn answer(&self, stream: &Stream<'_>, _: &BTreeMap<String, String>) -> Document {
        let parameters = stream.parameters(&BTreeMap::new(), []);
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&parameters);
        let url = match query.finish() {
            query if query.is_empty() => stream.url.to_owned(),
            query => format!("{}?{query}", stream.url),
        };
        Document::json(&json!({"url": url}))
    }

    /// A message holds 3,200 bytes or more, and a multiple of 320.
    fn packet(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn pads(&self) -> bool {
        true
    }

    fn rows(&self) -> &'static [Row] {
        ROWS
    }

    fn setup(&self) -> &'static str {
        "The *Voicebot* applet's URL is `https://voice.example.com/carrier/exotel/answer/<secret>`, or the address that it answers, \
`wss://voice.example.com/carrier/exotel/media/<secret>`, or that without the secret in its path and with it as the password, `wss://user:<secret>@…/media`. \
`?sample-rate=16000` (or 24000) gives wideband sound."
    }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("`connected`", Becomes::Ignored, "the call begins with `start`"),
    Row("`start`", Becomes::Honoured, "`call_sid`, `from`, `to`, `custom_parameters`; 16-bit samples at 8, 16 or 24 kHz, or µ-law at 8 kHz, by `media_format` and `sample-rate`"),
    Row("`media`", Becomes::Honoured, ""),
    Row("`dtmf`", Becomes::Honoured, "event `dtmf`"),
    Row("`mark`", Becomes::Honoured, "a call is hung up when what was said has been played"),
    Row("`stop`", Becomes::Honoured, "the caller has hung up"),
    Row("`media`, `mark`, `clear` to Exotel", Becomes::Honoured, "200 ms a message, as Exotel needs 3,200 bytes, and speech 400 ms ahead (`socket.lead_ms`, if that is more); the last one of an utterance ends with silence"),
    Row("the *Stream* applet", Becomes::Ignored, "it has one direction and looks like the other one: the caller is heard, and hears nothing"),
    Row("hanging up", Becomes::Honoured, "the socket is closed; the flow goes on with the next applet"),
    Row("pressing keys, transfer", Becomes::Ignored, "there is no message for it: `call_failed`, `sip_transfer_error`"),
];

struct Messages {
    stream: String,
    rate: u32,
}

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
                self.stream = start.text("stream_sid")?;
                let media = start.object("media_format", "start.media_format");
                let encoding = media.maybe("encoding")?.unwrap_or_else(|| "raw".to_owned());
                let rate = media.rate("sample_rate")?.unwrap_or(self.rate);
                let format = super::wire::format(&encoding, rate);
                let format = format.filter(|format| format.encoding != Encoding::Alaw);
                Ok(Some(Event::Start(Box::new(Start {
                    call_id: start.text("call_sid")?,
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
        let media = json!({"payload": base64(&sound)});
        Frame::Text(
            json!({"event": "media", "stream_sid": self.stream, "media": media}).to_string(),
        )
    }

    fn mark(&mut self, name: &str) -> Option<Frame> {
        let told = json!({"event": "mark", "stream_sid": self.stream, "mark": {"name": name}});
        Some(Frame::Text(told.to_string()))
    }

    fn clear(&mut self) -> Option<Frame> {
        Some(Frame::Text(
            json!({"event": "clear", "stream_sid": self.stream}).to_string(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the vendor's pages.
    #[test]
    fn a_call_of_exotel_is_understood() {
        let mut codec = Exotel.codec("sample-rate=16000");
        let start = r#"{"event":"start","sequence_number":"1","stream_sid":"MZ1","start":{"stream_sid":"MZ1","call_sid":"CA1","account_sid":"AC1",
            "from":"+91987","to":"+91804","custom_parameters":{"key1":"value1"},"media_format":{"encoding":"audio/x-raw","sample_rate":"8000","bit_rate":"16"}}}"#;
        let Ok(Some(Event::Start(told))) = codec.text(start) else {
            panic!("no call")
        };
        assert_eq!((told.call_id.as_str(), told.format.rate), ("CA1", 8_000));
        assert_eq!(told.parameters["key1"], "value1");
        let bare = start.replace(r#","sample_rate":"8000","bit_rate":"16""#, "");
        let Ok(Some(Event::Start(told))) = Exotel.codec("sample-rate=16000").text(&bare) else {
            panic!("no call")
        };
        assert_eq!(told.format.rate, 16_000);
        let packet = told.format.bytes(Exotel.packet());
        assert!(packet >= 3_200 && packet.is_multiple_of(320));
    }

    #[test]
    fn the_secret_may_be_a_password() {
        let form = BTreeMap::new();
        let secret = |authorization: &str| {
            let header = |name: &str| (name == "authorization").then_some(authorization);
            Exotel.secret(&Request {
                method: "GET",
                url: "wss://a.example/",
                header: &header,
                form: &form,
                body: b"",
            })
        };
        assert_eq!(secret("Basic a2V5OnMzY3JldA=="), Some("s3cret".to_owned()));
        assert_eq!(secret("Bearer a2V5OnMzY3JldA=="), None);
        assert_eq!(secret("Basic *"), None);
    }
}
