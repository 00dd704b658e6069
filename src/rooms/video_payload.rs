//! What the payload of a video packet says without being decoded: whether a keyframe begins with it, and which layer of a
//! scalable stream it belongs to.
//!
//! VP8 (RFC 7741) and VP9 (RFC 9628) say so in a descriptor in front of each payload, H.264 (RFC 6184) in the types of its
//! NAL units, and AV1 in its aggregation header or, where it was negotiated, in the *dependency descriptor*, a header
//! extension that any codec may use ([AV1 RTP]). Such an extension refers to templates, which a keyframe's carries.
//!
//! Payloads come from clients: everything here tolerates any bytes.
//!
//! [AV1 RTP]: https://aomediacodec.github.io/av1-rtp-spec/

use std::sync::Arc;

use str0m::format::Codec;
use str0m::rtp::{ExtensionSerializer, ExtensionValues, Vp8Descriptor};

/// The URI of the dependency descriptor.
pub const DEPENDENCY_DESCRIPTOR: &str =
    "https://aomediacodec.github.io/av1-rtp-spec/#dependency-descriptor-rtp-header-extension";
/// More than real ones have; a longer one is not forwarded.
const LONGEST_DESCRIPTOR: usize = 200;
/// Templates of a dependency descriptor: their ids are six bits.
const MOST_TEMPLATES: usize = 64;

/// What is known of a video packet.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of its own in the formats"
)]
#[derive(Debug, Clone, Copy, Default)]
pub struct VideoPart {
    /// It is the first packet of a keyframe: decoding can begin here.
    pub keyframe: bool,
    /// It is the first packet of a frame of its layer.
    pub begins: bool,
    /// It is the last packet of a frame of its layer.
    pub ends: bool,
    /// Its spatial layer in its stream.
    pub spatial: u8,
    /// Its temporal layer.
    pub temporal: u8,
    /// Frames of this temporal layer and those below can be decoded from here on, whatever was left out before.
    pub joins: bool,
    /// Width and height, as a keyframe of VP8 says them.
    pub size: Option<(u32, u32)>,
    /// The descriptor of VP8, whose numbers are rewritten.
    pub vp8: Option<Vp8Descriptor>,
}

impl VideoPart {
    /// Reads the payload of a packet. `structure` is what the stream's dependency descriptors refer to, and follows them.
    pub fn read(
        codec: Codec,
        payload: &[u8],
        marker: bool,
        descriptor: Option<&DependencyDescriptor>,
        structure: &mut Structure,
    ) -> Self {
        let mut part = match codec {
            Codec::Vp8 => vp8(payload),
            Codec::Vp9 => vp9(payload),
            Codec::H264 => h264(payload),
            Codec::Av1 => av1(payload),
            _ => None,
        }
        .unwrap_or_default();
        part.ends |= marker;
        if let Some(said) = descriptor.and_then(|descriptor| structure.read(&descriptor.0))
            && codec == Codec::Av1
        {
            part.keyframe = said.keyframe;
            (part.begins, part.ends) = (said.begins, said.ends);
            (part.spatial, part.temporal) = (said.spatial, said.temporal);
            part.joins = said.keyframe;
        }
        part
    }
}

fn vp8(payload: &[u8]) -> Option<VideoPart> {
    let first = *payload.first()?;
    let mut at = 1;
    let mut part = VideoPart {
        begins: first & 0x17 == 0x10,
        vp8: Vp8Descriptor::parse(payload).ok(),
        ..VideoPart::default()
    };
    if first & 0x80 != 0 {
        let extension = *payload.get(at)?;
        at += 1;
        if extension & 0x80 != 0 {
            at += if *payload.get(at)? & 0x80 != 0 { 2 } else { 1 };
        }
        if extension & 0x40 != 0 {
            at += 1;
        }
        if extension & 0x30 != 0 {
            let temporal = *payload.get(at)?;
            at += 1;
            if extension & 0x20 != 0 {
                part.temporal = temporal >> 6;
                part.joins = temporal & 0x20 != 0;
            }
        }
    }
    let frame = payload.get(at..)?;
    part.keyframe = part.begins && *frame.first()? & 1 == 0;
    part.joins |= part.keyframe;
    // The frame header of a keyframe: a tag, a start code, and sizes of 14 bits (RFC 6386 section 9.1).
    if part.keyframe
        && let Some([_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1]) = frame.first_chunk::<10>()
    {
        let side = |low: u8, high: u8| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
        part.size = Some((side(*w0, *w1), side(*h0, *h1)));
    }
    Some(part)
}

