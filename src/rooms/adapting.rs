//! Video that adapts: what each subscriber gets of each track, what it is told of that, and what publishers are told of those
//! who watch.
//!
//! A subscriber says what it shows of a track: its size, its quality, its frames per second, or that it shows nothing
//! (`UpdateTrackSettings`). Of what the publisher sends, `allocation` chooses what that needs and its bandwidth allows, and
//! aims the slots at it. What is paused for want of bandwidth, the subscriber is told (`StreamStateUpdate`). A publisher is
//! told the highest quality that anybody shows (`SubscribedQualityUpdate`, *dynacast*): more at once, less after a while,
//! and with it whether somebody needs its backup codec.
//!
//! All members of all rooms are looked at in each round of housekeeping, and one of them when its bandwidth or its wishes change.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use proto::signal_response::Message;
use str0m::format::Codec;
use str0m::media::KeyframeRequestKind;

use super::allocation::{Demand, Held, Patience, allocate};
use super::forwarding::Target;
use super::layers::{ALL_FRAMES, Encoding, LayerId, MOST_ENCODINGS, Offered, Quality};
use super::negotiation::TrackSid;
use super::participant::{Link, Publication};
use super::sdp::{self, SectionKind};
use super::sfu::Sfu;
use super::{Now, ParticipantKey, RoomKey};

/// How often a subscriber is looked at because its bandwidth changes.
const LOOKED_AT: Duration = Duration::from_millis(100);
/// How long nobody watches a layer before its publisher is told.
const UNWATCHED: Duration = Duration::from_secs(5);
/// A layer that exceeds the estimate by so much ends without waiting for a keyframe of another: in percent.
const TOO_MUCH_PERCENT: u64 = 130;
/// The path is filled up with padding for so long of each period, to find out whether it carries more.
const FILLED: Duration = Duration::from_secs(2);
const FILLED_EACH: Duration = Duration::from_secs(8);

/// What a subscriber wants of a video track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    pub disabled: bool,
    quality: Quality,
    /// Width and height, which count more than the quality.
    size: Option<(u32, u32)>,
    fps: u32,
    priority: u32,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            disabled: false,
            quality: Quality::High,
            size: None,
            fps: 0,
            priority: 0,
        }
    }
}

impl Wish {
    /// From a client's request.
    pub fn new(said: &proto::UpdateTrackSettings) -> Self {
        Self {
            disabled: said.disabled || said.quality == proto::VideoQuality::Off as i32,
            quality: Quality::of(said.quality).unwrap_or(Quality::High),
            size: (said.width > 0 && said.height > 0).then_some((said.width, said.height)),
            fps: said.fps,
            priority: said.priority,
        }
    }

    /// The highest quality of an encoding that is of use.
    fn most(&self, encoding: &Encoding) -> Quality {
        self.size.map_or(self.quality, |(width, height)| {
            encoding.quality_for(width, height)
        })
    }
}

/// How the video of a subscriber adapts.
#[derive(Debug, Default)]
pub struct Adapting {
    looked_at: Option<Instant>,
    patience: Patience,
    /// Since when something is worse than it was wanted and may rise.
    short: Option<Instant>,
    /// Whether it was not allowed to rise before.
    rested: bool,
}

/// Who watches, by encoding: the highest quality that anybody needs.
type Watched = [Option<Quality>; MOST_ENCODINGS];

/// Who watches which track, and who publishes it.
type Audience = HashMap<TrackSid, (ParticipantKey, Watched)>;

/// What a publisher was told of those who watch a track.
#[derive(Debug)]
pub struct Dynacast {
    told: Watched,
    less_since: Option<Instant>,
}

impl Default for Dynacast {
    /// Publishers begin with everything, in their first codec.
    fn default() -> Self {
        Self {
            told: [Some(Quality::High), None],
            less_since: None,
        }
    }
}

impl Dynacast {
    /// Follows those who watch; whether the publisher is to be told.
    fn follow(&mut self, watched: Watched, now: Instant) -> bool {
        let mut more = false;
        for (told, watched) in self.told.iter_mut().zip(watched) {
            if watched > *told {
                *told = watched;
                more = true;
            }
        }
        if self.told == watched {
            self.less_since = None;
            return more;
        }
        let since = *self.less_since.get_or_insert(now);
        if now.saturating_duration_since(since) < UNWATCHED {
            return more;
        }
        self.told = watched;
        self.less_since = None;
        true
    }

    /// Whether the publisher was told not to send this.
    fn is_off(&self, encoding: u8, quality: Quality) -> bool {
        let told = self.told.get(usize::from(encoding)).copied().flatten();
        told.is_none_or(|told| quality > told)
    }
}

