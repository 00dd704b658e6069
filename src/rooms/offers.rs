//! Session descriptions of others, looked through before anything is made of them. A cheap pass over the text bounds what
//! there may be, leaves out what is of no use here (candidates, which ICE-lite does not need, and codecs that nobody
//! forwards), and refuses payload types that str0m would not survive; what is left is then read by str0m. All of it works on
//! text alone, so that it is done where it delays no sound.

use std::collections::HashSet;
use std::panic::catch_unwind;

use livekit_protocol as proto;
use str0m::change::{SdpAnswer, SdpOffer};

use super::limits;
use super::sdp::{self, MOST_SECTIONS};

/// Payload types (RFC 3551 section 6 leaves seven bits).
const PAYLOAD_TYPES: usize = 128;
/// With RTP and RTCP on one port these cannot be told from packet types of RTCP (RFC 5761 section 4).
const RESERVED: std::ops::RangeInclusive<u8> = 64..=95;

/// Why a description is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// See [`limits::DESCRIPTION_BYTES`].
    #[error("the description is longer than {} bytes", limits::DESCRIPTION_BYTES)]
    TooLong,
    /// See [`limits::LINE_BYTES`].
    #[error(
        "a line of the description is longer than {} bytes",
        limits::LINE_BYTES
    )]
    LongLine,
    /// See [`limits::DESCRIPTION_LINES`].
    #[error(
        "the description has more than {} lines of use",
        limits::DESCRIPTION_LINES
    )]
    TooManyLines,
    /// See [`limits::SECTION_LINES`].
    #[error("a media section has more than {} lines of use", limits::SECTION_LINES)]
    TooManyAttributes,
    /// See [`limits::SECTION_FORMATS`].
    #[error(
        "a media section has more than {} payload types of use",
        limits::SECTION_FORMATS
    )]
    TooManyFormats,
    /// See [`limits::SECTION_SSRCS`].
    #[error("a media section has more than {} SSRCs", limits::SECTION_SSRCS)]
    TooManySsrcs,
    /// Sections are told apart by their names, which str0m keeps as letters and digits only.
    #[error("a media section's name is used twice, or is not made of letters and digits")]
    Mid,
    /// One payload type stands for two codecs, in one section or across those that share a transport (RFC 9143).
    #[error("payload type {0} stands for two formats")]
    TwoFormats(u8),
    /// Out of range or taken by RTCP.
    #[error("payload type {0} is reserved")]
    Reserved(u8),
    /// A retransmission of nothing (RFC 4588 section 8.6).
    #[error("payload type {0} repeats a payload type that is not there")]
    NoOriginal(u8),
    /// An SSRC belongs to one section.
    #[error("an SSRC is used in two media sections")]
    TwoSections,
    /// The sections cannot be told apart.
    #[error(transparent)]
    Sections(#[from] sdp::SdpError),
    /// Not a description in the eyes of str0m.
    #[error("the description cannot be read: {0}")]
    Unreadable(String),
}

/// What a payload type stands for, as far as it must not change while a connection lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Opus,
    Vp8,
    /// Profile and packetization mode (RFC 6184 section 8.1).
    H264(u16, u8),
    /// Of which payload type.
    Rtx(u8),
}

/// What the payload types of a connection stand for. All its sections share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadTypes([Option<Format>; PAYLOAD_TYPES]);

impl Default for PayloadTypes {
    fn default() -> Self {
        Self([None; PAYLOAD_TYPES])
    }
}

impl PayloadTypes {
    /// Takes over what a description says. The first payload type of a format is the one that is used; a new format under
    /// one that is taken is refused where the other side insists on it, and then nothing is changed.
    pub fn agree(&mut self, described: &Reduced) -> Result<(), DescriptionError> {
        let mut agreed = self.clone();
        for (number, format) in described.payload_types.all() {
            let known = agreed.all().any(|(_, known)| known == format);
            if known || matches!(format, Format::Rtx(_)) {
                continue;
            }
            let repeats = |(_, format): &(u8, Format)| *format == Format::Rtx(number);
            let repeated = described.payload_types.all().filter(repeats);
            let taken: Vec<(u8, Format)> = repeated.chain([(number, format)]).collect();
            if taken.iter().all(|(number, _)| agreed.is_free(*number)) {
                for (number, format) in taken {
                    agreed.set(number, format)?;
                }
            } else if described.received.all().any(|had| had == (number, format)) {
                return Err(DescriptionError::TwoFormats(number));
            }
        }
        *self = agreed;
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = (u8, Format)> {
        let numbered = (0..).zip(self.0);
        numbered.filter_map(|(number, format)| Some((number, format?)))
    }

    fn is_free(&self, number: u8) -> bool {
        let place = self.0.get(usize::from(number));
        place.is_some_and(Option::is_none)
    }

    fn set(&mut self, number: u8, format: Format) -> Result<(), DescriptionError> {
        let place = self.0.get_mut(usize::from(number));
        let place = place.ok_or(DescriptionError::Reserved(number))?;
        match place.replace(format) {
            Some(before) if before != format => Err(DescriptionError::TwoFormats(number)),
            _ => Ok(()),
        }
    }
}

/// A description of which only what is of use is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduced {
    /// With CRLF, as RFC 8866 asks for.
    pub text: String,
    /// Of all sections together.
    pub payload_types: PayloadTypes,
    /// Those of sections in which the describing side receives: there it is not ours to choose others.
    pub received: PayloadTypes,
    /// The SSRCs that are told beforehand.
    pub ssrcs: Vec<u32>,
}

