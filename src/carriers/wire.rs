//! What the messages of several carriers have in common: an object with `event`, sound in base64, keys, marks. Fields that are
//! not read here are nobody's.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::{Encoding, Event, Format, Misfit, misfit};

/// A message with `event`.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow)]
    pub event: Cow<'a, str>,
    #[serde(borrow)]
    media: Option<Media<'a>>,
    dtmf: Option<Dtmf>,
    mark: Option<Named>,
    /// Of a checkpoint, and of a mark of those that do not wrap it.
    pub name: Option<String>,
    pub start: Option<Value>,
    pub extra_headers: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Media<'a> {
    #[serde(borrow)]
    payload: Option<Cow<'a, str>>,
    #[serde(borrow)]
    track: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Dtmf {
    digit: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: Option<String>,
}

/// As they write it, with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The longest id, number or name that is taken.
const MAX_TEXT_BYTES: usize = 1_024;
/// The most parameters of a call.
const MAX_PARAMETERS: usize = 64;

impl<'a> Message<'a> {
    pub fn parse(text: &'a str) -> Result<Self, Misfit> {
        // Borrows from the text, which `json::parse` does not; asked only for the field that is wrong.
        serde_json::from_str(text).map_err(|error| {
            let told = vivavoce_core::json::parse::<Owned>(text.as_bytes()).err();
            told.unwrap_or_else(|| {
                misfit(
                    "message",
                    if error.is_data() {
                        "has a field of another type"
                    } else {
                        "is not JSON"
                    },
                )
            })
        })
    }

    /// The sound of `media`; `None` for that of the other side, which is our own.
    pub fn sound(&self) -> Result<Option<Event>, Misfit> {
        let media = self.media.as_ref().ok_or_else(|| missing("media"))?;
        if media
            .track
            .as_deref()
            .is_some_and(|track| !track.starts_with("inbound"))
        {
            return Ok(None);
        }
        let payload = media
            .payload
            .as_deref()
            .ok_or_else(|| missing("media.payload"))?;
        let sound = BASE64
            .decode(payload)
            .map_err(|_| misfit("media.payload", "must be base64"))?;
        Ok(Some(Event::Sound(Bytes::from(sound))))
    }

    /// The key of `dtmf`; `None` where a telephone has no such key.
    pub fn key(&self) -> Result<Option<Event>, Misfit> {
        let digit = self.dtmf.as_ref().and_then(|dtmf| dtmf.digit.as_ref());
        Ok(key(digit.ok_or_else(|| missing("dtmf.digit"))?))
    }

    /// A mark that comes back.
    pub fn mark(&self) -> Result<Option<Event>, Misfit> {
        let name = self.mark.as_ref().and_then(|mark| mark.name.clone());
        let name = name
            .or_else(|| self.name.clone())
            .ok_or_else(|| missing("mark.name"))?;
        Ok(Some(Event::Mark(name)))
    }

    /// The object of `start`.
    pub fn start(&self) -> Result<Object<'_>, Misfit> {
        let start = self.start.as_ref().ok_or_else(|| missing("start"))?;
        Ok(Object {
            place: "start",
            value: start,
        })
    }
}

/// The same, without borrowing, for the path of what does not fit.
#[derive(Deserialize)]
struct Owned {
    #[serde(rename = "event")]
    _event: String,
    #[serde(rename = "media")]
    _media: Option<OwnedMedia>,
    #[serde(rename = "dtmf")]
    _dtmf: Option<Dtmf>,
    #[serde(rename = "mark")]
    _mark: Option<Named>,
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "extra_headers")]
    _extra_headers: Option<String>,
}

#[derive(Deserialize)]
struct OwnedMedia {
    #[serde(rename = "payload")]
    _payload: Option<String>,
    #[serde(rename = "track")]
    _track: Option<String>,
}

/// A key of a telephone.
pub fn key(digit: &Value) -> Option<Event> {
    let text = text_of(digit)?;
    let mut signs = text.chars();
    let key = signs.next()?.to_ascii_uppercase();
    let known = matches!(key, '0'..='9' | '*' | '#' | 'A'..='D') && signs.next().is_none();
    known.then_some(Event::Pressed(key))
}

