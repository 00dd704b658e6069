//! Session descriptions (RFC 8866) of WebRTC: what the media sections of an offer say, and edits to our own descriptions,
//! because str0m sets neither `msid` (RFC 8830) nor the direction of sections that the other side has created. Lines and
//! sections are cut by [`vivavoce_core::sdp`]; ICE, DTLS and codecs are left to str0m.

use str0m::format::Codec;
use vivavoce_core::sdp::{Encoding, attribute, payload_type, pieces};

pub use vivavoce_core::sdp::Direction;

/// The kind of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SectionKind {
    /// `m=audio`.
    Audio,
    /// `m=video`.
    Video,
    /// `m=application`: data channels.
    Application,
}

/// A media section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its mid (RFC 5888).
    pub mid: &'a str,
    /// Its kind.
    pub kind: SectionKind,
    /// Its direction, seen from the describing side.
    pub direction: Direction,
    /// The second part of `a=msid`: the sender's id of the track.
    pub track_id: Option<&'a str>,
    /// The layers (RIDs) of `a=simulcast:send`, in the sender's order, which means nothing.
    pub layers: Vec<&'a str>,
    /// The SSRCs of layers without RIDs (`a=ssrc-group:SIM`).
    pub sim: Vec<u32>,
    /// The supported video codecs in order of preference.
    pub video_codecs: Vec<Codec>,
    /// Whether it names a video codec that is not supported.
    pub has_unknown_codec: bool,
}

/// Why a description is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// Sections are identified by `a=mid` (RFC 5888).
    #[error("a media section of the description has no a=mid")]
    NoMid,
    /// See `LONGEST_MID`.
    #[error("a mid is longer than {LONGEST_MID} characters")]
    LongMid,
    /// See [`MOST_SECTIONS`].
    #[error("the description has more than {MOST_SECTIONS} media sections")]
    TooManySections,
}

/// A client that publishes and unpublishes adds a section to its description each time; this bounds the cost.
pub const MOST_SECTIONS: usize = 512;

/// str0m truncates longer ones, after which two could be equal.
const LONGEST_MID: usize = 16;

/// The audio, video and application sections of a description, in order.
pub fn sections(sdp: &str) -> Result<Vec<Section<'_>>, SdpError> {
    let mut found = Vec::new();
    for lines in pieces(sdp).skip(1) {
        if found.len() == MOST_SECTIONS {
            return Err(SdpError::TooManySections);
        }
        if let Some(section) = section(lines)? {
            found.push(section);
        }
    }
    Ok(found)
}

fn section(piece: &str) -> Result<Option<Section<'_>>, SdpError> {
    let mut kind = None;
    let mut mid = None;
    let mut direction = Direction::default();
    let mut track_id = None;
    let mut layers = Vec::new();
    let mut sim = Vec::new();
    let mut video_codecs = Vec::new();
    let mut has_unknown_codec = false;
    for line in lines(piece) {
        if let Some(media) = line.strip_prefix("m=") {
            kind = match media.split(' ').next() {
                Some("audio") => Some(SectionKind::Audio),
                Some("video") => Some(SectionKind::Video),
                Some("application") => Some(SectionKind::Application),
                _ => None,
            };
            continue;
        }
        if let Some(stated) = Direction::of_line(line) {
            direction = stated;
        }
        match attribute(line) {
            Some(("mid", value)) => mid = Some(value).filter(|mid| !mid.is_empty()),
            Some(("msid", value)) => track_id = value.split(' ').nth(1),
            Some(("simulcast", value)) => layers = simulcast_send(value),
            Some(("ssrc-group", value)) => {
                if let Some(streams) = value.strip_prefix("SIM ") {
                    sim = streams
                        .split(' ')
                        .map_while(|ssrc| ssrc.parse().ok())
                        .collect();
                }
            }
            Some(("rtpmap", value)) => match video_codec_of(value) {
                Some(codec) if video_codecs.contains(&codec) => {}
                Some(codec) => video_codecs.push(codec),
                None => has_unknown_codec |= kind == Some(SectionKind::Video) && !repeats(value),
            },
            _ => {}
        }
    }
    let Some(kind) = kind else { return Ok(None) };
    let mid = mid.ok_or(SdpError::NoMid)?;
    if mid.len() > LONGEST_MID {
        return Err(SdpError::LongMid);
    }
    Ok(Some(Section {
        mid,
        kind,
        direction,
        track_id,
        layers,
        sim,
        video_codecs,
        has_unknown_codec,
    }))
}

fn video_codec_of(rtpmap: &str) -> Option<Codec> {
    let (_, encoding) = payload_type(rtpmap)?;
    video_codec(Encoding::parse(encoding).name)
}

