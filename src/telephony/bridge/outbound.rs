//! Outbound calls: which gateway and which of its addresses a call goes to, and to which it goes next when that one fails
//! (RFC 3263 section 4.3). A gateway that has failed comes after the others for a while.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::agent::digest::Credentials;
use super::super::agent::{Leg, Outbound, Protocol, Reached, ReferRequest, resolve};
use super::super::call::attributes::{self, Ends};
use super::super::call::task::{CallHandle, Membership, Task};
use super::super::call::{Call, Limits};
use super::super::classify::{Wanted, networks};
use super::super::media::CallMedia;
use super::{Inner, JOIN_PATIENCE, call_id, full, full_room, join, protocol};
use vivavoce_config::SipTransport;
use vivavoce_core::egress_policy::is_public;
use vivavoce_core::phone::Gateway;
use vivavoce_seams::rooms::link::{Join, LinkEvent, RoomLink};
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, Callee, Direction, Line, NewCall, PlacedCall, Trunk, Via, attribute,
};

/// How long a gateway or an address that has failed comes after the others.
const REST: Duration = Duration::from_secs(30);
/// The most places that are remembered.
const MOST_RESTING: usize = 1_024;
/// How often one call may be redirected.
const MOST_REDIRECTIONS: usize = 5;

/// What has failed a moment ago: gateways and addresses, as text.
#[derive(Debug, Default)]
pub(super) struct Health {
    failed: Mutex<HashMap<String, Instant>>,
    /// Those that do not answer when they are asked.
    down: Mutex<HashSet<String>>,
}

impl Health {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody has asked how it is.
    pub fn found(&self, place: &str, is_up: bool) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if is_up {
            down.remove(place);
        } else if down.len() < MOST_RESTING {
            down.insert(place.to_owned());
        }
    }

    fn is_down(&self, place: &str) -> bool {
        let down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        down.contains(place)
    }

    /// It has failed.
    fn failed(&self, place: &str, now: Instant) {
        let mut table = self.table();
        table.retain(|_, since| now.saturating_duration_since(*since) < REST);
        if table.len() < MOST_RESTING {
            table.insert(place.to_owned(), now);
        }
    }

    /// It works.
    fn works(&self, place: &str) {
        self.table().remove(place);
    }

    fn rests(&self, place: &str, now: Instant) -> bool {
        let since = self.table().get(place).copied();
        since.is_some_and(|since| now.saturating_duration_since(since) < REST)
            || self.is_down(place)
    }

    /// The same places, those that rest at the end.
    fn sorted<T>(&self, places: Vec<T>, name: impl Fn(&T) -> String, now: Instant) -> VecDeque<T> {
        let (resting, ready): (Vec<_>, Vec<_>) = places
            .into_iter()
            .partition(|place| self.rests(&name(place), now));
        ready.into_iter().chain(resting).collect()
    }
}

/// A gateway, and whom it is to call there.
#[derive(Debug, Clone)]
struct Stop {
    trunk: Trunk,
    to: Callee,
}

/// The places where a call may go, in order.
struct Hops {
    stops: VecDeque<Stop>,
    current: Option<(Stop, VecDeque<SocketAddr>)>,
    /// Where the last attempt went.
    last: Option<(Gateway, SocketAddr)>,
}

/// A place that is reached.
struct Hop {
    trunk: Trunk,
    to: Callee,
    reached: Reached,
    remote: SocketAddr,
}

impl Hops {
    fn new(inner: &Inner, call: &NewCall, now: Instant) -> Self {
        let trunks = std::iter::once(&call.trunk).chain(&call.alternatives);
        let stops = trunks.map(|trunk| Stop {
            trunk: trunk.clone(),
            to: call.to.clone(),
        });
        let name = |stop: &Stop| stop.trunk.gateway.to_string();
        Self {
            stops: inner.settings.health.sorted(stops.collect(), name, now),
            current: None,
            last: None,
        }
    }

    fn is_empty(&self) -> bool {
        let addresses = self.current.as_ref();
        self.stops.is_empty() && addresses.is_none_or(|(_, addresses)| addresses.is_empty())
    }