/// The video tracks of a room.
type Films = HashMap<TrackSid, Film>;

/// Where a video track is.
#[derive(Debug, Clone, Copy)]
struct Film {
    /// Who is in the room with it.
    member: ParticipantKey,
    /// Who sends it: the same, unless it is forwarded from another room.
    publisher: ParticipantKey,
    /// Its place among the publications of that one.
    at: usize,
}

/// A slot with video, and what there is for it.
struct Slot {
    mid: String,
    track: TrackSid,
    publisher: ParticipantKey,
    wish: Wish,
    offered: Vec<Offered>,
    /// The highest temporal layer of each.
    temporal: Vec<u8>,
    scalable: bool,
    /// What dynacast counts.
    watched: Option<(u8, Quality)>,
    /// Whether it stays as it is.
    rests: bool,
    screen: bool,
}

impl Sfu {
    /// Looks at all video of these rooms, which are all in which a track may be watched.
    pub(super) fn adapt_rooms(&mut self, rooms: &[RoomKey], now: Now) {
        let mut audience = Audience::new();
        for room in rooms {
            let films = self.films(*room);
            if films.is_empty() {
                self.seek_nothing(*room);
                continue;
            }
            for (track, film) in &films {
                let unwatched = || (film.publisher, Watched::default());
                audience
                    .entry(TrackSid::clone(track))
                    .or_insert_with(unwatched);
            }
            let members = self.rooms.get(room).map(|room| room.members.clone());
            for member in members.unwrap_or_default() {
                self.adapt_member(member, &films, &mut audience, now);
            }
        }
        for (track, (publisher, watched)) in audience {
            self.tell_watched(publisher, &track, watched, false, now);
        }
    }

    /// Nobody sends video in a room.
    fn seek_nothing(&mut self, room: RoomKey) {
        let Some(room) = self.rooms.get(&room) else {
            return;
        };
        for member in &room.members {
            let subscriber = self.participants.get_mut(member);
            if let Some(down) = subscriber.and_then(|subscriber| subscriber.link.down_mut()) {
                down.seek(0, 0, false);
            }
        }
    }

    /// Looks at the video of one subscriber, unless that was just done.
    pub(super) fn adapt_soon(&mut self, key: ParticipantKey, now: Now) {
        let recent = self.participants.get(&key).is_some_and(|participant| {
            participant
                .adapting
                .looked_at
                .is_some_and(|at| now.instant.saturating_duration_since(at) < LOOKED_AT)
        });
        if !recent {
            self.adapt(key, now);
        }
    }

    /// Looks at the video of one subscriber.
    pub(super) fn adapt(&mut self, key: ParticipantKey, now: Now) {
        let Some(room) = self.participants.get(&key).map(|found| found.room) else {
            return;
        };
        let films = self.films(room);
        if films.is_empty() {
            return;
        }
        let mut audience = Audience::new();
        self.adapt_member(key, &films, &mut audience, now);
        for (track, (publisher, watched)) in audience {
            self.tell_watched(publisher, &track, watched, true, now);
        }
    }

    fn films(&self, room: RoomKey) -> Films {
        let mut films = Films::new();
        for member in self.members(room) {
            let publisher = self.publisher(member);
            for (at, publication) in publisher.publications.iter().enumerate() {
                if publication.mid.is_some() && publication.kind == SectionKind::Video {
                    let film = Film {
                        member: member.key,
                        publisher: publisher.key,
                        at,
                    };
                    films.insert(TrackSid::clone(&publication.sid), film);
                }
            }
        }
        films
    }

