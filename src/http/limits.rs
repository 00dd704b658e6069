//! How often somebody may ask, and how many sessions a tenant may have. Both are off until they are set; how much the
//! server does in all is bounded where it is done.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::{HttpRequest, ResponseError, web};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use governor::clock::{Clock, DefaultClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use super::error::{ApiError, Code};
use super::peer::TrustedProxies;
use crate::auth::{Access, TenantId};
use crate::config::Settings;

/// Paths that are asked by machines, often, and whatever happens.
pub const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

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
    sessions: TenantSessions,
}

impl Limits {
    /// The limits that the settings name.
    pub fn new(settings: &Settings) -> Self {
        let per_second = settings.limits.requests_per_second;
        Self {
            proxies: TrustedProxies::new(settings.server.trusted_proxies.0.clone()),
            requests: per_second
                .map(|per_second| RequestRate::new(per_second, DefaultClock::default())),
            sessions: TenantSessions::new(settings.limits.sessions_per_tenant),
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
        access
            .tenant()
            .map_or(Ok(None), |tenant| self.sessions.take(tenant))
    }

    fn admit_address(&self, request: &HttpRequest) -> Result<(), ApiError> {
        let Some(rate) = &self.requests else {
            return Ok(());
        };
        match self.proxies.caller(request) {
            Some(address) => rate.admit(Caller::from(address)),
            None => Ok(()),
        }
    }
}

/// The middleware that counts requests by address, before anything is done for them. [`PROBES`] are not counted.
pub async fn by_address(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let limits = request.app_data::<web::Data<Limits>>();
    let refused = limits
        .filter(|_| !PROBES.contains(&request.path()))
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

impl From<IpAddr> for Caller {
    /// Whoever has an IPv6 address has a network of them.
    fn from(address: IpAddr) -> Self {
        Self::Address(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }
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

/// The live sessions of each tenant.
struct TenantSessions {
    limit: Option<NonZeroU32>,
    live: Arc<DashMap<TenantId, u32>>,
}

/// One of a tenant's sessions, as long as it is kept.
pub struct TenantPlace {
    tenant: TenantId,
    live: Arc<DashMap<TenantId, u32>>,
}

impl TenantSessions {
    fn new(limit: Option<NonZeroU32>) -> Self {
        Self {
            limit,
            live: Arc::default(),
        }
    }

    fn take(&self, tenant: &TenantId) -> Result<Option<TenantPlace>, ApiError> {
        let Some(limit) = self.limit else {
            return Ok(None);
        };
        match self.live.entry(tenant.clone()) {
            Entry::Occupied(live) if *live.get() >= limit.get() => {
                let full = "this tenant has as many sessions as limits.sessions_per_tenant allows";
                return Err(ApiError::new(Code::RateLimited, full).retry_after(SESSION_PATIENCE));
            }
            Entry::Occupied(mut live) => *live.get_mut() += 1,
            Entry::Vacant(place) => drop(place.insert(1)),
        }
        Ok(Some(TenantPlace {
            tenant: tenant.clone(),
            live: Arc::clone(&self.live),
        }))
    }
}

impl Drop for TenantPlace {
    fn drop(&mut self) {
        self.live.remove_if_mut(&self.tenant, |_, live| {
            *live -= 1;
            *live == 0
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
        Caller::from(IpAddr::from([192, 0, 2, last]))
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
        let of = |text: &str| Caller::from(text.parse::<IpAddr>().unwrap());
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
    fn a_tenant_has_so_many_sessions_until_one_ends() {
        let sessions = TenantSessions::new(NonZeroU32::new(2));
        let first = sessions.take(&tenant("a")).unwrap();
        let _second = sessions.take(&tenant("a")).unwrap();
        let refused = sessions.take(&tenant("a")).err().unwrap().error_response();
        assert_eq!(refused.status(), 429);
        assert!(sessions.take(&tenant("b")).is_ok());
        drop(first);
        let third = sessions.take(&tenant("a")).unwrap();
        assert!(third.is_some() && sessions.take(&tenant("a")).is_err());
    }

    #[test]
    fn nothing_is_kept_of_tenants_without_sessions() {
        let sessions = TenantSessions::new(NonZeroU32::new(2));
        drop((sessions.take(&tenant("a")), sessions.take(&tenant("a"))));
        assert!(sessions.live.is_empty());
        assert!(
            TenantSessions::new(None)
                .take(&tenant("a"))
                .unwrap()
                .is_none()
        );
    }
}