    /// The next place to which a flow can be opened; the error of the last one where there is none.
    async fn next(&mut self, inner: &Inner) -> Result<Hop, CallError> {
        let none = || CallError::new(CallErrorKind::Unavailable, "there is no other gateway");
        let mut failed = none();
        loop {
            let next = match &mut self.current {
                Some((stop, addresses)) => addresses.pop_front().map(|one| (stop.clone(), one)),
                None => None,
            };
            if let Some((Stop { trunk, to }, remote)) = next {
                let gateway = trunk.gateway.clone();
                match inner.flow(&trunk, remote).await {
                    Ok(reached) => {
                        self.last = Some((gateway, remote));
                        return Ok(Hop {
                            trunk,
                            to,
                            reached,
                            remote,
                        });
                    }
                    Err(error) => {
                        inner
                            .settings
                            .health
                            .failed(&remote.to_string(), Instant::now());
                        failed = error;
                        continue;
                    }
                }
            }
            // The gateway has no address that is left.
            if let Some((stop, _)) = self.current.take() {
                let gateway = stop.trunk.gateway.to_string();
                inner.settings.health.failed(&gateway, Instant::now());
            }
            let Some(stop) = self.stops.pop_front() else {
                return Err(failed);
            };
            match inner.addresses(&stop.trunk).await {
                Ok(addresses) => {
                    let name = |address: &SocketAddr| address.to_string();
                    let addresses = inner
                        .settings
                        .health
                        .sorted(addresses, name, Instant::now());
                    self.current = Some((stop, addresses));
                }
                Err(error) => failed = error,
            }
        }
    }

    /// The last place has failed.
    fn failed(&self, inner: &Inner) {
        let Some((gateway, remote)) = &self.last else {
            return;
        };
        let now = Instant::now();
        inner.settings.health.failed(&remote.to_string(), now);
        let others = self
            .current
            .as_ref()
            .is_some_and(|(_, left)| !left.is_empty());
        if !others {
            inner.settings.health.failed(&gateway.to_string(), now);
        }
    }
}

/// A call that can go elsewhere.
pub struct Redial {
    inner: Arc<Inner>,
    call: NewCall,
    hops: Hops,
    /// How often it was redirected.
    redirections: usize,
}

/// A call that has gone elsewhere.
pub struct Redialled {
    /// Its new leg.
    pub leg: Leg,
    /// Where the media of the other side may come from.
    pub peer: IpAddr,
    /// Whether only public addresses are meant.
    pub public_only: bool,
    /// What goes on from there.
    pub redial: Redial,
}

/// Calls whom the other side of a call wants in its place.
pub struct Elsewhere {
    inner: Arc<Inner>,
    shown: Shown,
}

/// Somebody who is called in the place of another.
pub struct Referred {
    /// The leg.
    pub leg: Leg,
    /// Where the media of the other side may come from.
    pub peer: IpAddr,
    /// Whether only public addresses are meant.
    pub public_only: bool,
}

impl Elsewhere {
    /// Of a call on this number of ours.
    pub(super) fn new(inner: &Arc<Inner>, ours: &str) -> Self {
        Self {
            inner: Arc::clone(inner),
            shown: Shown {
                from: ours.to_owned(),
                display_name: None,
                hides_caller: false,
            },
        }
    }

    /// Calls somebody, if they may be called.
    pub fn call(
        &self,
        wish: &ReferRequest,
        offer: String,
    ) -> Option<oneshot::Receiver<Option<Referred>>> {
        let referrals = self.inner.settings.referrals.as_ref()?;
        let (to, mut trunk) = referrals(&wish.uri)?;
        let replaces = wish.replaces.clone();
        trunk
            .headers
            .extend(replaces.map(|value| ("Replaces".to_owned(), value)));
        let mut hops = Hops {
            stops: VecDeque::from([Stop { trunk, to }]),
            current: None,
            last: None,
        };
        let (inner, shown) = (Arc::clone(&self.inner), self.shown.clone());
        let (done, referred) = oneshot::channel();
        tokio::spawn(async move {
            let dialled = hops.next(&inner).await.and_then(|hop| {
                let (peer, public_only) = (hop.remote.ip(), !hop.trunk.private);
                let leg = inner.dial(&shown, hop, offer)?;
                Ok(Referred {
                    leg,
                    peer,
                    public_only,
                })
            });
            let dialled = dialled.inspect_err(
                |error| tracing::warn!(%error, "whom a call is referred to cannot be called"),
            );
            // Nobody waits where the call has ended.
            if let Err(Some(referred)) = done.send(dialled.ok()) {
                referred.leg.cancel();
            }
        });
        Some(referred)
    }
}

