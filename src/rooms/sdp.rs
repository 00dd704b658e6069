//! Session descriptions as text (RFC 8866): what an offer's media sections say, and the edits that an answer
//! needs because str0m sets neither the `msid` nor the direction of sections that the other side made.
//! ICE, DTLS and codecs stay str0m's.

/// What a section carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SectionKind {
    /// `m=audio`.
    Audio,
    /// `m=video`.
    Video,
    /// `m=application`: data channels.
    Application,
}

/// The direction the describing side asks for (RFC 8866 section 6.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Both ways; what no attribute means.
    SendRecv,
    /// Only from the describing side.
    SendOnly,
    /// Only to the describing side.
    RecvOnly,
    /// Neither.
    Inactive,
}

impl Direction {
    /// Whether the describing side sends.
    pub fn sends(self) -> bool {
        matches!(self, Self::SendRecv | Self::SendOnly)
    }
}

/// One media section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<'a> {
    /// `a=mid`.
    pub mid: &'a str,
    /// What it carries.
    pub kind: SectionKind,
    /// Where it goes.
    pub direction: Direction,
    /// The second part of `a=msid`: the sender's name of the track.
    pub track_id: Option<&'a str>,
    /// The layers of `a=simulcast:send`, as the sender lists them: lowest first in all known clients.
    pub layers: Vec<&'a str>,
    /// The video codecs that are known here, preferred ones first, as MIME types in lower case.
    pub video_mimes: Vec<&'static str>,
}

/// Why a description cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// Sections are told apart by `a=mid` (RFC 5888).
    #[error("a media section of the description has no a=mid")]
    NoMid,
    /// See `LONGEST_MID`.
    #[error("a media section's name is longer than {LONGEST_MID} characters")]
    LongMid,
    /// See [`MOST_SECTIONS`].
    #[error("the description has more than {MOST_SECTIONS} media sections")]
    TooManySections,
}

/// A client that publishes and unpublishes grows its description by a section each time; this bounds what that costs.
pub const MOST_SECTIONS: usize = 512;

/// str0m cuts longer names off, after which two could be one.
const LONGEST_MID: usize = 16;

/// The audio, video and application sections of a description, in order.
pub fn sections(sdp: &str) -> Result<Vec<Section<'_>>, SdpError> {
    let mut found = Vec::new();
    for lines in split(sdp).skip(1) {
        if found.len() == MOST_SECTIONS {
            return Err(SdpError::TooManySections);
        }
        if let Some(section) = section(lines)? {
            found.push(section);
        }
    }
    Ok(found)
}

/// The session part, then one piece per media section.
pub(super) fn split(sdp: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(sdp);
    std::iter::from_fn(move || {
        let text = rest?;
        match text.find("\nm=") {
            Some(line_end) => {
                let (piece, after) = text.split_at_checked(line_end + 1)?;
                rest = Some(after);
                Some(piece)
            }
            None => rest.take(),
        }
    })
}

fn section(lines: &str) -> Result<Option<Section<'_>>, SdpError> {
    let mut kind = None;
    let mut mid = None;
    let mut direction = Direction::SendRecv;
    let mut track_id = None;
    let mut layers = Vec::new();
    let mut video_mimes = Vec::new();
    for line in lines.lines() {
        let line = line.trim_end();
        if let Some(media) = line.strip_prefix("m=") {
            kind = match media.split(' ').next() {
                Some("audio") => Some(SectionKind::Audio),
                Some("video") => Some(SectionKind::Video),
                Some("application") => Some(SectionKind::Application),
                _ => None,
            };
        } else if let Some(value) = line.strip_prefix("a=mid:") {
            mid = Some(value);
        } else if let Some(value) = line.strip_prefix("a=msid:") {
            track_id = value.split(' ').nth(1);
        } else if let Some(value) = line.strip_prefix("a=simulcast:") {
            layers = simulcast_send(value);
        } else if let Some(value) = line.strip_prefix("a=rtpmap:") {
            let known = video_mime_of(value).filter(|mime| !video_mimes.contains(mime));
            video_mimes.extend(known);
        } else if let Some(stated) = direction_of(line) {
            direction = stated;
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

/// The value of `rtpmap` is `<payload type> <name>/<clock>`.
fn video_mime_of(rtpmap: &str) -> Option<&'static str> {
    let name = rtpmap.split_once(' ')?.1.split('/').next()?;
    match name.to_ascii_uppercase().as_str() {
        "VP8" => Some("video/vp8"),
        "H264" => Some("video/h264"),
        _ => None,
    }
}

fn direction_of(line: &str) -> Option<Direction> {
    match line {
        "a=sendrecv" => Some(Direction::SendRecv),
        "a=sendonly" => Some(Direction::SendOnly),
        "a=recvonly" => Some(Direction::RecvOnly),
        "a=inactive" => Some(Direction::Inactive),
        _ => None,
    }
}

/// The identifiers after `send` (RFC 8853): `send q;h;~f` and alternatives with commas, of which the first counts.
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

/// What a section of our own description shall say about what we send in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit<'a> {
    /// As str0m wrote it.
    Keep,
    /// Nothing is sent: `inactive`, without names of streams.
    Silence,
    /// This track is sent: `msid` in the form that clients take apart, `PA_…|TR_… TR_…`.
    Send {
        /// The publisher's sid.
        participant: &'a str,
        /// The track's sid.
        track: &'a str,
    },
}

/// The description with the edit that `edit` names for each mid.
pub fn edit<'a>(sdp: &str, edit: impl Fn(&str) -> Edit<'a>) -> String {
    let mut edited = String::with_capacity(sdp.len() + 256);
    for (index, piece) in split(sdp).enumerate() {
        let mid = piece
            .lines()
            .find_map(|line| line.trim_end().strip_prefix("a=mid:"));
        match mid.filter(|_| index > 0).map_or(Edit::Keep, &edit) {
            Edit::Keep => edited.push_str(piece),
            Edit::Silence => silence(piece, &mut edited),
            Edit::Send { participant, track } => send(piece, participant, track, &mut edited),
        }
    }
    edited
}

fn silence(piece: &str, into: &mut String) {
    for line in piece.lines().map(str::trim_end) {
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
    for line in piece.lines().map(str::trim_end) {
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