/// An object of a message, whose fields are looked up one by one.
#[derive(Clone, Copy)]
pub struct Object<'a> {
    pub place: &'static str,
    pub value: &'a Value,
}

impl<'a> Object<'a> {
    /// A text that must be there.
    pub fn text(&self, name: &str) -> Result<String, Misfit> {
        self.maybe(name)?
            .ok_or_else(|| missing(format!("{}.{name}", self.place)))
    }

    /// A text that may be there; blank is none.
    pub fn maybe(&self, name: &str) -> Result<Option<String>, Misfit> {
        let place = || format!("{}.{name}", self.place);
        let Some(value) = self.value.get(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let text = text_of(value).ok_or_else(|| misfit(place(), "must be a text"))?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(misfit(
                place(),
                format!("must have {MAX_TEXT_BYTES} bytes at most"),
            ));
        }
        Ok(Some(text).filter(|text| !text.trim().is_empty()))
    }

    /// A rate, as a number or as digits.
    pub fn rate(&self, name: &str) -> Result<Option<u32>, Misfit> {
        let text = self.maybe(name)?;
        let parsed = text.map(|text| {
            text.parse()
                .map_err(|_| misfit(format!("{}.{name}", self.place), "must be a rate in hertz"))
        });
        parsed.transpose()
    }

    /// A field that may hold parameters: an object of texts and numbers.
    pub fn parameters(&self, name: &str) -> Result<BTreeMap<String, String>, Misfit> {
        let fields = self.value.get(name).and_then(Value::as_object);
        let fields = fields.into_iter().flatten();
        bounded(fields.filter_map(|(name, value)| Some((name.clone(), text_of(value)?))))
    }

    /// What is in another object.
    pub fn object(&self, name: &str, place: &'static str) -> Object<'a> {
        Object {
            place,
            value: self.value.get(name).unwrap_or(&Value::Null),
        }
    }
}

/// Not too many parameters.
pub fn bounded(
    parameters: impl Iterator<Item = (String, String)>,
) -> Result<BTreeMap<String, String>, Misfit> {
    let parameters: BTreeMap<_, _> = parameters.take(MAX_PARAMETERS + 1).collect();
    if parameters.len() > MAX_PARAMETERS {
        return Err(misfit(
            "parameters",
            format!("are more than {MAX_PARAMETERS}"),
        ));
    }
    Ok(parameters)
}

/// Takes the numbers of a call out of its parameters, where the answer document has put them.
pub fn numbers(parameters: &mut BTreeMap<String, String>) -> (Option<String>, Option<String>) {
    let mut take = |name| parameters.remove(name).filter(|number| !number.is_empty());
    (take("from"), take("to"))
}

/// Texts and numbers are texts.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is) => Some(is.to_string()),
        _ => None,
    }
}

/// A format as carriers name it; `None` where it is none of ours.
pub fn format(encoding: &str, rate: u32) -> Option<Format> {
    let encoding = match encoding.to_ascii_lowercase().as_str() {
        "audio/x-mulaw" | "mulaw" | "pcmu" => Encoding::Mulaw,
        "audio/x-alaw" | "alaw" | "pcma" => Encoding::Alaw,
        "audio/x-l16" | "audio/l16" | "l16" | "audio/x-raw" | "raw" | "base64" | "slin"
        | "raw/slin" => Encoding::Linear16,
        _ => return None,
    };
    let fits = match encoding {
        Encoding::Linear16 => matches!(rate, 8_000 | 16_000 | 24_000),
        Encoding::Mulaw | Encoding::Alaw => rate == 8_000,
    };
    fits.then_some(Format { encoding, rate })
}

/// Sound as text.
pub fn base64(sound: &[u8]) -> String {
    STANDARD.encode(sound)
}

pub fn missing(place: impl Into<String>) -> Misfit {
    misfit(place, "is missing")
}

/// The refusal of another type.
pub fn misfit_of_type(place: &str, kind: &str) -> Misfit {
    misfit(place, format!("must be {kind}"))
}

/// The refusal of a format.
pub fn no_format(place: &str) -> Misfit {
    misfit(
        place,
        "is no format that this server takes from a carrier: µ-law and A-law at 8 kHz, 16-bit samples at 8, 16 or 24 kHz",
    )
}