/// Who is seen to call.
#[derive(Debug, Clone)]
struct Shown {
    from: String,
    display_name: Option<String>,
    hides_caller: bool,
}

impl From<&NewCall> for Shown {
    fn from(call: &NewCall) -> Self {
        Self {
            from: call.from.as_str().to_owned(),
            display_name: call.display_name.clone(),
            hides_caller: call.hides_caller,
        }
    }
}

impl Redial {
    /// Whether there is somewhere else.
    pub fn has_more(&self) -> bool {
        !self.hops.is_empty()
    }

    /// Goes to these URIs next, as far as it may; whether it may go to any.
    pub fn redirect(&mut self, contacts: &[String]) -> bool {
        let Some(redirects) = &self.inner.settings.redirects else {
            return false;
        };
        self.redirections += 1;
        if self.redirections > MOST_REDIRECTIONS {
            tracing::warn!("a call is redirected too often");
            return false;
        }
        let allowed = contacts.iter().filter_map(|contact| redirects(contact));
        let mut stops: VecDeque<Stop> = allowed.map(|(to, trunk)| Stop { trunk, to }).collect();
        if stops.is_empty() {
            tracing::warn!("a call is redirected to where it may not go (sip.allowed_hosts)");
            return false;
        }
        stops.append(&mut self.hops.stops);
        self.hops.stops = stops;
        self.hops.current = None;
        // It has not failed.
        self.hops.last = None;
        true
    }

    /// Somebody has answered at the last place.
    pub fn works(&self) {
        if let Some((gateway, remote)) = &self.hops.last {
            self.inner.settings.health.works(&gateway.to_string());
            self.inner.settings.health.works(&remote.to_string());
        }
    }

    /// Goes on at the next place.
    pub fn begin(mut self, offer: String) -> oneshot::Receiver<Option<Redialled>> {
        let (done, redialled) = oneshot::channel();
        tokio::spawn(async move {
            self.hops.failed(&self.inner);
            let redialled = match self.hops.next(&self.inner).await {
                Ok(hop) => self.at(hop, offer),
                Err(error) => {
                    tracing::info!(%error, "a call finds no other gateway");
                    None
                }
            };
            // Nobody waits where the call was given up.
            if let Err(Some(redialled)) = done.send(redialled) {
                redialled.leg.cancel();
            }
        });
        redialled
    }
}

impl Redial {
    /// Sends the INVITE there.
    fn at(self, hop: Hop, offer: String) -> Option<Redialled> {
        let (peer, public_only) = (hop.remote.ip(), !hop.trunk.private);
        let gateway = hop.trunk.gateway.to_string();
        match self.inner.dial(&Shown::from(&self.call), hop, offer) {
            Ok(leg) => {
                tracing::info!(gateway, "a call goes to the next gateway");
                Some(Redialled {
                    leg,
                    peer,
                    public_only,
                    redial: self,
                })
            }
            Err(error) => {
                tracing::warn!(gateway, %error, "a call cannot go to the next gateway");
                None
            }
        }
    }
}

