//! Validation of session descriptions from clients, before str0m parses them.
//!
//! An SDP offer of a client is untrusted text whose parsing takes time that grows with it. A cheap pass over the text
//! checks bounds, removes what is not used here (candidates, because an ICE-lite server learns addresses from connectivity
//! checks, RFC 8445 section 2.5; codecs that are not forwarded), and refuses payload types that str0m could not handle.
//! str0m parses the rest. All of it is a function of the text, so it runs off the media thread.

use std::collections::HashSet;
use std::panic::catch_unwind;

use livekit_protocol as proto;
use str0m::change::{SdpAnswer, SdpOffer};
use str0m::format::Codec;

use super::limits;
use super::sdp::{self, MOST_SECTIONS};
use vivavoce_core::sdp::{Direction, Encoding, LineTooLong, attribute, payload_type, pieces};

/// Payload types are seven bits (RFC 3550 section 5.1).
const PAYLOAD_TYPES: usize = 128;
/// With `rtcp-mux`, these cannot be told from RTCP packet types (RFC 5761 section 4).
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
        "the description has more than {} used lines",
        limits::DESCRIPTION_LINES
    )]
    TooManyLines,
    /// See [`limits::SECTION_LINES`].
    #[error("a media section has more than {} used lines", limits::SECTION_LINES)]
    TooManyAttributes,
    /// See [`limits::SECTION_FORMATS`].
    #[error(
        "a media section has more than {} used payload types",
        limits::SECTION_FORMATS
    )]
    TooManyFormats,
    /// See [`limits::SECTION_SSRCS`].
    #[error("a media section has more than {} SSRCs", limits::SECTION_SSRCS)]
    TooManySsrcs,
    /// Sections are identified by mid, of which str0m keeps letters and digits only.
    #[error("a mid is used twice, or has other characters than letters and digits")]
    Mid,
    /// A payload type has two meanings, in one section or in several that share a transport (RFC 9143).
    #[error("payload type {0} stands for two formats")]
    TwoFormats(u8),
    /// Out of range, or taken by RTCP.
    #[error("payload type {0} is reserved")]
    Reserved(u8),
    /// A retransmission payload type without its original (RFC 4588 section 8.6).
    #[error("payload type {0} retransmits a payload type that does not exist")]
    NoOriginal(u8),
    /// An SSRC belongs to one section.
    #[error("an SSRC is used in two media sections")]
    TwoSections,
    /// The sections cannot be identified.
    #[error(transparent)]
    Sections(#[from] sdp::SdpError),
    /// str0m cannot parse it.
    #[error("cannot parse the description: {0}")]
    Unreadable(String),
}

/// The meaning of a payload type, as far as it must not change during a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Opus,
    Vp8,
    /// Profile (RFC 9628 section 6).
    Vp9(u8),
    Av1,
    /// Profile and packetization mode (RFC 6184 section 8.1).
    H264(u16, u8),
    /// Retransmission of this payload type.
    Rtx(u8),
}

/// The payload types of a connection, shared by all its sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadTypes([Option<Format>; PAYLOAD_TYPES]);

impl Default for PayloadTypes {
    fn default() -> Self {
        Self([None; PAYLOAD_TYPES])
    }
}

impl PayloadTypes {
    /// Adds the payload types of a description. The first payload type of a format is used; a new format under a taken
    /// payload type is refused if the other side requires it, and then nothing changes.
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

