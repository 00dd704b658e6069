//! The layers of a video publication: what there is to be forwarded.
//!
//! A publisher sends one picture in several resolutions: as streams of their own, each under its RID or SSRC (*simulcast*, RFC
//! 8853), or as spatial layers of one stream, each of which needs those below (*scalable video coding*, SVC). Which is which is
//! not a matter of order: the publisher says the quality and the size of each in its `AddTrackRequest`, and the keyframes of
//! VP8 show the size. A publication may also be sent in a second codec, for subscribers without the first (*backup codec*);
//! each is an [`Encoding`].
//!
//! Who gets which layer is decided in `allocation`, and carried out in `forwarding`.

use std::time::{Duration, Instant};

use livekit_protocol as proto;
use str0m::format::Codec;

use super::sdp::Section;
use super::video_payload::{Structure, VideoPart};

/// A layer that is silent for so long while others of its encoding are heard is off.
const SILENCE: Duration = Duration::from_millis(2_500);
/// A new layer has so long to be heard.
const PATIENCE: Duration = Duration::from_secs(4);
/// The interval of measurements.
const MEASURED: Duration = Duration::from_millis(500);
/// Encodings of a publication: codecs.
pub const MOST_ENCODINGS: usize = 2;
/// Layers of an encoding.
const MOST_LAYERS: usize = 8;
/// Temporal layers.
const TEMPORAL: usize = 4;
/// No temporal layer is left out.
pub const ALL_FRAMES: u8 = u8::MAX;
/// An element of a page this much larger than a layer is still shown by it, in percent.
const ENLARGED_PERCENT: u64 = 110;

/// What a layer is called by publisher and subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quality {
    Low,
    Medium,
    High,
}

impl Quality {
    /// In rising order.
    pub const ALL: [Self; 3] = [Self::Low, Self::Medium, Self::High];

    /// As the protocol says it.
    pub fn of(said: i32) -> Option<Self> {
        match proto::VideoQuality::try_from(said) {
            Ok(proto::VideoQuality::Low) => Some(Self::Low),
            Ok(proto::VideoQuality::Medium) => Some(Self::Medium),
            Ok(proto::VideoQuality::High) => Some(Self::High),
            _ => None,
        }
    }

    /// The same for the protocol.
    pub const fn wire(self) -> proto::VideoQuality {
        match self {
            Self::Low => proto::VideoQuality::Low,
            Self::Medium => proto::VideoQuality::Medium,
            Self::High => proto::VideoQuality::High,
        }
    }

    /// The qualities that LiveKit's clients mean by their RIDs.
    fn of_rid(rid: &str) -> Option<Self> {
        match rid {
            "q" => Some(Self::Low),
            "h" => Some(Self::Medium),
            "f" => Some(Self::High),
            _ => None,
        }
    }

    /// Of one of several layers that nothing is known of.
    fn of_place(place: usize, of: usize) -> Self {
        let below_top = of.saturating_sub(place + 1);
        let index = (Self::ALL.len() - 1).saturating_sub(below_top);
        Self::ALL.get(index).copied().unwrap_or(Self::Low)
    }

    /// Bits per second where neither the publisher nor a measurement says.
    const fn usual_bps(self) -> u64 {
        match self {
            Self::Low => 150_000,
            Self::Medium => 500_000,
            Self::High => 1_700_000,
        }
    }
}

/// A layer of a publication: its encoding, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerId {
    pub encoding: u8,
    pub place: u8,
}

/// A layer. See the module.
#[derive(Debug, Default)]
pub struct Layer {
    /// The stream that it is, or is part of.
    pub rid: Option<String>,
    said_ssrc: Option<u32>,
    /// The SSRC of its last packet.
    pub ssrc: Option<u32>,
    quality: Option<Quality>,
    size: Option<(u32, u32)>,
    size_seen: Option<(u32, u32)>,
    said_bps: u64,
    meter: Meter,
    since: Option<Instant>,
    heard: Option<Instant>,
    /// When a keyframe of it was last requested.
    pub asked: Option<Instant>,
}

impl Layer {
    fn quality(&self) -> Quality {
        self.quality.unwrap_or(Quality::High)
    }

    fn area(&self) -> Option<u64> {
        let (width, height) = self.size_seen.or(self.size)?;
        Some(u64::from(width) * u64::from(height))
    }

    fn bps(&self) -> u64 {
        match (self.meter.bps, self.said_bps) {
            (0, 0) => self.quality().usual_bps(),
            (0, said) => said,
            (measured, _) => measured,
        }
    }
}

