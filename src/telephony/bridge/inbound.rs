//! Inbound calls: who is let in, which room they join, and what is asked before. The decisions are those of [`dispatch`], of
//! the settings, and of the owners of rooms; nothing is spent on a call before its trunk has let it in.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use livekit_protocol::{SipInboundTrunkInfo, SipMediaEncryption};
use tokio::sync::{mpsc, oneshot};

use super::super::agent::challenge::{self, Answer, Asking};
use super::super::agent::digest::Credentials;
use super::super::agent::{Invitation, header, source_towards};
use super::super::call::attributes::{self, Ends};
use super::super::call::pin::Prompt;
use super::super::call::task::{CallHandle, Command, Membership, Task};
use super::super::call::{Call, Limits};
use super::super::dispatch::{Entered, Facts, Gate, Placement, Route};
use super::super::media::address_of;
use super::super::refusals::Refused as Refusal;
use super::outbound::Elsewhere;
use super::{Inner, Slot, call_id, join};
use vivavoce_auth::{Owner, Principal, Takeover};
use vivavoce_config::{AcceptReplaces, RoomMode};
use vivavoce_quotas::{Party, Permit, Refused};
use vivavoce_seams::rooms::link::{Join, JoinKind, RoomLink};
use vivavoce_seams::rooms::telephone::{Direction, attribute};
use vivavoce_telemetry::metrics::{self, SipRefusal};

/// The start of a participant's join.
type Joining = oneshot::Receiver<Result<RoomLink, String>>;

pub(super) async fn take_calls(inner: Arc<Inner>, mut invitations: mpsc::Receiver<Invitation>) {
    while let Some(invitation) = invitations.recv().await {
        // One after the other: each sees the rooms and identities of those before.
        take_call(&inner, invitation).await;
    }
}

/// What is known of an inbound call.
struct Arrival {
    sip_call_id: String,
    ends: Ends,
    display: Option<String>,
    source: IpAddr,
    /// Attributes of its headers.
    of_headers: Vec<(String, String)>,
    /// Attributes of its dialog and its trunk.
    of_call: Vec<(String, String)>,
    trunk_id: Option<String>,
    takeover: Option<Takeover>,
}

impl Arrival {
    fn facts(&self) -> Facts<'_> {
        Facts {
            from: &self.ends.outside,
            to: &self.ends.ours,
            source: self.source,
        }
    }

    fn owner(&self) -> Option<&Owner> {
        self.takeover.as_ref().map(|call| &call.owner)
    }

    /// The join of this call as placed.
    fn join(&self, placement: Placement, identity: &str) -> Join {
        let mut told = attributes::of_call(&self.sip_call_id, "ringing", &placement.ends);
        told.extend(self.of_call.iter().cloned());
        let headers = self.of_headers.iter();
        let headers = headers.filter(|(name, _)| {
            !placement.hides_numbers || name.starts_with(attributes::HEADER_OF_GATEWAY)
        });
        told.extend(headers.cloned());
        // Of the rule's attributes none replaces what the telephone network says.
        for (name, value) in placement.attributes {
            if !told.iter().any(|(known, _)| *known == name) {
                told.push((name, value));
            }
        }
        let display = self.display.clone().filter(|_| !placement.hides_numbers);
        let name = display.unwrap_or(placement.name);
        Join {
            kind: JoinKind::Caller,
            principal: principal(self.owner()),
            owner: self.takeover.clone(),
            metadata: placement.metadata,
            room_config: placement.room_config,
            ..join(&placement.room, identity, &name, told)
        }
    }
}