/// Whether a format protects or repeats others.
fn repeats(rtpmap: &str) -> bool {
    let name = payload_type(rtpmap).map(|(_, encoding)| Encoding::parse(encoding).name);
    name.is_none_or(|name| {
        ["rtx", "red", "ulpfec", "flexfec-03"]
            .iter()
            .any(|other| name.eq_ignore_ascii_case(other))
    })
}

/// A supported video codec by its name in SDP.
pub fn video_codec(name: &str) -> Option<Codec> {
    let named = VIDEO_CODECS
        .iter()
        .find(|(known, ..)| name.eq_ignore_ascii_case(known));
    named.map(|(_, _, codec)| *codec)
}

/// The MIME type of a supported video codec, in lower case.
pub fn video_mime(codec: Codec) -> Option<&'static str> {
    let named = VIDEO_CODECS.iter().find(|(.., known)| *known == codec);
    named.map(|(_, mime, _)| *mime)
}

/// The video codecs that are forwarded: their names in SDP, and their MIME types.
const VIDEO_CODECS: [(&str, &str, Codec); 4] = [
    ("VP8", "video/vp8", Codec::Vp8),
    ("H264", "video/h264", Codec::H264),
    ("VP9", "video/vp9", Codec::Vp9),
    ("AV1", "video/av1", Codec::Av1),
];

/// The RIDs after `send` (RFC 8853), as in `send q;h;~f`; of alternatives separated by commas the first.
fn simulcast_send(value: &str) -> Vec<&str> {
    let mut words = value.split(' ').skip_while(|word| *word != "send");
    let list = words.nth(1).unwrap_or_default();
    let layers = list
        .split(';')
        .filter_map(|alternatives| alternatives.split(',').next());
    layers
        .map(|layer| layer.trim_start_matches('~'))
        .filter(|layer| !layer.is_empty())
        .collect()
}

/// An edit of a section of our own description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit<'a> {
    /// As str0m wrote it.
    Keep,
    /// Nothing is sent: `inactive`, without stream ids.
    Silence,
    /// This track is sent, with the `msid` that clients expect: `PA_…|TR_… TR_…`.
    Send {
        /// The publisher's sid.
        participant: &'a str,
        /// The track's sid.
        track: &'a str,
    },
}

/// Applies the edit that `edit` returns for each mid.
pub fn edit<'a>(sdp: &str, edit: impl Fn(&str) -> Edit<'a>) -> String {
    let mut edited = String::with_capacity(sdp.len() + 256);
    for (index, piece) in pieces(sdp).enumerate() {
        let mid = lines(piece).find_map(|line| match attribute(line)? {
            ("mid", mid) => Some(mid),
            _ => None,
        });
        match mid.filter(|_| index > 0).map_or(Edit::Keep, &edit) {
            Edit::Keep => edited.push_str(piece),
            Edit::Silence => silence(piece, &mut edited),
            Edit::Send { participant, track } => send(piece, participant, track, &mut edited),
        }
    }
    edited
}

/// Puts the payload types of an answer in the order of its offer, section by section, and those of the codec that `preferred`
/// gives for a mid in front: libwebrtc sends what the answer names first, and LiveKit's clients say in `AddTrackRequest` what
/// that shall be.
pub fn in_order_of(offer: &str, answer: &str, preferred: impl Fn(&str) -> Option<Codec>) -> String {
    let wished: Vec<&str> = pieces(offer).skip(1).collect();
    let mut ordered = String::with_capacity(answer.len());
    for (index, piece) in pieces(answer).enumerate() {
        // The sections of an answer are those of its offer, in the same order (RFC 8829 section 5.3.1).
        let wish = index.checked_sub(1).and_then(|index| wished.get(index));
        let wish = wish.and_then(|piece| lines(piece).next());
        let media = lines(piece)
            .next()
            .filter(|line| line.starts_with("m=video "));
        let (Some(media), Some(wish)) = (media, wish) else {
            ordered.push_str(piece);
            continue;
        };
        let said = |wanted: &'static str| {
            let attributes = lines(piece).filter_map(attribute);
            attributes.filter_map(move |(name, value)| (name == wanted).then_some(value))
        };
        let preferred = said("mid").next().and_then(&preferred);
        let first: Vec<&str> = said("rtpmap")
            .filter(|value| preferred.is_some() && video_codec_of(value) == preferred)
            .filter_map(|value| value.split(' ').next())
            .collect();
        let wish: Vec<&str> = wish.split(' ').skip(3).collect();
        let place = |format: &&str| {
            let known = wish.iter().position(|wished| wished == format);
            (!first.contains(format), known.unwrap_or(usize::MAX))
        };
        let mut words = media.split(' ');
        let head: Vec<&str> = words.by_ref().take(3).collect();
        let mut formats: Vec<&str> = words.collect();
        formats.sort_by_key(place);
        push_line(&mut ordered, &[head, formats].concat().join(" "));
        let rest = piece.split_once('\n').map_or("", |(_, rest)| rest);
        ordered.push_str(rest);
    }
    ordered
}

