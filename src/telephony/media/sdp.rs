//! Session descriptions (RFC 8866) of telephone calls: connection addresses, formats, direction. Parsing is lenient where
//! phones are sloppy, and bounded everywhere. Lines and sections are cut by [`vivavoce_core::sdp`]; negotiation is in
//! `offer_answer`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::SdpError;
pub use vivavoce_core::sdp::Direction;
use vivavoce_core::sdp::{self, Encoding};

/// The longest description: those of phones have a few kilobytes at most.
const LONGEST: usize = 16 << 10;
/// The longest line: an `a=crypto` line has a few hundred bytes.
const LONGEST_LINE: usize = 2 << 10;
/// The most lines.
const MOST_LINES: usize = 400;
/// The most attributes of one section.
const MOST_ATTRIBUTES: usize = 128;
/// The most media sections.
const MOST_SECTIONS: usize = 16;
/// The most formats of one section.
const MOST_FORMATS: usize = 64;

/// Attributes that a description may have once for all sections.
const OF_ALL: [&str; 5] = ["fingerprint", "setup", "ice-ufrag", "ice-pwd", "group"];

/// The connection address of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// An IP address.
    Address(IpAddr),
    /// `0.0.0.0` or `::`: the call is held, as in RFC 2543, before there were direction attributes.
    Nowhere,
    /// A host name. It is not resolved: media is sent to where it comes from.
    Named,
}

/// A format of a section: what a payload type stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format<'a> {
    /// The payload type in RTP packets.
    pub payload_type: u8,
    /// Encoding name, from `a=rtpmap` or RFC 3551.
    pub name: &'a str,
    /// Clock rate of the timestamps.
    pub clock_hz: u32,
}

/// A media section: an `m=` line and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<'a> {
    /// `audio`, `video` …
    pub media: &'a str,
    /// 0 if the section is refused.
    pub port: u16,
    /// `RTP/AVP` …
    pub protocol: &'a str,
    /// The formats as listed in `m=`.
    pub formats: Vec<&'a str>,
    connection: Option<Connection>,
    attributes: Vec<(&'a str, &'a str)>,
    /// Those that precede the sections, which hold for all of them.
    inherited: Vec<(&'a str, &'a str)>,
    direction: Direction,
}

/// A parsed session description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description<'a> {
    /// The media sections, in order.
    pub sections: Vec<Section<'a>>,
}

impl<'a> Description<'a> {
    /// Parses a description. Unknown lines are skipped; missing ones have their defaults.
    pub fn parse(text: &'a str) -> Result<Self, SdpError> {
        if text.len() > LONGEST {
            return Err(SdpError::Malformed("it is longer than 16 KiB"));
        }
        let mut connection = None;
        let mut direction = Direction::default();
        let mut inherited = Vec::new();
        let mut sections: Vec<Section<'a>> = Vec::new();
        let mut count = 0;
        for (index, piece) in sdp::pieces(text).enumerate() {
            if index > MOST_SECTIONS {
                return Err(SdpError::Malformed("it has more than 16 media sections"));
            }
            for line in sdp::lines(piece, |_| LONGEST_LINE) {
                let line = line.map_err(|_| SdpError::Malformed("a line is longer than 2 KiB"))?;
                if line.is_empty() {
                    continue;
                }
                if count == 0 && line != "v=0" {
                    return Err(SdpError::Malformed("it does not begin with v=0"));
                }
                if count > MOST_LINES {
                    return Err(SdpError::Malformed("it has more than 400 lines"));
                }
                count += 1;
                let Some((kind, value)) = line.split_once('=') else {
                    return Err(SdpError::Malformed("a line does not have the form x=…"));
                };
                match (kind, sections.last_mut()) {
                    ("m", _) => {
                        let mut section = Section::parse(value, connection, direction)?;
                        section.inherited.clone_from(&inherited);
                        sections.push(section);
                    }
                    ("c", Some(section)) => section.connection = Some(parse_connection(value)?),
                    ("c", None) => connection = Some(parse_connection(value)?),
                    ("a", Some(section)) => section.add_attribute(line)?,
                    ("a", None) => {
                        direction = Direction::of_line(line).unwrap_or(direction);
                        let attribute = sdp::attribute(line);
                        // Of these alone a section is asked.
                        let holds = |(name, _): &(&str, &str)| OF_ALL.contains(name);
                        inherited.extend(
                            attribute
                                .filter(holds)
                                .filter(|_| inherited.len() < OF_ALL.len()),
                        );
                    }
                    _ => {}
                }
            }
        }
        if count == 0 {
            return Err(SdpError::Malformed("it does not begin with v=0"));
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
        const BROKEN: SdpError = SdpError::Malformed("an m= line cannot be parsed");
        let mut words = value.split_ascii_whitespace();
        let media = words.next().ok_or(BROKEN)?;
        let port = words.next().ok_or(BROKEN)?;
        let port = port.split_once('/').map_or(port, |(port, _)| port);
        let port = port.parse().map_err(|_| BROKEN)?;
        let protocol = words.next().ok_or(BROKEN)?;
        let formats: Vec<&str> = words.take(MOST_FORMATS + 1).collect();
        if formats.len() > MOST_FORMATS {
            return Err(SdpError::Malformed(
                "a media section has more than 64 formats",
            ));
        }
        Ok(Self {
            media,
            port,
            protocol,
            formats,
            connection,
            attributes: Vec::new(),
            inherited: Vec::new(),
            direction,
        })
    }

    fn add_attribute(&mut self, line: &'a str) -> Result<(), SdpError> {
        if let Some(direction) = Direction::of_line(line) {
            self.direction = direction;
            return Ok(());
        }
        if self.attributes.len() >= MOST_ATTRIBUTES {
            return Err(SdpError::Malformed(
                "a media section has more than 128 attributes",
            ));
        }
        if let Some((name, value)) = sdp::attribute(line) {
            self.attributes.push((name, value.trim()));
        }
        Ok(())
    }

    /// The values of the attributes with this name.
    pub fn attributes(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let of_name = self.attributes.iter().filter(move |(n, _)| *n == name);
        of_name.map(|(_, value)| *value)
    }

    /// The first value of an attribute of this section, or else of all sections.
    pub fn own_or_inherited(&self, name: &str) -> Option<&'a str> {
        let mut all = self.attributes.iter().chain(&self.inherited);
        let (_, value) = all.find(|(n, _)| *n == name)?;
        Some(value.trim())
    }

