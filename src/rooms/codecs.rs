//! Opus as both sides of our own make it known: what is lost is asked for and sent again in a stream beside it (RFC 4588),
//! where the other side can do that too. What clients may publish is `room`'s.

use str0m::format::{Codec, CodecConfig, FormatParams};
use str0m::media::Frequency;

/// The payload types that LiveKit's clients and str0m use, and one that neither uses.
const OPUS: u8 = 111;
const OPUS_AGAIN: u8 = 112;

/// Adds Opus with redundancy (RFC 7587 section 6.1) and retransmission.
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
