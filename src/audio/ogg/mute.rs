//! Silences stretches of a recording of ours. Packets are replaced within their pages, so that nothing moves in time: by
//! silence where there is one channel, and where there are two, by what the decoded sound is without the one.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::iter::repeat_n;
use std::ops::Range;

use super::join::{CHANNELS, Pages, content, invalid, packets};
use super::repair::seal;
use super::{HEADER, MAX_LACING};
use crate::format::{Channels, Layout, SampleRate};
use crate::opus::{
    MAX_FRAME_PACKET, OpusDecoder, OpusEncoder, OpusError, OpusSettings, clock_frames,
    silent_packets,
};

/// Packets before a stretch from which decoder and encoder learn what sound there is, and as many behind it are encoded
/// anew, so that whoever plays it goes over without a leap: 200 ms.
const LEARNED: usize = 10;
/// Frames at 48 kHz of 2.5 ms.
const UNIT: u64 = 120;

/// The channel of two that is silenced; of a recording with one that is everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silenced {
    Left,
    Right,
}

/// A stretch, in frames at 48 kHz of what is heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub frames: Range<u64>,
    pub what: Silenced,
}

/// Copies a stream of ours without these stretches. Its length, its pages and their times stay as they are.
pub fn mute(input: impl Read, stretches: &[Stretch], mut output: impl Write) -> io::Result<()> {
    let mut pages = Pages::new(input);
    let mut muter = None;
    let mut page = pages.next()?;
    while let Some(this) = page {
        let next = pages.next()?;
        if this.is_header {
            if muter.is_none() {
                let two = content(&this.bytes).1.get(CHANNELS) == Some(&2);
                muter = Some(Muter::new(stretches, pages.pre_skip, two));
            }
            output.write_all(&this.bytes)?;
        } else if let Some(muter) = &mut muter {
            let its = packets(&this.bytes)?;
            let behind = match &next {
                Some(next) if !next.is_header => packets(&next.bytes)?,
                _ => Vec::new(),
            };
            let following = its.iter().skip(1).chain(behind.first());
            let following = following.map(Some).chain(std::iter::once(None));
            let mut changed = false;
            let mut written = Vec::new();
            for (packet, following) in its.iter().zip(following) {
                let replaced = muter.without(packet, following.copied())?;
                changed |= replaced.is_some();
                written.extend(replaced.unwrap_or_else(|| vec![packet.to_vec()]));
            }
            if changed {
                output.write_all(&rebuilt(&this.bytes, &written)?)?;
            } else {
                output.write_all(&this.bytes)?;
            }
        }
        page = next;
    }
    output.flush()
}

/// Goes through the packets of a stream.
struct Muter {
    sides: [Side; 2],
    /// Where the next packet begins, in frames that a decoder gives, those that are skipped included.
    position: u64,
    /// Where there are two channels.
    remixer: Option<Remixer>,
}

impl Muter {
    fn new(stretches: &[Stretch], pre_skip: u16, two: bool) -> Self {
        let side = |what| Side::of(stretches, what, pre_skip.into());
        Self {
            sides: [Silenced::Left, Silenced::Right].map(side),
            position: 0,
            remixer: two.then(Remixer::default),
        }
    }

    /// What takes the place of the next packet, which this one follows; `None` if it stays.
    fn without(
        &mut self,
        packet: &[u8],
        following: Option<&[u8]>,
    ) -> io::Result<Option<Vec<Vec<u8>>>> {
        let frames = u64::from(clock_frames(packet).map_err(io::Error::other)?);
        let begins = self.position;
        self.position += frames;
        // An encoder hears a little of what comes next.
        let here = begins..self.position + frames;
        let met = self
            .sides
            .each_mut()
            .map(|side| side.within(&here).to_vec());
        let is_met = met.iter().any(|met| !met.is_empty());
        let remixed = self.remixer.as_mut().and_then(|remixer| {
            let without = remixer.without(packet, following, &met, begins);
            without.map(|packet| vec![packet])
        });
        // What cannot be taken apart is silent as a whole.
        Ok(remixed.or_else(|| is_met.then(|| silence(frames))))
    }
}