/// Handles an inbound call.
async fn take_call(inner: &Arc<Inner>, invitation: Invitation) {
    let source = invitation.source();
    let nobody = Facts {
        from: "",
        to: "",
        source,
    };
    if let Some(unsupported) = invitation.unsupported() {
        let reason = format!("it requires {unsupported}");
        return inner.refuse(invitation, &nobody, (420, &reason), None);
    }
    let Some(called) = invitation.called() else {
        return inner.refuse(invitation, &nobody, (404, "its URI has no user"), None);
    };
    let headers = invitation.headers();
    let (outside, display) = attributes::caller(&headers);
    let ends = Ends {
        hostname: host_of(&headers).unwrap_or_else(|| source.to_string()),
        outside,
        ours: attributes::number(&called),
    };
    let facts = Facts {
        from: &ends.outside,
        to: &ends.ours,
        source,
    };
    let Some((invitation, trunk)) = inner.admitted(invitation, &facts) else {
        return;
    };
    let of_headers = attributes::of_headers(&headers);
    // Decided before anyone hears of the call.
    let owners = inner.settings.owners.as_ref();
    let takeover = owners.map(|owners| owners(&of_headers, &ends.ours));
    let owner = takeover.as_ref().map(|call| call.owner.clone());
    let refuse = |invitation: Invitation, status: u16, reason: &str| {
        inner.refuse(invitation, &facts, (status, reason), owner.as_ref());
    };
    let Some(mut slot) = inner.slot() else {
        return refuse(invitation, 503, "sip.max_calls is reached");
    };
    match inner.permit(takeover.as_ref().map(|call| &call.owner)) {
        Ok(permit) => slot.permit = Some(permit),
        Err(refused) => {
            // The place is free when the caller is told: the next call may come at once.
            drop(slot);
            return refuse(invitation, 503, &refused.to_string());
        }
    }
    let offer = invitation.offer();
    let local = media_address(offer.as_deref(), invitation.local_address().ip());
    let peer = source;
    let mut media = match inner.media.open(local, peer) {
        Ok(media) => media,
        Err(error) => return refuse(invitation, 503, &error.to_string()),
    };
    media.await_acknowledgement();
    let answer = match offer.map(|offer| media.answer(&offer)) {
        None => None,
        Some(Ok(answer)) => Some(answer),
        Some(Err(error)) => return refuse(invitation, error.status(), &error.to_string()),
    };
    if trunk.as_deref().is_some_and(is_encrypted) && !media.report().encrypted {
        return refuse(invitation, 488, "its trunk requires encrypted media");
    }
    let arrival = Arrival {
        sip_call_id: call_id(),
        of_call: of_trunk(trunk.as_deref(), &headers),
        trunk_id: trunk.as_ref().map(|trunk| trunk.sip_trunk_id.clone()),
        ends,
        display,
        source,
        of_headers,
        takeover,
    };
    let placed = match inner.place_inbound(&arrival).await {
        Some(placement) if inner.is_closed_to(&arrival, &placement).await => {
            let reason = "the room of its dispatch rule is somebody else's";
            return inner.refuse(invitation, &arrival.facts(), (403, reason), arrival.owner());
        }
        Some(placement) if !slot.enter(&placement.room) => {
            let reason = "sip.max_calls_per_room is reached";
            return inner.refuse(invitation, &arrival.facts(), (486, reason), arrival.owner());
        }
        placed => placed,
    };
    let limits = Limits {
        ringing: Duration::MAX,
        duration: longest(trunk.as_deref(), inner.settings.max_duration),
    };
    start(
        inner,
        invitation,
        arrival,
        placed,
        media,
        answer,
        (limits, slot),
    )
    .await;
}