fn vp9(payload: &[u8]) -> Option<VideoPart> {
    let first = *payload.first()?;
    let has = |bit: u8| first & bit != 0;
    let mut at = 1;
    if has(0x80) {
        at += if *payload.get(at)? & 0x80 != 0 { 2 } else { 1 };
    }
    let mut part = VideoPart {
        begins: has(0x08),
        ends: has(0x04),
        ..VideoPart::default()
    };
    if has(0x20) {
        let layer = *payload.get(at)?;
        part.temporal = layer >> 5;
        part.spatial = layer >> 1 & 7;
        part.joins = layer & 0x10 != 0;
    }
    part.keyframe = part.begins && !has(0x40) && part.spatial == 0;
    part.joins |= part.keyframe;
    Some(part)
}

/// Frames are not delimited, except by their last packet.
fn h264(payload: &[u8]) -> Option<VideoPart> {
    const IDR: u8 = 5;
    const SPS: u8 = 7;
    const STAP_A: u8 = 24;
    const FU_A: u8 = 28;
    let opens = |kind: u8| kind == IDR || kind == SPS;
    let kind = *payload.first()? & 0x1f;
    let keyframe = match kind {
        STAP_A => {
            let mut rest = payload.get(1..)?;
            let mut found = false;
            while let Some(([high, low], after)) = rest.split_first_chunk::<2>() {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                found |= after.first().is_some_and(|unit| opens(unit & 0x1f));
                rest = after.get(length..).unwrap_or_default();
            }
            found
        }
        FU_A => {
            let header = *payload.get(1)?;
            header & 0x80 != 0 && opens(header & 0x1f)
        }
        kind => opens(kind),
    };
    Some(VideoPart {
        keyframe,
        joins: keyframe,
        ..VideoPart::default()
    })
}

/// Without a dependency descriptor, only the begin of a sequence can be told.
fn av1(payload: &[u8]) -> Option<VideoPart> {
    let header = *payload.first()?;
    let (continues, new_sequence) = (header & 0x80 != 0, header & 0x08 != 0);
    let keyframe = new_sequence && !continues;
    Some(VideoPart {
        keyframe,
        begins: keyframe,
        joins: keyframe,
        ..VideoPart::default()
    })
}

/// A dependency descriptor as it came; it is forwarded unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DependencyDescriptor(pub Arc<[u8]>);

/// Passes dependency descriptors through str0m.
#[derive(Debug)]
pub struct Descriptors;

impl ExtensionSerializer for Descriptors {
    fn write_to(&self, buf: &mut [u8], values: &ExtensionValues) -> usize {
        let said = values.user_values.get::<DependencyDescriptor>();
        let Some(DependencyDescriptor(bytes)) = said else {
            return 0;
        };
        match buf.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                bytes.len()
            }
            None => 0,
        }
    }

    fn parse_value(&self, buf: &[u8], values: &mut ExtensionValues) -> bool {
        if buf.is_empty() || buf.len() > LONGEST_DESCRIPTOR {
            return false;
        }
        values.user_values.set(DependencyDescriptor(buf.into()));
        true
    }

    fn is_video(&self) -> bool {
        true
    }

    fn is_audio(&self) -> bool {
        false
    }

    fn requires_two_byte_form(&self, values: &ExtensionValues) -> bool {
        let said = values.user_values.get::<DependencyDescriptor>();
        said.is_some_and(|DependencyDescriptor(bytes)| bytes.len() > 16)
    }
}

/// The layers of a stream's templates, by the newest structure that came.
#[derive(Debug, Default)]
pub struct Structure {
    offset: u8,
    /// Spatial and temporal layer of each template.
    layers: Vec<(u8, u8)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Described {
    begins: bool,
    ends: bool,
    keyframe: bool,
    spatial: u8,
    temporal: u8,
}

impl Structure {
    /// How many spatial layers there are.
    #[cfg(test)]
    fn spatial(&self) -> usize {
        let highest = self.layers.iter().map(|(spatial, _)| *spatial).max();
        highest.map_or(0, |highest| usize::from(highest) + 1)
    }