    /// Whether a codec is among them.
    pub fn has(&self, codec: Codec) -> bool {
        self.all().any(|(_, format)| match format {
            Format::Opus => codec == Codec::Opus,
            Format::Vp8 => codec == Codec::Vp8,
            Format::Vp9(_) => codec == Codec::Vp9,
            Format::Av1 => codec == Codec::Av1,
            Format::H264(..) => codec == Codec::H264,
            Format::Rtx(_) => false,
        })
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

/// A description reduced to what is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduced {
    /// With CRLF, as RFC 8866 requires.
    pub text: String,
    /// Of all sections.
    pub payload_types: PayloadTypes,
    /// Of sections in which the describing side receives: those we cannot choose.
    pub received: PayloadTypes,
    /// The SSRCs it announces.
    pub ssrcs: Vec<u32>,
    /// How many media sections it has.
    pub sections: usize,
}

/// A validated offer, parsed as far as possible without its connection.
#[derive(Debug)]
pub struct Offer {
    /// The client's number for it.
    pub id: u32,
    /// The reduced description.
    pub reduced: Reduced,
    /// The same, parsed by str0m.
    pub parsed: SdpOffer,
}

impl Offer {
    /// Parses an offer. Slow for a long one: not for the media thread.
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

/// A validated answer, like an [`Offer`].
#[derive(Debug)]
pub struct Answer {
    /// The reduced description.
    pub reduced: Reduced,
    /// The same, parsed by str0m.
    pub parsed: SdpAnswer,
}

impl Answer {
    /// Parses an answer; see [`Offer::read`].
    pub fn read(description: &proto::SessionDescription) -> Result<Self, DescriptionError> {
        let reduced = reduce(&description.sdp)?;
        let parsed = parsed(&reduced.text, SdpAnswer::from_sdp_string)?;
        Ok(Self { reduced, parsed })
    }
}

/// Lets str0m parse a text. Should it panic, only this description is refused.
fn parsed<T, E: std::fmt::Display>(
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E> + std::panic::UnwindSafe,
) -> Result<T, DescriptionError> {
    let unreadable = |why: String| DescriptionError::Unreadable(why);
    catch_unwind(|| read(text).map_err(|error| unreadable(error.to_string())))
        .unwrap_or_else(|_| Err(unreadable("it made the reader panic".to_owned())))
}

/// Validates and reduces a description.
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
    for (index, piece) in pieces(sdp).enumerate() {
        if index > MOST_SECTIONS {
            return Err(sdp::SdpError::TooManySections.into());
        }
        if index == 0 {
            reducing.session(piece)?;
        } else {
            reducing.section(piece)?;
        }
    }
    // Everything after this relies on mids and sections.
    let sections = sdp::sections(&reducing.out)?.len();
    Ok(Reduced {
        text: reducing.out,
        payload_types: reducing.payload_types,
        received: reducing.received,
        ssrcs: reducing.ssrcs.into_iter().collect(),
        sections,
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

    /// The session part.
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
            .any(|line| Direction::of_line(line.trim_end()).is_some_and(Direction::receives));
        for (number, format) in &formats.kept {
            self.payload_types.set(*number, *format)?;
            if receives {
                self.received.set(*number, *format)?;
            }
        }
        let is_audio = piece.starts_with("m=audio ");
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
                // Bandwidth is estimated for video: audio goes first, and without it there is nothing to choose.
                "extmap" | "rtcp-fb" if is_audio && is_transport_wide(value) => continue,
                "ssrc" => {
                    let ssrc = value.split(' ').next().and_then(|ssrc| ssrc.parse().ok());
                    let Some(ssrc) = ssrc else { continue };
                    // One line per SSRC suffices; further ones repeat the same attributes.
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

/// Whether an attribute is used; others only cost time. Candidates are not: addresses are learned from connectivity checks.
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

/// Whether an attribute is about transport-wide congestion control.
fn is_transport_wide(value: &str) -> bool {
    value.ends_with("transport-wide-cc-extensions-01") || value.ends_with(" transport-cc")
}

/// The lines of a section, bounded.
fn lines(piece: &str) -> impl Iterator<Item = Result<&str, DescriptionError>> {
    let longest = |line: &str| {
        if line.starts_with("a=group:") {
            limits::GROUP_LINE_BYTES
        } else {
            limits::LINE_BYTES
        }
    };
    let lines = vivavoce_core::sdp::lines(piece, longest);
    lines.map(|line| line.map_err(|LineTooLong| DescriptionError::LongLine))
}

/// The payload types of one section.
struct Formats<'a> {
    /// The known ones, with their meaning.
    kept: Vec<(u8, Format)>,
    /// The payload type kept if none is known: a section must have one.
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
                // Those that str0m can match; browsers offer others that they do not send.
                Name::Vp9 if matches!(said.own_profile, 0 | 2) => Format::Vp9(said.own_profile),
                Name::Av1 if said.own_profile == 0 => Format::Av1,
                Name::H264 => Format::H264(said.profile, said.mode),
                Name::Rtx => match said.original {
                    Some(original) => {
                        let known = names.get(usize::from(original)).copied().flatten();
                        match known {
                            None | Some(Name::Rtx) => {
                                return Err(DescriptionError::NoOriginal(number));
                            }
                            Some(Name::Other) => continue,
                            // Of a profile that is left out, it is left out below.
                            Some(_) => Format::Rtx(original),
                        }
                    }
                    None => continue,
                },
                Name::Vp9 | Name::Av1 | Name::Other => continue,
            };
            if RESERVED.contains(&number) {
                return Err(DescriptionError::Reserved(number));
            }
            formats.kept.push((number, format));
        }
        if formats.kept.len() > limits::SECTION_FORMATS {
            return Err(DescriptionError::TooManyFormats);
        }
        // Retransmission payload types of formats that are not listed are removed, too.
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

    /// Whether a line about this payload type is kept.
    fn keeps(&self, value: &str) -> bool {
        let number = value.split(' ').next().unwrap_or_default();
        number == "*"
            || self.only == Some(number)
            || self
                .kept
                .iter()
                .any(|(kept, _)| number.parse() == Ok(*kept))
    }

    /// The `m=` line with the payload types that are kept.
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
    Vp9,
    Av1,
    H264,
    Rtx,
    Other,
}

/// The `fmtp` parameters that distinguish payload types.
#[derive(Debug, Clone, Copy, Default)]
struct Parameters {
    original: Option<u8>,
    profile: u16,
    mode: u8,
    /// Of VP9 and AV1.
    own_profile: u8,
}

type ReadFormats = ([Option<Name>; PAYLOAD_TYPES], [Parameters; PAYLOAD_TYPES]);

/// The meaning of a section's payload types.
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
        let Some((number, said)) = payload_type(value) else {
            continue;
        };
        let at = usize::from(number);
        if at >= PAYLOAD_TYPES {
            return Err(DescriptionError::Reserved(number));
        }
        if attribute == "rtpmap" {
            let name = match Encoding::parse(said).name {
                name if name.eq_ignore_ascii_case("opus") => Name::Opus,
                name if name.eq_ignore_ascii_case("VP8") => Name::Vp8,
                name if name.eq_ignore_ascii_case("VP9") => Name::Vp9,
                name if name.eq_ignore_ascii_case("AV1") => Name::Av1,
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
            // The last two digits are the level, which may differ. An invalid number counts as absent.
            "profile-level-id" => {
                let profile = u32::from_str_radix(value.trim(), 16).unwrap_or_default();
                into.profile = (profile >> 8) as u16;
            }
            "profile-id" | "profile" => {
                into.own_profile = value.trim().parse().unwrap_or(u8::MAX);
            }
            "packetization-mode" => into.mode = value.trim().parse().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(())
}