/// Starts the task of a call that has a place, or is asked for a PIN.
async fn start(
    inner: &Arc<Inner>,
    invitation: Invitation,
    mut arrival: Arrival,
    placed: Option<Placement>,
    media: super::CallMedia,
    answer: Option<String>,
    (limits, slot): (Limits, Slot),
) {
    let (room, identity) = match &placed {
        None => (String::new(), String::new()),
        Some(placement) => {
            let identity = inner.identity_in(placement, &arrival.sip_call_id).await;
            (placement.room.clone(), identity)
        }
    };
    let leg = invitation.take();
    leg.ring(None);
    arrival.of_call.extend(attributes::of_dialog(
        leg.call_id(),
        leg.remote_tag().as_deref(),
    ));
    let (handle, commands) = CallHandle::new(
        arrival.sip_call_id.clone(),
        Direction::Inbound,
        room,
        identity.clone(),
        arrival.owner().cloned(),
        leg.remote_address().to_string(),
    );
    handle.came_by(arrival.trunk_id.as_deref());
    let elsewhere = Elsewhere::new(inner, &arrival.ends.ours);
    let membership = match placed {
        Some(placement) => {
            Membership::Joining(inner.begin_joining(arrival.join(placement, &identity)))
        }
        None => Membership::Asking(Box::new(Desk {
            inner: Arc::clone(inner),
            arrival,
            handle: Arc::clone(&handle),
        })),
    };
    let task = Task {
        call: Call::inbound(limits, Instant::now()),
        leg,
        media,
        membership,
        redial: None,
        elsewhere,
        answer,
        dtmf: String::new(),
        handle,
        commands,
        rooms: Arc::clone(&inner.rooms),
        news: inner.news.clone(),
    };
    inner.run(task, slot);
}

/// Where a caller who is asked for a PIN is let in.
pub struct Desk {
    inner: Arc<Inner>,
    arrival: Arrival,
    handle: Arc<CallHandle>,
}

impl Desk {
    /// Digits of the longest PIN.
    pub fn longest_pin(&self) -> usize {
        let trunks = self.inner.settings.trunks.as_ref();
        trunks.map_or(0, |trunks| {
            trunks.longest_pin(self.arrival.trunk_id.as_deref(), &self.arrival.facts())
        })
    }

    /// The sound of a prompt.
    pub async fn sound(&self, prompt: Prompt) -> Option<Arc<[i16]>> {
        self.inner.settings.prompts.as_ref()?.sound(prompt).await
    }

    /// Begins to join the room that a PIN opens; `None` where it opens none.
    pub async fn admit(&self, pin: &str) -> Option<Joining> {
        let entered = if pin.is_empty() {
            Entered::Nothing
        } else {
            Entered::Pin(pin)
        };
        let Route::Rule(rule) = self.inner.route(&self.arrival, entered) else {
            return None;
        };
        let (inner, arrival) = (&self.inner, &self.arrival);
        let placement = Placement::new(&rule, &arrival.ends, &arrival.sip_call_id);
        if inner.is_closed_to(arrival, &placement).await {
            tracing::warn!("a PIN opens a room that is somebody else's: the call is not let in");
            return None;
        }
        let identity = inner.identity_in(&placement, &arrival.sip_call_id).await;
        if !inner.move_into(&self.handle, &placement.room, &identity) {
            return None;
        }
        Some(inner.begin_joining(arrival.join(placement, &identity)))
    }
}

impl Inner {
    /// An invitation to a call of its own, with its trunk, if there is one. Others are refused, challenged, or another call's.
    fn admitted(
        &self,
        invitation: Invitation,
        facts: &Facts<'_>,
    ) -> Option<(Invitation, Option<Box<SipInboundTrunkInfo>>)> {
        let (invitation, trunk) = self.by_trunk(invitation, facts)?;
        let by = trunk.as_ref().map(|trunk| trunk.sip_trunk_id.as_str());
        Some((self.by_replacing(invitation, facts, by)?, trunk))
    }