    /// Its name in a bundle (RFC 9143), if that can be repeated.
    pub fn bundled_as(&self) -> Option<&'a str> {
        let name = self.attributes("mid").next()?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let sound = (1..=32).contains(&name.len()) && name.bytes().all(fits);
        let group = self.own_or_inherited("group")?;
        let mut names = group.split_ascii_whitespace();
        let is_bundle = names.next() == Some("BUNDLE");
        (sound && is_bundle && names.any(|one| one == name)).then_some(name)
    }

    /// Whether the other side looks for the path itself (ICE): the addresses that it writes are then those that it knows so
    /// far, perhaps none.
    pub fn has_ice(&self) -> bool {
        self.own_or_inherited("ice-ufrag").is_some()
    }

    /// Whether there is an attribute with this name.
    pub fn has(&self, name: &str) -> bool {
        self.attributes(name).next().is_some()
    }

    /// The direction, taking a connection address of zeros as hold.
    pub fn direction(&self) -> Direction {
        match self.connection {
            Some(Connection::Nowhere) if !self.has_ice() => {
                Direction::new(self.direction.sends(), false)
            }
            _ => self.direction,
        }
    }

    /// Where the other side receives RTP, if it says so.
    pub fn rtp(&self) -> Option<SocketAddr> {
        match self.connection {
            Some(Connection::Address(address)) if self.port > 0 && !self.has_ice() => {
                Some(SocketAddr::new(address, self.port))
            }
            _ => None,
        }
    }

    /// Where the other side receives RTCP (RFC 3605): the next port, unless it says otherwise.
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

    /// The formats in order of preference.
    pub fn rtp_formats(&self) -> impl Iterator<Item = Format<'a>> {
        // Each line is read once, however many formats there are; the first one for a payload type counts.
        let mut described: [Option<Encoding<'a>>; 128] = [None; 128];
        for value in self.attributes("rtpmap") {
            let Some((number, encoding)) = sdp::payload_type(value) else {
                continue;
            };
            let entry = described.get_mut(usize::from(number));
            if let Some(entry) = entry.filter(|_| !encoding.is_empty()) {
                entry.get_or_insert(Encoding::parse(encoding.trim()));
            }
        }
        self.formats.iter().filter_map(move |format| {
            let payload_type: u8 = format.parse().ok().filter(|number| *number < 128)?;
            let described = described.get(usize::from(payload_type)).copied().flatten();
            let encoding =
                described.or_else(|| static_encoding(payload_type).map(Encoding::parse))?;
            Some(Format {
                payload_type,
                name: encoding.name,
                clock_hz: encoding.clock_hz?,
            })
        })
    }

    /// The packet length that the other side asks for, in milliseconds.
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

/// The static payload types (RFC 3551 table 4) of supported codecs.
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
            "a c= line does not have the form IN IP4 … or IN IP6 …",
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
                "a c= line has neither an address nor a host name",
            ));
        }
    })
}

/// Whether this may be a host name.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

/// Writes `IN IP4 192.0.2.1` or the like.
fn write_connection(text: &mut String, address: IpAddr) {
    let family = if address.is_ipv4() { "IP4" } else { "IP6" };
    // Writing to a string does not fail.
    let _ = write!(text, "IN {family} {address}");
}

/// The session part of our descriptions, without attributes.
pub fn write_head(text: &mut String, session: u64, version: u64, address: IpAddr) {
    let _ = write!(text, "v=0\r\no=vivavoce {session} {version} ");
    write_connection(text, address);
    text.push_str("\r\ns=-\r\nc=");
    write_connection(text, address);
    text.push_str("\r\nt=0 0\r\n");
}

/// A section that refuses the other side's.
pub fn write_refusal(text: &mut String, section: &Section<'_>) {
    let format = section.formats.first().copied().unwrap_or("0");
    let _ = write!(
        text,
        "m={} 0 {} {format}\r\n",
        section.media, section.protocol
    );
    if let Some(name) = section.bundled_as() {
        let _ = write!(text, "a=mid:{name}\r\n");
    }
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