/// Places a call.
pub(super) async fn place(
    inner: Arc<Inner>,
    call: NewCall,
    line: Line,
) -> Result<PlacedCall, CallError> {
    let inner = &inner;
    let call = inner.at_its_phone(call)?;
    let mut slot = inner.slot().ok_or_else(full)?;
    slot.permit = Some(line.permit);
    if !slot.enter(&call.room) {
        return Err(full_room());
    }
    let mut hops = Hops::new(inner, &call, Instant::now());
    let hop = hops.next(inner).await?;
    let mut media = inner.open(hop.reached.local_address().ip(), hop.remote.ip())?;
    media.public_only(!hop.trunk.private);
    if protocol(&hop.trunk).is_web() {
        media.for_browser();
    }
    let offer = media.offer();
    let sip_call_id = call_id();
    // Empty attributes are left out.
    let ends = if call.hides_numbers {
        Ends::default()
    } else {
        Ends {
            outside: call.to.as_str().to_owned(),
            ours: call.from.as_str().to_owned(),
            hostname: hop.trunk.gateway.host.clone(),
        }
    };
    let mut told = attributes::of_call(&sip_call_id, "dialing", &ends);
    told.extend(call.attributes.iter().cloned());
    if let Some(classify) = call.classify {
        media.classify(Wanted {
            network: networks::of_number(call.to.as_str()),
            beep_within: classify.beep_within,
        });
        told.retain(|(name, _)| name != attribute::CLASSIFIES);
        told.push((attribute::CLASSIFIES.to_owned(), "true".to_owned()));
    }
    let mut link = inner
        .join(Join {
            metadata: call.metadata.clone(),
            principal: call.principal.clone(),
            ..join(&call.room, &call.identity, &call.name, told)
        })
        .await?;
    let participant_sid = connected(&mut link).await?;
    // An outbound call: the room stays.
    inner.rooms.keep(&call.room).await;
    let gateway = hop.trunk.gateway.to_string();
    let leg = inner.dial(&Shown::from(&call), hop, offer)?;
    link.control
        .attributes(attributes::of_dialog(leg.call_id(), None));
    let limits = Limits {
        ringing: call.ringing_timeout,
        duration: call.max_duration,
    };
    let (handle, commands) = CallHandle::new(
        sip_call_id.clone(),
        Direction::Outbound,
        call.room.clone(),
        call.identity.clone(),
        Some(line.owner),
        gateway,
    );
    let dtmf = call.dtmf.clone();
    let elsewhere = Elsewhere {
        inner: Arc::clone(inner),
        shown: Shown::from(&call),
    };
    let redial = Redial {
        inner: Arc::clone(inner),
        call,
        hops,
        redirections: 0,
    };
    let task = Task {
        call: Call::outbound(limits, redial.has_more(), Instant::now()),
        leg,
        media,
        membership: Membership::Joined(link),
        redial: Some(redial),
        elsewhere,
        answer: None,
        dtmf,
        handle,
        commands,
        rooms: Arc::clone(&inner.rooms),
        news: inner.news.clone(),
    };
    inner.run(task, slot);
    Ok(PlacedCall {
        participant_sid,
        sip_call_id,
    })
}

impl Inner {
    /// The call of a telephone that is registered here goes to where it is, and its URI is that of the telephone's `Contact`.
    fn at_its_phone(&self, mut call: NewCall) -> Result<NewCall, CallError> {
        let Callee::Phone { user, tenant } = &call.to else {
            return Ok(call);
        };
        let found = self
            .agent
            .phones()
            .find(user, tenant.as_ref(), Instant::now());
        let found = found.ok_or_else(|| {
            let message = "no telephone of this name is registered";
            CallError::new(CallErrorKind::Unavailable, message)
        })?;
        call.trunk = Trunk {
            gateway: found.host,
            transport: match found.protocol {
                Protocol::Udp => SipTransport::Udp,
                Protocol::Tcp | Protocol::Ws => SipTransport::Tcp,
                Protocol::Tls | Protocol::Wss => SipTransport::Tls,
            },
            // What its Contact and its SDP say may be behind a NAT: it is reached where it has registered from.
            private: false,
            via: Some(Via {
                at: Gateway {
                    host: found.source.ip().to_string(),
                    port: Some(found.source.port()),
                },
                routed: false,
                over_websocket: found.protocol.is_web(),
            }),
            ..call.trunk
        };
        call.to = Callee::User(found.user);
        call.alternatives.clear();
        Ok(call)
    }