    /// The slots of a subscriber that carry video.
    fn video_slots(&self, key: ParticipantKey, films: &Films, now: Now) -> Vec<Slot> {
        let Some(subscriber) = self.participants.get(&key) else {
            return Vec::new();
        };
        let Some(down) = subscriber.link.down() else {
            return Vec::new();
        };
        let carried = down.slots.iter().filter_map(|slot| {
            let wanted = slot.carries.as_ref()?;
            let Film { publisher, at, .. } = *films.get(&wanted.track)?;
            let publication = self.participants.get(&publisher)?.publications.get(at)?;
            Some((slot, wanted, publisher, publication))
        });
        let slots = carried.map(|(slot, wanted, publisher, publication)| {
            let wish = subscriber.wishes.get(&wanted.track);
            let wish = wish.copied().unwrap_or_default();
            let knows = |codec: Option<Codec>| codec.is_some_and(|codec| down.knows(codec));
            let encoding = publication
                .encodings
                .iter()
                .zip(0u8..)
                .find(|(encoding, _)| knows(encoding.codec));
            let watched = match encoding {
                _ if wish.disabled => None,
                Some((encoding, number)) => Some((number, encoding.needed(wish.most(encoding)))),
                // The publisher may have announced another one that it does not send yet.
                None => backup_of(publication, knows),
            };
            let encoding = encoding.filter(|_| !wish.disabled);
            let offered = encoding.map(|(encoding, number)| {
                let is_off = |quality| publication.dynacast.is_off(number, quality);
                encoding.offered(wish.most(encoding), is_off, now.instant)
            });
            let offered = offered.unwrap_or_default();
            let temporal = |offered: &Offered| {
                encoding.map_or(ALL_FRAMES, |(encoding, _)| {
                    encoding.temporal_for(offered.layer.place, wish.fps)
                })
            };
            Slot {
                temporal: offered.iter().map(temporal).collect(),
                mid: slot.mid.clone(),
                track: TrackSid::clone(&wanted.track),
                publisher,
                wish,
                offered,
                scalable: encoding.is_some_and(|(encoding, _)| encoding.scalable),
                watched,
                rests: publication.info.muted && down.target(&slot.mid).is_some(),
                screen: publication.info.source == proto::TrackSource::ScreenShare as i32,
            }
        });
        slots.collect()
    }

    fn adapt_member(
        &mut self,
        key: ParticipantKey,
        films: &Films,
        audience: &mut Audience,
        now: Now,
    ) {
        let slots = self.video_slots(key, films, now);
        for slot in &slots {
            if let Some((encoding, quality)) = slot.watched {
                let unwatched = || (slot.publisher, Watched::default());
                let track = TrackSid::clone(&slot.track);
                let (_, watched) = audience.entry(track).or_insert_with(unwatched);
                if let Some(most) = watched.get_mut(usize::from(encoding)) {
                    *most = (*most).max(Some(quality));
                }
            }
        }
        let Some(subscriber) = self.participants.get_mut(&key) else {
            return;
        };
        subscriber.adapting.looked_at = Some(now.instant);
        let Some(down) = subscriber.link.down() else {
            return;
        };
        let budget = down.estimate();
        let demands: Vec<Demand> = slots
            .iter()
            .map(|slot| {
                slot.demand(
                    down.target(&slot.mid),
                    subscriber.paused.contains(&slot.track),
                )
            })
            .collect();
        let may_rise = subscriber.adapting.patience.may_rise(now.instant);
        let given = allocate(budget, &demands, may_rise);
        let steps = Steps::of(&demands, &given);
        let forwarded = slots.iter().filter_map(|slot| {
            let current = down.current(&slot.mid)?;
            let is_it = |offered: &&Offered| offered.layer == current;
            slot.offered.iter().find(is_it).map(|offered| offered.bps)
        });
        let forwarded: u64 = forwarded.sum();
        let too_much = budget.is_some_and(|budget| forwarded > budget * TOO_MUCH_PERCENT / 100);
        let adapting = &mut subscriber.adapting;
        if steps.lowered {
            adapting.patience.lowered(now.instant);
        } else if steps.raised {
            adapting.patience.raised(now.instant);
        }
        let filled = adapting.filled(&steps, may_rise && budget.is_some(), now.instant);
        let Some(down) = subscriber.link.down_mut() else {
            return;
        };
        let mut paused = HashSet::new();
        let mut needed: Vec<(ParticipantKey, TrackSid, LayerId)> = Vec::new();
        for (slot, rank) in slots.iter().zip(&given) {
            if !slot.rests {
                let target = rank.and_then(|rank| slot.target(rank));
                down.aim(&slot.mid, target, too_much);
                if target.is_none() && !slot.offered.is_empty() {
                    paused.insert(TrackSid::clone(&slot.track));
                }
            }
            if let Some(layer) = down.needs_keyframe(&slot.mid) {
                needed.push((slot.publisher, TrackSid::clone(&slot.track), layer));
            }
        }
        if slots.is_empty() {
            down.seek(0, 0, false);
        } else {
            down.seek(filled, steps.wanted, steps.given == 0);
            let side = subscriber.link.down_side();
            self.touch(key, side);
        }
        self.tell_paused(key, paused, films);
        for (publisher, track, layer) in needed {
            self.ask_for_keyframe(
                publisher,
                &track,
                Some(layer),
                KeyframeRequestKind::Pli,
                now,
            );
        }
    }

