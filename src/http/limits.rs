//! How often somebody may ask, how many sessions a tenant may have, and how many connections and idle sockets an address.
//! How much the server does in all is bounded where it is done.

use std::any::Any;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv6Addr, Shutdown};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{Extensions, ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{HttpRequest, ResponseError, web};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use governor::clock::{Clock, DefaultClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use socket2::SockRef;

use super::error::{ApiError, Code};
use super::peer::TrustedProxies;
use super::socket;
use crate::auth::{Access, TenantId};
use crate::config::Settings;

/// Paths that are asked by machines, often, and whatever happens.
pub const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Callers that are counted each for itself. Those beyond it share [`SHARED_PLACES`] places.
const MAX_CALLERS: usize = 65_536;
const SHARED_PLACES: u64 = 1024;
/// How often those who have not asked for long are forgotten, at most.
const FORGETTING: Duration = Duration::from_secs(1);
/// How long a tenant with too many sessions is asked to wait: somebody must hang up first.
const SESSION_PATIENCE: Duration = Duration::from_secs(5);

/// The limits of one server.
pub struct Limits {
    proxies: TrustedProxies,
    requests: Option<RequestRate<DefaultClock>>,
    sessions: Shares<TenantId>,
    connections: Shares<IpAddr>,
    unconfigured: Shares<IpAddr>,
}

/// One of a tenant's sessions, as long as it is kept.
pub type TenantPlace = Share<TenantId>;
/// One of what an address may have, as long as it is kept.
pub type AddressPlace = Share<IpAddr>;

impl Limits {
    /// The limits that the settings name.
    pub fn new(settings: &Settings) -> Self {
        let per_second = settings.limits.requests_per_second;
        Self {
            proxies: TrustedProxies::new(settings.server.trusted_proxies.0.clone()),
            requests: per_second
                .map(|per_second| RequestRate::new(per_second, DefaultClock::default())),
            sessions: Shares::new(settings.limits.sessions_per_tenant),
            connections: Shares::new(NonZeroU32::new(settings.limits.connections_per_address)),
            unconfigured: Shares::new(Some(a_quarter(settings.limits.unconfigured_sockets))),
        }
    }

    /// Counts a request of a tenant, beside what is counted of its address.
    pub fn admit_tenant(&self, access: &Access) -> Result<(), ApiError> {
        match (&self.requests, access.tenant()) {
            (Some(rate), Some(tenant)) => rate.admit(Caller::Tenant(tenant.clone())),
            _ => Ok(()),
        }
    }

    /// A place for one more session of a tenant; those of nobody are counted in all only.
    pub fn place_for(&self, access: &Access) -> Result<Option<TenantPlace>, ApiError> {
        let Some(tenant) = access.tenant() else {
            return Ok(None);
        };
        self.sessions.take(tenant.clone()).map_err(|Full| {
            let full = "this tenant has as many sessions as limits.sessions_per_tenant allows";
            ApiError::new(Code::RateLimited, full).retry_after(SESSION_PATIENCE)
        })
    }

    /// A place for one more socket without config from the request's address: none has more than a quarter of them all.
    pub fn unconfigured_place(
        &self,
        request: &HttpRequest,
    ) -> Result<Option<AddressPlace>, ApiError> {
        let Some(address) = self.caller(request) else {
            return Ok(None);
        };
        self.unconfigured.take(address).map_err(|Full| {
            let full = "this address has a quarter of the sockets without config that \
                        limits.unconfigured_sockets allows";
            ApiError::new(Code::RateLimited, full).retry_after(Duration::from_secs(1))
        })
    }

    /// For `HttpServer::on_connect`: whether there may be one more connection from its address; if not, it is cut. Our
    /// proxies bring those of many.
    pub fn admit_connection(&self, io: &dyn Any, extensions: &mut Extensions) -> bool {
        let Some(tcp) = socket::tcp(io) else {
            return true;
        };
        let Ok(peer) = tcp.peer_addr() else {
            return true;
        };
        let peer = peer.ip().to_canonical();
        if self.proxies.trust(peer) {
            return true;
        }
        match self.connections.take(network(peer)) {
            Ok(place) => {
                extensions.insert(place);
                true
            }
            Err(Full) => {
                tracing::debug!(
                    "an address has as many connections as limits.connections_per_address allows"
                );
                let tcp = SockRef::from(tcp);
                // Fails when the client has gone first, which is what we want.
                let _ = tcp.set_linger(Some(Duration::ZERO));
                let _ = tcp.shutdown(Shutdown::Both);
                false
            }
        }
    }

    /// Whose request it is: an address, or the network of one; `None` where the connection has none.
    pub fn caller(&self, request: &HttpRequest) -> Option<IpAddr> {
        self.proxies.caller(request).map(network)
    }

    fn admit_address(&self, request: &HttpRequest) -> Result<(), ApiError> {
        let Some(rate) = &self.requests else {
            return Ok(());
        };
        match self.caller(request) {
            Some(address) => rate.admit(Caller::Address(address)),
            None => Ok(()),
        }
    }
}

/// The path of a request as routes are found by it: what is encoded needlessly is decoded.
pub fn path(request: &HttpRequest) -> &str {
    request.match_info().as_str()
}

/// Whoever has an IPv6 address has a network of them.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// Of so many; never none.
fn a_quarter(all: usize) -> NonZeroU32 {
    let quarter = u32::try_from(all / 4).unwrap_or(u32::MAX);
    NonZeroU32::new(quarter).unwrap_or(NonZeroU32::MIN)
}

/// The middleware that counts requests by address, before anything is done for them. [`PROBES`] are not counted.
pub async fn by_address(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let limits = request.app_data::<web::Data<Limits>>();
    let refused = limits
        .filter(|_| !PROBES.contains(&path(request.request())))
        .and_then(|limits| limits.admit_address(request.request()).err());
    match refused {
        Some(refused) => Ok(request.into_response(refused.error_response())),
        None => next.call(request).await,
    }
}

/// Who is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Caller {
    Tenant(TenantId),
    Address(IpAddr),
    /// One of the places for those beyond [`MAX_CALLERS`].
    Shared(u64),
}

/// Requests per second of each caller, and twice as many at once after a rest.
struct RequestRate<C: Clock> {
    callers: RateLimiter<Caller, DashMapStateStore<Caller>, C, NoOpMiddleware<C::Instant>>,
    started: C::Instant,
    /// Since the start.
    forgotten_ms: AtomicU64,
    /// Secret to this process, so that nobody can choose whom to share a place with.
    places: std::hash::RandomState,
    max_callers: usize,
}

impl<C: Clock> RequestRate<C> {
    fn new(per_second: NonZeroU32, clock: C) -> Self {
        let burst = per_second.saturating_mul(const { NonZeroU32::new(2).unwrap() });
        let quota = Quota::per_second(per_second).allow_burst(burst);
        Self {
            started: clock.now(),
            callers: RateLimiter::dashmap_with_clock(quota, clock),
            forgotten_ms: AtomicU64::new(0),
            places: std::hash::RandomState::new(),
            max_callers: MAX_CALLERS,
        }
    }

    fn admit(&self, caller: Caller) -> Result<(), ApiError> {
        let now = self.callers.clock().now();
        let caller = if self.has_room(now) {
            caller
        } else {
            Caller::Shared(self.places.hash_one(&caller) % SHARED_PLACES)
        };
        self.callers.check_key(&caller).map_err(|refused| {
            let whose = match caller {
                Caller::Tenant(_) => "of this tenant",
                Caller::Address(_) | Caller::Shared(_) => "from this address",
            };
            let message =
                format!("there are more requests {whose} than limits.requests_per_second allows");
            ApiError::new(Code::RateLimited, message).retry_after(refused.wait_time_from(now))
        })
    }

    /// Whether one more caller may be counted for itself, after those were forgotten who have not asked for long.
    fn has_room(&self, now: C::Instant) -> bool {
        if self.callers.len() < self.max_callers {
            return true;
        }
        let now_ms = Duration::from(now.duration_since(self.started)).as_millis() as u64;
        let last_ms = self.forgotten_ms.load(Relaxed);
        let due = now_ms.saturating_sub(last_ms) >= FORGETTING.as_millis() as u64;
        let mine = |last_ms| {
            self.forgotten_ms
                .compare_exchange(last_ms, now_ms, Relaxed, Relaxed)
                .is_ok()
        };
        if due && mine(last_ms) {
            self.callers.retain_recent();
        }
        self.callers.len() < self.max_callers
    }
}

/// How many of something each may have at once; as many as it likes without a limit.
struct Shares<K: Eq + Hash> {
    limit: Option<NonZeroU32>,
    held: Arc<DashMap<K, u32>>,
}

/// One of somebody's, as long as it is kept.
pub struct Share<K: Eq + Hash> {
    holder: K,
    held: Arc<DashMap<K, u32>>,
}

/// Somebody has as many as it may.
#[derive(Debug)]
struct Full;

impl<K: Eq + Hash + Clone> Shares<K> {
    fn new(limit: Option<NonZeroU32>) -> Self {
        Self {
            limit,
            held: Arc::default(),
        }
    }

    fn take(&self, holder: K) -> Result<Option<Share<K>>, Full> {
        let Some(limit) = self.limit else {
            return Ok(None);
        };
        match self.held.entry(holder.clone()) {
            Entry::Occupied(held) if *held.get() >= limit.get() => return Err(Full),
            Entry::Occupied(mut held) => *held.get_mut() += 1,
            Entry::Vacant(place) => drop(place.insert(1)),
        }
        let held = Arc::clone(&self.held);
        Ok(Some(Share { holder, held }))
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        self.held.remove_if_mut(&self.holder, |_, held| {
            *held -= 1;
            *held == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use governor::clock::FakeRelativeClock;

    fn rate(per_second: u32) -> (RequestRate<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let per_second = NonZeroU32::new(per_second).unwrap();
        (RequestRate::new(per_second, clock.clone()), clock)
    }

    fn address(last: u8) -> Caller {
        Caller::Address(IpAddr::from([192, 0, 2, last]))
    }

    fn tenant(id: &str) -> TenantId {
        TenantId::new(id).unwrap()
    }

    fn admitted(rate: &RequestRate<FakeRelativeClock>, caller: &Caller, times: usize) -> usize {
        let admit = |_: &usize| rate.admit(caller.clone()).is_ok();
        (0..times).filter(admit).count()
    }

    #[test]
    fn a_caller_may_ask_so_often_per_second_and_twice_at_once() {
        let (rate, clock) = rate(5);
        assert_eq!(admitted(&rate, &address(1), 20), 10);
        clock.advance(Duration::from_secs(1));
        assert_eq!(admitted(&rate, &address(1), 20), 5);
        // What somebody else does is another count.
        assert_eq!(admitted(&rate, &address(2), 20), 10);
        assert_eq!(admitted(&rate, &Caller::Tenant(tenant("a")), 20), 10);
    }

    #[test]
    fn a_refusal_says_when_to_come_again() {
        let (rate, _clock) = rate(1);
        admitted(&rate, &address(1), 2);
        let refused = rate.admit(address(1)).unwrap_err().error_response();
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers().get("retry-after").unwrap(), "1");
    }

    #[test]
    fn a_network_of_ipv6_is_one_caller() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:3:4:5:6"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    }

    #[test]
    fn callers_are_forgotten_and_never_more_than_are_counted() {
        let (mut rate, clock) = rate(1);
        rate.max_callers = 10;
        for last in 0..200 {
            let _ = rate.admit(address(last));
        }
        let most = 10 + SHARED_PLACES as usize;
        assert!(
            (11..=most).contains(&rate.callers.len()),
            "{}",
            rate.callers.len()
        );
        clock.advance(Duration::from_secs(10));
        assert_eq!(admitted(&rate, &address(201), 5), 2);
        assert_eq!(rate.callers.len(), 1);
    }

    #[test]
    fn each_has_so_many_until_one_ends() {
        let sessions = Shares::new(NonZeroU32::new(2));
        let first = sessions.take("a").unwrap();
        let _second = sessions.take("a").unwrap();
        assert!(sessions.take("a").is_err());
        assert!(sessions.take("b").is_ok());
        drop(first);
        let third = sessions.take("a").unwrap();
        assert!(third.is_some() && sessions.take("a").is_err());
    }

    #[test]
    fn nothing_is_kept_of_those_who_have_none() {
        let sessions = Shares::new(NonZeroU32::new(2));
        drop((sessions.take("a"), sessions.take("a")));
        assert!(sessions.held.is_empty());
        assert!(Shares::new(None).take("a").unwrap().is_none());
    }

    #[test]
    fn a_quarter_is_at_least_one() {
        for (all, quarter) in [(200, 50), (3, 1), (1, 1), (usize::MAX, u32::MAX)] {
            assert_eq!(a_quarter(all).get(), quarter);
        }
    }
}