    /// The addresses of a gateway, or of the place by which it is reached.
    pub(super) async fn addresses(&self, trunk: &Trunk) -> Result<Vec<SocketAddr>, CallError> {
        let protocol = protocol(trunk);
        let gateway = trunk.via.as_ref().map_or(&trunk.gateway, |via| &via.at);
        let is_phone = trunk.via.as_ref().is_some_and(|via| !via.routed);
        let addresses = resolve::addresses(&gateway.host, gateway.port, protocol).await;
        let addresses = addresses.map_err(|error| {
            let message = format!("cannot resolve the gateway {gateway}: {error}");
            CallError::new(CallErrorKind::Unavailable, message)
        })?;
        if !trunk.private && !is_phone && !addresses.iter().all(|address| is_public(address.ip())) {
            return Err(CallError::new(
                CallErrorKind::Refused,
                format!(
                    "sip.outbound_address: the gateway {gateway} must have a public address, unless \
                     sip.allow_private_outbound says otherwise"
                ),
            ));
        }
        Ok(addresses)
    }

    /// Opens a flow to an address of a gateway.
    pub(super) async fn flow(
        &self,
        trunk: &Trunk,
        remote: SocketAddr,
    ) -> Result<Reached, CallError> {
        let gateway = trunk.via.as_ref().map_or(&trunk.gateway, |via| &via.at);
        let reached = self
            .agent
            .reach(protocol(trunk), remote, &gateway.host)
            .await;
        reached.map_err(|problem| {
            let message = format!("cannot reach the gateway {gateway}: {problem}");
            CallError::new(CallErrorKind::Unavailable, message)
        })
    }

    fn open(&self, local: IpAddr, peer: IpAddr) -> Result<CallMedia, CallError> {
        self.media
            .open(local, peer)
            .map_err(|error| CallError::new(CallErrorKind::Full, error.to_string()))
    }

    async fn join(&self, join: Join) -> Result<RoomLink, CallError> {
        let joined = self.rooms.join(join).await;
        joined.map_err(|error| CallError::new(CallErrorKind::Unavailable, error))
    }

    fn dial(&self, shown: &Shown, hop: Hop, offer: String) -> Result<Leg, CallError> {
        let Hop {
            trunk,
            to,
            reached,
            remote,
        } = hop;
        let proxy = trunk.via.as_ref().filter(|via| via.routed);
        let login = trunk.login.as_ref();
        let outbound = Outbound {
            protocol: protocol(&trunk),
            remote,
            host: trunk.gateway.to_string(),
            proxy: proxy.map(|via| via.at.to_string()),
            identity: trunk.identity,
            hides_caller: shown.hides_caller,
            to: to.as_str().to_owned(),
            from: shown.from.clone(),
            from_domain: trunk.from_domain.clone(),
            display_name: shown.display_name.clone(),
            credentials: login.map(|login| Credentials {
                username: login.username.clone(),
                password: login.password.expose().to_owned(),
            }),
            headers: trunk.headers.clone(),
            private: trunk.private,
        };
        let leg = self.agent.call(reached, outbound, offer);
        leg.map_err(|error| CallError::new(CallErrorKind::Refused, format!("the number {error}")))
    }
}

/// Waits until a participant has joined its room; returns its sid.
async fn connected(link: &mut RoomLink) -> Result<String, CallError> {
    let unavailable = |message: String| CallError::new(CallErrorKind::Unavailable, message);
    let first = timeout(JOIN_PATIENCE, link.events.next()).await;
    match first {
        Ok(Some(LinkEvent::Connected { sid, .. })) => Ok(sid),
        Ok(Some(LinkEvent::Ended(ending))) => Err(unavailable(ending.to_string())),
        Ok(_) => Err(unavailable("the room was left".to_owned())),
        Err(_) => Err(unavailable("joining the room timed out".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_failed_comes_last_for_a_while() {
        let health = Health::default();
        let now = Instant::now();
        let sorted = |now| {
            let places = vec!["a", "b", "c"];
            Vec::from(health.sorted(places, |place| (*place).to_owned(), now))
        };
        assert_eq!(sorted(now), ["a", "b", "c"]);
        health.failed("a", now);
        assert_eq!(sorted(now), ["b", "c", "a"]);
        // All that there are, however they are.
        for place in ["b", "c"] {
            health.failed(place, now);
        }
        assert_eq!(sorted(now), ["a", "b", "c"]);
        health.works("c");
        assert_eq!(sorted(now), ["c", "a", "b"]);
        assert_eq!(sorted(now + REST), ["a", "b", "c"]);
    }
}
