//! The embedded SIP bridge: telephone calls that join the rooms of this process.
//!
//! # Telephony in a page
//!
//! A telephone call over the Internet consists of two protocols that know little of each other. *SIP* ([RFC 3261]) is the
//! signalling: text messages, much like HTTP, in which a *user agent* invites another one to a call. *RTP* ([RFC 3550]) is
//! the media: small UDP packets, one for every 20 ms of audio, that travel directly between the two ends.
//!
//! **Signalling.** The caller sends `INVITE`. The callee responds with provisional responses (`180 Ringing`), then with a
//! final one (`200 OK`, or a refusal such as `486 Busy Here`), which the caller acknowledges with `ACK`. From the `200` on
//! the two share a *dialog*, identified by the Call-ID and a tag of each side: later requests within it change the media
//! (re-`INVITE`, `UPDATE`), transfer the call (`REFER`, [RFC 3515]) or end it (`BYE`). A call that is not answered yet is
//! taken back with `CANCEL`. An INVITE may reach several phones (*forking*), and each of them may answer. A gateway or
//! carrier, here called a *trunk*, connects SIP to the telephone network, and challenges requests for a password (digest
//! authentication, [RFC 7616]).
//!
//! **Negotiation.** INVITE and its response carry session descriptions ([SDP], RFC 8866): an *offer* lists codecs, an address
//! and a port; the *answer* chooses among them ([RFC 3264]). Phones speak G.711 nearly everywhere, G.722 or Opus where both
//! ends can. Audio may be encrypted (SRTP, RFC 3711) with keys from the descriptions (SDES, RFC 4568), which are secret only
//! where signalling runs over TLS.
//!
//! **Media.** Packets get lost, overtake each other, and arrive unevenly, so the receiver reorders them, conceals losses, and
//! buffers. Phones are often behind a NAT, where the address in their description is useless: media is sent to where their
//! packets come from (*latching*, or symmetric RTP, RFC 4961). Pressed keys travel as events of their own (DTMF, [RFC 4733]).
//! RTCP reports tell both sides how much is lost.
//!
//! **Trust.** Anyone can send a packet to a public address, with a forged source. So SIP requests are accepted from configured
//! networks only, an inbound call is on trial until its `ACK` proves that the caller has read our answer, no media is sent or
//! played until then, and RTP is accepted from expected sources only.
//!
//! # In this crate
//!
//! - [`agent`] is the user agent: transports, access control, dialogs, transfers. It is the only module that knows the SIP
//!   stack (`rsipstack`).
//! - [`phones`] knows where the telephones of a team are that register here.
//! - [`registrations`] keeps accounts at PBXs and carriers registered.
//! - [`media`] negotiates, receives and sends audio, on threads of its own.
//! - [`classify`] hears who has answered an outbound call.
//! - [`call`] is the life of one call as a state machine, and the task that connects it to `agent`, `media` and a room.
//! - [`bridge`] places and accepts calls, limits them, and knows which there are.
//! - [`trunks`] keeps what clients of LiveKit's SIP API configure: trunks and dispatch rules.
//! - [`ladder`] keeps what was seen of a call's signalling, [`refusals`] the calls that were refused.
//! - [`dispatch`] decides by them whether an inbound call is let in, and which room it joins.
//!
//! A call is a participant of its room: [`bridge::Rooms`] is all that this crate needs of a room server. Which tenant may call
//! whom is decided by its callers; LiveKit's own SIP service is spoken to by `providers/livekit`.
//!
//! # Example
//!
//! Offer and answer between two ends of a call, without any signalling:
//!
//! ```
//! use std::net::{IpAddr, Ipv4Addr};
//! use std::time::Duration;
//! use vivavoce_telephony::media::{Codec, Encryption, Media, MediaSettings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
//! let media = Media::start(MediaSettings {
//!     ports: 40_000..=40_099,
//!     threads: 1,
//!     timeout: Duration::from_secs(30),
//!     encryption: Encryption::Off,
//!     codecs: vec![Codec::Opus, Codec::Pcmu],
//!     advertised: Vec::new(),
//!     sources: [].into(),
//!     complexity: 5,
//!     relay: true,
//! })?;
//! let (mut caller, mut callee) = (media.open(here, here)?, media.open(here, here)?);
//! let offer = caller.offer();
//! let answer = callee.answer(&offer)?;
//! caller.accepted(&answer)?;
//! assert_eq!(caller.report().codec, Some(Codec::Opus));
//! # Ok(())
//! # }
//! ```
//!
//! [RFC 3261]: https://www.rfc-editor.org/rfc/rfc3261
//! [RFC 3264]: https://www.rfc-editor.org/rfc/rfc3264
//! [RFC 3515]: https://www.rfc-editor.org/rfc/rfc3515
//! [RFC 3550]: https://www.rfc-editor.org/rfc/rfc3550
//! [RFC 4733]: https://www.rfc-editor.org/rfc/rfc4733
//! [RFC 7616]: https://www.rfc-editor.org/rfc/rfc7616
//! [SDP]: https://www.rfc-editor.org/rfc/rfc8866

pub mod agent;
pub mod bridge;
pub mod call;
pub mod classify;
pub mod dispatch;
pub mod ladder;
pub mod media;
pub mod phones;
mod random;
pub mod refusals;
pub mod registrations;
#[cfg(test)]
mod tests;
pub mod trunks;
