//! The Opus configuration of this server's own peer connections: with NACK and a retransmission stream (RFC 4588), where
//! the other side supports it. `room` lists the codecs that clients may publish.

use str0m::format::{Codec, CodecConfig, FormatParams};
use str0m::media::Frequency;

/// The payload type that LiveKit's clients and str0m use, and one that neither uses.
const OPUS: u8 = 111;
const OPUS_AGAIN: u8 = 112;

/// Adds Opus with in-band FEC (RFC 7587 section 6.1) and retransmission.
pub fn enable_opus(codecs: &mut CodecConfig) {
    let format = FormatParams {
        min_p_time: Some(10),
        use_inband_fec: Some(true),
        ..FormatParams::default()
    };
    let rate = Frequency::FORTY_EIGHT_KHZ;
    codecs.add_config(
        OPUS.into(),
        Some(OPUS_AGAIN.into()),
        Codec::Opus,
        rate,
        Some(2),
        format,
    );
}
