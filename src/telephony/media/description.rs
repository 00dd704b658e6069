//! Session descriptions as text (RFC 8866), as far as a telephone call needs them: who describes, where media goes, what
//! formats it has. Reading is lenient where telephones are sloppy and bounded everywhere. What is agreed upon is
//! `negotiation`'s.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::SdpError;

/// The largest description that is read: those of telephones have a few kilobytes at most.
const LONGEST: usize = 16 << 10;
/// The longest line: one with keys has a few hundred bytes.
const LONGEST_LINE: usize = 2 << 10;
/// The most lines.
const MOST_LINES: usize = 400;
/// The most attributes of one section.
const MOST_ATTRIBUTES: usize = 128;
/// The most media sections.
const MOST_SECTIONS: usize = 16;
/// The most formats of one section.
const MOST_FORMATS: usize = 64;

/// Which way media goes, seen from who describes (RFC 8866 section 6.7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    /// Both ways.
    #[default]
    SendRecv,
    /// From who describes.
    SendOnly,
    /// To who describes.
    RecvOnly,
    /// Neither way.
    Inactive,
}

impl Direction {
    /// From what is sent and received.
    pub const fn new(sends: bool, receives: bool) -> Self {
        match (sends, receives) {
            (true, true) => Self::SendRecv,
            (true, false) => Self::SendOnly,
            (false, true) => Self::RecvOnly,
            (false, false) => Self::Inactive,
        }
    }

    /// Whether who describes sends.
    pub const fn sends(self) -> bool {
        matches!(self, Self::SendRecv | Self::SendOnly)
    }

    /// Whether who describes receives.
    pub const fn receives(self) -> bool {
        matches!(self, Self::SendRecv | Self::RecvOnly)
    }

    /// Its attribute.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SendRecv => "sendrecv",
            Self::SendOnly => "sendonly",
            Self::RecvOnly => "recvonly",
            Self::Inactive => "inactive",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [
            Self::SendRecv,
            Self::SendOnly,
            Self::RecvOnly,
            Self::Inactive,
        ]
        .into_iter()
        .find(|direction| direction.name() == name)
    }
}

/// Where media is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// There.
    Address(IpAddr),
    /// `0.0.0.0` or `::`: nowhere for now. That is how calls were held before there were directions.
    Nowhere,
    /// A name. It is not looked up: media goes to where it comes from.
    Named,
}

/// A format of a section: what a payload type stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format<'a> {
    /// In RTP packets.
    pub payload_type: u8,
    /// Of the encoding; empty where neither the description nor RFC 3551 says.
    pub name: &'a str,
    /// Of the timestamps.
    pub clock_hz: u32,
}

/// One `m=` and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<'a> {
    /// `audio`, `video` …
    pub media: &'a str,
    /// 0 when it is refused.
    pub port: u16,
    /// `RTP/AVP` …
    pub protocol: &'a str,
    /// As they stand in `m=`.
    pub formats: Vec<&'a str>,
    connection: Option<Connection>,
    attributes: Vec<(&'a str, &'a str)>,
    direction: Direction,
}

/// A description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description<'a> {
    /// The sections, in order.
    pub sections: Vec<Section<'a>>,
}

impl<'a> Description<'a> {
    /// Reads a description. Unknown lines are skipped; what is missing is taken for its default.
    pub fn parse(text: &'a str) -> Result<Self, SdpError> {
        if text.len() > LONGEST {
            return Err(SdpError::Malformed("it is longer than 16 KiB"));
        }
        let mut lines = text.lines().map(str::trim_end).filter(|l| !l.is_empty());
        if lines.next() != Some("v=0") {
            return Err(SdpError::Malformed("it does not begin with v=0"));
        }
        let mut connection = None;
        let mut direction = Direction::default();
        let mut sections: Vec<Section<'a>> = Vec::new();
        for (count, line) in lines.enumerate() {
            if count >= MOST_LINES {
                return Err(SdpError::Malformed("it has more than 400 lines"));
            }
            if line.len() > LONGEST_LINE {
                return Err(SdpError::Malformed("a line of it is longer than 2 KiB"));
            }
            let Some((kind, value)) = line.split_once('=') else {
                return Err(SdpError::Malformed("a line of it is not of the form x=…"));
            };
            if kind == "m" {
                if sections.len() >= MOST_SECTIONS {
                    return Err(SdpError::Malformed("it has more than 16 media sections"));
                }
                sections.push(Section::parse(value, connection, direction)?);
                continue;
            }
            match (kind, sections.last_mut()) {
                ("c", Some(section)) => section.connection = Some(parse_connection(value)?),
                ("c", None) => connection = Some(parse_connection(value)?),
                ("a", Some(section)) => section.add_attribute(value)?,
                ("a", None) => direction = Direction::parse(value).unwrap_or(direction),
                _ => {}
            }
        }
        Ok(Self { sections })
    }
}