/// What a subscriber can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offered {
    pub layer: LayerId,
    pub quality: Quality,
    /// With the layers that it needs.
    pub bps: u64,
}

/// A publication in one codec.
#[derive(Debug)]
pub struct Encoding {
    /// The section that carries it.
    pub mid: String,
    /// Its codec, as its packets or, before, its description show.
    pub codec: Option<Codec>,
    /// Whether its layers are those of one stream.
    pub scalable: bool,
    /// What its dependency descriptors refer to.
    pub structure: Structure,
    layers: Vec<Layer>,
    number: u8,
}

impl Encoding {
    /// From the section that carries it, and what the publisher has said of its layers.
    pub fn new(
        number: u8,
        section: &Section<'_>,
        said: &[proto::VideoLayer],
        now: Instant,
    ) -> Self {
        let mut layers: Vec<Layer> = if section.layers.is_empty() {
            let streams = section.sim.iter().take(MOST_LAYERS);
            streams
                .map(|ssrc| Layer {
                    said_ssrc: Some(*ssrc),
                    ..Layer::default()
                })
                .collect()
        } else {
            let rids = section.layers.iter().take(MOST_LAYERS);
            rids.map(|rid| Layer {
                rid: Some((*rid).to_owned()),
                ..Layer::default()
            })
            .collect()
        };
        if layers.is_empty() {
            layers.push(Layer::default());
        }
        let of = layers.len();
        for (place, layer) in layers.iter_mut().enumerate() {
            layer.since = Some(now);
            if of == 1 {
                layer.describe(said.iter().max_by_key(|said| said.quality));
                layer.quality = Some(Quality::High);
                continue;
            }
            let by_rid = |said: &&proto::VideoLayer| {
                !said.rid.is_empty() && layer.rid.as_deref() == Some(&*said.rid)
            };
            let by_ssrc =
                |said: &&proto::VideoLayer| said.ssrc != 0 && layer.said_ssrc == Some(said.ssrc);
            let named = said.iter().find(|said| by_rid(said) || by_ssrc(said));
            layer.quality = named
                .and_then(|named| Quality::of(named.quality))
                .or_else(|| Quality::of_rid(layer.rid.as_deref()?))
                .or_else(|| Some(Quality::of_place(place, of)));
            let quality = layer.quality();
            let meant = |said: &&proto::VideoLayer| Quality::of(said.quality) == Some(quality);
            let unnamed = said.iter().filter(|said| said.rid.is_empty());
            layer.describe(named.or_else(|| unnamed.clone().find(meant)));
        }
        Self {
            mid: section.mid.to_owned(),
            codec: section.video_codecs.first().copied(),
            scalable: false,
            structure: Structure::default(),
            layers,
            number,
        }
    }

    /// The layer of a packet.
    pub fn locate(&mut self, rid: Option<&str>, ssrc: u32, spatial: u8) -> Option<LayerId> {
        let place = if self.layers.len() == 1 || self.scalable {
            if spatial > 0 || self.scalable {
                self.scale(usize::from(spatial))?;
            }
            usize::from(spatial)
        } else {
            let named = |layer: &Layer| {
                let by_rid = rid.is_some() && layer.rid.as_deref() == rid;
                by_rid || layer.said_ssrc == Some(ssrc) || layer.ssrc == Some(ssrc)
            };
            self.layers.iter().position(named)?
        };
        Some(LayerId {
            encoding: self.number,
            place: u8::try_from(place).ok()?,
        })
    }

    /// There is a spatial layer of this number.
    fn scale(&mut self, spatial: usize) -> Option<()> {
        if spatial >= MOST_LAYERS {
            return None;
        }
        self.scalable |= spatial > 0;
        if spatial < self.layers.len() {
            return Some(());
        }
        let since = self.layers.first().and_then(|layer| layer.since);
        let top = self.layers.last().and_then(|layer| layer.size);
        let said_bps = self
            .layers
            .last_mut()
            .map(|layer| std::mem::take(&mut layer.said_bps));
        while self.layers.len() <= spatial {
            self.layers.push(Layer {
                since,
                ..Layer::default()
            });
        }
        if let (Some(highest), Some(said_bps)) = (self.layers.last_mut(), said_bps) {
            highest.said_bps = said_bps;
        }
        let of = self.layers.len();
        for (place, layer) in self.layers.iter_mut().enumerate() {
            layer.quality = Some(Quality::of_place(place, of));
            // Each is half as wide and high as the next in the modes that browsers know.
            layer.size = top.map(|(width, height)| {
                let shift = (of - 1 - place).min(31);
                (width >> shift, height >> shift)
            });
        }
        Some(())
    }

