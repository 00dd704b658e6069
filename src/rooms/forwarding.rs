//! Which packets of a video publication a subscriber gets: the layer that is aimed at, without corruption.
//!
//! A decoder can begin with a keyframe only. So the layer that is forwarded changes with the first packet of a keyframe of the
//! new one; until then the former layer goes on, unless it has become too much. Spatial layers of one stream are left out
//! from any picture on, and added with a keyframe; temporal layers are added where the stream says that this is possible.
//!
//! Pure state: the packets are written in `peer`, and their numbers in `rtp_rewriting`.

use super::layers::{ALL_FRAMES, LayerId, Quality};
use super::video_payload::VideoPart;

/// A video packet and the layer it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Tagged {
    pub layer: LayerId,
    pub quality: Quality,
    /// Whether the layers are those of one stream.
    pub scalable: bool,
    pub part: VideoPart,
}

/// The layer that a subscriber should get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    pub layer: LayerId,
    pub quality: Quality,
    /// Whether it contains the layers below.
    pub scalable: bool,
    /// The highest temporal layer.
    pub temporal: u8,
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is forwarded.
    Forward {
        /// It begins another stream, whose numbers go on where the last one's ended.
        anew: bool,
        /// It is the last one of its picture for this subscriber.
        last: bool,
    },
    /// It is left out of the stream that is forwarded.
    Skip,
    /// It belongs to nothing that is forwarded.
    Drop,
}

/// The choice for one subscriber and track. See the module.
#[derive(Debug, Default)]
pub struct Selector {
    target: Option<Target>,
    current: Option<LayerId>,
    temporal: u8,
}

impl Selector {
    /// What is aimed at.
    pub const fn target(&self) -> Option<Target> {
        self.target
    }

    /// What is forwarded.
    pub const fn current(&self) -> Option<LayerId> {
        self.current
    }

    /// Aims at a layer, or at nothing. If the former one is too much, it ends at once.
    pub fn aim(&mut self, target: Option<Target>, too_much: bool) {
        self.target = target;
        let Some(target) = target else {
            self.current = None;
            return;
        };
        self.temporal = self.temporal.min(target.temporal);
        let stays = |current: &LayerId| {
            *current == target.layer
                || (target.scalable && current.encoding == target.layer.encoding)
        };
        if too_much {
            self.current.take_if(|current| !stays(current));
        }
    }

    /// The layer of which a keyframe is needed.
    pub fn needs_keyframe(&self) -> Option<LayerId> {
        let target = self.target?;
        let has = |current: LayerId| {
            let within = target.scalable
                && current.encoding == target.layer.encoding
                && current.place >= target.layer.place;
            current == target.layer || within
        };
        (!self.current.is_some_and(has)).then_some(target.layer)
    }

    /// Judges the next packet of the publication.
    pub fn judge(&mut self, packet: &Tagged) -> Verdict {
        let Some(target) = self.target else {
            return Verdict::Drop;
        };
        let part = &packet.part;
        let same_stream = self.current.is_some_and(|current| {
            current == packet.layer
                || (packet.scalable && current.encoding == packet.layer.encoding)
        });
        let mut anew = false;
        if !same_stream {
            if !(part.keyframe && self.takes(packet, target)) {
                return Verdict::Drop;
            }
            anew = true;
            self.temporal = target.temporal;
            self.current = Some(if packet.scalable && target.scalable {
                target.layer
            } else {
                packet.layer
            });
        } else if packet.scalable && part.begins && part.spatial == 0 {
            self.rescale(part.keyframe, target);
        }
        let Some(current) = self.current else {
            return Verdict::Drop;
        };
        if packet.scalable && packet.layer.place > current.place {
            return Verdict::Skip;
        }
        if part.keyframe {
            self.temporal = target.temporal;
        } else if part.temporal > self.temporal {
            let next = part.temporal == self.temporal.saturating_add(1);
            if !(next && part.begins && part.joins && part.temporal <= target.temporal) {
                return Verdict::Skip;
            }
            self.temporal = part.temporal;
        }
        let last = packet.scalable && part.ends && packet.layer.place == current.place;
        Verdict::Forward { anew, last }
    }

    /// Whether a keyframe is a begin: that of the target, or of less where there is nothing.
    fn takes(&self, packet: &Tagged, target: Target) -> bool {
        let same_encoding = packet.layer.encoding == target.layer.encoding;
        let meant = packet.layer == target.layer
            || (same_encoding && packet.scalable && packet.part.spatial == 0);
        meant || (self.current.is_none() && same_encoding && packet.quality <= target.quality)
    }

    /// At the begin of a picture: less from now on, and with a keyframe more.
    fn rescale(&mut self, keyframe: bool, target: Target) {
        if let Some(current) = &mut self.current
            && current.encoding == target.layer.encoding
            && (keyframe || target.layer.place < current.place)
        {
            *current = target.layer;
        }
    }
}

