//! Twilio's Media Streams, both ways: the `<Connect><Stream>` of TwiML. Its handshake and its webhooks carry
//! `X-Twilio-Signature`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use serde_json::json;

use super::wire::{Message, base64, no_format, numbers};
use super::{
    Account, Becomes, Carrier, Codec, Document, Event, Format, Frame, Misfit, Request, Row,
    Signature, Start, Stream,
};

pub struct Twilio;

impl Carrier for Twilio {
    fn kind(&self) -> &'static str {
        "twilio"
    }

    fn name(&self) -> &'static str {
        "Twilio"
    }

    fn codec(&self, _: &str) -> Box<dyn Codec> {
        Box::new(Messages::default())
    }

    /// HMAC-SHA1 over the URL as Twilio knows it, followed by the names and values of a form, sorted by name.
    /// A handshake has no form: its signature is the same for all calls.
    fn signed(&self, account: &Account, request: &Request<'_>, _: SystemTime) -> Option<Signature> {
        let signature = request.header("x-twilio-signature")?;
        let form: String = request
            .form
            .iter()
            .flat_map(|(name, value)| [name.as_str(), value])
            .collect();
        let urls = request.urls();
        let mut texts = urls.iter().map(|url| format!("{url}{form}"));
        let is_signed = texts.any(|text| account.signed_sha1(text.as_bytes(), signature));
        is_signed.then_some(Signature::Repeated)
    }

    fn answer(&self, stream: &Stream<'_>, asked: &BTreeMap<String, String>) -> Document {
        let parameters = stream.parameters(asked, [("from", "From"), ("to", "To")]);
        Document::xml(|xml| {
            xml.open("Response", &[]);
            xml.open("Connect", &[]);
            xml.open("Stream", &[("url", stream.url)]);
            for (name, value) in &parameters {
                xml.empty("Parameter", &[("name", name), ("value", value)]);
            }
        })
    }

    fn rows(&self) -> &'static [Row] {
        ROWS
    }

    fn setup(&self) -> &'static str {
        "The number's *A call comes in* is a webhook, `https://voice.example.com/carrier/twilio/answer`; `signing_key` is the account's auth token. \
A TwiML bin works as well: paste the document, and give `from` and `to` as parameters with `{{From}}` and `{{To}}`."
    }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("`connected`", Becomes::Ignored, "the call begins with `start`"),
    Row("`start`", Becomes::Honoured, "`callSid` is the id of the call; `customParameters` `from` and `to` are its numbers, the others are passed on; µ-law at 8 kHz"),
    Row("`media`", Becomes::Honoured, "of the track `inbound`"),
    Row("`dtmf`", Becomes::Honoured, "event `dtmf`"),
    Row("`mark`", Becomes::Honoured, "a call is hung up when what was said has been played"),
    Row("`stop`", Becomes::Honoured, "the caller has hung up"),
    Row("`media`, `mark`, `clear` to Twilio", Becomes::Honoured, "20 ms a message"),
    Row("`<Start><Stream>`", Becomes::Ignored, "a stream of one direction looks like one of two: the caller is heard, and hears nothing"),
    Row("hanging up", Becomes::Honoured, "the socket is closed; the call ends after the verbs that follow `<Connect>`, of which the document has none"),
    Row("pressing keys, transfer", Becomes::Ignored, "there is no message for it: `call_failed`, `sip_transfer_error`"),
];

#[derive(Default)]
struct Messages {
    stream: String,
}

