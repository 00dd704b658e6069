//! Offer and answer (RFC 3264): negotiates codec, packet length, direction, encryption and addresses. It keeps the
//! negotiated state, so that a later offer changes only what it means to. Parsing and writing of SDP is in `sdp`.

#[cfg(test)]
pub(super) mod tests;

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::dtls::{Association, Fingerprint};
use super::ice::{Credentials, Ice};
use super::sdp::{Description, Direction, Section, write_head, write_refusal};
use super::srtp::{Crypto, Suite};
use super::{Codec, Encryption, SdpError};
use vivavoce_core::egress_policy::is_public;

/// Default packet length in milliseconds.
const PACKET_MS: u32 = 20;
/// Packet lengths that are sent on request.
const PACKETS_MS: [u32; 5] = [10, 20, 30, 40, 60];
/// Dynamic payload types (RFC 3551 section 3).
const DYNAMIC: std::ops::RangeInclusive<u8> = 96..=127;

/// What a payload type stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An audio codec.
    Audio(Codec),
    /// `telephone-event` (RFC 4733), at the clock rate of some codec.
    Dtmf {
        /// Clock rate of its timestamps.
        clock_hz: u32,
    },
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Self::Audio(codec) => codec.name(),
            Self::Dtmf { .. } => "telephone-event",
        }
    }

    const fn clock_hz(self) -> u32 {
        match self {
            Self::Audio(codec) => codec.clock_hz(),
            Self::Dtmf { clock_hz } => clock_hz,
        }
    }

    const fn usual_payload_type(self) -> u8 {
        match self {
            Self::Audio(Codec::Pcmu) => 0,
            Self::Audio(Codec::Pcma) => 8,
            Self::Audio(Codec::G722) => 9,
            Self::Audio(Codec::Opus) => 96,
            Self::Dtmf { clock_hz: 48_000 } => 110,
            Self::Dtmf { .. } => 101,
        }
    }
}

/// The negotiated state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The codec we send.
    pub codec: Codec,
    /// Its payload type.
    pub payload_type: u8,
    /// Payload type and clock rate of the DTMF events we send, if the other side accepts any.
    pub dtmf: Option<(u8, u32)>,
    /// The payload types that may arrive.
    pub receives: Vec<(u8, Format)>,
    /// Where the other side receives RTP, if it says so.
    pub rtp: Option<SocketAddr>,
    /// Where the other side receives RTCP, if it says so.
    pub rtcp: Option<SocketAddr>,
    /// Whether RTCP shares the RTP port (RFC 5761).
    pub rtcp_mux: bool,
    /// Whether we send audio.
    pub sends: bool,
    /// Whether we receive audio.
    pub hears: bool,
    /// Length of the packets we send.
    pub packet_ms: u32,
    /// Our key and theirs, if media is encrypted with keys of the descriptions.
    pub crypto: Option<(Crypto, Crypto)>,
    /// How keys are found, if media is encrypted with those of a handshake.
    pub dtls: Option<Association>,
}

impl Agreement {
    /// Whether media is encrypted.
    pub const fn is_encrypted(&self) -> bool {
        self.crypto.is_some() || self.dtls.is_some()
    }

    /// Removes private addresses. Media is then sent to where the other side's packets come from.
    pub fn keep_public(&mut self) {
        let public = |address: &SocketAddr| is_public(address.ip());
        self.rtp = self.rtp.filter(public);
        self.rtcp = self.rtcp.filter(public);
    }
}

/// The negotiation of one call. See the module.
#[derive(Debug, Clone)]
pub struct OfferAnswer {
    encryption: Encryption,
    local: SocketAddr,
    session: u64,
    version: u64,
    /// The sections of our last description.
    said: String,
    formats: Vec<(u8, Format)>,
    cryptos: Vec<Crypto>,
    /// That of our certificate, for handshakes.
    fingerprint: Option<Fingerprint>,
    /// Ours of ICE.
    credentials: Credentials,
    /// Whether the other side is a browser, which knows nothing else than ICE and a handshake.
    is_browser: bool,
    /// The name of our section in a bundle.
    bundled_as: Option<String>,
    /// The sections of the call: `None` for ours, the text that refuses it for any other.
    sections: Vec<Option<String>>,
    offered: bool,
    held: bool,
    agreement: Option<Agreement>,
}