/// Packets of silence, as long as the one that they replace.
fn silence(frames: u64) -> Vec<Vec<u8>> {
    let units = u32::try_from(frames / UNIT).unwrap_or_default();
    silent_packets(units).map(Vec::from).collect()
}

/// What is silenced of one channel, in order and apart from each other.
struct Side(VecDeque<Range<u64>>);

impl Side {
    /// What is heard from the start on begins with what is skipped.
    fn of(stretches: &[Stretch], what: Silenced, pre_skip: u64) -> Self {
        let place = |frame: u64| match frame {
            0 => 0,
            frame => frame.saturating_add(pre_skip),
        };
        let its = stretches.iter().filter(|one| one.what == what);
        let its = its.map(|one| place(one.frames.start)..place(one.frames.end));
        let mut its: Vec<Range<u64>> = its.collect();
        its.retain(|frames| !frames.is_empty());
        its.sort_by_key(|frames| frames.start);
        let mut merged: VecDeque<Range<u64>> = VecDeque::new();
        for frames in its {
            match merged.back_mut() {
                Some(last) if frames.start <= last.end => last.end = last.end.max(frames.end),
                _ => merged.push_back(frames),
            }
        }
        Self(merged)
    }

    /// Those that meet this part, which comes behind all parts before.
    fn within(&mut self, here: &Range<u64>) -> &[Range<u64>] {
        while self
            .0
            .pop_front_if(|first| first.end <= here.start)
            .is_some()
        {}
        let all: &[Range<u64>] = self.0.make_contiguous();
        let met = all.iter().take_while(|one| one.start < here.end).count();
        all.get(..met).unwrap_or_default()
    }
}

/// Takes channels out of packets of two.
#[derive(Default)]
struct Remixer {
    /// The last packets, the oldest first.
    recent: VecDeque<Vec<u8>>,
    /// While something is silenced, and for so many packets more.
    codec: Option<(Codec, usize)>,
}

impl Remixer {
    /// What takes the place of a packet whose sound begins at `begins`, if something does.
    fn without(
        &mut self,
        packet: &[u8],
        following: Option<&[u8]>,
        met: &[Vec<Range<u64>>; 2],
        begins: u64,
    ) -> Option<Vec<u8>> {
        let is_met = met.iter().any(|met| !met.is_empty());
        let codec = match self.codec.take() {
            Some((codec, _)) if is_met => Some((codec, LEARNED)),
            Some((codec, left)) => left.checked_sub(1).map(|left| (codec, left)),
            None if is_met => {
                let codec = Codec::after(&self.recent, packet).ok().flatten();
                codec.map(|codec| (codec, LEARNED))
            }
            None => None,
        };
        if self.recent.len() >= LEARNED {
            self.recent.pop_front();
        }
        self.recent.push_back(packet.to_vec());
        let (mut codec, left) = codec?;
        let goes_on = following.is_some_and(|packet| codec.hear(packet).is_ok_and(|is_one| is_one));
        let remixed = codec.next(met, begins).ok()?;
        self.codec = goes_on.then_some((codec, left));
        Some(remixed)
    }
}

/// Encodes anew what it decodes. An encoder delays sound, so it is given what comes so much later: nothing moves.
struct Codec {
    decoder: OpusDecoder,
    encoder: OpusEncoder,
    /// What has not been encoded: one packet, or two before the first of them is.
    decoded: Vec<i16>,
}

