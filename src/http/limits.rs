//! Limits per caller: the request rate, the number of a tenant's sessions, and the party that connections, sockets and
//! bodies are counted for. Limits of the server as a whole are enforced where the resources are used.

use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpRequest, ResponseError, web};
use arc_swap::ArcSwapOption;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use governor::RateLimiter;
use governor::clock::{Clock, DefaultClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;

use super::connections;
use super::error::{ApiError, Code};
use super::peer::TrustedProxies;
use vivavoce_auth::{Access, TenantId};
use vivavoce_config::Settings;
use vivavoce_quotas::shared_limit::{Exceeded, Permit, SharedLimit, Size};
use vivavoce_quotas::{self as quotas, Party, Quotas};
use vivavoce_telemetry::metrics;

/// Paths that are polled by machines and must always work.
pub const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Callers with rate limiters of their own. All others share [`SHARED_PLACES`] limiters.
const MAX_CALLERS: usize = 65_536;
const SHARED_PLACES: u64 = 1024;
/// The minimum interval at which idle callers are forgotten.
const FORGETTING: Duration = Duration::from_secs(1);
/// The `Retry-After` of a tenant with too many sessions: one must end first.
const SESSION_PATIENCE: Duration = Duration::from_secs(5);

/// The limits of a server.
pub struct Limits {
    proxies: TrustedProxies,
    /// Whether loopback clients need no token.
    loopback_is_trusted: bool,
    requests: ArcSwapOption<RequestRate<DefaultClock>>,
    sessions: quotas::Quota,
    unconfigured: Arc<SharedLimit>,
    unfinished_bodies: Arc<SharedLimit>,
}

/// How a limit of this size is shared.
pub fn size(settings: &Settings, total: usize) -> Size {
    let limits = &settings.limits;
    let unauthenticated = if settings.auth.required {
        limits.unauthenticated_percent.of(total)
    } else {
        // Nobody can authenticate, so nothing is reserved for authenticated callers.
        total
    };
    Size {
        total,
        unauthenticated,
        per_key: limits.caller_percent.of(total),
    }
}

impl Limits {
    /// The limits configured in the settings.
    pub fn new(settings: &Settings, quotas: &Quotas) -> Self {
        let limits = &settings.limits;
        let shared = |total| SharedLimit::new(size(settings, total));
        let unfinished = usize::try_from(limits.unfinished_body_bytes.0).unwrap_or(usize::MAX);
        Self {
            proxies: TrustedProxies::new(settings.server.trusted_proxies.0.clone()),
            loopback_is_trusted: !settings.auth.required,
            requests: ArcSwapOption::new(request_rate(settings)),
            sessions: quotas.sessions.clone(),
            unconfigured: shared(limits.unconfigured_sockets),
            unfinished_bodies: shared(unfinished),
        }
    }

    /// Takes the request rate of other settings; everybody begins anew with it.
    pub fn reload(&self, settings: &Settings) {
        self.requests.store(request_rate(settings));
    }

    /// Counts a request of a tenant, in addition to the one of its address.
    pub fn admit_tenant(&self, access: &Access) -> Result<(), ApiError> {
        match (&*self.requests.load(), access.tenant()) {
            (Some(rate), Some(tenant)) => rate.admit(Caller::Tenant(tenant.clone())),
            _ => Ok(()),
        }
    }

    /// A permit for another session.
    pub fn session(&self, access: &Access) -> Result<quotas::Permit, ApiError> {
        let place = self.sessions.take(&access.party());
        place.map_err(|refused| ApiError::from(refused).retry_after(SESSION_PATIENCE))
    }

    /// A permit for another socket without `config`.
    pub fn unconfigured_socket(&self, request: &HttpRequest) -> Result<Permit, ApiError> {
        let key = self.party(request);
        let setting = "limits.unconfigured_sockets";
        one(&self.unconfigured, key, setting, "sockets without config")
    }

    /// The permit for the memory of an unfinished body, initially empty.
    pub fn unfinished_body(&self, request: &HttpRequest) -> Permit {
        self.unfinished_bodies.empty(self.party(request))
    }

    /// The address or network that a request comes from; `None` if the connection has none.
    pub fn caller(&self, request: &HttpRequest) -> Option<IpAddr> {
        self.proxies.caller(request).map(network)
    }

    /// Whether a trusted proxy says that the client came to it by TLS.
    pub fn came_by_tls(&self, request: &HttpRequest) -> bool {
        self.proxies.came_by_tls(request)
    }

    /// Where a request comes from.
    pub fn address(&self, request: &HttpRequest) -> Option<IpAddr> {
        self.proxies.caller(request)
    }

    /// The same while authentication is off: loopback clients and trusted proxies do not count as strangers.
    pub fn stranger(&self, request: &HttpRequest) -> Option<IpAddr> {
        let address = self.proxies.caller(request)?;
        let is_ours = address.is_loopback() || self.proxies.trust(address);
        (!is_ours).then(|| network(address))
    }

    /// The party that a request's resources are counted for. It is known once [`authenticated`] has been called.
    pub fn party(&self, request: &HttpRequest) -> Party {
        if let Some(known) = request.extensions().get::<Party>() {
            return known.clone();
        }
        let Some(address) = self.proxies.caller(request) else {
            return Party::Operator;
        };
        let own = self.loopback_is_trusted && address.is_loopback();
        if own || self.proxies.trust(address) {
            Party::Operator
        } else {
            Party::Address(network(address))
        }
    }

    fn admit_address(&self, request: &HttpRequest) -> Result<(), ApiError> {
        let Some(rate) = &*self.requests.load() else {
            return Ok(());
        };
        match self.caller(request) {
            Some(address) => rate.admit(Caller::Address(address)),
            None => Ok(()),
        }
    }
}

fn request_rate(settings: &Settings) -> Option<Arc<RequestRate<DefaultClock>>> {
    let per_second = settings.limits.requests_per_second?;
    let rate = RequestRate::new(per_second, DefaultClock::default());
    Some(Arc::new(rate))
}

/// The request has been authenticated, possibly as a tenant, whose connections are limited to a share of all.
pub fn authenticated(
    request: &HttpRequest,
    tenant: Option<&TenantId>,
) -> Result<(), quotas::Refused> {
    let party = Party::of_tenant(tenant);
    connections::authenticated(request, &party)?;
    request.extensions_mut().insert(party);
    Ok(())
}

/// Takes one of a limit; the error names its setting.
fn one(
    limit: &Arc<SharedLimit>,
    key: Party,
    setting: &'static str,
    what: &str,
) -> Result<Permit, ApiError> {
    limit.acquire(key, 1).map_err(|exceeded| {
        metrics::limit_reached(setting);
        let (code, message) = match exceeded {
            Exceeded::Total => (
                Code::Overloaded,
                format!("there are as many {what} as {setting} allows"),
            ),
            Exceeded::Unauthenticated => (
                Code::Overloaded,
                format!(
                    "there are as many {what} of callers without a token as {setting} and \
                     limits.unauthenticated_percent allow"
                ),
            ),
            Exceeded::PerKey => (
                Code::RateLimited,
                format!(
                    "this caller has as many {what} as {setting} and limits.caller_percent allow"
                ),
            ),
        };
        ApiError::new(code, message).retry_after(Duration::from_secs(1))
    })
}

/// The path as routes are matched against it: unnecessary percent-encoding is removed.
pub fn path(request: &HttpRequest) -> &str {
    request.match_info().as_str()
}

/// A host with IPv6 has a whole network, so the network is counted.
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The middleware that limits requests by address before anything else is done. [`PROBES`] are exempt, and so is `/`, where
/// load balancers and LiveKit's clients ask whether a server is there.
pub async fn by_address(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let limits = request.app_data::<web::Data<Limits>>();
    let refused = limits
        .filter(|_| {
            let path = path(request.request());
            path != "/" && !PROBES.contains(&path)
        })
        .and_then(|limits| limits.admit_address(request.request()).err());
    match refused {
        Some(refused) => Ok(request.into_response(refused.error_response())),
        None => next.call(request).await,
    }
}

/// The key of a rate limiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Caller {
    Tenant(TenantId),
    Address(IpAddr),
    /// One of the limiters shared by those beyond [`MAX_CALLERS`].
    Shared(u64),
}