/// How a section can be used.
struct Fit {
    agreement: Agreement,
    /// The formats that an answer lists.
    formats: Vec<(u8, Format)>,
}

impl OfferAnswer {
    /// For a call with media at `local`, as told to the other side.
    pub fn new(codecs: &[Codec], encryption: Encryption, local: SocketAddr) -> Self {
        let mut formats: Vec<Format> = codecs.iter().copied().map(Format::Audio).collect();
        formats.push(Format::Dtmf { clock_hz: 8_000 });
        if codecs.contains(&Codec::Opus) {
            formats.push(Format::Dtmf { clock_hz: 48_000 });
        }
        let formats = formats.into_iter();
        let suites = Suite::ALL.into_iter().zip(1..);
        Self {
            encryption,
            local,
            session: (crate::random::u64() >> 2).max(1),
            version: 0,
            said: String::new(),
            formats: formats.map(|f| (f.usual_payload_type(), f)).collect(),
            cryptos: match encryption {
                Encryption::Off => Vec::new(),
                _ => suites
                    .filter_map(|(suite, tag)| Crypto::new(tag, suite))
                    .collect(),
            },
            fingerprint: None,
            credentials: Credentials::random(),
            is_browser: false,
            bundled_as: None,
            sections: vec![None],
            offered: false,
            held: false,
            agreement: None,
        }
    }