impl Target {
    /// All frames of a layer.
    pub const fn whole(layer: LayerId, quality: Quality, scalable: bool) -> Self {
        Self {
            layer,
            quality,
            scalable,
            temporal: ALL_FRAMES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARD: Verdict = Verdict::Forward {
        anew: false,
        last: false,
    };
    const BEGIN: Verdict = Verdict::Forward {
        anew: true,
        last: false,
    };

    const fn layer(place: u8) -> LayerId {
        LayerId { encoding: 0, place }
    }

    fn target(place: u8, scalable: bool) -> Target {
        let quality = Quality::ALL[usize::from(place)];
        Target::whole(layer(place), quality, scalable)
    }

    fn packet(place: u8, keyframe: bool) -> Tagged {
        Tagged {
            layer: layer(place),
            quality: Quality::ALL[usize::from(place)],
            scalable: false,
            part: VideoPart {
                keyframe,
                begins: true,
                joins: keyframe,
                ..VideoPart::default()
            },
        }
    }

    #[test]
    fn layers_change_with_keyframes_and_the_former_one_goes_on_until_then() {
        let mut selector = Selector::default();
        assert_eq!(selector.judge(&packet(0, true)), Verdict::Drop);
        selector.aim(Some(target(2, false)), false);
        assert_eq!(selector.judge(&packet(2, false)), Verdict::Drop);
        assert_eq!(selector.needs_keyframe(), Some(layer(2)));
        // Less is better than nothing.
        assert_eq!(selector.judge(&packet(0, true)), BEGIN);
        assert_eq!(selector.judge(&packet(0, false)), FORWARD);
        assert_eq!(selector.judge(&packet(1, true)), Verdict::Drop);
        assert_eq!(selector.needs_keyframe(), Some(layer(2)));
        assert_eq!(selector.judge(&packet(2, true)), BEGIN);
        assert_eq!(selector.judge(&packet(0, false)), Verdict::Drop);
        assert_eq!(selector.needs_keyframe(), None);
        selector.aim(Some(target(0, false)), false);
        assert_eq!(selector.judge(&packet(2, false)), FORWARD);
        assert_eq!(selector.judge(&packet(0, true)), BEGIN);
        assert_eq!(selector.judge(&packet(2, true)), Verdict::Drop);
    }

    #[test]
    fn what_is_too_much_ends_at_once() {
        let mut selector = Selector::default();
        selector.aim(Some(target(2, false)), false);
        selector.judge(&packet(2, true));
        selector.aim(Some(target(1, false)), true);
        assert_eq!(selector.judge(&packet(2, false)), Verdict::Drop);
        assert_eq!(selector.judge(&packet(0, true)), BEGIN);
        selector.aim(None, false);
        assert_eq!(selector.judge(&packet(0, true)), Verdict::Drop);
        // What follows a pause begins anew, with a keyframe.
        selector.aim(Some(target(0, false)), false);
        assert_eq!(selector.judge(&packet(0, false)), Verdict::Drop);
        assert_eq!(selector.judge(&packet(0, true)), BEGIN);
    }

    fn scaled(spatial: u8, keyframe: bool) -> Tagged {
        let mut scaled = packet(spatial, keyframe && spatial == 0);
        scaled.scalable = true;
        scaled.part.spatial = spatial;
        scaled.part.ends = true;
        scaled
    }

    #[test]
    fn spatial_layers_end_with_a_picture_and_begin_with_a_keyframe() {
        let mut selector = Selector::default();
        selector.aim(Some(target(1, true)), false);
        let picture = |selector: &mut Selector, keyframe| {
            [0, 1, 2].map(|spatial| selector.judge(&scaled(spatial, keyframe)))
        };
        let last = |anew| Verdict::Forward { anew, last: true };
        assert_eq!(picture(&mut selector, false), [Verdict::Drop; 3]);
        let two = [FORWARD, last(false), Verdict::Skip];
        assert_eq!(picture(&mut selector, true), [BEGIN, two[1], two[2]]);
        assert_eq!(picture(&mut selector, false), two);
        selector.aim(Some(target(2, true)), false);
        assert_eq!(picture(&mut selector, false), two);
        assert_eq!(selector.needs_keyframe(), Some(layer(2)));
        assert_eq!(
            picture(&mut selector, true),
            [FORWARD, FORWARD, last(false)]
        );
        selector.aim(Some(target(0, true)), true);
        assert_eq!(selector.needs_keyframe(), None);
        let one = [last(false), Verdict::Skip, Verdict::Skip];
        assert_eq!(picture(&mut selector, false), one);
    }

    #[test]
    fn frames_are_left_out_from_the_top_and_come_back_where_the_stream_allows_it() {
        let mut selector = Selector::default();
        let frame = |selector: &mut Selector, temporal, joins| {
            let mut frame = packet(0, false);
            (frame.part.temporal, frame.part.joins) = (temporal, joins);
            selector.judge(&frame)
        };
        let slow = Target {
            temporal: 0,
            ..target(0, false)
        };
        selector.aim(Some(slow), false);
        selector.judge(&packet(0, true));
        assert_eq!(frame(&mut selector, 0, false), FORWARD);
        assert_eq!(frame(&mut selector, 2, true), Verdict::Skip);
        selector.aim(Some(target(0, false)), false);
        assert_eq!(frame(&mut selector, 1, false), Verdict::Skip);
        assert_eq!(frame(&mut selector, 2, true), Verdict::Skip);
        assert_eq!(frame(&mut selector, 1, true), FORWARD);
        assert_eq!(frame(&mut selector, 2, true), FORWARD);
        assert_eq!(frame(&mut selector, 1, false), FORWARD);
        selector.aim(Some(slow), false);
        assert_eq!(frame(&mut selector, 1, true), Verdict::Skip);
    }
}