    /// Tells a subscriber what is paused now, and what is no more.
    fn tell_paused(&mut self, key: ParticipantKey, paused: HashSet<TrackSid>, films: &Films) {
        let Some(subscriber) = self.participants.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut subscriber.paused, paused);
        let changed = |from: &HashSet<TrackSid>, to: &HashSet<TrackSid>| -> Vec<TrackSid> {
            to.difference(from).cloned().collect()
        };
        let states = [
            (
                proto::StreamState::Paused,
                changed(&before, &subscriber.paused),
            ),
            (
                proto::StreamState::Active,
                changed(&subscriber.paused, &before),
            ),
        ];
        let mut told = Vec::new();
        for (state, tracks) in states {
            for track in tracks {
                let member = films.get(&track);
                let member = member.and_then(|film| self.participants.get(&film.member));
                // Of a track that has ended, nothing is told.
                if let Some(member) = member {
                    told.push(proto::StreamStateInfo {
                        participant_sid: member.sid.to_string(),
                        track_sid: track.to_string(),
                        state: state as i32,
                    });
                }
            }
        }
        if !told.is_empty() {
            let update = proto::StreamStateUpdate {
                stream_states: told,
            };
            self.tell(key, Message::StreamStateUpdate(update));
        }
    }

    /// Tells a publisher who watches its track, if that has changed. Where only one subscriber was looked at, it may only be
    /// more.
    #[allow(deprecated)] // old clients read the qualities of one codec
    fn tell_watched(
        &mut self,
        publisher: ParticipantKey,
        track: &TrackSid,
        mut watched: Watched,
        more_only: bool,
        now: Now,
    ) {
        let Some(participant) = self.participants.get_mut(&publisher) else {
            return;
        };
        if matches!(participant.link, Link::Local(_)) {
            return;
        }
        let Some(publication) = participant.publication_mut(track) else {
            return;
        };
        if more_only {
            for (watched, told) in watched.iter_mut().zip(publication.dynacast.told) {
                *watched = (*watched).max(told);
            }
            if watched == publication.dynacast.told {
                return;
            }
        }
        if !publication.dynacast.follow(watched, now.instant) {
            return;
        }
        for encoding in &mut publication.encodings {
            encoding.await_again(now.instant);
        }
        let qualities = |most: Option<Quality>| -> Vec<proto::SubscribedQuality> {
            let all = Quality::ALL.into_iter();
            all.map(|quality| proto::SubscribedQuality {
                quality: quality.wire() as i32,
                enabled: Some(quality) <= most,
            })
            .collect()
        };
        let told = publication.dynacast.told;
        let codecs = told.iter().enumerate().filter_map(|(number, most)| {
            // As the publisher calls it; who has announced none is told what it sends.
            let sent = publication.encodings.get(number);
            let announced = publication.codecs.get(number).copied();
            let codec = announced.or_else(|| sent?.codec)?;
            Some(proto::SubscribedCodec {
                codec: sdp::video_mime(codec)?
                    .trim_start_matches("video/")
                    .to_owned(),
                qualities: qualities(*most),
            })
        });
        let update = proto::SubscribedQualityUpdate {
            track_sid: track.to_string(),
            subscribed_qualities: qualities(told.first().copied().flatten()),
            subscribed_codecs: codecs.collect(),
        };
        tracing::debug!(%track, ?told, "a publisher is told who watches");
        self.tell(publisher, Message::SubscribedQualityUpdate(update));
    }
}

/// The announced encoding that is not sent yet and that a subscriber would need, in full.
fn backup_of(
    publication: &Publication,
    knows: impl Fn(Option<Codec>) -> bool,
) -> Option<(u8, Quality)> {
    let announced = publication.codecs.iter().zip(0u8..).skip(1);
    let mut known = announced.filter(|(codec, _)| knows(Some(**codec)));
    known.next().map(|(_, number)| (number, Quality::High))
}

impl Slot {
    fn demand(&self, target: Option<Target>, is_paused: bool) -> Demand {
        let is_held =
            |offered: &Offered| target.is_some_and(|target| target.layer == offered.layer);
        let held = match self.offered.iter().position(is_held) {
            Some(rank) => Held::Layer(rank),
            None if is_paused => Held::Paused,
            None => Held::New,
        };
        let offered = if self.rests {
            Vec::new()
        } else {
            self.offered.clone()
        };
        Demand {
            priority: self.wish.priority,
            screen: self.screen,
            offered,
            held,
        }
    }