impl Messages {
    fn message(&self, event: &str, value: &serde_json::Value) -> Frame {
        Frame::Text(json!({"event": event, "streamSid": self.stream, event: value}).to_string())
    }
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
                self.stream = start.text("streamSid")?;
                let media = start.object("mediaFormat", "start.mediaFormat");
                let encoding = media
                    .maybe("encoding")?
                    .unwrap_or_else(|| "audio/x-mulaw".to_owned());
                let format =
                    super::wire::format(&encoding, media.rate("sampleRate")?.unwrap_or(8_000));
                let format = format.filter(|format| *format == Format::MULAW);
                let mut parameters = start.parameters("customParameters")?;
                let (from, to) = numbers(&mut parameters);
                Ok(Some(Event::Start(Box::new(Start {
                    call_id: start.text("callSid")?,
                    from,
                    to,
                    parameters,
                    format: format.ok_or_else(|| no_format("start.mediaFormat"))?,
                }))))
            }
            _ => Ok(None),
        }
    }

    fn sound(&mut self, sound: Bytes) -> Frame {
        self.message("media", &json!({"payload": base64(&sound)}))
    }

    fn mark(&mut self, name: &str) -> Option<Frame> {
        Some(self.message("mark", &json!({"name": name})))
    }

    fn clear(&mut self) -> Option<Frame> {
        Some(Frame::Text(
            json!({"event": "clear", "streamSid": self.stream}).to_string(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the vendor's pages.
    #[test]
    fn a_call_of_twilio_is_understood() {
        let mut codec = Twilio.codec("");
        assert_eq!(
            codec.text(r#"{"event":"connected","protocol":"Call","version":"1.0.0"}"#),
            Ok(None)
        );
        let start = r#"{"event":"start","sequenceNumber":"1","start":{"accountSid":"AC1","streamSid":"MZ1","callSid":"CA1","tracks":["inbound"],
            "mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1},"customParameters":{"FirstName":"Jane","from":"+4930","to":"+4940"}},"streamSid":"MZ1"}"#;
        let Ok(Some(Event::Start(start))) = codec.text(start) else {
            panic!("no call")
        };
        assert_eq!(
            (
                start.call_id.as_str(),
                start.from.as_deref(),
                start.to.as_deref()
            ),
            ("CA1", Some("+4930"), Some("+4940"))
        );
        assert_eq!(
            start.parameters,
            BTreeMap::from([("FirstName".to_owned(), "Jane".to_owned())])
        );
        let media = r#"{"event":"media","sequenceNumber":"3","media":{"track":"inbound","chunk":"1","timestamp":"5","payload":"f38="},"streamSid":"MZ1"}"#;
        assert_eq!(
            codec.text(media),
            Ok(Some(Event::Sound(Bytes::from_static(&[0x7f, 0x7f]))))
        );
        assert_eq!(codec.text(&media.replace("inbound", "outbound")), Ok(None));
        let dtmf = r##"{"event":"dtmf","streamSid":"MZ1","sequenceNumber":"5","dtmf":{"track":"inbound_track","digit":"#"}}"##;
        assert_eq!(codec.text(dtmf), Ok(Some(Event::Pressed('#'))));
        let mark = r#"{"event":"mark","sequenceNumber":"4","streamSid":"MZ1","mark":{"name":"a"}}"#;
        assert_eq!(codec.text(mark), Ok(Some(Event::Mark("a".to_owned()))));
        assert_eq!(codec.text(r#"{"event":"stop","sequenceNumber":"5","streamSid":"MZ1","stop":{"accountSid":"AC1","callSid":"CA1"}}"#), Ok(Some(Event::Stop)));
        let sound = codec.sound(Bytes::from_static(&[0x7f, 0x7f]));
        assert_eq!(
            sound,
            Frame::Text(
                r#"{"event":"media","media":{"payload":"f38="},"streamSid":"MZ1"}"#.to_owned()
            )
        );
    }

    #[test]
    fn what_does_not_fit_is_told_by_the_name_of_its_field() {
        for (text, place) in [
            ("{", "body"),
            ("[]", "body"),
            ("{}", "body"),
            (r#"{"event":7}"#, "event"),
            (r#"{"event":"media"}"#, "media"),
            (r#"{"event":"media","media":{}}"#, "media.payload"),
            (
                r#"{"event":"media","media":{"payload":"*"}}"#,
                "media.payload",
            ),
            (
                r#"{"event":"media","media":{"payload":7}}"#,
                "media.payload",
            ),
            (r#"{"event":"start"}"#, "start"),
            (
                r#"{"event":"start","start":{"streamSid":"a"}}"#,
                "start.callSid",
            ),
            (
                r#"{"event":"start","start":{"streamSid":"a","callSid":"b","mediaFormat":{"encoding":"opus"}}}"#,
                "start.mediaFormat",
            ),
            (r#"{"event":"dtmf","dtmf":{}}"#, "dtmf.digit"),
        ] {
            let told = Twilio.codec("").text(text).unwrap_err();
            assert_eq!(told.place, place, "{text}: {told}");
        }
    }

    #[test]
    fn signatures_are_those_of_the_vendors_page() {
        // https://www.twilio.com/docs/usage/security, "Test the validity of your webhook signature".
        let account = Account::of("twilio", "12345");
        let form = [
            ("CallSid", "CA1234567890ABCDE"),
            ("Caller", "+12349013030"),
            ("Digits", "1234"),
            ("From", "+12349013030"),
            ("To", "+18005551212"),
        ];
        let form: BTreeMap<String, String> = form
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let header =
            |name: &str| (name == "x-twilio-signature").then_some("0/KCTR6DLpKmkAf8muzZqo1nDgQ=");
        let url = "https://mycompany.com/myapp.php?foo=1&bar=2";
        let mut request = Request {
            method: "POST",
            url,
            header: &header,
            form: &form,
            body: b"",
        };
        assert!(
            Twilio
                .signed(&account, &request, SystemTime::now())
                .is_some()
        );
        request.url = "https://mycompany.com/myapp.php?foo=1&bar=3";
        assert!(
            Twilio
                .signed(&account, &request, SystemTime::now())
                .is_none()
        );
        request.url = url;
        assert!(
            Twilio
                .signed(&Account::of("twilio", "12346"), &request, SystemTime::now())
                .is_none()
        );
    }
}
