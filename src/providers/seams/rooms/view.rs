//! A participant's view of its room from LiveKit's signalling: participants and tracks, reported as [`LinkEvent`]s, and
//! which tracks to subscribe to. Pure state, fed by both kinds of links.

use std::collections::{BTreeMap, HashMap, HashSet};

use livekit_protocol as proto;
use proto::participant_info::State;
use proto::signal_request::Message as Ask;
use proto::{DisconnectReason, ParticipantInfo, TrackInfo, TrackType};

use super::link::{Ending, LinkEvent, Listen};

/// The room as a participant knows it.
#[derive(Debug, Default)]
pub struct RoomView {
    sid: String,
    identity: String,
    members: HashMap<String, ParticipantInfo>,
    /// Tracks that were asked for.
    asked: HashSet<String>,
    /// Whether [`LinkEvent::Connected`] was told; before it nothing is.
    told: bool,
    /// Whether the next description of everybody tells who has left.
    whole: bool,
}

impl RoomView {
    /// A session has begun, the first or another one.
    pub fn joined(&mut self, join: proto::JoinResponse) -> Vec<LinkEvent> {
        let own = join.participant.unwrap_or_default();
        self.sid = own.sid;
        self.identity = own.identity;
        self.asked.clear();
        let mut events = Vec::new();
        self.keep_only(&join.other_participants, &mut events);
        for info in join.other_participants {
            self.follow(info, &mut events);
        }
        events
    }

    /// It is in another room now: whoever is not there has left.
    pub fn moved(&mut self, moved: proto::RoomMovedResponse) -> Vec<LinkEvent> {
        self.asked.clear();
        let mut events = Vec::new();
        self.keep_only(&moved.other_participants, &mut events);
        if self.told {
            let room = moved.room.unwrap_or_default().name;
            events.push(LinkEvent::Moved { room });
        }
        for info in moved.other_participants {
            self.follow(info, &mut events);
        }
        events
    }

    /// The session goes on after an interruption: what comes next is the whole room.
    pub fn resumed(&mut self) {
        self.whole = true;
    }

    /// The server tells of participants.
    pub fn update(&mut self, participants: Vec<ParticipantInfo>) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        // The description of everybody comes first and names ourselves too, by which it is recognised.
        if self.whole && participants.iter().any(|info| info.sid == self.sid) {
            self.whole = false;
            self.keep_only(&participants, &mut events);
        }
        for info in participants {
            self.follow(info, &mut events);
        }
        events
    }

    /// Media is up: from now on everything is told, first what is there.
    pub fn connected(&mut self) -> Vec<LinkEvent> {
        if std::mem::replace(&mut self.told, true) {
            return Vec::new();
        }
        let mut events = vec![LinkEvent::Connected {
            sid: self.sid.clone(),
            identity: self.identity.clone(),
        }];
        let mut members: Vec<ParticipantInfo> = self.members.values().cloned().collect();
        members.sort_by(|a, b| (a.joined_at_ms, &a.sid).cmp(&(b.joined_at_ms, &b.sid)));
        for member in members {
            appeared(member, &mut events);
        }
        events
    }

    /// The own sid.
    pub fn sid(&self) -> &str {
        &self.sid
    }

    /// The own identity.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whose audio track this is.
    pub fn owner(&self, track: &str) -> Option<&str> {
        let owns = |member: &&ParticipantInfo| {
            let mut tracks = member.tracks.iter();
            tracks.any(|info| info.sid == track && is_audio(info))
        };
        Some(&self.members.values().find(owns)?.identity)
    }

    /// Whether somebody of this sid is there.
    pub fn knows(&self, sid: &str) -> bool {
        self.members.contains_key(sid)
    }

    /// What has to be asked for so that these are heard and nobody else.
    pub fn subscriptions(&mut self, listen: &Listen) -> Vec<proto::UpdateSubscription> {
        let heard = self
            .members
            .values()
            .filter(|member| listen.hears(&member.identity));
        let tracks = heard
            .flat_map(|member| &member.tracks)
            .filter(|track| is_audio(track));
        let wanted: HashSet<String> = tracks.map(|track| track.sid.clone()).collect();
        let mut live = self.members.values().flat_map(|member| &member.tracks);
        let begun: Vec<String> = wanted.difference(&self.asked).cloned().collect();
        let ended = self.asked.difference(&wanted);
        // What has ended by itself need not be refused.
        let ended = ended
            .filter(|sid| live.any(|track| track.sid == **sid))
            .cloned()
            .collect();
        self.asked = wanted;
        let changes = [(begun, true), (ended, false)].into_iter();
        let changes = changes.filter(|(sids, _): &(Vec<String>, bool)| !sids.is_empty());
        changes
            .map(|(track_sids, subscribe)| proto::UpdateSubscription {
                track_sids,
                subscribe,
                ..Default::default()
            })
            .collect()
    }

    /// The audio tracks that were asked for, with their owners.
    pub fn asked(&self) -> impl Iterator<Item = (&str, &str)> {
        let sids = self.asked.iter();
        sids.filter_map(|sid| Some((sid.as_str(), self.owner(sid)?)))
    }

    fn keep_only(&mut self, present: &[ParticipantInfo], events: &mut Vec<LinkEvent>) {
        let gone = self
            .members
            .keys()
            .filter(|sid| !present.iter().any(|info| info.sid == **sid));
        let gone: Vec<String> = gone.cloned().collect();
        for sid in gone {
            self.left(&sid, None, events);
        }
    }

    fn follow(&mut self, info: ParticipantInfo, events: &mut Vec<LinkEvent>) {
        if info.sid == self.sid || info.identity == self.identity {
            return;
        }
        if info.state() == State::Disconnected {
            let sid = info.sid.clone();
            return self.left(&sid, Some(info), events);
        }
        let Some(before) = self.members.get(&info.sid) else {
            // The same identity with another sid is somebody who joined again.
            let older = self
                .members
                .values()
                .find(|member| member.identity == info.identity);
            if let Some(older) = older.map(|older| older.sid.clone()) {
                self.left(&older, None, events);
            }
            if self.told {
                appeared(info.clone(), events);
            }
            self.members.insert(info.sid.clone(), info);
            return;
        };
        if info.version < before.version {
            return;
        }
        if self.told {
            changed(before, &info, events);
        }
        self.members.insert(info.sid.clone(), info);
    }

    fn left(&mut self, sid: &str, last: Option<ParticipantInfo>, events: &mut Vec<LinkEvent>) {
        let Some(member) = self.members.remove(sid) else {
            return;
        };
        if !self.told {
            return;
        }
        for track in &member.tracks {
            events.push(LinkEvent::TrackUnpublished {
                identity: member.identity.clone(),
                sid: track.sid.clone(),
            });
        }
        events.push(LinkEvent::ParticipantLeft(Box::new(last.unwrap_or(member))));
    }
}