/// An offer that may be answered, read as far as that is possible without the connection that it is for.
#[derive(Debug)]
pub struct Offer {
    /// The client's number for it.
    pub id: u32,
    /// What it says.
    pub reduced: Reduced,
    /// The same, as str0m reads it.
    pub parsed: SdpOffer,
}

impl Offer {
    /// Reads an offer. Takes long for a long one: to be called where nothing waits for it.
    pub fn read(description: &proto::SessionDescription) -> Result<Self, DescriptionError> {
        let reduced = reduce(&description.sdp)?;
        let parsed = parsed(&reduced.text, SdpOffer::from_sdp_string)?;
        Ok(Self {
            id: description.id,
            reduced,
            parsed,
        })
    }
}

/// An answer, read like an [`Offer`].
#[derive(Debug)]
pub struct Answer {
    /// What it says.
    pub reduced: Reduced,
    /// The same, as str0m reads it.
    pub parsed: SdpAnswer,
}

impl Answer {
    /// Reads an answer; see [`Offer::read`].
    pub fn read(description: &proto::SessionDescription) -> Result<Self, DescriptionError> {
        let reduced = reduce(&description.sdp)?;
        let parsed = parsed(&reduced.text, SdpAnswer::from_sdp_string)?;
        Ok(Self { reduced, parsed })
    }
}

/// Lets str0m read a text. It has no business to panic; if it does all the same, it is this text that is refused.
fn parsed<T, E: std::fmt::Display>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E> + std::panic::UnwindSafe,
) -> Result<T, DescriptionError> {
    let unreadable = |why: String| DescriptionError::Unreadable(why);
    catch_unwind(|| read(text).map_err(|error| unreadable(error.to_string())))
        .unwrap_or_else(|_| Err(unreadable("it made the reader panic".to_owned())))
}

/// Looks a description through and leaves out what is of no use.
pub fn reduce(sdp: &str) -> Result<Reduced, DescriptionError> {
    if sdp.len() > limits::DESCRIPTION_BYTES {
        return Err(DescriptionError::TooLong);
    }
    let mut reducing = Reducing {
        out: String::with_capacity(sdp.len().min(64 << 10)),
        lines: 0,
        payload_types: PayloadTypes::default(),
        received: PayloadTypes::default(),
        mids: HashSet::new(),
        ssrcs: HashSet::new(),
    };
    for (index, piece) in sdp::split(sdp).enumerate() {
        if index > MOST_SECTIONS {
            return Err(sdp::SdpError::TooManySections.into());
        }
        if index == 0 {
            reducing.session(piece)?;
        } else {
            reducing.section(piece)?;
        }
    }
    // Names and sections are what everything after this goes by.
    sdp::sections(&reducing.out)?;
    Ok(Reduced {
        text: reducing.out,
        payload_types: reducing.payload_types,
        received: reducing.received,
        ssrcs: reducing.ssrcs.into_iter().collect(),
    })
}

struct Reducing<'a> {
    out: String,
    lines: usize,
    payload_types: PayloadTypes,
    received: PayloadTypes,
    mids: HashSet<&'a str>,
    ssrcs: HashSet<u32>,
}

impl<'a> Reducing<'a> {
    fn push(&mut self, line: &str) -> Result<(), DescriptionError> {
        self.lines += 1;
        if self.lines > limits::DESCRIPTION_LINES {
            return Err(DescriptionError::TooManyLines);
        }
        self.out.push_str(line);
        self.out.push_str("\r\n");
        Ok(())
    }

    /// What stands before the first section.
    fn session(&mut self, piece: &str) -> Result<(), DescriptionError> {
        let before = self.lines;
        for line in lines(piece) {
            let line = line?;
            if attribute(line).is_none_or(|(name, _)| is_kept(name)) {
                self.push(line)?;
            }
            if self.lines - before > limits::SECTION_LINES {
                return Err(DescriptionError::TooManyAttributes);
            }
        }
        Ok(())
    }