    /// The invitation and its trunk, if there is one, once the trunk has let it in; otherwise it is refused, or challenged.
    fn by_trunk(
        &self,
        invitation: Invitation,
        facts: &Facts<'_>,
    ) -> Option<(Invitation, Option<Box<SipInboundTrunkInfo>>)> {
        let Some(trunks) = &self.settings.trunks else {
            return Some((invitation, None));
        };
        let trunk = match trunks.gate(facts) {
            Gate::NoTrunk => return Some((invitation, None)),
            Gate::Trunk(trunk) => trunk,
            Gate::Refused(trunk, mismatch) => {
                metrics::sip_refused(SipRefusal::Trunk);
                let reason = format!("trunk {trunk}: {mismatch}");
                self.refuse(invitation, facts, (403, &reason), None);
                return None;
            }
        };
        if trunk.auth_username.is_empty() {
            return Some((invitation, Some(trunk)));
        }
        let credentials = Credentials {
            username: trunk.auth_username.clone(),
            password: trunk.auth_password.clone(),
        };
        let realm = match &*trunk.auth_realm {
            "" => challenge::REALM,
            realm => realm,
        };
        let (call_id, answers) = (invitation.call_id(), invitation.answers());
        let asking = Asking {
            method: "INVITE",
            call_id: &call_id,
            source: facts.source,
            answers: &answers,
        };
        let (challenger, now) = (&self.settings.challenger, Instant::now());
        let checked = challenger.check(realm, &credentials, &asking, now);
        match checked {
            Answer::Right => return Some((invitation, Some(trunk))),
            Answer::Missing | Answer::Stale => {
                let stale = checked == Answer::Stale;
                let asked = challenger.challenge(realm, &asking, stale, now);
                invitation.challenge(asked);
            }
            Answer::Wrong | Answer::Guessing => {
                metrics::sip_refused(SipRefusal::Password);
                let why = match checked {
                    Answer::Guessing => "too many wrong passwords from this address",
                    _ => "wrong user name or password",
                };
                let reason = format!("trunk {}: {why}", trunk.sip_trunk_id);
                self.refuse(invitation, facts, (403, &reason), None);
            }
        }
        None
    }

    /// Hands an invitation that is to take the place of a call to that; gives back any other one.
    fn by_replacing(
        &self,
        invitation: Invitation,
        facts: &Facts<'_>,
        trunk: Option<&str>,
    ) -> Option<Invitation> {
        let replaces = match invitation.replaces() {
            Ok(None) => return Some(invitation),
            Ok(Some(replaces)) => replaces,
            Err(reason) => {
                self.refuse(invitation, facts, (400, &reason), None);
                return None;
            }
        };
        let calls = self.table();
        let mut live = calls.live.values();
        let is_meant = |handle: &&Arc<CallHandle>| {
            let dialog = handle.dialog();
            dialog.is_some_and(|dialog| dialog.is_meant_by(&replaces))
        };
        let found = live.find(is_meant).cloned();
        drop(calls);
        let accepts = |handle: &Arc<CallHandle>| match self.settings.replaces {
            AcceptReplaces::Off => false,
            AcceptReplaces::SameAddress => handle.peer() == Some(facts.source),
            AcceptReplaces::Any => true,
        };
        let refused = match found {
            Some(handle) if !accepts(&handle) => (
                403,
                "it may not take the place of that call (sip.accept_replaces)",
            ),
            // What that trunk demands was not asked of this one.
            Some(handle)
                if handle
                    .trunk()
                    .is_some_and(|own| Some(own.as_str()) != trunk) =>
            {
                (403, "the call that it is to replace came by another trunk")
            }
            // It is answered: too late for who only wants it before (RFC 3891 section 3).
            Some(_) if replaces.early_only => (486, "the call that it is to replace is answered"),
            Some(handle) => match handle
                .commands
                .try_send(Command::Replace(Box::new(invitation)))
            {
                Ok(()) => return None,
                Err(refused) => {
                    if let Command::Replace(invitation) = refused.into_inner() {
                        let reason = "the call that it is to replace is busy or over";
                        self.refuse(*invitation, facts, (480, reason), None);
                    }
                    return None;
                }
            },
            None => (481, "there is no call whose place it could take"),
        };
        self.refuse(invitation, facts, refused, None);
        None
    }

    /// Refuses a call: with a line in the log, and an entry for those who look for it.
    fn refuse(
        &self,
        invitation: Invitation,
        call: &Facts<'_>,
        (status, reason): (u16, &str),
        owner: Option<&Owner>,
    ) {
        tracing::warn!(status, source = %call.source, reason, "refused a call");
        let refused = Refusal {
            source: call.source,
            from: call.from,
            to: call.to,
            status,
            reason,
            owner,
        };
        let ladder = || invitation.ladder();
        let refused_calls = self.agent.refused();
        refused_calls.note(refused, SystemTime::now(), ladder);
        match status {
            // What the other side could do otherwise.
            415 | 420 | 488 => invitation.refuse_because(status, reason),
            _ => invitation.refuse(status),
        }
    }