    /// Takes notice of a packet.
    pub fn observe(&mut self, place: u8, ssrc: u32, bytes: usize, part: &VideoPart, now: Instant) {
        // After a pause of all, as of a muted track, each may begin again.
        let newest = self.layers.iter().filter_map(|layer| layer.heard).max();
        if newest.is_some_and(|newest| now.saturating_duration_since(newest) >= SILENCE) {
            self.await_again(now);
        }
        let Some(layer) = self.layers.get_mut(usize::from(place)) else {
            return;
        };
        layer.heard = Some(now);
        layer.ssrc = Some(ssrc);
        layer.meter.observe(bytes, part, now);
        if part.size.is_some() && part.size != layer.size_seen {
            layer.size_seen = part.size;
            self.order_by_size();
        }
    }

    /// What is seen counts more than what was said, or than a place in a list.
    fn order_by_size(&mut self) {
        if self.scalable || self.layers.iter().any(|layer| layer.size_seen.is_none()) {
            return;
        }
        let mut qualities: Vec<Quality> = self.layers.iter().map(Layer::quality).collect();
        qualities.sort_unstable();
        let mut by_area: Vec<usize> = (0..self.layers.len()).collect();
        by_area.sort_by_key(|at| self.layers.get(*at).and_then(Layer::area));
        for (at, quality) in by_area.into_iter().zip(qualities) {
            if let Some(layer) = self.layers.get_mut(at) {
                layer.quality = Some(quality);
            }
        }
    }

    /// A layer by its place.
    pub fn layer_mut(&mut self, place: u8) -> Option<&mut Layer> {
        self.layers.get_mut(usize::from(place))
    }

    /// The quality of a layer.
    pub fn quality_of(&self, place: u8) -> Quality {
        let layer = self.layers.get(usize::from(place));
        layer.map_or(Quality::High, Layer::quality)
    }

    /// They have so long again to be heard.
    pub fn await_again(&mut self, now: Instant) {
        for layer in &mut self.layers {
            layer.since = Some(now);
        }
    }

    /// Places in rising order of quality.
    fn ordered(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.layers.len()).collect();
        if !self.scalable {
            places.sort_by_key(|at| self.layers.get(*at).map(Layer::quality));
        }
        places
    }

    /// What a subscriber can have that wants no more than this, in rising order. `is_off` are qualities that the publisher
    /// does not send because nobody wanted them: it will when somebody does.
    pub fn offered(
        &self,
        most: Quality,
        is_off: impl Fn(Quality) -> bool,
        now: Instant,
    ) -> Vec<Offered> {
        let newest = self.layers.iter().filter_map(|layer| layer.heard).max();
        let is_there = |layer: &Layer| {
            let young = layer
                .since
                .is_some_and(|since| now.saturating_duration_since(since) < PATIENCE);
            let heard = match (layer.heard, newest) {
                (Some(heard), Some(newest)) => newest.saturating_duration_since(heard) < SILENCE,
                (None, Some(_)) => false,
                (_, None) => true,
            };
            young || heard || is_off(layer.quality())
        };
        let mut below = 0;
        let mut offered = Vec::new();
        let mut lowest = None;
        for place in self.ordered() {
            let Some(layer) = self.layers.get(place) else {
                continue;
            };
            if !is_there(layer) {
                continue;
            }
            let bps = if self.scalable {
                below += layer.bps();
                below
            } else {
                layer.bps()
            };
            let choice = Offered {
                layer: LayerId {
                    encoding: self.number,
                    place: place as u8,
                },
                quality: layer.quality(),
                bps,
            };
            lowest.get_or_insert(choice);
            if choice.quality <= most {
                offered.push(choice);
            }
        }
        // Whoever wants less than there is gets the least.
        if offered.is_empty() {
            offered.extend(lowest);
        }
        offered
    }

    /// The quality that the publisher must send for a subscriber that wants no more than this.
    pub fn needed(&self, most: Quality) -> Quality {
        let qualities = || self.layers.iter().map(Layer::quality);
        let fitting = qualities().filter(|quality| *quality <= most).max();
        fitting.or_else(|| qualities().min()).unwrap_or(most)
    }

    /// The least quality that fills a picture of this size.
    pub fn quality_for(&self, width: u32, height: u32) -> Quality {
        let wanted = u64::from(width.min(height));
        let side = |layer: &Layer| {
            let (width, height) = layer.size_seen.or(layer.size)?;
            Some(u64::from(width.min(height)))
        };
        for place in self.ordered() {
            let Some(layer) = self.layers.get(place) else {
                continue;
            };
            if side(layer).is_some_and(|side| side * ENLARGED_PERCENT / 100 >= wanted) {
                return layer.quality();
            }
        }
        Quality::High
    }

    /// The highest temporal layer that a subscriber needs for so many frames per second; 0 is all.
    pub fn temporal_for(&self, place: u8, fps: u32) -> u8 {
        let layer = self.layers.get(usize::from(place));
        match layer {
            Some(layer) if fps > 0 => layer.meter.temporal_for(fps),
            _ => ALL_FRAMES,
        }
    }
}