    fn section(&mut self, piece: &'a str) -> Result<(), DescriptionError> {
        let formats = Formats::of(piece)?;
        let receives = piece
            .lines()
            .any(|line| matches!(line.trim_end(), "a=sendrecv" | "a=recvonly"));
        for (number, format) in &formats.kept {
            self.payload_types.set(*number, *format)?;
            if receives {
                self.received.set(*number, *format)?;
            }
        }
        let (before, mut named, mut own) = (self.lines, false, HashSet::new());
        for line in lines(piece) {
            let line = line?;
            let Some((name, value)) = attribute(line) else {
                match line.strip_prefix("m=") {
                    Some(media) => self.push(&formats.media_line(media))?,
                    None => self.push(line)?,
                }
                continue;
            };
            match name {
                "mid" => {
                    let plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
                    if named || value.is_empty() || !plain || !self.mids.insert(value) {
                        return Err(DescriptionError::Mid);
                    }
                    named = true;
                }
                "rtpmap" | "fmtp" | "rtcp-fb" if !formats.keeps(value) => continue,
                "ssrc" => {
                    let ssrc = value.split(' ').next().and_then(|ssrc| ssrc.parse().ok());
                    let Some(ssrc) = ssrc else { continue };
                    // Everything that is said of it here is said again for each of its attributes.
                    if !own.insert(ssrc) {
                        continue;
                    }
                    if !self.ssrcs.insert(ssrc) {
                        return Err(DescriptionError::TwoSections);
                    }
                    if own.len() > limits::SECTION_SSRCS {
                        return Err(DescriptionError::TooManySsrcs);
                    }
                }
                name if !is_kept(name) => continue,
                _ => {}
            }
            self.push(line)?;
            if self.lines - before > limits::SECTION_LINES {
                return Err(DescriptionError::TooManyAttributes);
            }
        }
        Ok(())
    }
}

/// Whether an attribute is read by anybody here; the others only cost time. Candidates are not: the address that checks
/// come from is the one.
fn is_kept(name: &str) -> bool {
    matches!(
        name,
        "group"
            | "msid-semantic"
            | "ice-lite"
            | "ice-ufrag"
            | "ice-pwd"
            | "ice-options"
            | "fingerprint"
            | "setup"
            | "mid"
            | "sctp-port"
            | "max-message-size"
            | "sctp-init"
            | "extmap"
            | "extmap-allow-mixed"
            | "sendrecv"
            | "sendonly"
            | "recvonly"
            | "inactive"
            | "msid"
            | "rtcp-mux"
            | "rtcp-mux-only"
            | "rtcp-rsize"
            | "rtpmap"
            | "rtcp-fb"
            | "fmtp"
            | "rid"
            | "simulcast"
            | "ssrc"
            | "ssrc-group"
    )
}

/// The lines of a piece, without their ends.
fn lines(piece: &str) -> impl Iterator<Item = Result<&str, DescriptionError>> {
    piece.lines().map(|line| {
        let most = if line.starts_with("a=group:") {
            limits::GROUP_LINE_BYTES
        } else {
            limits::LINE_BYTES
        };
        if line.len() > most {
            return Err(DescriptionError::LongLine);
        }
        Ok(line.trim_end())
    })
}

/// Name and value of an attribute.
fn attribute(line: &str) -> Option<(&str, &str)> {
    let attribute = line.strip_prefix("a=")?;
    Some(attribute.split_once(':').unwrap_or((attribute, "")))
}

/// The number at the beginning of the value of `rtpmap`, `fmtp` and `rtcp-fb`, and what follows.
fn numbered(value: &str) -> Option<(u8, &str)> {
    let (number, rest) = value.split_once(' ').unwrap_or((value, ""));
    Some((number.parse().ok()?, rest))
}

/// The payload types of one section.
struct Formats<'a> {
    /// Those that are known here, and what they stand for.
    kept: Vec<(u8, Format)>,
    /// What the section keeps when it has none that is known: there is no section without.
    only: Option<&'a str>,
}