impl Codec {
    /// One that has heard this packet, and before it others; `None` if it is none of ours.
    fn after(recent: &VecDeque<Vec<u8>>, packet: &[u8]) -> Result<Option<Self>, OpusError> {
        let layout = Layout::new(SampleRate::HZ_48000, Channels::Stereo);
        let settings = OpusSettings::recording(layout.channels);
        let mut codec = Self {
            decoder: OpusDecoder::new(layout)?,
            encoder: OpusEncoder::new(layout, settings)?,
            decoded: Vec::new(),
        };
        let mut is_one = false;
        for packet in recent.iter().map(Vec::as_slice).chain([packet]) {
            let goes_on = is_one;
            is_one = codec.hear(packet)?;
            if !is_one {
                codec.decoded.clear();
            } else if goes_on {
                let _learned = codec.next(&[Vec::new(), Vec::new()], 0)?;
            }
        }
        Ok(is_one.then_some(codec))
    }

    /// Decodes the next packet; whether it is one of ours. What another one holds is left out.
    fn hear(&mut self, packet: &[u8]) -> Result<bool, OpusError> {
        let before = self.decoded.len();
        self.decoder.decode(packet, &mut self.decoded)?;
        let is_one = self.decoded.len() - before == self.encoder.frame_samples();
        if !is_one {
            self.decoded.truncate(before);
        }
        Ok(is_one)
    }

    /// The first packet, which begins at `begins`, without this of its sound.
    fn next(&mut self, met: &[Vec<Range<u64>>; 2], begins: u64) -> Result<Vec<u8>, OpusError> {
        let count = self.encoder.frame_samples();
        let delay = self.encoder.pre_skip();
        let skipped = 2 * usize::from(delay);
        let mut samples = self.decoded.get(skipped..).unwrap_or_default().to_vec();
        samples.resize(count, 0);
        for (frame, at) in samples.chunks_exact_mut(2).zip(begins + u64::from(delay)..) {
            for (sample, met) in frame.iter_mut().zip(met) {
                if met.iter().any(|frames| frames.contains(&at)) {
                    *sample = 0;
                }
            }
        }
        self.decoded.drain(..count.min(self.decoded.len()));
        let mut packet = vec![0; MAX_FRAME_PACKET];
        let len = self.encoder.encode(&samples, &mut packet)?;
        packet.truncate(len);
        Ok(packet)
    }
}

