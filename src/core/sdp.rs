//! Session descriptions (SDP, RFC 8866), as far as calls and rooms read them alike: the text is split into its session part and
//! its media sections, those into lines, and the few kinds of lines that both read are taken apart. Everything is a slice of
//! the text, so nothing is allocated before the caller's bounds on bytes, lines and sections have been checked. What
//! a description means is left to `telephony::media` (calls) and `rooms` (WebRTC).
//!
//! # Why no library
//!
//! - `webrtc-sdp` 0.3 refuses what telephones send and calls must survive: descriptions without `t=` or `c=` lines, and any
//!   transport that it does not know, even of a section that is to be refused anyway.
//! - `sdp-types` 0.3 is lenient about missing lines, but copies every line into strings of its own, and refuses
//!   a description for a malformed line that nobody here reads (`o=`, `t=`, `b=`). It would replace only [`pieces`] and
//!   [`attribute`]: attributes stay text there, too.
//! - str0m's parser reads WebRTC descriptions only, and keeps what it has read to itself. Rooms use it for ICE, DTLS and
//!   codecs, and edit the text around it.

/// Which way media flows, seen from the describing side (RFC 8866 section 6.7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// Both ways: the default.
    #[default]
    SendRecv,
    /// From the describing side only.
    SendOnly,
    /// To the describing side only.
    RecvOnly,
    /// Neither way.
    Inactive,
}

impl Direction {
    const ALL: [Self; 4] = [
        Self::SendRecv,
        Self::SendOnly,
        Self::RecvOnly,
        Self::Inactive,
    ];

    /// The direction of a side that sends, receives, both or neither.
    pub const fn new(sends: bool, receives: bool) -> Self {
        match (sends, receives) {
            (true, true) => Self::SendRecv,
            (true, false) => Self::SendOnly,
            (false, true) => Self::RecvOnly,
            (false, false) => Self::Inactive,
        }
    }

    /// Whether the describing side sends.
    pub const fn sends(self) -> bool {
        matches!(self, Self::SendRecv | Self::SendOnly)
    }

    /// Whether the describing side receives.
    pub const fn receives(self) -> bool {
        matches!(self, Self::SendRecv | Self::RecvOnly)
    }

    /// The name of its attribute.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendRecv => "sendrecv",
            Self::SendOnly => "sendonly",
            Self::RecvOnly => "recvonly",
            Self::Inactive => "inactive",
        }
    }

    /// The direction that a line states, if it is a direction attribute.
    pub fn of_line(line: &str) -> Option<Self> {
        let name = line.strip_prefix("a=")?;
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// A line is longer than the caller allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTooLong;

/// Splits a description into its session part and one piece per media section, each with its `m=` line first.
pub fn pieces(sdp: &str) -> impl Iterator<Item = &str> {
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

/// The lines of a piece without their ends, and without trailing white space. `longest` is the most bytes that a line may have.
pub fn lines(
    piece: &str,
    longest: impl Fn(&str) -> usize,
) -> impl Iterator<Item = Result<&str, LineTooLong>> {
    piece.lines().map(move |line| {
        if line.len() > longest(line) {
            Err(LineTooLong)
        } else {
            Ok(line.trim_end())
        }
    })
}

/// The name and value of an `a=` line; the value is empty where there is none.
pub fn attribute(line: &str) -> Option<(&str, &str)> {
    let attribute = line.strip_prefix("a=")?;
    Some(attribute.split_once(':').unwrap_or((attribute, "")))
}

/// Splits the value of an attribute about one payload type (`rtpmap`, `fmtp`, `rtcp-fb`): the payload type, and the rest.
pub fn payload_type(value: &str) -> Option<(u8, &str)> {
    let (number, rest) = value.split_once(' ').unwrap_or((value, ""));
    Some((number.parse().ok()?, rest))
}

/// An encoding as `rtpmap` names it: `opus/48000/2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding<'a> {
    /// Its name. Upper and lower case are the same (RFC 8866 section 6.6).
    pub name: &'a str,
    /// The clock rate of its timestamps, where that is a number.
    pub clock_hz: Option<u32>,
}

impl<'a> Encoding<'a> {
    /// Splits name and clock rate.
    pub fn parse(text: &'a str) -> Self {
        let mut parts = text.split('/');
        Self {
            name: parts.next().unwrap_or_default(),
            clock_hz: parts.next().and_then(|clock| clock.trim().parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole_text_and_each_section_begins_with_its_media_line() {
        let text = "v=0\r\ns=m=x\r\nm=audio 9 X 0\r\na=mid:0\r\nm=video 9 X 96\n";
        let split: Vec<&str> = pieces(text).collect();
        assert_eq!(
            split,
            [
                "v=0\r\ns=m=x\r\n",
                "m=audio 9 X 0\r\na=mid:0\r\n",
                "m=video 9 X 96\n"
            ]
        );
        assert_eq!(pieces("").collect::<Vec<_>>(), [""]);
    }

    #[test]
    fn a_line_is_bounded_before_it_is_read() {
        let read: Vec<_> = lines("a=x \r\na=long\nb=", |_| 5).collect();
        assert_eq!(read, [Ok("a=x"), Err(LineTooLong), Ok("b=")]);
    }

    #[test]
    fn what_lines_say_is_taken_apart() {
        assert_eq!(attribute("a=mid:0:1"), Some(("mid", "0:1")));
        assert_eq!(attribute("a=rtcp-mux"), Some(("rtcp-mux", "")));
        assert_eq!(attribute("b=AS:1"), None);
        assert_eq!(payload_type("96 opus/48000/2"), Some((96, "opus/48000/2")));
        assert_eq!(payload_type("* nack"), None);
        let opus = Encoding::parse("opus/48000/2");
        assert_eq!((opus.name, opus.clock_hz), ("opus", Some(48_000)));
        assert_eq!(Encoding::parse("opus").clock_hz, None);
        assert_eq!(Direction::of_line("a=sendonly"), Some(Direction::SendOnly));
        assert_eq!(Direction::of_line("a=sendonly:x"), None);
    }
}
