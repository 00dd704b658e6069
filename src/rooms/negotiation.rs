//! Assignment of tracks to media sections.
//!
//! A WebRTC peer connection negotiates one media section (`m=`) per track and direction, identified by its mid ([JSEP], RFC
//! 8843). A section in which the client only receives is a *slot*: it carries one subscribed track at a time, and is reused
//! for another one, because a description only ever grows. LiveKit tells the client by `mid_to_track_id` which track a slot
//! carries. A slot that is reused must send under a new SSRC, otherwise libwebrtc counts the packets and plays nothing.
//!
//! This module is pure state: offers and subscriptions go in, the content of each section comes out. `sdp` edits the text,
//! `peer` has the transport.
//!
//! [JSEP]: https://www.rfc-editor.org/rfc/rfc9429

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use str0m::media::Mid;

use super::sdp::{Direction, Section, SectionKind};

/// A track's sid, `TR_…`, shared by everything that refers to the track.
pub type TrackSid = Arc<str>;

/// A track that a subscriber should receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The track.
    pub track: TrackSid,
    /// The publisher's sid, `PA_…`.
    pub publisher: Arc<str>,
    /// Audio or video.
    pub kind: SectionKind,
}

/// A section in which the other side receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its mid.
    pub mid: String,
    /// The same as str0m has it: to make one for each packet costs an allocation.
    pub id: Mid,
    /// Audio or video.
    pub kind: SectionKind,
    /// The track it carries.
    pub carries: Option<Wanted>,
    /// Whether it has ever carried a track.
    pub used: bool,
    /// The last track it carried.
    pub last: Option<TrackSid>,
}

/// With so many slots, none is added while another is free.
const MOST_SLOTS_ADDED: usize = 64;

/// How many slots are missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Of audio.
    pub audio: u32,
    /// Of video.
    pub video: u32,
}

/// The result of an assignment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Slots that carry another track now, and whether they were used before.
    pub changed: Vec<(String, TrackSid, bool)>,
    /// Tracks without a slot.
    pub shortage: Shortage,
}

/// The slots of one peer connection, in the order of its sections.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    /// Used sections that are offered as something else now. They may become slots again.
    retired: BTreeSet<String>,
}

impl Slots {
    /// Takes an offer: sections that only receive are slots, others are not, or no longer.
    pub fn follow(&mut self, sections: &[Section<'_>]) {
        let mut known: BTreeMap<String, Slot> = std::mem::take(&mut self.slots)
            .into_iter()
            .map(|slot| (slot.mid.clone(), slot))
            .collect();
        for section in sections {
            if section.direction != Direction::RecvOnly || section.kind == SectionKind::Application
            {
                continue;
            }
            let slot = known.remove(section.mid).unwrap_or_else(|| Slot {
                mid: section.mid.to_owned(),
                id: section.mid.into(),
                kind: section.kind,
                carries: None,
                used: self.retired.remove(section.mid),
                last: None,
            });
            self.slots.push(slot);
        }
        let retired = known.into_values().filter(|slot| slot.used);
        self.retired.extend(retired.map(|slot| slot.mid));
    }

    /// Adds a slot that this side has created (two peer connections).
    pub fn push(&mut self, mid: String, wanted: Wanted) {
        self.slots.push(Slot {
            id: mid.as_str().into(),
            mid,
            kind: wanted.kind,
            carries: Some(wanted),
            used: true,
            last: None,
        });
    }

    /// All slots.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// The slot that carries a track.
    pub fn carrying(&self, track: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| {
            slot.carries
                .as_ref()
                .is_some_and(|wanted| &*wanted.track == track)
        })
    }

    /// The slot with this mid.
    pub fn get(&self, mid: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.mid == mid)
    }

    /// Clears slots whose track is no longer wanted, and returns them.
    pub fn release(&mut self, wanted: &[Wanted]) -> Vec<(String, TrackSid)> {
        let mut released = Vec::new();
        for slot in &mut self.slots {
            let keeps = |carried: &Wanted| wanted.iter().any(|w| w.track == carried.track);
            if let Some(gone) = slot.carries.take_if(|carried| !keeps(carried)) {
                slot.last = Some(TrackSid::clone(&gone.track));
                released.push((slot.mid.clone(), gone.track));
            }
        }
        released
    }

    /// Wanted tracks without a slot.
    pub fn missing<'a>(&self, wanted: &'a [Wanted]) -> impl Iterator<Item = &'a Wanted> {
        wanted.iter().filter(|w| self.carrying(&w.track).is_none())
    }

    /// How many slots have to be added for all wanted tracks.
    pub fn shortage(&self, wanted: &[Wanted]) -> Shortage {
        let free = |kind| {
            self.slots
                .iter()
                .filter(|slot| slot.kind == kind && slot.carries.is_none())
                .count()
        };
        let missing = |kind| self.missing(wanted).filter(|w| w.kind == kind).count();
        let short =
            |kind| u32::try_from(missing(kind).saturating_sub(free(kind))).unwrap_or(u32::MAX);
        Shortage {
            audio: short(SectionKind::Audio),
            video: short(SectionKind::Video),
        }
    }

    /// Assigns each missing track to a free slot of its kind, preferring unused ones.
    ///
    /// With `elsewhere`, a track does not return to the slot that carried it last, unless there are many: the Rust SDK with
    /// two peer connections plays it there, but does not report it to its application.
    pub fn assign(&mut self, wanted: &[Wanted], elsewhere: bool) -> Assigned {
        let elsewhere = elsewhere && self.slots.len() < MOST_SLOTS_ADDED;
        let mut assigned = Assigned::default();
        let missing: Vec<Wanted> = self.missing(wanted).cloned().collect();
        for track in missing {
            let free = self
                .slots
                .iter_mut()
                .filter(|slot| slot.kind == track.kind && slot.carries.is_none());
            let free = free.filter(|slot| !elsewhere || slot.last.as_ref() != Some(&track.track));
            let Some(slot) = free.min_by_key(|slot| slot.used) else {
                continue;
            };
            assigned
                .changed
                .push((slot.mid.clone(), Arc::clone(&track.track), slot.used));
            slot.used = true;
            slot.carries = Some(track);
        }
        assigned.shortage = self.shortage(wanted);
        assigned
    }

    /// The complete map from mid to track for an answer or an offer.
    pub fn map(&self) -> std::collections::HashMap<String, String> {
        let carried = self
            .slots
            .iter()
            .filter_map(|slot| Some((slot.mid.clone(), slot.carries.as_ref()?.track.to_string())));
        carried.collect()
    }
}