    fn route(&self, arrival: &Arrival, entered: Entered<'_>) -> Route {
        let trunks = self.settings.trunks.as_ref();
        trunks.map_or(Route::NoRule, |trunks| {
            trunks.route(arrival.trunk_id.as_deref(), &arrival.facts(), entered)
        })
    }

    /// The place of a call; `None` where its caller is asked for a PIN before.
    async fn place_inbound(&self, arrival: &Arrival) -> Option<Placement> {
        match self.route(arrival, Entered::NotAsked) {
            Route::AskPin => None,
            Route::Rule(rule) => Some(Placement::new(&rule, &arrival.ends, &arrival.sip_call_id)),
            Route::NoRule | Route::WrongPin => Some(self.by_settings(arrival).await),
        }
    }

    /// The place of a call that no rule concerns.
    async fn by_settings(&self, arrival: &Arrival) -> Placement {
        let room = format!("{}{}", self.settings.room_prefix, arrival.ends.ours);
        let is_anothers = match &arrival.takeover {
            Some(call) => !self.may_take(&room, call).await,
            None => false,
        };
        let who = if arrival.ends.outside.is_empty() {
            "anonymous"
        } else {
            &arrival.ends.outside
        };
        Placement {
            room: self.room_of(room, arrival, is_anothers),
            identity: format!("sip_{who}"),
            name: format!("Phone {}", arrival.ends.outside).trim().to_owned(),
            ends: arrival.ends.clone(),
            hides_numbers: false,
            metadata: String::new(),
            attributes: Vec::new(),
            room_config: None,
        }
    }

    /// Whether the room of a rule belongs to somebody whose calls these are not. By the settings a call has another room then.
    async fn is_closed_to(&self, arrival: &Arrival, placement: &Placement) -> bool {
        let by_rule = placement
            .attributes
            .iter()
            .any(|(name, _)| name == attribute::RULE_ID);
        match &arrival.takeover {
            Some(call) if by_rule => !self.may_take(&placement.room, call).await,
            _ => false,
        }
    }

    /// The unit of the quota for an inbound call: whoever calls one tenant's numbers, or has them called, does not take the
    /// lines of all. Calls of the operator are bounded by the number of places only.
    fn permit(&self, owner: Option<&Owner>) -> Result<Permit, Refused> {
        match owner.map_or(Party::Operator, Owner::party) {
            Party::Operator => Ok(self.settings.quota.hold(&Party::Operator)),
            tenant => self.settings.quota.take(&tenant),
        }
    }

    /// Whether an inbound call may take a room.
    async fn may_take(&self, room: &str, call: &Takeover) -> bool {
        // With a number of its owner's it always may, and the rooms need not be asked.
        call.by_number || self.rooms.may_take(room, call).await
    }

    /// The room of an inbound call by the settings. A room of another owner that the call may not take (`is_anothers`), or in
    /// use by another owner's call, is not shared: the later call gets its own room, whatever the mode. In mode `call` neither
    /// is one named by a called user that is no telephone number: the caller chooses that name, and taking the room of that
    /// name from whoever has it would be the caller's choice, too.
    fn room_of(&self, room: String, arrival: &Arrival, is_anothers: bool) -> String {
        let apart = |handle: &Arc<CallHandle>| {
            handle.direction == Direction::Inbound
                && handle.is_in(&room)
                && (self.settings.room_mode == RoomMode::Call
                    || handle.owner.as_ref() != arrival.owner())
        };
        let mut called = arrival.ends.ours.bytes();
        let is_number = called.all(|byte| byte.is_ascii_digit() || b"+*#".contains(&byte));
        let is_chosen = self.settings.room_mode == RoomMode::Call && !is_number;
        if is_chosen || is_anothers || self.table().live.values().any(apart) {
            format!("{room}_{}", arrival.sip_call_id)
        } else {
            room
        }
    }