/// The announcement of the one track that a link publishes.
pub fn microphone(cid: &str, muted: bool) -> proto::AddTrackRequest {
    proto::AddTrackRequest {
        cid: cid.to_owned(),
        name: "microphone".to_owned(),
        r#type: TrackType::Audio as i32,
        source: proto::TrackSource::Microphone as i32,
        muted,
        disable_red: true,
        ..Default::default()
    }
}

/// The wish to change one's own attributes.
pub fn attributes(changed: &BTreeMap<String, String>) -> Ask {
    Ask::UpdateMetadata(proto::UpdateParticipantMetadata {
        attributes: changed.clone().into_iter().collect(),
        ..Default::default()
    })
}

/// What a server's reason to end a session means.
pub fn ending(reason: DisconnectReason) -> Ending {
    match reason {
        DisconnectReason::DuplicateIdentity => Ending::Duplicate,
        DisconnectReason::ParticipantRemoved => Ending::Removed,
        DisconnectReason::RoomDeleted | DisconnectReason::RoomClosed => Ending::RoomDeleted,
        other => Ending::Refused(other.as_str_name().to_lowercase().replace('_', " ")),
    }
}

fn is_audio(track: &TrackInfo) -> bool {
    track.r#type() == TrackType::Audio
}

fn appeared(info: ParticipantInfo, events: &mut Vec<LinkEvent>) {
    let (identity, tracks) = (info.identity.clone(), info.tracks.clone());
    events.push(LinkEvent::ParticipantJoined(Box::new(info)));
    for track in tracks {
        events.push(LinkEvent::TrackPublished {
            identity: identity.clone(),
            track: Box::new(track),
        });
    }
}