/// An announced track (`AddTrackRequest`) that waits for its section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending<'a> {
    /// The client's own id of the track.
    pub cid: &'a str,
    /// Audio or video.
    pub kind: SectionKind,
}

/// The announced track that a section publishes: the one it names, or the oldest of its kind.
pub fn published_by(section: &Section<'_>, pending: &[Pending<'_>]) -> Option<usize> {
    if !section.direction.sends() {
        return None;
    }
    let named = pending
        .iter()
        .position(|p| section.track_id == Some(p.cid) && p.kind == section.kind);
    named.or_else(|| pending.iter().position(|p| p.kind == section.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(track: &str) -> Wanted {
        let kind = if track.starts_with("TR_V") {
            SectionKind::Video
        } else {
            SectionKind::Audio
        };
        Wanted {
            track: track.into(),
            publisher: "PA_1".into(),
            kind,
        }
    }

    fn section(mid: &str, direction: Direction) -> Section<'_> {
        Section {
            mid,
            kind: SectionKind::Audio,
            direction,
            track_id: None,
            layers: vec![],
            sim: vec![],
            video_codecs: vec![],
            has_unknown_codec: false,
        }
    }

    #[test]
    fn a_slot_that_was_something_else_in_between_is_still_a_used_one() {
        let mut slots = two_slots();
        slots.assign(&[wanted("TR_A1")], false);
        for direction in [Direction::Inactive, Direction::RecvOnly] {
            slots.follow(&[section("0", direction), section("1", Direction::Inactive)]);
        }
        let again = slots.assign(&[wanted("TR_A1")], false);
        assert_eq!(again.changed, [("0".to_owned(), "TR_A1".into(), true)]);
    }

    fn two_slots() -> Slots {
        let mut slots = Slots::default();
        slots.follow(&[
            section("0", Direction::RecvOnly),
            section("1", Direction::RecvOnly),
            section("2", Direction::SendOnly),
        ]);
        slots
    }

    #[test]
    fn every_track_has_one_slot_until_there_are_none() {
        let mut slots = two_slots();
        let all = ["TR_A", "TR_B", "TR_C", "TR_V"].map(wanted);
        let assigned = slots.assign(&all, false);
        assert_eq!(
            assigned.changed,
            [
                ("0".into(), "TR_A".into(), false),
                ("1".into(), "TR_B".into(), false)
            ]
        );
        assert_eq!(assigned.shortage, Shortage { audio: 1, video: 1 });
        assert_eq!(slots.assign(&all, false).changed, []);
    }

    #[test]
    fn a_used_slot_is_reported_as_used_and_unused_ones_go_first() {
        let mut slots = two_slots();
        slots.assign(&[wanted("TR_A")], false);
        assert_eq!(slots.release(&[]), [("0".into(), "TR_A".into())]);
        assert_eq!(
            slots.assign(&[wanted("TR_B")], false).changed,
            [("1".into(), "TR_B".into(), false)]
        );
        assert_eq!(
            slots.assign(&["TR_B", "TR_C"].map(wanted), false).changed,
            [("0".into(), "TR_C".into(), true)]
        );
    }

    #[test]
    fn a_section_that_publishes_is_no_slot_and_may_become_one() {
        let mut slots = two_slots();
        slots.assign(&[wanted("TR_A")], false);
        slots.follow(&[
            section("0", Direction::RecvOnly),
            section("1", Direction::Inactive),
            section("2", Direction::RecvOnly),
        ]);
        assert_eq!(
            slots.iter().map(|s| s.mid.as_str()).collect::<Vec<_>>(),
            ["0", "2"]
        );
        assert!(slots.carrying("TR_A").is_some());
    }

    #[test]
    fn a_publication_is_found_by_name_and_else_by_kind() {
        let pending = [
            Pending {
                cid: "a",
                kind: SectionKind::Audio,
            },
            Pending {
                cid: "b",
                kind: SectionKind::Audio,
            },
        ];
        let mut named = section("5", Direction::SendOnly);
        assert_eq!(published_by(&named, &pending), Some(0));
        named.track_id = Some("b");
        assert_eq!(published_by(&named, &pending), Some(1));
        assert_eq!(
            published_by(&section("5", Direction::RecvOnly), &pending),
            None
        );
        named.kind = SectionKind::Video;
        assert_eq!(published_by(&named, &pending), None);
    }
}