    fn read(&mut self, bytes: &[u8]) -> Option<Described> {
        let mut bits = Bits { bytes, at: 0 };
        let begins = bits.take(1)? == 1;
        let ends = bits.take(1)? == 1;
        let template = bits.take(6)?;
        let _number = bits.take(16)?;
        let mut carries_structure = false;
        if bytes.len() > 3 {
            carries_structure = bits.take(1)? == 1;
            let _others = bits.take(4)?;
        }
        if carries_structure {
            self.offset = bits.take(6)?;
            let _targets = bits.take(5)?;
            let (mut spatial, mut temporal) = (0, 0);
            let mut layers = Vec::new();
            while layers.len() < MOST_TEMPLATES {
                layers.push((spatial, temporal));
                match bits.take(2)? {
                    0 => {}
                    1 => temporal += 1,
                    2 => (spatial, temporal) = (spatial + 1, 0),
                    _ => break,
                }
            }
            self.layers = layers;
        }
        let index = usize::from(template.wrapping_sub(self.offset) & 0x3f);
        let (spatial, temporal) = *self.layers.get(index)?;
        Some(Described {
            begins,
            ends,
            keyframe: carries_structure && begins && spatial == 0,
            spatial,
            temporal,
        })
    }
}

/// Reads up to 8 bits at a time; of more, the last eight are kept.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: usize) -> Option<u8> {
        let mut value = 0u8;
        for _ in 0..count {
            let byte = self.bytes.get(self.at / 8)?;
            value = value << 1 | (byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(codec: Codec, payload: &[u8]) -> VideoPart {
        VideoPart::read(codec, payload, false, None, &mut Structure::default())
    }

    #[test]
    fn a_keyframe_of_vp8_is_known_by_its_header_and_says_its_size() {
        let mut payload = vec![0x90, 0xe0, 0x80, 0x11, 7, 0x60];
        payload.extend([0x10, 0, 0, 0x9d, 0x01, 0x2a, 0x80, 0x42, 0xe0, 0x01, 9]);
        let part = read(Codec::Vp8, &payload);
        assert!(part.keyframe && part.begins && part.joins);
        assert_eq!((part.temporal, part.size), (1, Some((640, 480))));
        payload[6] |= 1;
        assert!(!read(Codec::Vp8, &payload).keyframe, "a delta frame");
        payload[0] = 0x80;
        assert!(!read(Codec::Vp8, &payload).begins, "a later packet");
    }

    #[test]
    fn a_keyframe_of_h264_begins_with_its_parameter_sets_or_its_picture() {
        let starts = |payload: &[u8]| read(Codec::H264, payload).keyframe;
        assert!(starts(&[0x67, 1, 2]) && starts(&[0x65, 1]));
        assert!(starts(&[0x78, 0, 2, 0x68, 1, 0, 1, 0x67]));
        assert!(starts(&[0x7c, 0x85, 1]));
        assert!(!starts(&[0x7c, 0x05, 1]), "in the middle of it");
        assert!(!starts(&[0x41, 1]) && !starts(&[0x78, 0, 1, 0x41]));
    }

    #[test]
    fn vp9_says_its_layers() {
        let part = read(Codec::Vp9, &[0xac, 0x81, 0x02, 0x32, 5]);
        assert_eq!((part.spatial, part.temporal), (1, 1));
        assert!(part.begins && part.ends && part.joins && !part.keyframe);
        assert!(read(Codec::Vp9, &[0xa8, 0x81, 0x02, 0x00, 5]).keyframe);
        assert!(!read(Codec::Vp9, &[0xe8, 0x81, 0x02, 0x00, 5]).keyframe);
    }

    #[test]
    fn a_dependency_descriptor_names_its_layer_by_the_structure_that_came_with_the_keyframe() {
        let mut structure = Structure::default();
        // Not known yet.
        assert_eq!(structure.read(&[0b1100_0101, 0, 1]), None);
        // Begin and end, template 5, number 1; a structure from id 5 on with three targets, whose templates are S0T0, S0T1, S1T0.
        let keyframe = [0b1100_0101, 0, 1, 0b1000_0000, 0b1010_0010, 0b0110_1100];
        let said = structure.read(&keyframe).unwrap();
        assert!(said.keyframe && said.begins && said.ends);
        assert_eq!(structure.spatial(), 2);
        let said = structure.read(&[0b0000_0111, 0, 2]).unwrap();
        assert_eq!((said.spatial, said.temporal), (1, 0));
        assert!(!said.keyframe && !said.begins && !said.ends);
        assert_eq!(structure.read(&[0b0000_0011, 0, 2]), None);
    }

    #[test]
    fn no_bytes_of_a_payload_are_too_strange() {
        let mut luck = fastrand::Rng::with_seed(7);
        let mut structure = Structure::default();
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..luck.usize(..24)).map(|_| luck.u8(..)).collect();
            let descriptor = DependencyDescriptor(bytes.as_slice().into());
            for codec in [Codec::Vp8, Codec::Vp9, Codec::H264, Codec::Av1, Codec::Opus] {
                VideoPart::read(codec, &bytes, true, Some(&descriptor), &mut structure);
            }
        }
    }
}