impl<'a> Formats<'a> {
    fn of(piece: &'a str) -> Result<Self, DescriptionError> {
        let media = piece.lines().next().unwrap_or_default().trim_end();
        let media = media.strip_prefix("m=").unwrap_or_default();
        let has_formats = media.starts_with("audio ") || media.starts_with("video ");
        let listed: Vec<&str> = media.split(' ').skip(3).collect();
        let mut formats = Self {
            kept: Vec::new(),
            only: listed.first().copied().filter(|_| has_formats),
        };
        if !has_formats {
            return Ok(formats);
        }
        let (names, parameters) = read_formats(piece)?;
        let is_listed = |number: u8| {
            let mut listed = listed.iter();
            listed.any(|listed| listed.parse() == Ok(number))
        };
        for number in 0..PAYLOAD_TYPES as u8 {
            let at = usize::from(number);
            let name = names.get(at).copied().flatten();
            let said = parameters.get(at).copied().unwrap_or_default();
            let Some(name) = name.filter(|_| is_listed(number)) else {
                continue;
            };
            let format = match name {
                Name::Opus => Format::Opus,
                Name::Vp8 => Format::Vp8,
                Name::H264 => Format::H264(said.profile, said.mode),
                Name::Rtx => match said.original {
                    Some(original) => {
                        let known = names.get(usize::from(original)).copied().flatten();
                        match known {
                            None | Some(Name::Rtx) => {
                                return Err(DescriptionError::NoOriginal(number));
                            }
                            Some(Name::Other) => continue,
                            Some(_) => Format::Rtx(original),
                        }
                    }
                    None => continue,
                },
                Name::Other => continue,
            };
            if RESERVED.contains(&number) {
                return Err(DescriptionError::Reserved(number));
            }
            formats.kept.push((number, format));
        }
        if formats.kept.len() > limits::SECTION_FORMATS {
            return Err(DescriptionError::TooManyFormats);
        }
        // Retransmissions of what is not listed go with it.
        let originals: Vec<u8> = formats.kept.iter().map(|(number, _)| *number).collect();
        formats.kept.retain(|(_, format)| match format {
            Format::Rtx(original) => originals.contains(original),
            _ => true,
        });
        if !formats.kept.is_empty() {
            formats.only = None;
        }
        Ok(formats)
    }

    /// Whether a line about this payload type is of use.
    fn keeps(&self, value: &str) -> bool {
        let number = value.split(' ').next().unwrap_or_default();
        number == "*"
            || self.only == Some(number)
            || self
                .kept
                .iter()
                .any(|(kept, _)| number.parse() == Ok(*kept))
    }

    /// The line that begins the section, with what is kept of its payload types.
    fn media_line(&self, media: &str) -> String {
        let mut line = "m=".to_owned();
        let is_media = self.only.is_some() || !self.kept.is_empty();
        let mut listed: HashSet<&str> = HashSet::new();
        for (index, word) in media.split(' ').enumerate() {
            if is_media && index >= 3 && !(self.keeps(word) && listed.insert(word)) {
                continue;
            }
            if index > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
        line
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Opus,
    Vp8,
    H264,
    Rtx,
    Other,
}

/// What `fmtp` says that tells one payload type from another.
#[derive(Debug, Clone, Copy, Default)]
struct Parameters {
    original: Option<u8>,
    profile: u16,
    mode: u8,
}

type ReadFormats = ([Option<Name>; PAYLOAD_TYPES], [Parameters; PAYLOAD_TYPES]);

/// What the payload types of a section stand for.
fn read_formats(piece: &str) -> Result<ReadFormats, DescriptionError> {
    let mut names = [None; PAYLOAD_TYPES];
    let mut parameters = [Parameters::default(); PAYLOAD_TYPES];
    for line in lines(piece) {
        let Some((attribute, value)) = attribute(line?) else {
            continue;
        };
        if !matches!(attribute, "rtpmap" | "fmtp") {
            continue;
        }
        let Some((number, said)) = numbered(value) else {
            continue;
        };
        let at = usize::from(number);
        if at >= PAYLOAD_TYPES {
            return Err(DescriptionError::Reserved(number));
        }
        if attribute == "rtpmap" {
            let name = match said.split('/').next().unwrap_or_default() {
                name if name.eq_ignore_ascii_case("opus") => Name::Opus,
                name if name.eq_ignore_ascii_case("VP8") => Name::Vp8,
                name if name.eq_ignore_ascii_case("H264") => Name::H264,
                name if name.eq_ignore_ascii_case("rtx") => Name::Rtx,
                _ => Name::Other,
            };
            if names
                .get_mut(at)
                .and_then(|place| place.replace(name))
                .is_some()
            {
                return Err(DescriptionError::TwoFormats(number));
            }
        } else if let Some(place) = parameters.get_mut(at) {
            read_parameters(number, said, place)?;
        }
    }
    Ok((names, parameters))
}

fn read_parameters(number: u8, said: &str, into: &mut Parameters) -> Result<(), DescriptionError> {
    for (key, value) in said
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='))
    {
        match key {
            "apt" => {
                let original: Option<u8> = value.trim().parse().ok();
                let before = into.original.replace(original.unwrap_or(u8::MAX));
                if original.is_none_or(|original| original == number) {
                    return Err(DescriptionError::NoOriginal(number));
                }
                if before.is_some_and(|before| Some(before) != original) {
                    return Err(DescriptionError::TwoFormats(number));
                }
            }
            // The last two digits are a level, which may differ. What is no number is as good as absent.
            "profile-level-id" => {
                let profile = u32::from_str_radix(value.trim(), 16).unwrap_or_default();
                into.profile = (profile >> 8) as u16;
            }
            "packetization-mode" => into.mode = value.trim().parse().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(())
}
