//! Receive path, phone to room: packets in order are decoded, made into frames on the clock of the published track, at the
//! rate of the call and in the forms that the room wants, and published at once. There is no jitter buffer here: every subscriber has one anyway, so its delay is paid
//! once. Losses are concealed, pauses stay pauses, and silence is not sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Codec;
use super::codec::Decoder;
use super::listening::Listener;
use vivavoce_audio::Layout;
use vivavoce_audio::concealment::Concealment;
use vivavoce_audio::opus::{Application, FRAME, OccasionalEncoder, OpusError, OpusSettings};
use vivavoce_audio::pcm::level_dbov;
use vivavoce_core::token_bucket::TokenBucket;
use vivavoce_seams::rooms::link::{CLOCK_HZ, Frame, PublishSink, Relay, Samples};

/// The longest gap that is concealed, in milliseconds. A longer one is a pause.
const MOST_LOST_MS: u32 = 100;
/// A timestamp that jumps further ahead than this, or backwards, means that the sender restarted its clock.
const LONGEST_PAUSE_MS: u32 = 10_000;
/// Audio at or below this level counts as silence …
const SILENCE_DBOV: u8 = 72;
/// … after so many frames, so that word endings are not cut off.
const HANG_OVER: u32 = 15;
/// Milliseconds of audio that are decoded each second, and in a burst: a network that stalled delivers a burst; more than
/// that over time is an attack on the media thread, which other calls share.
const MOST_MS_PER_SECOND: u32 = 2_000;
const MOST_MS_AT_ONCE: u32 = 3_000;
/// Timestamp units of a 20 ms frame.
const FRAME_TICKS: u32 = CLOCK_HZ / 50;

/// The receive path of a call. See the module.
#[derive(Debug)]
pub struct RxPipeline {
    complexity: u8,
    sink: Option<PublishSink>,
    transcoder: Option<Transcoder>,
    /// When the next packet was due when this came to rest.
    rests: Option<Instant>,
    /// Timestamp of the next frame.
    timestamp: u32,
    marker: bool,
    allowance: TokenBucket,
    /// Hears who answers.
    listener: Option<Box<Listener>>,
}

/// Decoder, concealment and what makes frames, for one codec.
#[derive(Debug)]
struct Transcoder {
    codec: Codec,
    decoder: Decoder,
    concealment: Concealment,
    encoder: OccasionalEncoder,
    /// Less than a frame, left over between packets.
    sound: Vec<i16>,
    scratch: Vec<i16>,
    /// The timestamp at which the next packet is expected, and when it should arrive.
    next: Option<(u32, Instant)>,
    quiet: u32,
}

impl RxPipeline {
    /// `complexity` is that of the Opus encoder, for wideband codecs.
    pub fn new(complexity: u8) -> Self {
        Self {
            complexity,
            sink: None,
            transcoder: None,
            rests: None,
            timestamp: crate::random::u32(),
            marker: true,
            allowance: TokenBucket::new(MOST_MS_PER_SECOND, MOST_MS_AT_ONCE),
            listener: None,
        }
    }

    /// Lets somebody hear who answers; nobody any more, where there is none.
    pub fn listen(&mut self, listener: Option<Listener>) {
        self.listener = listener.map(Box::new);
    }

    /// Who hears it.
    pub fn listener(&mut self) -> Option<&mut Listener> {
        self.listener.as_deref_mut()
    }

    /// Whether somebody hears who answers.
    pub const fn is_listened_to(&self) -> bool {
        self.listener.is_some()
    }

    /// Who takes packets as they are in place of frames.
    pub fn relay(&self) -> Option<Arc<dyn Relay>> {
        self.sink.as_ref()?.relay()
    }

    /// Whether so much sound is within the rate limit; it counts.
    pub fn allows(&mut self, ms: u32, now: Instant) -> bool {
        self.allowance.take(ms.into(), now)
    }

    /// Publishes frames from now on.
    pub fn publish(&mut self, sink: PublishSink) {
        self.sink = Some(sink);
        self.marker = true;
    }

    /// Its packets go elsewhere until [`Self::restart`]: decoder and encoder, which take most memory, are made anew then.
    pub fn rest(&mut self) {
        let transcoder = self.transcoder.take();
        self.rests = transcoder
            .and_then(|transcoder| transcoder.next)
            .map(|(_, due)| due);
    }

    /// The next packet is unrelated to those before; it is placed by its arrival time.
    pub fn restart(&mut self, now: Instant) {
        let mut due = self.rests.take();
        if let Some(transcoder) = &mut self.transcoder {
            transcoder.concealment.forget();
            transcoder.sound.clear();
            due = transcoder.next.take().map(|(_, due)| due).or(due);
        }
        if let Some(due) = due {
            let late = ticks(now.saturating_duration_since(due));
            self.timestamp = self.timestamp.wrapping_add(late);
        }
        self.marker = true;
    }