    /// The identity of a placement, unless another call or somebody in the room has it: the caller has chosen it, and must not
    /// replace them.
    async fn identity_in(&self, placement: &Placement, sip_call_id: &str) -> String {
        let Placement { room, identity, .. } = placement;
        // A call that is about to join is not in the room yet.
        if self.call_of(room, identity).is_none() && !self.rooms.has(room, identity).await {
            return identity.clone();
        }
        let suffix = sip_call_id.trim_start_matches("SCL_");
        format!("{identity}_{suffix}")
    }

    /// Gives a call that has no room yet a place in this one, if there is one.
    fn move_into(&self, handle: &CallHandle, room: &str, identity: &str) -> bool {
        let calls = self.table();
        let there = calls.live.values().filter(|other| other.is_in(room));
        let placing = calls.placing_into.iter().filter(|one| *one == room);
        if there.count() + placing.count() >= self.settings.most_calls_per_room {
            metrics::sip_refused(SipRefusal::Room);
            tracing::warn!("a call is not let in: sip.max_calls_per_room is reached");
            return false;
        }
        handle.move_into(room, identity);
        true
    }

    fn begin_joining(self: &Arc<Self>, join: Join) -> Joining {
        let (joined, joining) = oneshot::channel();
        let rooms = Arc::clone(&self.rooms);
        tokio::spawn(async move {
            // If it is dropped, the participant leaves the room.
            let _taken = joined.send(rooms.join(join).await);
        });
        joining
    }
}

/// The address for the media of an offer: that of the signalling, unless the offer is of the other address family and this machine
/// reaches it there.
fn media_address(offer: Option<&str>, local: IpAddr) -> IpAddr {
    let wanted = offer.and_then(address_of);
    let other =
        wanted.filter(|wanted| wanted.is_ipv4() != local.is_ipv4() && !wanted.is_unspecified());
    let reached = other.and_then(|wanted| source_towards((wanted, 9).into()).ok());
    reached.unwrap_or(local)
}

/// Whether a trunk wants encrypted media only.
#[allow(deprecated)] // of a field: older clients still use it
fn is_encrypted(trunk: &SipInboundTrunkInfo) -> bool {
    let media = trunk.media.as_ref().and_then(|media| media.encryption);
    let wanted = media.unwrap_or(trunk.media_encryption);
    wanted == SipMediaEncryption::SipMediaEncryptRequire as i32
}

/// How long a call may last.
fn longest(trunk: Option<&SipInboundTrunkInfo>, limit: Duration) -> Duration {
    let own = trunk.and_then(|trunk| trunk.max_call_duration.as_ref());
    let own = own.map(|own| Duration::from_secs(u64::try_from(own.seconds).unwrap_or_default()));
    own.filter(|own| !own.is_zero())
        .map_or(limit, |own| own.min(limit))
}

/// The attributes that a trunk gives a call: its id, and the headers that it wants as attributes.
fn of_trunk(
    trunk: Option<&SipInboundTrunkInfo>,
    headers: &[(String, String)],
) -> Vec<(String, String)> {
    let Some(trunk) = trunk else {
        return Vec::new();
    };
    let id = (attribute::TRUNK_ID.to_owned(), trunk.sip_trunk_id.clone());
    let wanted = trunk.headers_to_attributes.iter();
    let wanted = wanted.filter_map(|(header, name)| {
        let mut headers = headers.iter();
        let (_, value) = headers.find(|(known, _)| known.eq_ignore_ascii_case(header))?;
        Some((name.clone(), attributes::cut(value)))
    });
    std::iter::once(id).chain(wanted).collect()
}

/// The principal on whose behalf a caller joins a room of this owner.
fn principal(owner: Option<&Owner>) -> Principal {
    match owner {
        Some(Owner::Tenant(tenant)) => Principal::Tenant(tenant.clone()),
        _ => Principal::Operator,
    }
}

fn host_of(headers: &[(String, String)]) -> Option<String> {
    let from = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("from"))?;
    header::Address::parse(&from.1).host().map(str::to_owned)
}