/// A page with other packets.
fn rebuilt(page: &[u8], packets: &[Vec<u8>]) -> io::Result<Vec<u8>> {
    let mut lacing = Vec::new();
    for packet in packets {
        lacing.extend(repeat_n(255, packet.len() / 255));
        lacing.push((packet.len() % 255) as u8);
    }
    if lacing.len() > MAX_LACING {
        return Err(invalid("a page is too full"));
    }
    let mut bytes = page.get(..HEADER).unwrap_or_default().to_vec();
    if let Some(count) = bytes.last_mut() {
        *count = lacing.len() as u8;
    }
    bytes.extend(lacing);
    bytes.extend(packets.iter().flatten());
    seal(&mut bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::ogg::{OggItem, OggOpusReader, OggOpusWriter, OpusHead, repair};

    const LEFT_HZ: f64 = 440.0;
    const RIGHT_HZ: f64 = 1_000.0;

    /// So many seconds of a tone on each channel, in pages of 100 ms.
    fn recording(channels: Channels, seconds: usize) -> Vec<u8> {
        let layout = Layout::new(SampleRate::HZ_48000, channels);
        let mut encoder = OpusEncoder::new(layout, OpusSettings::SPEECH).unwrap();
        let head = OpusHead {
            channels,
            pre_skip: encoder.pre_skip(),
            input_hz: 48_000,
        };
        let page = Duration::from_millis(100);
        let mut writer = OggOpusWriter::new(head, "vivavoce", &[], 7, page).unwrap();
        let mut bytes = Vec::new();
        let mut packet = vec![0; MAX_FRAME_PACKET];
        for frame in 0..seconds * 50 {
            let samples: Vec<i16> = (frame * 960..(frame + 1) * 960)
                .flat_map(|at| {
                    let tone = |hertz: f64| {
                        let turn = at as f64 * hertz * std::f64::consts::TAU / 48_000.0;
                        (turn.sin() * 8_000.0) as i16
                    };
                    [tone(LEFT_HZ), tone(RIGHT_HZ)]
                        .into_iter()
                        .take(channels.count())
                })
                .collect();
            let len = encoder.encode(&samples, &mut packet).unwrap();
            bytes.extend_from_slice(&writer.push(&packet[..len]).unwrap());
        }
        bytes.extend_from_slice(&writer.finish(Some(seconds as u64 * 48_000 - 700)));
        bytes
    }

    fn muted(bytes: &[u8], stretches: &[Stretch]) -> Vec<u8> {
        let mut output = Vec::new();
        mute(bytes, stretches, &mut output).unwrap();
        output
    }

    /// What is heard on each channel.
    fn heard(bytes: &[u8], channels: Channels) -> Vec<Vec<i16>> {
        let layout = Layout::new(SampleRate::HZ_48000, channels);
        let mut decoder = OpusDecoder::new(layout).unwrap();
        let mut reader = OggOpusReader::new();
        reader.push(bytes);
        let mut sides = vec![Vec::new(); channels.count()];
        while let Some(item) = reader.next_item().unwrap() {
            let OggItem::Packet(packet) = item else {
                continue;
            };
            let mut samples = Vec::new();
            decoder.decode(&packet.data, &mut samples).unwrap();
            let heard = packet.heard.start as usize..packet.heard.end as usize;
            for (channel, side) in sides.iter_mut().enumerate() {
                let of_channel = samples.iter().skip(channel).step_by(channels.count());
                side.extend(of_channel.take(heard.end).skip(heard.start));
            }
        }
        assert_eq!(reader.lost_pages(), 0);
        sides
    }

    /// The effective value between two times in milliseconds.
    fn level(samples: &[i16], ms: Range<usize>) -> f64 {
        let part = &samples[ms.start * 48..ms.end * 48];
        let energy: f64 = part.iter().map(|&sample| f64::from(sample).powi(2)).sum();
        (energy / part.len() as f64).sqrt()
    }

    /// How much of that is at this frequency.
    fn pitch(samples: &[i16], ms: Range<usize>, hertz: f64) -> f64 {
        let part = &samples[ms.start * 48..ms.end * 48];
        let (mut sine, mut cosine) = (0.0, 0.0);
        for (at, &sample) in part.iter().enumerate() {
            let turn = at as f64 * hertz * std::f64::consts::TAU / 48_000.0;
            sine += f64::from(sample) * turn.sin();
            cosine += f64::from(sample) * turn.cos();
        }
        sine.hypot(cosine) * std::f64::consts::SQRT_2 / part.len() as f64
    }

    fn stretch(ms: Range<u64>, what: Silenced) -> Stretch {
        Stretch {
            frames: ms.start * 48..ms.end * 48,
            what,
        }
    }

    #[test]
    fn one_side_is_silent_and_the_other_goes_on() {
        let whole = recording(Channels::Stereo, 5);
        for (what, silent) in [(Silenced::Left, 0), (Silenced::Right, 1)] {
            let bytes = muted(&whole, &[stretch(2_000..3_000, what)]);
            let sides = heard(&bytes, Channels::Stereo);
            let (quiet, loud) = (&sides[silent], &sides[1 - silent]);
            // Opus lets a little of a side be heard on the other one, and blurs where it ends by a packet.
            let hertz = [LEFT_HZ, RIGHT_HZ][silent];
            let left = pitch(quiet, 2_030..2_970, hertz);
            assert!(left < 10.0, "{what:?}: {left}");
            assert!(level(quiet, 2_010..2_990) < 600.0);
            assert!(pitch(quiet, 1_000..1_980, hertz) > 4_500.0);
            for (side, ms) in [
                (quiet, 1_000..1_980),
                (quiet, 3_030..4_900),
                (loud, 1_000..4_900),
                (loud, 1_980..3_030),
            ] {
                let level = level(side, ms.clone());
                assert!((4_500.0..6_700.0).contains(&level), "{ms:?}: {level}");
            }
        }
    }

    #[test]
    fn nothing_moves_on_the_other_side() {
        let whole = recording(Channels::Stereo, 4);
        let muted = muted(&whole, &[stretch(1_000..3_000, Silenced::Left)]);
        let [before, after] = [whole, muted].map(|bytes| heard(&bytes, Channels::Stereo).remove(1));
        for ms in [
            900..1_100,
            1_500..1_600,
            2_900..3_100,
            3_150..3_300,
            3_400..3_900,
        ] {
            let part = ms.start * 48..ms.end * 48;
            let both = before[part.clone()].iter().zip(&after[part]);
            let differ: Vec<i16> = both.map(|(one, other)| one - other).collect();
            let level = level(&differ, 0..ms.len());
            assert!(level < 600.0, "{ms:?}: {level}");
        }
    }

    #[test]
    fn everything_is_silent_where_both_sides_are_or_there_is_one() {
        for (channels, what) in [
            (Channels::Stereo, &[Silenced::Left, Silenced::Right][..]),
            (Channels::Mono, &[Silenced::Left]),
            (Channels::Mono, &[Silenced::Right]),
        ] {
            let stretches: Vec<Stretch> = what
                .iter()
                .map(|what| stretch(1_000..2_500, *what))
                .collect();
            let bytes = muted(&recording(channels, 4), &stretches);
            for side in heard(&bytes, channels) {
                assert!(level(&side, 1_040..2_480) < 5.0);
                assert!(level(&side, 100..960) > 4_500.0);
                assert!(level(&side, 2_560..3_900) > 4_500.0);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_length_and_the_times_stay(
            parts in proptest::collection::vec((0_u64..3_200, 0_u64..900, any::<bool>()), 0..5), two in any::<bool>(),
        ) {
            let channels = if two { Channels::Stereo } else { Channels::Mono };
            let whole = recording(channels, 3);
            let stretches: Vec<Stretch> = parts
                .into_iter()
                .map(|(from, length, what)| {
                    let what = if what { Silenced::Left } else { Silenced::Right };
                    stretch(from..from + length, what)
                })
                .collect();
            let bytes = muted(&whole, &stretches);
            let of = |bytes: &[u8]| repair(&mut Cursor::new(bytes.to_vec())).unwrap().unwrap();
            let (before, after) = (of(&whole), of(&bytes));
            prop_assert_eq!((before.frames, before.was_ended), (after.frames, after.was_ended));
            let sides = heard(&bytes, channels);
            prop_assert_eq!(sides[0].len(), heard(&whole, channels)[0].len());
            // A second time nothing comes back.
            let again = heard(&muted(&bytes, &stretches), channels);
            prop_assert_eq!(again[0].len(), sides[0].len());
        }
    }

    #[test]
    fn what_is_no_stream_of_ours_is_refused() {
        assert!(
            mute(&b"RIFF"[..], &[], io::sink()).is_ok(),
            "nothing is nothing"
        );
        let mut broken = recording(Channels::Mono, 1);
        // The flag of a packet that goes on.
        let second = broken
            .windows(4)
            .enumerate()
            .filter(|(_, four)| four == b"OggS");
        let at = second.map(|(at, _)| at).nth(3).unwrap();
        broken[at + 5] |= 1;
        let mut page = broken.split_off(at);
        seal_first(&mut page);
        broken.extend(page);
        assert!(mute(&broken[..], &[], io::sink()).is_err());
    }

    fn seal_first(pages: &mut [u8]) {
        let next = pages
            .windows(4)
            .enumerate()
            .skip(1)
            .find(|(_, four)| four == b"OggS");
        let end = next.map_or(pages.len(), |(at, _)| at);
        seal(&mut pages[..end]);
    }
}