    fn target(&self, rank: usize) -> Option<Target> {
        let choice = self.offered.get(rank)?;
        Some(Target {
            temporal: self.temporal.get(rank).copied().unwrap_or(ALL_FRAMES),
            ..Target::whole(choice.layer, choice.quality, self.scalable)
        })
    }
}

/// What an allocation changes, and what it leaves to be wished.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Steps {
    lowered: bool,
    raised: bool,
    /// All that is given, and all that is wanted, in bits per second.
    given: u64,
    wanted: u64,
    /// The smallest step up that is missing.
    next: Option<u64>,
}

impl Steps {
    fn of(demands: &[Demand], given: &[Option<usize>]) -> Self {
        let mut steps = Self::default();
        for (demand, given) in demands.iter().zip(given) {
            let bps = |rank: Option<usize>| {
                let offered = rank.and_then(|rank| demand.offered.get(rank));
                offered.map_or(0, |offered| offered.bps)
            };
            if !demand.offered.is_empty() {
                match demand.held {
                    Held::Layer(rank) => {
                        steps.lowered |= given.is_none_or(|given| given < rank);
                        steps.raised |= given.is_some_and(|given| given > rank);
                    }
                    Held::Paused => steps.raised |= given.is_some(),
                    // What begins below what it could have is worse than wanted, too.
                    Held::New => {}
                }
            }
            steps.given += bps(*given);
            steps.wanted += bps(demand.offered.len().checked_sub(1));
            let next = given.map_or(0, |rank| rank + 1);
            if next < demand.offered.len() {
                let step = bps(Some(next)).saturating_sub(bps(*given));
                steps.next = Some(steps.next.map_or(step, |least| least.min(step)));
            }
        }
        steps
    }
}

impl Adapting {
    /// How far the path is filled up now, in bits per second: enough for the next step, for some time of each period in which
    /// something is missing and may rise: the last, or the first where it has rested, and the path may have become wider since.
    fn filled(&mut self, steps: &Steps, may_rise: bool, now: Instant) -> u64 {
        let Some(next) = steps.next.filter(|_| may_rise) else {
            self.short = None;
            self.rested = steps.next.is_some();
            return 0;
        };
        let since = *self.short.get_or_insert(now);
        let phase = now.saturating_duration_since(since).as_millis() % FILLED_EACH.as_millis();
        let is_filled = if self.rested {
            phase < FILLED.as_millis()
        } else {
            phase + FILLED.as_millis() >= FILLED_EACH.as_millis()
        };
        if is_filled {
            steps.given + next + next / 4
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_are_told_of_more_at_once_and_of_less_after_a_while() {
        use Quality::{High, Low};
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut dynacast = Dynacast::default();
        let both = |first, second| [first, second];
        assert!(!dynacast.follow(both(Some(High), None), start));
        assert!(!dynacast.follow(both(Some(Low), None), at(0)));
        assert!(!dynacast.follow(both(Some(Low), None), at(4_900)));
        assert!(!dynacast.is_off(0, High));
        // Somebody looks in between.
        assert!(!dynacast.follow(both(Some(High), None), at(4_950)));
        assert!(!dynacast.follow(both(None, None), at(5_000)));
        assert!(dynacast.follow(both(None, None), at(10_000)));
        assert!(dynacast.is_off(0, Low));
        assert!(dynacast.follow(both(Some(Low), None), at(10_001)));
        assert!(dynacast.is_off(0, High) && !dynacast.is_off(0, Low));
        assert!(dynacast.follow(both(Some(Low), Some(High)), at(10_002)));
        assert!(!dynacast.follow(both(Some(Low), Some(High)), at(90_000)));
    }

    #[test]
    fn a_path_is_filled_for_a_part_of_the_time_and_only_while_something_is_missing() {
        let start = Instant::now();
        let steps = Steps {
            given: 500_000,
            next: Some(1_200_000),
            ..Steps::default()
        };
        let mut adapting = Adapting::default();
        let filled = (0..160).filter(|tenth| {
            let now = start + Duration::from_millis(tenth * 100);
            adapting.filled(&steps, true, now) == 2_000_000
        });
        assert_eq!(filled.count(), 40);
        let later = start + Duration::from_secs(7);
        assert_eq!(adapting.filled(&steps, false, later), 0);
        // The rest is over.
        for (ms, filled) in [(0, true), (1_999, true), (2_000, false), (8_000, true)] {
            let now = later + Duration::from_millis(ms);
            assert_eq!(adapting.filled(&steps, true, now) > 0, filled, "{ms}");
        }
        assert_eq!(adapting.filled(&Steps::default(), true, later), 0);
        assert_eq!(adapting.filled(&steps, true, later), 0);
    }
}