impl Layer {
    fn describe(&mut self, said: Option<&proto::VideoLayer>) {
        let Some(said) = said else { return };
        self.said_bps = u64::from(said.bitrate);
        if said.width > 0 && said.height > 0 {
            self.size = Some((said.width, said.height));
        }
    }
}

/// Measures a layer. A peak counts for some time: pictures move again.
#[derive(Debug, Default)]
struct Meter {
    since: Option<Instant>,
    bytes: u64,
    frames: [u32; TEMPORAL],
    bps: u64,
    /// Frames per second in each temporal layer.
    fps: [u32; TEMPORAL],
}

impl Meter {
    fn observe(&mut self, bytes: usize, part: &VideoPart, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= MEASURED {
            let ms = u64::try_from(elapsed.as_millis())
                .unwrap_or(u64::MAX)
                .max(1);
            let bps = self.bytes * 8 * 1_000 / ms;
            self.bps = bps.max(self.bps * 4 / 5);
            self.fps = self
                .frames
                .map(|frames| u32::try_from(u64::from(frames) * 1_000 / ms).unwrap_or(u32::MAX));
            (self.bytes, self.frames, self.since) = (0, [0; TEMPORAL], Some(now));
        }
        self.bytes += bytes as u64;
        if part.begins
            && let Some(frames) = self.frames.get_mut(usize::from(part.temporal))
        {
            *frames += 1;
        }
    }