impl<'a> Section<'a> {
    fn parse(
        value: &'a str,
        connection: Option<Connection>,
        direction: Direction,
    ) -> Result<Self, SdpError> {
        const BROKEN: SdpError = SdpError::Malformed("an m= line of it cannot be read");
        let mut words = value.split_ascii_whitespace();
        let media = words.next().ok_or(BROKEN)?;
        let port = words.next().ok_or(BROKEN)?;
        let port = port.split_once('/').map_or(port, |(port, _)| port);
        let port = port.parse().map_err(|_| BROKEN)?;
        let protocol = words.next().ok_or(BROKEN)?;
        let formats: Vec<&str> = words.take(MOST_FORMATS + 1).collect();
        if formats.len() > MOST_FORMATS {
            return Err(SdpError::Malformed(
                "a section of it has more than 64 formats",
            ));
        }
        Ok(Self {
            media,
            port,
            protocol,
            formats,
            connection,
            attributes: Vec::new(),
            direction,
        })
    }

    fn add_attribute(&mut self, value: &'a str) -> Result<(), SdpError> {
        if let Some(direction) = Direction::parse(value) {
            self.direction = direction;
            return Ok(());
        }
        if self.attributes.len() >= MOST_ATTRIBUTES {
            return Err(SdpError::Malformed(
                "a section of it has more than 128 attributes",
            ));
        }
        let (name, value) = value.split_once(':').unwrap_or((value, ""));
        self.attributes.push((name, value.trim()));
        Ok(())
    }

    /// The values of the attributes of a name.
    pub fn attributes(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let of_name = self.attributes.iter().filter(move |(n, _)| *n == name);
        of_name.map(|(_, value)| *value)
    }

    /// Whether there is an attribute of a name.
    pub fn has(&self, name: &str) -> bool {
        self.attributes(name).next().is_some()
    }

    /// Which way media goes, as described; an address of zeros takes nothing.
    pub fn direction(&self) -> Direction {
        match self.connection {
            Some(Connection::Nowhere) => Direction::new(self.direction.sends(), false),
            _ => self.direction,
        }
    }

    /// Where RTP is wanted, if that is known.
    pub fn rtp(&self) -> Option<SocketAddr> {
        match self.connection {
            Some(Connection::Address(address)) if self.port > 0 => {
                Some(SocketAddr::new(address, self.port))
            }
            _ => None,
        }
    }

    /// Where RTCP is wanted (RFC 3605): one above, where nothing else is said.
    pub fn rtcp(&self) -> Option<SocketAddr> {
        let rtp = self.rtp()?;
        let Some(value) = self.attributes("rtcp").next() else {
            return Some(SocketAddr::new(rtp.ip(), rtp.port().checked_add(1)?));
        };
        let (port, connection) = value.split_once(' ').unwrap_or((value, ""));
        let address = match parse_connection(connection) {
            Ok(Connection::Address(address)) => address,
            _ => rtp.ip(),
        };
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some(SocketAddr::new(address, port))
    }

    /// What its payload types stand for, in its order of preference.
    pub fn rtp_formats(&self) -> impl Iterator<Item = Format<'a>> {
        // Each line is looked at once, however many formats there are; the first of a payload type counts.
        let mut described: [Option<&'a str>; 128] = [None; 128];
        for value in self.attributes("rtpmap") {
            let Some((number, encoding)) = value.split_once(' ') else {
                continue;
            };
            let place = number
                .parse()
                .ok()
                .and_then(|n: usize| described.get_mut(n));
            if let Some(place) = place {
                place.get_or_insert(encoding.trim());
            }
        }
        self.formats.iter().filter_map(move |format| {
            let payload_type: u8 = format.parse().ok().filter(|number| *number < 128)?;
            let described = described.get(usize::from(payload_type)).copied().flatten();
            let encoding = described.or_else(|| static_encoding(payload_type))?;
            let mut parts = encoding.split('/');
            Some(Format {
                payload_type,
                name: parts.next().unwrap_or_default(),
                clock_hz: parts.next()?.trim().parse().ok()?,
            })
        })
    }

    /// The milliseconds of sound that it wants in a packet.
    pub fn packet_ms(&self) -> Option<u32> {
        let wanted = self.attributes("ptime").find_map(|v| v.parse().ok());
        let most = self.attributes("maxptime").find_map(|v| v.parse().ok());
        match (wanted, most) {
            (Some(wanted), Some(most)) => Some(u32::min(wanted, most)),
            (Some(wanted), None) => Some(wanted),
            (None, Some(most)) if most < 20 => Some(most),
            (None, _) => None,
        }
    }
}

/// Payload types that need no `a=rtpmap` (RFC 3551 table 4), of those that are known here.
fn static_encoding(payload_type: u8) -> Option<&'static str> {
    match payload_type {
        0 => Some("PCMU/8000"),
        8 => Some("PCMA/8000"),
        9 => Some("G722/8000"),
        13 => Some("CN/8000"),
        _ => None,
    }
}

