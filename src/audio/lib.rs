//! Audio as data: sample rates, codecs, containers, resampling, mixing, pacing, jitter buffering and voice activity
//! detection. Nothing here does I/O (the one exception, MP3 encoding, runs a program), knows a vendor or reads a clock:
//! where time matters it is an argument.
//!
//! # Units
//!
//! A *sample* is one signed 16-bit number, a *frame* is one sample per channel, and a *layout* is a sample rate with one
//! or two channels. [`Pcm`] is audio in memory that carries its layout, so it cannot be labelled with a rate it does not
//! have; the type for a rate, [`SampleRate`], is created by parsing and trusted afterwards. *Packets* are compressed:
//! an Opus packet usually holds 20 ms. Opus, Ogg/Opus and rooms count time in frames at 48 kHz whatever the rate of the
//! audio (RFC 7587, RFC 7845).
//!
//! # From bytes to samples and back
//!
//! [`decode`] and [`encode`] convert between bytes and [`Pcm`], for streams and whole files. Below them are the formats:
//! [`wav`] (with [`adpcm`]), [`mp3_decoder`] and [`mp3_encoder`], [`ogg`] (RFC 3533, RFC 7845), [`opus`] (RFC 6716, over
//! libopus), [`g711`] (ITU-T G.711) and [`linear16`]. Decoders accept any bytes: input cannot make them panic, allocate
//! without limit or take more than linear time, and each has a fuzz target.
//!
//! # Changing rate, speed and level
//!
//! There are two resamplers. [`resample`] is for live audio: it delays by less than 2 ms. [`offline`] is for files and
//! cached speech, where quality per line of code counts more than delay. [`stretch`] changes the speed without the
//! pitch (WSOLA), [`mix`] adds up sources with fades, [`room_mix`] produces what one listener hears of a room, and
//! [`denoise`] suppresses noise.
//!
//! # Time
//!
//! [`pacer`] decides when output audio may leave, so that a listener is never more than a small lead behind;
//! [`jitter`] is the buffer behind a network track; [`recording_clock`] puts both sides of a conversation on one clock;
//! [`vad`] finds speech, [`tones`] finds pure tones, [`rate_check`] hears whether it can have the rate that it is said to have. The [`bus`] distributes input audio to several readers; a slow reader loses the oldest chunks
//! and the loss is counted. All of them have fixed upper bounds of memory.
//!
//! # Example
//!
//! ```
//! use vivavoce_audio::g711::Law;
//! use vivavoce_audio::{Layout, Pcm, Resampler, SampleRate};
//!
//! // 20 ms from a telephone: 160 bytes of µ-law at 8 kHz, here silence.
//! let mut samples = Vec::new();
//! Law::Mu.expand(&[0xff; 160], &mut samples);
//! let narrowband = Pcm::new(Layout::mono(SampleRate::HZ_8000), samples);
//!
//! // The same 20 ms at the rate of a recogniser.
//! let wideband = Resampler::convert(narrowband, SampleRate::HZ_16000);
//! assert_eq!(wideband.frames(), 320);
//! assert_eq!(wideband.duration().as_millis(), 20);
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests begin at the moment they run"
    )
)]

pub mod adpcm;
pub mod bandwidth;
pub mod bus;
pub mod concealment;
pub mod convert;
pub mod decode;
pub mod denoise;
pub mod encode;
pub mod flac;
pub mod format;
pub mod g711;
pub mod jitter;
pub mod linear16;
pub mod mix;
pub mod mp3_decoder;
pub mod mp3_encoder;
pub mod offline;
pub mod ogg;
pub mod opus;
pub mod pacer;
pub mod pcm;
pub mod rate_check;
pub mod recording_clock;
pub mod resample;
pub mod room_mix;
pub mod stretch;
#[cfg(test)]
mod test_signals;
pub mod tones;
pub mod track_receiver;
pub mod vad;
pub mod wav;
pub mod window;

pub use bandwidth::Bandwidth;
pub use format::{AudioFormat, Channels, Encoding, FormatError, Layout, SampleRate};
pub use offline::OfflineResampler;
pub use pcm::Pcm;
pub use resample::Resampler;