    fn temporal_for(&self, fps: u32) -> u8 {
        let mut all = 0;
        for (temporal, own) in (0u8..).zip(self.fps) {
            all += own;
            // A frame more or less is nothing that anybody sees.
            if all + 1 >= fps {
                return temporal;
            }
        }
        ALL_FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sdp::{Direction, SectionKind};

    fn section<'a>(layers: &[&'a str], sim: &[u32]) -> Section<'a> {
        Section {
            mid: "1",
            kind: SectionKind::Video,
            direction: Direction::SendOnly,
            track_id: None,
            layers: layers.to_vec(),
            sim: sim.to_vec(),
            video_codecs: vec![Codec::Vp8],
            has_unknown_codec: false,
        }
    }

    fn said(quality: proto::VideoQuality, height: u32) -> proto::VideoLayer {
        proto::VideoLayer {
            quality: quality as i32,
            width: height * 16 / 9,
            height,
            bitrate: height * 1_000,
            ..Default::default()
        }
    }

    fn best(encoding: &Encoding, most: Quality, now: Instant) -> u8 {
        let offered = encoding.offered(most, |_| false, now);
        offered.last().unwrap().layer.place
    }

    fn heights() -> [proto::VideoLayer; 3] {
        use proto::VideoQuality::{High, Low, Medium};
        [said(High, 720), said(Low, 180), said(Medium, 360)]
    }

    #[test]
    fn layers_are_what_their_names_say_in_whatever_order() {
        let now = Instant::now();
        for rids in [["q", "h", "f"], ["f", "h", "q"], ["h", "f", "q"]] {
            let encoding = Encoding::new(0, &section(&rids, &[]), &heights(), now);
            let place = |rid| rids.iter().position(|other| *other == rid).unwrap() as u8;
            assert_eq!(best(&encoding, Quality::High, now), place("f"));
            assert_eq!(best(&encoding, Quality::Medium, now), place("h"));
            assert_eq!(best(&encoding, Quality::Low, now), place("q"));
            assert_eq!(encoding.quality_for(300, 170), Quality::Low);
            assert_eq!(encoding.quality_for(640, 370), Quality::Medium);
            assert_eq!(encoding.quality_for(640, 420), Quality::High);
            assert_eq!(
                encoding.offered(Quality::Low, |_| false, now)[0].bps,
                180_000
            );
        }
    }

    #[test]
    fn layers_are_what_the_publisher_says_of_their_rids_and_ssrcs() {
        let now = Instant::now();
        let [mut top, mut low, mut middle] = heights();
        (top.rid, low.rid, middle.rid) = ("a".into(), "b".into(), "c".into());
        let encoding = Encoding::new(0, &section(&["b", "a", "c"], &[]), &[top, low, middle], now);
        assert_eq!(best(&encoding, Quality::High, now), 1);
        let [mut top, mut low, _] = heights();
        (top.ssrc, low.ssrc) = (11, 12);
        let mut encoding = Encoding::new(0, &section(&[], &[11, 12]), &[top, low], now);
        assert_eq!(best(&encoding, Quality::High, now), 0);
        assert_eq!(encoding.locate(None, 12, 0).map(|id| id.place), Some(1));
        assert_eq!(encoding.locate(None, 13, 0), None);
    }

    #[test]
    fn what_keyframes_show_counts_more_than_an_order() {
        let now = Instant::now();
        let mut encoding = Encoding::new(0, &section(&["x", "y"], &[]), &[], now);
        assert_eq!(best(&encoding, Quality::High, now), 1);
        for (place, size) in [(0, (640, 360)), (1, (320, 180))] {
            let part = VideoPart {
                size: Some(size),
                ..VideoPart::default()
            };
            encoding.observe(place, 1, 1_000, &part, now);
        }
        assert_eq!(best(&encoding, Quality::High, now), 0);
    }

    #[test]
    fn a_layer_that_stops_is_not_offered_and_a_picture_that_stands_still_is() {
        let start = Instant::now();
        let mut encoding = Encoding::new(0, &section(&["q", "f"], &[]), &[], start);
        let part = VideoPart::default();
        let at = |ms| start + Duration::from_millis(ms);
        for ms in (0..5_000).step_by(100) {
            encoding.observe(0, 1, 1_000, &part, at(ms));
            if ms < 1_000 {
                encoding.observe(1, 2, 10_000, &part, at(ms));
            }
        }
        assert_eq!(best(&encoding, Quality::High, at(3_000)), 1, "it is new");
        assert_eq!(best(&encoding, Quality::High, at(5_000)), 0);
        let off = encoding.offered(Quality::High, |quality| quality == Quality::High, at(5_000));
        assert_eq!(off.len(), 2, "it is off because nobody wanted it");
        assert_eq!(best(&encoding, Quality::High, at(60_000)), 0);
        // Measured at 1,000 bytes each 100 ms.
        let lowest = encoding.offered(Quality::Low, |_| false, at(60_000))[0].bps;
        assert!((75_000..=85_000).contains(&lowest), "{lowest}");
    }

    #[test]
    fn spatial_layers_appear_with_their_packets_and_need_those_below() {
        let now = Instant::now();
        let mut encoding = Encoding::new(0, &section(&[], &[]), &heights(), now);
        assert_eq!(encoding.offered(Quality::Low, |_| false, now).len(), 1);
        for spatial in 0..3 {
            let id = encoding.locate(None, 7, spatial).unwrap();
            assert_eq!(id.place, spatial);
            let part = VideoPart {
                spatial,
                ..VideoPart::default()
            };
            encoding.observe(id.place, 7, 100, &part, now);
        }
        let offered = encoding.offered(Quality::High, |_| false, now);
        assert_eq!(
            offered
                .iter()
                .map(|layer| layer.quality)
                .collect::<Vec<_>>(),
            Quality::ALL
        );
        assert_eq!(offered[2].bps, 150_000 + 500_000 + 720_000);
        assert_eq!(encoding.quality_for(320, 180), Quality::Low);
        assert_eq!(encoding.locate(None, 7, 9), None);
    }

    #[test]
    fn fewer_frames_are_fewer_temporal_layers() {
        let start = Instant::now();
        let mut encoding = Encoding::new(0, &section(&[], &[]), &[], start);
        // 30 frames per second in the pattern 0 2 1 2.
        for frame in 0..60u64 {
            let part = VideoPart {
                begins: true,
                temporal: [0, 2, 1, 2][(frame % 4) as usize],
                ..VideoPart::default()
            };
            let at = start + Duration::from_millis(frame * 33);
            encoding.observe(0, 1, 100, &part, at);
        }
        let needed = |fps| encoding.temporal_for(0, fps);
        assert_eq!((needed(7), needed(15), needed(30)), (0, 1, 2));
        assert_eq!((needed(60), needed(0)), (ALL_FRAMES, ALL_FRAMES));
    }
}