/// The lines of a piece. Their length is bounded by `offers`.
fn lines(piece: &str) -> impl Iterator<Item = &str> {
    piece.lines().map(str::trim_end)
}

fn silence(piece: &str, into: &mut String) {
    for line in lines(piece) {
        let line = match line {
            "a=sendonly" | "a=sendrecv" => "a=inactive",
            named if is_stream_name(named) => continue,
            other => other,
        };
        push_line(into, line);
    }
}

fn send(piece: &str, participant: &str, track: &str, into: &mut String) {
    let name = format!("{participant}|{track} {track}");
    for line in lines(piece) {
        if line.starts_with("a=msid:") {
            push_line(into, &format!("a=msid:{name}"));
        } else if let Some((before, _)) = line
            .split_once(" msid:")
            .filter(|_| line.starts_with("a=ssrc:"))
        {
            push_line(into, &format!("{before} msid:{name}"));
        } else {
            push_line(into, line);
        }
    }
}

fn is_stream_name(line: &str) -> bool {
    ["a=msid:", "a=ssrc:", "a=ssrc-group:"]
        .iter()
        .any(|start| line.starts_with(start))
}

fn push_line(into: &mut String, line: &str) {
    into.push_str(line);
    into.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: &str = "v=0\r\no=- 1 2 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n\
        m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\na=recvonly\r\n\
        m=video 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:v\r\na=sendonly\r\na=msid:- cam-1\r\na=simulcast:send q;~h;f,g\r\n\
        m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=mid:2\r\n";

    #[test]
    fn sections_are_read_in_order() {
        let read = sections(OFFER).unwrap();
        assert_eq!(
            read.iter().map(|s| s.mid).collect::<Vec<_>>(),
            ["0", "v", "2"]
        );
        assert_eq!(read[0].direction, Direction::RecvOnly);
        assert_eq!(read[1].track_id, Some("cam-1"));
        assert_eq!(read[1].layers, ["q", "h", "f"]);
        assert_eq!(read[2].kind, SectionKind::Application);
    }

    #[test]
    fn a_section_without_a_name_is_refused() {
        assert_eq!(sections("v=0\nm=audio 9 X 1\n"), Err(SdpError::NoMid));
        assert_eq!(sections(""), Ok(vec![]));
        assert_eq!(sections("m="), Ok(vec![]));
    }

    #[test]
    fn an_answer_has_the_codecs_in_the_order_of_the_offer_behind_the_preferred_one() {
        let offer = "v=0\r\nm=audio 9 X 111\r\nm=video 9 X 98 99 96\r\na=mid:1\r\n";
        let answer = "v=0\r\nm=audio 9 X 111\r\na=mid:0\r\nm=video 9 X 96 97 98 99\r\na=mid:1\r\n\
            a=rtpmap:96 VP8/90000\r\na=rtpmap:97 VP9/90000\r\na=rtpmap:98 H264/90000\r\n";
        let expected = answer.replace("96 97 98 99", "98 99 96 97");
        assert_eq!(in_order_of(offer, answer, |_| None), expected);
        let vp9 = |mid: &str| (mid == "1").then_some(Codec::Vp9);
        let expected = answer.replace("96 97 98 99", "97 98 99 96");
        assert_eq!(in_order_of(offer, answer, vp9), expected);
        assert_eq!(in_order_of("v=0\r\n", answer, vp9), answer);
    }

    #[test]
    fn an_answer_names_what_it_sends_and_is_silent_about_the_rest() {
        let answer = "v=0\r\nm=audio 9 X 111\r\na=mid:0\r\na=sendonly\r\na=msid:x y\r\na=ssrc:7 cname:c\r\na=ssrc:7 msid:x y\r\n\
            m=audio 9 X 111\r\na=mid:1\r\na=sendonly\r\na=msid:x z\r\na=ssrc:8 cname:c\r\n";
        let edited = edit(answer, |mid| match mid {
            "0" => Edit::Send {
                participant: "PA_1",
                track: "TR_2",
            },
            _ => Edit::Silence,
        });
        assert_eq!(
            edited,
            "v=0\r\nm=audio 9 X 111\r\na=mid:0\r\na=sendonly\r\na=msid:PA_1|TR_2 TR_2\r\na=ssrc:7 cname:c\r\na=ssrc:7 msid:PA_1|TR_2 TR_2\r\n\
            m=audio 9 X 111\r\na=mid:1\r\na=inactive\r\n"
        );
    }
}