fn changed(before: &ParticipantInfo, now: &ParticipantInfo, events: &mut Vec<LinkEvent>) {
    let identity = &now.identity;
    let of = |info: &ParticipantInfo, sid: &str| {
        info.tracks.iter().find(|track| track.sid == sid).cloned()
    };
    for track in &before.tracks {
        if of(now, &track.sid).is_none() {
            events.push(LinkEvent::TrackUnpublished {
                identity: identity.clone(),
                sid: track.sid.clone(),
            });
        }
    }
    let itself = |info: &ParticipantInfo| {
        let attributes = info.attributes.clone();
        let permission = info.permission.clone();
        (
            info.name.clone(),
            info.metadata.clone(),
            attributes,
            permission,
        )
    };
    if itself(before) != itself(now) {
        events.push(LinkEvent::ParticipantUpdated(Box::new(now.clone())));
    }
    for track in &now.tracks {
        match of(before, &track.sid) {
            None => events.push(LinkEvent::TrackPublished {
                identity: identity.clone(),
                track: Box::new(track.clone()),
            }),
            Some(before) if before.muted != track.muted => events.push(LinkEvent::TrackMuted {
                identity: identity.clone(),
                sid: track.sid.clone(),
                muted: track.muted,
            }),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(sid: &str, muted: bool) -> TrackInfo {
        TrackInfo {
            sid: sid.into(),
            muted,
            ..Default::default()
        }
    }

    fn member(sid: &str, identity: &str, version: u32, tracks: Vec<TrackInfo>) -> ParticipantInfo {
        ParticipantInfo {
            sid: sid.into(),
            identity: identity.into(),
            version,
            tracks,
            ..Default::default()
        }
    }

    fn join(others: Vec<ParticipantInfo>) -> proto::JoinResponse {
        proto::JoinResponse {
            participant: Some(member("PA_me", "me", 0, vec![])),
            other_participants: others,
            ..Default::default()
        }
    }

    fn names(events: &[LinkEvent]) -> Vec<String> {
        let name = |event: &LinkEvent| match event {
            LinkEvent::Connected { .. } => "connected".to_owned(),
            LinkEvent::ParticipantJoined(info) => format!("+{}", info.identity),
            LinkEvent::ParticipantLeft(info) => format!("-{}", info.identity),
            LinkEvent::ParticipantUpdated(info) => format!("~{}", info.identity),
            LinkEvent::TrackPublished { track, .. } => format!("+{}", track.sid),
            LinkEvent::TrackUnpublished { sid, .. } => format!("-{sid}"),
            LinkEvent::TrackMuted { sid, muted, .. } => format!("{sid} muted {muted}"),
            other => format!("{other:?}"),
        };
        events.iter().map(name).collect()
    }

    fn view(others: Vec<ParticipantInfo>) -> RoomView {
        let mut view = RoomView::default();
        assert!(view.joined(join(others)).is_empty());
        view.connected();
        view
    }

    #[test]
    fn who_is_there_is_told_once_media_is_up_and_then_what_changes() {
        let mut view = RoomView::default();
        view.joined(join(vec![member(
            "PA_a",
            "ann",
            1,
            vec![track("TR_1", false)],
        )]));
        assert!(
            view.update(vec![member("PA_b", "bob", 1, vec![])])
                .is_empty()
        );
        assert_eq!(
            names(&view.connected()),
            ["connected", "+ann", "+TR_1", "+bob"]
        );
        assert!(view.connected().is_empty());
        let muted = member(
            "PA_a",
            "ann",
            2,
            vec![track("TR_1", true), track("TR_2", false)],
        );
        assert_eq!(
            names(&view.update(vec![muted])),
            ["TR_1 muted true", "+TR_2"]
        );
        let old = member("PA_a", "ann", 1, vec![]);
        assert!(
            view.update(vec![old]).is_empty(),
            "an older version says nothing"
        );
    }

    #[test]
    fn somebody_who_joins_again_has_left_before() {
        let mut view = view(vec![member("PA_a", "ann", 1, vec![track("TR_1", false)])]);
        let again = member("PA_a2", "ann", 0, vec![]);
        assert_eq!(names(&view.update(vec![again])), ["-TR_1", "-ann", "+ann"]);
    }

    #[test]
    fn after_an_interruption_those_who_are_not_named_have_left() {
        let everybody = vec![
            member("PA_a", "ann", 1, vec![]),
            member("PA_b", "bob", 1, vec![]),
        ];
        let mut view = view(everybody);
        view.resumed();
        assert!(
            view.update(vec![member("PA_b", "bob", 2, vec![])])
                .is_empty()
        );
        let whole = vec![
            member("PA_me", "me", 1, vec![]),
            member("PA_b", "bob", 2, vec![]),
        ];
        assert_eq!(names(&view.update(whole)), ["-ann"]);
        assert_eq!(names(&view.joined(join(vec![]))), ["-bob"]);
    }

    #[test]
    fn tracks_are_asked_for_once_and_refused_when_they_are_not_wanted_any_more() {
        let tracks = vec![track("TR_1", false)];
        let mut view = view(vec![
            member("PA_a", "ann", 1, tracks),
            member("PA_b", "bob", 1, vec![]),
        ]);
        let asked = view.subscriptions(&Listen::All);
        assert_eq!(
            (asked[0].track_sids.as_slice(), asked[0].subscribe),
            (&["TR_1".to_owned()][..], true)
        );
        assert!(view.subscriptions(&Listen::All).is_empty());
        let refused = view.subscriptions(&Listen::Only(vec!["bob".into()]));
        assert_eq!(
            (refused[0].track_sids.as_slice(), refused[0].subscribe),
            (&["TR_1".to_owned()][..], false)
        );
        view.subscriptions(&Listen::All);
        view.update(vec![member("PA_a", "ann", 2, vec![])]);
        assert!(
            view.subscriptions(&Listen::All).is_empty(),
            "what has ended is not refused"
        );
    }
}