fn parse_connection(value: &str) -> Result<Connection, SdpError> {
    let mut words = value.split_ascii_whitespace();
    let (Some("IN"), Some("IP4" | "IP6"), Some(address)) =
        (words.next(), words.next(), words.next())
    else {
        return Err(SdpError::Malformed(
            "a c= line of it is not of the form IN IP4 … or IN IP6 …",
        ));
    };
    let address = address
        .split_once('/')
        .map_or(address, |(address, _)| address);
    Ok(match address.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => Connection::Nowhere,
        Ok(address) => Connection::Address(address),
        Err(_) if is_name(address) => Connection::Named,
        Err(_) => {
            return Err(SdpError::Malformed(
                "a c= line of it has neither an address nor the name of a host",
            ));
        }
    })
}

/// Whether this may be the name of a host.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

/// `IN IP4 192.0.2.1` or the like.
fn write_connection(text: &mut String, address: IpAddr) {
    let family = if address.is_ipv4() { "IP4" } else { "IP6" };
    // Writing to a string does not fail.
    let _ = write!(text, "IN {family} {address}");
}

/// The lines before the first section. A session of this number and version is described by nobody else.
pub fn write_head(text: &mut String, session: u64, version: u64, address: IpAddr) {
    let _ = write!(text, "v=0\r\no=vivavoce {session} {version} ");
    write_connection(text, address);
    text.push_str("\r\ns=-\r\nc=");
    write_connection(text, address);
    text.push_str("\r\nt=0 0\r\n");
}

/// A section of somebody's offer that is refused.
pub fn write_refusal(text: &mut String, section: &Section<'_>) {
    let format = section.formats.first().copied().unwrap_or("0");
    let _ = write!(
        text,
        "m={} 0 {} {format}\r\n",
        section.media, section.protocol
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: &str = "v=0\r\n\
        o=- 1 1 IN IP4 192.0.2.7\r\n\
        s=-\r\n\
        c=IN IP4 192.0.2.7\r\n\
        t=0 0\r\n\
        a=inactive\r\n\
        m=audio 4000/2 RTP/AVP 0 8 96 101 200 x\r\n\
        a=rtpmap:96 opus/48000/2\r\n\
        a=rtpmap:101 telephone-event/8000\r\n\
        a=sendonly\r\n\
        a=rtcp:4005 IN IP4 192.0.2.9\r\n\
        a=ptime:30\r\n\
        m=video 0 RTP/AVP 31\r\n\
        c=IN IP6 ::\r\n";

    #[test]
    fn a_description_says_where_and_what() {
        let description = Description::parse(OFFER).unwrap();
        let [audio, video] = &description.sections[..] else {
            panic!("{description:?}");
        };
        assert_eq!(audio.rtp(), Some("192.0.2.7:4000".parse().unwrap()));
        assert_eq!(audio.rtcp(), Some("192.0.2.9:4005".parse().unwrap()));
        assert_eq!(audio.direction(), Direction::SendOnly);
        assert_eq!(audio.packet_ms(), Some(30));
        let formats: Vec<_> = audio
            .rtp_formats()
            .map(|f| (f.payload_type, f.name, f.clock_hz))
            .collect();
        assert_eq!(
            formats,
            [
                (0, "PCMU", 8_000),
                (8, "PCMA", 8_000),
                (96, "opus", 48_000),
                (101, "telephone-event", 8_000)
            ]
        );
        assert_eq!(video.rtp(), None);
        assert_eq!(video.direction(), Direction::Inactive);
    }

    #[test]
    fn line_ends_and_missing_parts_are_taken_as_they_come() {
        let text = "v=0\nm=audio 5000 RTP/AVP 0\nc=IN IP4 phone.example\n";
        let description = Description::parse(text).unwrap();
        let section = &description.sections[0];
        assert_eq!(section.rtp(), None);
        assert_eq!(section.direction(), Direction::SendRecv);
        let held = "v=0\nc=IN IP4 0.0.0.0\nm=audio 5000 RTP/AVP 0\n";
        let held = Description::parse(held).unwrap();
        assert_eq!(held.sections[0].direction(), Direction::SendOnly);
    }

    #[test]
    fn what_is_no_description_is_refused() {
        let long = format!("v=0\r\n{}", "a=x\r\n".repeat(5_000));
        let lines = format!("v=0\r\n{}", "a=x\r\n".repeat(500));
        let sections = format!("v=0\r\n{}", "m=audio 0 RTP/AVP 0\r\n".repeat(17));
        let formats = format!("v=0\r\nm=audio 1 RTP/AVP {}\r\n", "0 ".repeat(65));
        let attributes = format!("v=0\r\nm=audio 1 RTP/AVP 0\r\n{}", "a=x\r\n".repeat(129));
        let line = format!("v=0\r\ns={}\r\n", "x".repeat(2_048));
        let texts = [
            "",
            "hello",
            "v=1",
            "v=0\nnonsense",
            "v=0\nm=audio",
            "v=0\nm=audio 70000 RTP/AVP 0",
            "v=0\nc=IN IP4",
            "v=0\nc=ATM x y",
            "v=0\nc=IN IP6 :::::",
            &long,
            &lines,
            &sections,
            &formats,
            &attributes,
            &line,
        ];
        for text in texts {
            let refused = Description::parse(text);
            assert!(matches!(refused, Err(SdpError::Malformed(_))), "{text:.40}");
        }
    }
}