/// A token bucket per caller: a number of requests per second, with bursts of twice that.
struct RequestRate<C: Clock> {
    callers: RateLimiter<Caller, DashMapStateStore<Caller>, C, NoOpMiddleware<C::Instant>>,
    started: C::Instant,
    /// Since the start.
    forgotten_ms: AtomicU64,
    /// Secret, so that nobody can choose whom to share a limiter with.
    places: std::hash::RandomState,
    max_callers: usize,
}

impl<C: Clock> RequestRate<C> {
    fn new(per_second: NonZeroU32, clock: C) -> Self {
        let burst = per_second.saturating_mul(const { NonZeroU32::new(2).unwrap() });
        let quota = governor::Quota::per_second(per_second).allow_burst(burst);
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

    /// Whether another caller may have a limiter of its own, after idle ones have been forgotten.
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

/// A limit per key; unlimited if not configured.
pub struct Shares<K: Eq + Hash> {
    limit: Option<NonZeroU32>,
    held: Arc<DashMap<K, u32>>,
}

/// A permit for one.
pub struct Share<K: Eq + Hash> {
    holder: K,
    held: Arc<DashMap<K, u32>>,
}

/// The key has the maximum.
#[derive(Debug)]
pub struct Full;

impl<K: Eq + Hash + Clone> Shares<K> {
    /// With this maximum per key.
    pub fn new(limit: Option<NonZeroU32>) -> Self {
        Self {
            limit,
            held: Arc::default(),
        }
    }

    /// Takes one; `None` without a limit.
    pub fn take(&self, holder: K) -> Result<Option<Share<K>>, Full> {
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
    use actix_web::test::TestRequest;
    use governor::clock::FakeRelativeClock;
    use std::collections::HashMap;
    use vivavoce_config::Config;

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
        // Other keys are counted separately.
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

    fn limits(settings: &[(&str, &str)]) -> Limits {
        let flags: Vec<_> = settings
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
            .collect();
        let config = Config::from_sources(&flags, &HashMap::new(), None).unwrap();
        Limits::new(&config.settings, &Quotas::new(&config.settings))
    }

    const LOCKED: [(&str, &str); 2] = [("auth.required", "true"), ("auth.api_secret", "house")];

    fn from(peer: &str, forwarded: &str) -> HttpRequest {
        let request = TestRequest::default().peer_addr(peer.parse().unwrap());
        let request = request.append_header(("x-forwarded-for", forwarded));
        request.to_http_request()
    }

    #[actix_web::test]
    async fn unauthenticated_sockets_leave_places_for_good_tokens() {
        let limits = limits(&[&LOCKED[..], &[("limits.unconfigured_sockets", "8")]].concat());
        let mut held = Vec::new();
        for last in 1..=100 {
            let stranger = from(&format!("192.0.2.{last}:1"), "");
            held.extend(limits.unconfigured_socket(&stranger).ok());
        }
        assert_eq!(held.len(), 6);
        let known = from("192.0.2.1:1", "");
        authenticated(&known, None).unwrap();
        held.extend([(); 2].map(|()| limits.unconfigured_socket(&known).unwrap()));
        let full = limits
            .unconfigured_socket(&known)
            .unwrap_err()
            .error_response();
        assert_eq!(full.status(), 503);
    }

    #[actix_web::test]
    async fn an_address_has_its_part_of_sessions_and_a_network_of_ipv6_is_one() {
        let limits = limits(&[&LOCKED[..], &[("limits.sessions", "8")]].concat());
        let session = |peer: &str| {
            let address = limits.caller(&from(peer, ""));
            limits.session(&Access::public().counted_by(address))
        };
        let held: Vec<_> = (1..9)
            .map_while(|last| session(&format!("[2001:db8::{last}]:1")).ok())
            .collect();
        assert!(held.len() < 6, "{} of one network", held.len());
        let refused = session("[2001:db8::9]:9").unwrap_err();
        assert_eq!(refused.error_response().status(), 429);
        assert!(session("[2001:db8:0:1::1]:1").is_ok());
    }

    #[actix_web::test]
    async fn whose_share_it_is_depends_on_who_needs_a_token_and_whose_word_is_believed() {
        let proxy = [("server.trusted_proxies", "10.0.0.0/8")];
        let of = |locked: bool, peer, forwarded| {
            let locked = if locked { &LOCKED[..] } else { &[] };
            limits(&[locked, &proxy].concat()).party(&from(peer, forwarded))
        };
        let stranger = |text: &str| Party::Address(text.parse().unwrap());
        for (locked, peer, forwarded, key) in [
            (true, "192.0.2.1:1", "192.0.2.9", stranger("192.0.2.1")),
            (true, "127.0.0.1:1", "192.0.2.9", stranger("127.0.0.1")),
            (true, "10.1.1.1:1", "192.0.2.9", stranger("192.0.2.9")),
            (true, "10.1.1.1:1", "10.2.2.2", Party::Operator),
            (false, "127.0.0.1:1", "192.0.2.9", Party::Operator),
            (false, "[::1]:1", "", Party::Operator),
            (false, "192.0.2.1:1", "127.0.0.1", stranger("192.0.2.1")),
        ] {
            assert_eq!(of(locked, peer, forwarded), key, "{peer} {forwarded}");
        }
    }

    #[actix_web::test]
    async fn a_load_generator_on_this_machine_has_all_there_is() {
        let limits = limits(&[
            ("limits.sessions", "8"),
            ("limits.unconfigured_sockets", "8"),
        ]);
        let own = from("127.0.0.1:1", "");
        let access = Access::anonymous().counted_by(limits.stranger(&own));
        let sessions = [(); 8].map(|()| limits.session(&access).unwrap());
        let sockets = [(); 8].map(|()| limits.unconfigured_socket(&own).unwrap());
        drop((sessions, sockets));
    }
}
