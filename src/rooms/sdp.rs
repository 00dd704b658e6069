//! Session descriptions (RFC 8866) of WebRTC: what the media sections of an offer say, and edits to our own descriptions,
//! because str0m sets neither `msid` (RFC 8830) nor the direction of sections that the other side has created. Lines and
//! sections are cut by [`vivavoce_core::sdp`]; ICE, DTLS and codecs are left to str0m.

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
    /// The layers (RIDs) of `a=simulcast:send`, in the sender's order: lowest first in all known clients.
    pub layers: Vec<&'a str>,
    /// The supported video codecs in order of preference, as MIME types in lower case.
    pub video_mimes: Vec<&'static str>,
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
    let mut video_mimes = Vec::new();
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
            Some(("rtpmap", value)) => {
                let known = video_mime_of(value).filter(|mime| !video_mimes.contains(mime));
                video_mimes.extend(known);
            }
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
        video_mimes,
    }))
}

fn video_mime_of(rtpmap: &str) -> Option<&'static str> {
    let (_, encoding) = payload_type(rtpmap)?;
    match Encoding::parse(encoding).name.to_ascii_uppercase().as_str() {
        "VP8" => Some("video/vp8"),
        "H264" => Some("video/h264"),
        _ => None,
    }
}

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