    /// Takes a packet and the number of packets lost before it. `false` if it exceeds the rate limit.
    pub fn hear(
        &mut self,
        codec: Codec,
        timestamp: u32,
        payload: &[u8],
        lost: u64,
        now: Instant,
    ) -> bool {
        if !self.allowance.take(1.0, now) {
            return false;
        }
        if self
            .transcoder
            .as_ref()
            .is_none_or(|transcoder| transcoder.codec != codec)
        {
            self.transcoder = match Transcoder::new(codec, self.complexity) {
                Ok(transcoder) => Some(transcoder),
                Err(error) => {
                    tracing::error!(%error, "cannot create a codec");
                    None
                }
            };
            self.marker = true;
        }
        let Some(transcoder) = &mut self.transcoder else {
            return true;
        };
        let mut skipped = 0;
        if let Some((expected, due)) = transcoder.next {
            let gap = timestamp.wrapping_sub(expected);
            let per_ms = codec.clock_hz() / 1_000;
            if gap == 0 {
            } else if lost > 0 && gap <= MOST_LOST_MS * per_ms {
                self.allowance.charge(f64::from(gap / per_ms));
                let before = transcoder.sound.len();
                transcoder.conceal(codec.samples(gap));
                if let Some(listener) = &mut self.listener {
                    let concealed = transcoder.sound.get(before..).unwrap_or_default();
                    listener.hear(concealed, codec.rate(), now);
                }
            } else if gap <= LONGEST_PAUSE_MS * per_ms {
                skipped = gap * (CLOCK_HZ / codec.clock_hz());
            } else {
                skipped = ticks(now.saturating_duration_since(due));
            }
        }
        if skipped > 0 {
            if let Some(listener) = &mut self.listener {
                listener.pause(Duration::from_millis((skipped / (CLOCK_HZ / 1_000)).into()));
            }
            // The rest of an unfinished frame is filled with silence.
            let waiting = transcoder.sound.len();
            if waiting > 0 {
                let whole = transcoder.frame_samples();
                transcoder.sound.resize(whole, 0);
                let filled = (whole - waiting) as u32 * (FRAME_TICKS / whole as u32);
                skipped = skipped.saturating_sub(filled);
            }
        }
        self.leave();
        self.timestamp = self.timestamp.wrapping_add(skipped);
        self.marker |= skipped > 0;
        let Some(transcoder) = &mut self.transcoder else {
            return true;
        };
        transcoder.scratch.clear();
        transcoder.decoder.decode(payload, &mut transcoder.scratch);
        transcoder.concealment.heard(&mut transcoder.scratch);
        if let Some(listener) = &mut self.listener {
            listener.hear(&transcoder.scratch, codec.rate(), now);
        }
        transcoder.sound.extend_from_slice(&transcoder.scratch);
        let samples = transcoder.scratch.len();
        let length = codec.rate().duration_of(samples);
        transcoder.next = Some((timestamp.wrapping_add(codec.ticks(samples)), now + length));
        self.allowance.charge(length.as_secs_f64() * 1_000.0 - 1.0);
        self.leave();
        true
    }

    /// Publishes whole frames.
    fn leave(&mut self) {
        let Some(transcoder) = &mut self.transcoder else {
            return;
        };
        let whole = transcoder.frame_samples();
        let sound = std::mem::take(&mut transcoder.sound);
        let mut start = 0;
        while let Some(frame) = sound.get(start..start + whole) {
            start += whole;
            let timestamp = self.timestamp;
            self.timestamp = timestamp.wrapping_add(FRAME_TICKS);
            let level = level_dbov(frame);
            transcoder.quiet = match level {
                SILENCE_DBOV.. => transcoder.quiet.saturating_add(1),
                _ => 0,
            };
            let Some(sink) = self.sink.as_ref().filter(|_| transcoder.quiet <= HANG_OVER) else {
                self.marker = true;
                continue;
            };
            let wanted = sink.wanted();
            let opus = transcoder.encoder.encode(frame, wanted.opus);
            let opus = opus.unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot encode a frame");
                None
            });
            sink.push(Frame {
                opus,
                pcm: wanted.pcm.then(|| Samples::new(frame)).flatten(),
                timestamp,
                marker: std::mem::take(&mut self.marker),
                level,
            });
        }
        transcoder.sound = sound;
        transcoder.sound.drain(..start);
    }
}

impl Transcoder {
    fn new(codec: Codec, complexity: u8) -> Result<Self, OpusError> {
        let rate = codec.rate();
        let frame = rate.frames_in(FRAME);
        Ok(Self {
            codec,
            decoder: Decoder::new(codec)?,
            concealment: Concealment::new(rate.hz()),
            encoder: OccasionalEncoder::new(
                Layout::mono(rate),
                encoder_settings(codec, complexity),
            ),
            sound: Vec::with_capacity(6 * frame),
            scratch: Vec::with_capacity(6 * frame),
            next: None,
            quiet: 0,
        })
    }

    /// Samples of a frame at the rate of the call.
    fn frame_samples(&self) -> usize {
        self.codec.rate().frames_in(FRAME)
    }

    fn conceal(&mut self, samples: usize) {
        self.concealment.conceal(samples, &mut self.sound);
    }
}

fn encoder_settings(codec: Codec, complexity: u8) -> OpusSettings {
    // Encoded at the sample rate of the call. The bit rates are transparent for the second codec; `Audio` is closer to
    // the original than `Voip`, and several times cheaper.
    OpusSettings {
        application: Application::Audio,
        bitrate_bps: match codec {
            Codec::Pcmu | Codec::Pcma => 32_000,
            Codec::G722 | Codec::Opus => 40_000,
        },
        // Narrowband audio gains nothing audible from a higher complexity, which costs several times as much.
        complexity: match codec {
            Codec::Pcmu | Codec::Pcma => 0,
            Codec::G722 | Codec::Opus => complexity,
        },
        fec_loss_percent: None,
    }
}

/// A duration in timestamp units of the track, wrapping as timestamps do.
fn ticks(time: Duration) -> u32 {
    let ticks = time.as_micros() * u128::from(CLOCK_HZ) / 1_000_000;
    (ticks & u128::from(u32::MAX)) as u32
}