    /// Handshakes are possible, with the certificate of this fingerprint.
    pub const fn with_certificate(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// The other side is a browser.
    pub fn for_browser(&mut self) {
        self.is_browser = true;
        self.bundled_as = Some("0".to_owned());
    }

    /// The negotiated state, if there is one.
    pub const fn agreement(&self) -> Option<&Agreement> {
        self.agreement.as_ref()
    }

    /// Puts the call on hold in our next description, or resumes it.
    pub const fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Writes an offer.
    pub fn offer(&mut self) -> String {
        self.offered = true;
        let direction = Direction::new(true, !self.held);
        let formats = self.formats.clone();
        let shaken = self.agreement.as_ref().and_then(|a| a.dtls.as_ref());
        if self.is_browser || shaken.is_some() {
            // Who has begun a handshake stays who it is.
            let setup = match shaken {
                None => "actpass",
                Some(association) => setup(association.active),
            };
            let with_ice = shaken.map_or(self.is_browser, |one| one.ice.is_some());
            let mut ours = self.write_section("UDP/TLS/RTP/SAVPF", &formats, &[], direction, true);
            self.write_association(&mut ours, setup, with_ice);
            return self.write(&ours, with_ice);
        }
        let secure = self.encryption == Encryption::Require
            || self.agreement.as_ref().is_some_and(|a| a.crypto.is_some());
        let (protocol, cryptos) = if secure {
            ("RTP/SAVP", self.cryptos.clone())
        } else {
            ("RTP/AVP", Vec::new())
        };
        let ours = self.write_section(protocol, &formats, &cryptos, direction, false);
        self.write(&ours, false)
    }

    /// Answers an offer.
    pub fn answer(&mut self, offer: &str) -> Result<String, SdpError> {
        let description = Description::parse(offer)?;
        let mut best: Option<(usize, Fit)> = None;
        let is_fax = |section: &Section<'_>| section.media == "image" && section.port > 0;
        let mut refused = if description.sections.iter().any(is_fax) {
            SdpError::Unacceptable("fax by T.38 is not supported; audio goes on")
        } else {
            SdpError::Unacceptable("it offers no audio")
        };
        for (index, section) in description.sections.iter().enumerate() {
            if section.media != "audio" || section.port == 0 {
                continue;
            }
            match self.fit(section) {
                Ok(fit) => {
                    let better = best.as_ref().is_none_or(|(_, best)| {
                        !best.agreement.is_encrypted() && fit.agreement.is_encrypted()
                    });
                    if better {
                        best = Some((index, fit));
                    }
                }
                Err(error) => refused = error,
            }
        }
        let Some((chosen, fit)) = best else {
            return Err(refused);
        };
        let Some(section) = description.sections.get(chosen) else {
            return Err(refused);
        };
        self.adopt(&fit.formats);
        self.sections = description
            .sections
            .iter()
            .map(|section| {
                let mut line = String::new();
                write_refusal(&mut line, section);
                Some(line)
            })
            .collect();
        if let Some(ours) = self.sections.get_mut(chosen) {
            *ours = None;
        }
        self.bundled_as = section.bundled_as().map(str::to_owned);
        let agreement = &fit.agreement;
        let direction = Direction::new(agreement.sends, agreement.hears);
        let cryptos: Vec<Crypto> = agreement
            .crypto
            .iter()
            .map(|(ours, _)| ours.clone())
            .collect();
        let mut ours = self.write_section(
            section.protocol,
            &fit.formats,
            &cryptos,
            direction,
            agreement.rtcp_mux,
        );
        let mut with_ice = false;
        if let Some(association) = &agreement.dtls {
            if let Some(ice) = &association.ice {
                with_ice = true;
                self.credentials = ice.ours.clone();
            }
            self.write_association(&mut ours, setup(association.active), with_ice);
        }
        self.agreement = Some(fit.agreement);
        self.offered = false;
        Ok(self.write(&ours, with_ice))
    }

    /// Takes the answer to our last offer. Until the call is answered, several may come with different content. An answer
    /// without a pending offer is ignored once media is negotiated: some phones repeat their description in ACK.
    pub fn accepted(&mut self, answer: &str) -> Result<(), SdpError> {
        if !self.offered {
            let agreed = self.agreement.is_some();
            return if agreed {
                Ok(())
            } else {
                Err(SdpError::NoOffer)
            };
        }
        let description = Description::parse(answer)?;
        let ours = self.sections.iter().position(Option::is_none).unwrap_or(0);
        let section = description.sections.get(ours);
        let Some(section) = section.filter(|s| s.media == "audio" && s.port > 0) else {
            return Err(SdpError::Unacceptable("it refuses audio"));
        };
        let fit = self.fit(section)?;
        self.agreement = Some(Agreement {
            // They may still send any format that we offered.
            receives: self.formats.clone(),
            // We offer it with handshakes only.
            rtcp_mux: fit.agreement.rtcp_mux && fit.agreement.dtls.is_some(),
            ..fit.agreement
        });
        Ok(())
    }

    /// How a section of an offer or answer can be used.
    fn fit(&self, section: &Section<'_>) -> Result<Fit, SdpError> {
        let dtls = self.association(section)?;
        let crypto = match dtls {
            Some(_) => None,
            None => self.crypto(section)?,
        };
        let known: Vec<(u8, Format)> = section
            .rtp_formats()
            .filter_map(|format| {
                let same = |(_, ours): &&(u8, Format)| {
                    ours.name().eq_ignore_ascii_case(format.name)
                        && ours.clock_hz() == format.clock_hz
                };
                let (_, ours) = self.formats.iter().find(same)?;
                Some((format.payload_type, *ours))
            })
            .collect();
        let (payload_type, codec) = self
            .choose(&known)
            .ok_or(SdpError::Unacceptable("no common codec"))?;
        let dtmf = dtmf_of(&known, codec);
        let mut formats = vec![(payload_type, Format::Audio(codec))];
        formats.extend(dtmf);
        let theirs = section.direction();
        let rtp = section.rtp();
        if rtp.is_some_and(|rtp| rtp.is_ipv4() != self.local.is_ipv4()) {
            return Err(SdpError::Unacceptable(
                "its address is of the other IP address family",
            ));
        }
        if rtp.is_some_and(|rtp| rtp.ip().is_multicast()) {
            return Err(SdpError::Unacceptable("its address is a multicast group"));
        }
        let rtcp = section
            .rtcp()
            .filter(|rtcp| rtp.is_some_and(|rtp| rtp.ip() == rtcp.ip()));
        let wanted = section.packet_ms().filter(|ms| PACKETS_MS.contains(ms));
        let agreement = Agreement {
            codec,
            payload_type,
            dtmf: dtmf.map(|(payload_type, format)| (payload_type, format.clock_hz())),
            receives: known,
            rtp,
            rtcp,
            rtcp_mux: section.has("rtcp-mux"),
            sends: theirs.receives(),
            hears: theirs.sends() && !self.held,
            packet_ms: match codec {
                Codec::Opus => PACKET_MS,
                _ => wanted.unwrap_or(PACKET_MS),
            },
            crypto,
            dtls,
        };
        Ok(Fit { agreement, formats })
    }

    /// What a handshake needs to know, if there is to be one.
    fn association(&self, section: &Section<'_>) -> Result<Option<Association>, SdpError> {
        if !matches!(section.protocol, "UDP/TLS/RTP/SAVP" | "UDP/TLS/RTP/SAVPF") {
            return Ok(None);
        }
        const NO_FINGERPRINT: SdpError =
            SdpError::Unacceptable("it has no a=fingerprint with sha-256, which a handshake needs");
        if self.fingerprint.is_none() {
            return Err(SdpError::Unacceptable("there are no handshakes here"));
        }
        let mut fingerprints = section
            .attributes("fingerprint")
            .filter_map(Fingerprint::parse);
        let inherited = || Fingerprint::parse(section.own_or_inherited("fingerprint")?);
        let fingerprint = fingerprints
            .next()
            .or_else(inherited)
            .ok_or(NO_FINGERPRINT)?;
        let active = match section.own_or_inherited("setup") {
            Some("passive") => true,
            Some("active" | "actpass") | None => false,
            Some(_) => return Err(SdpError::Unacceptable("its a=setup is of no use")),
        };
        let word = |name| section.own_or_inherited(name);
        let ice = match (word("ice-ufrag"), word("ice-pwd")) {
            (None, None) => None,
            (Some(fragment), Some(password)) => {
                let theirs = Credentials::parse(fragment, password);
                let theirs = theirs.ok_or(SdpError::Malformed(
                    "a=ice-ufrag or a=ice-pwd is not as it has to be",
                ))?;
                Some(self.ice(theirs))
            }
            _ => {
                return Err(SdpError::Malformed(
                    "of a=ice-ufrag and a=ice-pwd one is missing",
                ));
            }
        };
        if ice.is_some() && !section.has("rtcp-mux") {
            return Err(SdpError::Unacceptable("it has no a=rtcp-mux"));
        }
        Ok(Some(Association {
            fingerprint,
            active,
            ice,
        }))
    }

    /// With other credentials of theirs, ours are others, too, if they begin anew (RFC 8445 section 9); the answer to our offer
    /// has those that we have offered.
    fn ice(&self, theirs: Credentials) -> Ice {
        let known = self.agreement.as_ref().and_then(|a| a.dtls.as_ref());
        let known = known.and_then(|association| association.ice.as_ref());
        let begins_anew = known.is_some_and(|known| known.theirs != theirs) && !self.offered;
        let ours = if begins_anew {
            Credentials::random()
        } else {
            self.credentials.clone()
        };
        Ice { ours, theirs }
    }

    /// Our key and theirs, if media is to be encrypted.
    fn crypto(&self, section: &Section<'_>) -> Result<Option<(Crypto, Crypto)>, SdpError> {
        let secure = match section.protocol {
            "RTP/AVP" | "RTP/AVPF" => false,
            "RTP/SAVP" | "RTP/SAVPF" => true,
            _ => {
                return Err(SdpError::Unacceptable(
                    "its transport is not RTP/AVP, RTP/SAVP or UDP/TLS/RTP/SAVP",
                ));
            }
        };
        let needed = secure || self.encryption == Encryption::Require;
        if self.encryption == Encryption::Off {
            return if secure {
                Err(SdpError::Unacceptable(
                    "encrypted media is disabled (sip.media_encryption)",
                ))
            } else {
                Ok(None)
            };
        }
        let usable = section.attributes("crypto").find_map(|value| {
            let theirs = Crypto::parse(value)?;
            let ours = self
                .cryptos
                .iter()
                .find(|ours| ours.suite == theirs.suite)?;
            let ours = Crypto {
                tag: theirs.tag,
                ..ours.clone()
            };
            Some((ours, theirs))
        });
        match usable {
            None if needed => Err(SdpError::Unacceptable(
                "it has no a=crypto with AES_CM_128_HMAC_SHA1_80 or _32, which is required",
            )),
            usable => Ok(usable),
        }
    }

    /// The codec already in use, or the first of our preferences.
    fn choose(&self, known: &[(u8, Format)]) -> Option<(u8, Codec)> {
        let offered = |codec: Codec| {
            let mut known = known.iter();
            let (payload_type, _) = known.find(|(_, format)| *format == Format::Audio(codec))?;
            Some((*payload_type, codec))
        };
        let present = self.agreement.as_ref().map(|agreement| agreement.codec);
        let ours = self.formats.iter().filter_map(|(_, format)| match format {
            Format::Audio(codec) => Some(*codec),
            Format::Dtmf { .. } => None,
        });
        present.into_iter().chain(ours).find_map(offered)
    }

    /// Adopts the other side's payload types, so that our later offers use the same.
    fn adopt(&mut self, theirs: &[(u8, Format)]) {
        for (payload_type, format) in theirs {
            for (ours, our_format) in &mut self.formats {
                if our_format == format {
                    *ours = *payload_type;
                }
            }
        }
        let is_theirs = |format: &Format| theirs.iter().any(|(_, theirs)| theirs == format);
        let mut taken: Vec<u8> = theirs
            .iter()
            .map(|(payload_type, _)| *payload_type)
            .collect();
        for (payload_type, format) in &mut self.formats {
            if is_theirs(format) {
                continue;
            }
            if taken.contains(payload_type) {
                let free = DYNAMIC.into_iter().find(|free| !taken.contains(free));
                *payload_type = free.unwrap_or(*payload_type);
            }
            taken.push(*payload_type);
        }
    }

    fn write_section(
        &self,
        protocol: &str,
        formats: &[(u8, Format)],
        cryptos: &[Crypto],
        direction: Direction,
        rtcp_mux: bool,
    ) -> String {
        let mut text = format!("m=audio {} {protocol}", self.local.port());
        // Writing to a string does not fail.
        for (payload_type, _) in formats {
            let _ = write!(text, " {payload_type}");
        }
        text.push_str("\r\n");
        for (number, format) in formats {
            let channels = match format {
                Format::Audio(Codec::Opus) => "/2",
                _ => "",
            };
            let (name, clock_hz) = (format.name(), format.clock_hz());
            let _ = write!(text, "a=rtpmap:{number} {name}/{clock_hz}{channels}\r\n");
            let _ = match format {
                Format::Audio(Codec::Opus) => write!(text, "a=fmtp:{number} useinbandfec=1\r\n"),
                Format::Dtmf { .. } => write!(text, "a=fmtp:{number} 0-15\r\n"),
                Format::Audio(_) => Ok(()),
            };
        }
        for crypto in cryptos {
            let _ = write!(text, "a=crypto:{}\r\n", crypto.write());
        }
        let _ = write!(text, "a=ptime:{PACKET_MS}\r\na={}\r\n", direction.name());
        if rtcp_mux {
            text.push_str("a=rtcp-mux\r\n");
        }
        text
    }

    /// What a section says of a handshake, and of ICE.
    fn write_association(&self, text: &mut String, setup: &str, with_ice: bool) {
        let Some(fingerprint) = &self.fingerprint else {
            return;
        };
        let fingerprint = fingerprint.write();
        let _ = write!(text, "a=fingerprint:{fingerprint}\r\na=setup:{setup}\r\n");
        if let Some(name) = &self.bundled_as {
            let _ = write!(text, "a=mid:{name}\r\n");
        }
        if with_ice {
            let Credentials { fragment, password } = &self.credentials;
            let (ip, port) = (self.local.ip(), self.local.port());
            let _ = write!(
                text,
                "a=ice-ufrag:{fragment}\r\na=ice-pwd:{password}\r\n\
                 a=candidate:1 1 udp 2130706431 {ip} {port} typ host\r\na=end-of-candidates\r\n"
            );
        }
    }

    /// A whole description. Its version is incremented when its content changes.
    fn write(&mut self, ours: &str, with_ice: bool) -> String {
        let sections = self.sections.iter();
        let body: String = sections
            .map(|refused| refused.as_deref().unwrap_or(ours))
            .collect();
        if body != self.said {
            self.version += 1;
            self.said = body;
        }
        let mut text = String::new();
        write_head(&mut text, self.session, self.version, self.local.ip());
        if with_ice {
            text.push_str("a=ice-lite\r\n");
        }
        if let Some(name) = &self.bundled_as {
            let _ = write!(text, "a=group:BUNDLE {name}\r\n");
        }
        text.push_str(&self.said);
        text
    }
}

/// The value of `a=setup`.
const fn setup(active: bool) -> &'static str {
    if active { "active" } else { "passive" }
}

/// The `telephone-event` format that goes with a codec: at its clock rate, or at 8 kHz.
fn dtmf_of(known: &[(u8, Format)], codec: Codec) -> Option<(u8, Format)> {
    let on = |clock_hz| {
        let mut known = known.iter();
        known
            .find(|(_, format)| *format == Format::Dtmf { clock_hz })
            .copied()
    };
    on(codec.clock_hz()).or_else(|| on(8_000))
}
