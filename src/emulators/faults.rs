//! Fault injection: the list of faults, their notation (`deepgram:stt:close=1011@3s`), and which of them a connection gets.
//! Pure: the connection's [`Gate`] says when something may be sent and when the connection is cut; cutting, and the vendor's
//! own error bodies, are done elsewhere.

use std::fmt;
use std::mem::discriminant;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::clock::{self, Clock};
use super::{Direction, Vendor};

/// Faults that may be listed at once.
pub const MAX_FAULTS: usize = 100;

/// When a refused client shall come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// The vendor does not say.
    Absent,
    /// `Retry-After` in seconds.
    Seconds(u64),
    /// `Retry-After` as a date so many seconds from now.
    Date(u64),
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// `refuse`: the connection is reset instead of answered.
    Refuse,
    /// `status=429`, `status=429,retry=7`, `status=429,retry-date=7`: refused with the vendor's own body.
    Status(u16, RetryAfter),
    /// `slow=2s`: the first message leaves so much later.
    Slow(Duration),
    /// `trickle=300ms`: one message in this time at most.
    Trickle(Duration),
    /// `stall=5s@3s`: nothing leaves for so long; then it goes on.
    Stall(Duration),
    /// `burst=1s`: messages leave together, once in this time.
    Burst(Duration),
    /// `close`, `close=1011`, `close=1011,any reason`: the vendor's usual code where none is given; 1005 is a close
    /// frame without a code, 1006 none at all. Streamed answers of HTTP just end too early.
    Close(Option<u16>, Option<String>),
    /// `reset`: the connection is reset.
    Reset,
    /// `half-open`: nothing is sent and nothing read any more, and no end is seen.
    HalfOpen,
    /// `truncate`: the connection ends in the middle of a message.
    Truncate,
    /// `odd`: pieces of linear16 sound are cut within samples, and the last byte is missing.
    Odd,
    /// `empty`: an empty piece of sound before each piece.
    Empty,
    /// `late=2s`: finals come so much later.
    Late(Duration),
    /// `limit=20s`: the vendor's own limit of a stream, with its own goodbye, is so long.
    Limit(Duration),
}

/// A fault and whom it befalls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `None` is any vendor.
    pub vendor: Option<Vendor>,
    /// `None` is any direction.
    pub direction: Option<Direction>,
    /// What happens.
    pub effect: Effect,
    /// How long, by the emulators' clock, after the connection was opened.
    pub after: Duration,
    /// To how many connections; `None` is all.
    pub times: Option<u32>,
}

/// A fault that is not written as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no fault; write VENDOR:DIRECTION:FAULT[=VALUE][@TIME][*TIMES] with any for any vendor or direction, \
     such as deepgram:stt:close=1011@3s, any:tts:status=429,retry=7*2 or any:any:stall=5s@1s; faults are refuse, status, \
     slow, trickle, stall, burst, close, reset, half-open, truncate, odd, empty, late, limit"
)]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;
    fn from_str(text: &str) -> Result<Self, FaultError> {
        parse(text).ok_or_else(|| FaultError(text.chars().take(200).collect()))
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (vendor, rest) = text.trim().split_once(':')?;
    let (direction, rest) = rest.split_once(':')?;
    let (rest, times) = match rest.rsplit_once('*') {
        Some((rest, times)) => (rest, Some(times.parse().ok()?)),
        None => (rest, None),
    };
    let (rest, after) = match rest.rsplit_once('@') {
        Some((rest, after)) => (rest, time(after)?),
        None => (rest, Duration::ZERO),
    };
    let (name, value) = match rest.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (rest, None),
    };
    let named = |name| (name != "any").then_some(name);
    Some(Fault {
        vendor: named(vendor).map(str::parse).transpose().ok()?,
        direction: named(direction).map(str::parse).transpose().ok()?,
        effect: effect(name, value)?,
        after,
        times,
    })
}

fn effect(name: &str, value: Option<&str>) -> Option<Effect> {
    let lasting = |make: fn(Duration) -> Effect| value.and_then(time).map(make);
    let bare = |effect: Effect| value.is_none().then_some(effect);
    match name {
        "refuse" => bare(Effect::Refuse),
        "status" => status(value?),
        "slow" => lasting(Effect::Slow),
        "trickle" => lasting(Effect::Trickle),
        "stall" => lasting(Effect::Stall),
        "burst" => lasting(Effect::Burst).filter(|effect| *effect != Effect::Burst(Duration::ZERO)),
        "close" => close(value),
        "reset" => bare(Effect::Reset),
        "half-open" => bare(Effect::HalfOpen),
        "truncate" => bare(Effect::Truncate),
        "odd" => bare(Effect::Odd),
        "empty" => bare(Effect::Empty),
        "late" => lasting(Effect::Late),
        "limit" => lasting(Effect::Limit),
        _ => None,
    }
}

fn status(value: &str) -> Option<Effect> {
    let (status, retry) = match value.split_once(',') {
        Some((status, retry)) => (status, Some(retry.split_once('=')?)),
        None => (value, None),
    };
    let retry = match retry {
        None => RetryAfter::Absent,
        Some(("retry", seconds)) => RetryAfter::Seconds(seconds.parse().ok()?),
        Some(("retry-date", seconds)) => RetryAfter::Date(seconds.parse().ok()?),
        Some(_) => return None,
    };
    let status = status
        .parse()
        .ok()
        .filter(|status| (400..600).contains(status))?;
    Some(Effect::Status(status, retry))
}

fn close(value: Option<&str>) -> Option<Effect> {
    let Some(value) = value else {
        return Some(Effect::Close(None, None));
    };
    let (code, reason) = match value.split_once(',') {
        Some((code, reason)) => (code, Some(reason.to_owned())),
        None => (value, None),
    };
    let code = code
        .parse()
        .ok()
        .filter(|code| (1000..5000).contains(code))?;
    Some(Effect::Close(Some(code), reason))
}

/// `500ms`, `3s`, `1.5s`, `5m`; a day at most.
fn time(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => match text.strip_suffix('s') {
            Some(number) => (number, 1.0),
            None => (text.strip_suffix('m')?, 60.0),
        },
    };
    let seconds = number.parse::<f64>().ok()? * unit;
    let seconds = (0.0..=86_400.0).contains(&seconds).then_some(seconds)?;
    Duration::try_from_secs_f64(seconds).ok()
}

impl fmt::Display for Fault {
    /// As it is written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vendor = self.vendor.map_or("any", Vendor::slug);
        let direction = self.direction.map_or("any", Direction::name);
        write!(f, "{vendor}:{direction}:{}", self.effect)?;
        if !self.after.is_zero() {
            write!(f, "@{}ms", self.after.as_millis())?;
        }
        self.times.map_or(Ok(()), |times| write!(f, "*{times}"))
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasting = |f: &mut fmt::Formatter<'_>, name, time: &Duration| {
            write!(f, "{name}={}ms", time.as_millis())
        };
        match self {
            Self::Refuse => f.write_str("refuse"),
            Self::Status(status, RetryAfter::Absent) => write!(f, "status={status}"),
            Self::Status(status, RetryAfter::Seconds(seconds)) => {
                write!(f, "status={status},retry={seconds}")
            }
            Self::Status(status, RetryAfter::Date(seconds)) => {
                write!(f, "status={status},retry-date={seconds}")
            }
            Self::Slow(time) => lasting(f, "slow", time),
            Self::Trickle(time) => lasting(f, "trickle", time),
            Self::Stall(time) => lasting(f, "stall", time),
            Self::Burst(time) => lasting(f, "burst", time),
            Self::Close(None, _) => f.write_str("close"),
            Self::Close(Some(code), None) => write!(f, "close={code}"),
            Self::Close(Some(code), Some(reason)) => write!(f, "close={code},{reason}"),
            Self::Reset => f.write_str("reset"),
            Self::HalfOpen => f.write_str("half-open"),
            Self::Truncate => f.write_str("truncate"),
            Self::Odd => f.write_str("odd"),
            Self::Empty => f.write_str("empty"),
            Self::Late(time) => lasting(f, "late", time),
            Self::Limit(time) => lasting(f, "limit", time),
        }
    }
}

/// The list in force. Connections that are open keep what they got when they were opened.
#[derive(Debug, Default)]
pub struct FaultList(Mutex<Vec<Fault>>);

/// The list is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {MAX_FAULTS} faults already")]
pub struct TooManyFaults;

impl FaultList {
    fn lock(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault.
    pub fn add(&self, fault: Fault) -> Result<(), TooManyFaults> {
        let mut faults = self.lock();
        if faults.len() >= MAX_FAULTS {
            return Err(TooManyFaults);
        }
        faults.push(fault);
        Ok(())
    }

    /// Removes all.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Those that are left, with the times that they are left for.
    pub fn all(&self) -> Vec<Fault> {
        self.lock().clone()
    }

    /// What befalls the next connection: the first fault of each kind that fits. A refusal stands for itself, so that
    /// the connection after it gets the others.
    pub(super) fn take(&self, vendor: Vendor, direction: Direction) -> Vec<(Duration, Effect)> {
        let mut faults = self.lock();
        let fits = |fault: &Fault| {
            fault.vendor.is_none_or(|of| of == vendor)
                && fault.direction.is_none_or(|of| of == direction)
                && fault.times != Some(0)
        };
        let refuses = |fault: &Fault| matches!(fault.effect, Effect::Refuse | Effect::Status(..));
        let refusal = faults
            .iter()
            .position(|fault| fits(fault) && refuses(fault));
        let mut taken: Vec<(Duration, Effect)> = Vec::new();
        for (index, fault) in faults.iter_mut().enumerate() {
            let known = taken
                .iter()
                .any(|(_, effect)| discriminant(effect) == discriminant(&fault.effect));
            if known || !fits(fault) || refusal.is_some_and(|refusal| refusal != index) {
                continue;
            }
            fault.times = fault.times.map(|times| times - 1);
            taken.push((fault.after, fault.effect.clone()));
        }
        faults.retain(|fault| fault.times != Some(0));
        taken
    }
}

/// How a connection ends before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// With this close code, or the vendor's own.
    Close(Option<u16>, Option<String>),
    /// With a reset.
    Reset,
    /// Not at all, for the other side.
    HalfOpen,
}

/// One connection's way out.
#[derive(Debug, Clone)]
pub struct Gate {
    clock: Clock,
    opened: Instant,
    effects: Vec<(Duration, Effect)>,
    /// When the last message was allowed to leave.
    last: Option<Instant>,
}

impl Gate {
    pub(super) const fn new(
        clock: Clock,
        opened: Instant,
        effects: Vec<(Duration, Effect)>,
    ) -> Self {
        Self {
            clock,
            opened,
            effects,
            last: None,
        }
    }

    /// When a message may leave that could leave at `asked`. To be called once for each, in order.
    pub fn release(&mut self, asked: Instant) -> Instant {
        let mut release = self.last.map_or(asked, |last| asked.max(last));
        for (after, effect) in &self.effects {
            let Some(begun) = self.clock.after(self.opened, *after) else {
                continue;
            };
            let later = match effect {
                Effect::Slow(time) if self.last.is_none() => self.clock.after(asked, *time),
                Effect::Trickle(time) if release >= begun => {
                    self.last.and_then(|last| self.clock.after(last, *time))
                }
                Effect::Stall(time) if release >= begun => self.clock.after(begun, *time),
                Effect::Burst(time) if release >= begun => {
                    let period = self.clock.real(*time).as_nanos().max(1);
                    let periods = (release - begun).as_nanos().div_ceil(period);
                    let nanos = u64::try_from(periods * period).unwrap_or(u64::MAX);
                    begun.checked_add(Duration::from_nanos(nanos))
                }
                _ => None,
            };
            release = later.map_or(release, |later| release.max(later));
        }
        self.last = Some(release);
        release
    }

    /// Whether the message that leaves now is the one in the middle of which the connection ends.
    pub fn truncates(&self, now: Instant) -> bool {
        self.effects.iter().any(|(after, effect)| {
            let begun = self.clock.after(self.opened, *after);
            *effect == Effect::Truncate && begun.is_some_and(|begun| begun <= now)
        })
    }

    /// Waits until the connection is to be cut, if it is. May be dropped and called again.
    pub async fn cut(&self) -> Cut {
        let cuts = self.effects.iter().filter_map(|(after, effect)| {
            let cut = match effect {
                Effect::Close(code, reason) => Cut::Close(*code, reason.clone()),
                Effect::Reset => Cut::Reset,
                Effect::HalfOpen => Cut::HalfOpen,
                _ => return None,
            };
            Some((self.clock.after(self.opened, *after)?, cut))
        });
        match cuts.min_by_key(|(at, _)| *at) {
            Some((at, cut)) => {
                clock::at(Some(at)).await;
                cut
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Fault {
        text.parse().unwrap()
    }

    fn gate(faults: &[&str]) -> Gate {
        let effects = faults.iter().map(|text| fault(text));
        let effects = effects.map(|fault| (fault.after, fault.effect)).collect();
        Gate::new(Clock::default(), Instant::now(), effects)
    }

    #[test]
    fn a_fault_is_written_as_it_is_read() {
        for text in [
            "deepgram:stt:close=1011@3000ms",
            "any:tts:status=429,retry=7*2",
            "google:any:status=503",
            "azure:stt:status=429,retry-date=60",
            "cartesia:tts:stall=5000ms@1000ms",
            "elevenlabs:tts:close=1008,no text, for 20 s",
            "any:any:half-open@20ms*1",
            "any:any:close",
            "any:any:odd",
        ] {
            assert_eq!(fault(text).to_string(), text);
        }
        assert_eq!(fault("any:stt:late=1.5s"), fault("any:stt:late=1500ms"));
        assert_eq!(fault("any:stt:limit=5m"), fault("any:stt:limit=300s"));
    }

    #[test]
    fn nonsense_is_no_fault() {
        for text in [
            "",
            "deepgram",
            "deepgram:stt",
            "nobody:stt:reset",
            "any:up:reset",
            "any:any:explode",
            "any:any:reset=1",
            "any:any:stall",
            "any:any:stall=x",
            "any:any:stall=-1s",
            "any:any:stall=NaNs",
            "any:any:burst=0s",
            "any:any:status=200",
            "any:any:close=70000",
            "any:any:reset*x",
            "any:any:status=429,after=7",
        ] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_fault_befalls_as_many_connections_as_it_says() {
        let list = FaultList::default();
        list.add(fault("deepgram:stt:reset*2")).unwrap();
        assert!(list.take(Vendor::Azure, Direction::Stt).is_empty());
        assert!(list.take(Vendor::Deepgram, Direction::Tts).is_empty());
        assert_eq!(list.take(Vendor::Deepgram, Direction::Stt).len(), 1);
        assert_eq!(list.all()[0].times, Some(1));
        assert_eq!(list.take(Vendor::Deepgram, Direction::Stt).len(), 1);
        assert!(list.take(Vendor::Deepgram, Direction::Stt).is_empty());
        assert!(list.all().is_empty());
    }

    #[test]
    fn refusals_come_one_after_the_other_and_before_everything_else() {
        let list = FaultList::default();
        for text in [
            "any:any:reset*1",
            "any:any:status=429*1",
            "any:any:status=503*1",
        ] {
            list.add(fault(text)).unwrap();
        }
        let take = || list.take(Vendor::Google, Direction::Tts).remove(0).1;
        assert_eq!(take(), Effect::Status(429, RetryAfter::Absent));
        assert_eq!(take(), Effect::Status(503, RetryAfter::Absent));
        assert_eq!(take(), Effect::Reset);
    }

    #[test]
    fn the_list_has_an_end() {
        let list = FaultList::default();
        for _ in 0..MAX_FAULTS {
            list.add(fault("any:any:reset")).unwrap();
        }
        assert_eq!(list.add(fault("any:any:reset")), Err(TooManyFaults));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_wait_as_the_fault_says() {
        let start = Instant::now();
        let releases = |faults: &[&str], asked: &[u64]| {
            let mut gate = gate(faults);
            let at = |ms| start + Duration::from_millis(ms);
            let release = |&ms| (gate.release(at(ms)) - start).as_millis();
            asked.iter().map(release).collect::<Vec<_>>()
        };
        assert_eq!(releases(&[], &[0, 5, 5]), [0, 5, 5]);
        assert_eq!(
            releases(&["any:any:slow=1s"], &[10, 20, 1_500]),
            [1_010, 1_010, 1_500]
        );
        assert_eq!(
            releases(&["any:any:trickle=1s"], &[0, 1, 5_000]),
            [0, 1_000, 5_000]
        );
        assert_eq!(
            releases(&["any:any:stall=5s@1s"], &[0, 999, 1_000, 7_000]),
            [0, 999, 6_000, 7_000]
        );
        assert_eq!(
            releases(&["any:any:burst=1s"], &[1, 2, 1_000, 1_001]),
            [1_000, 1_000, 1_000, 2_000]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_cut_is_the_one() {
        let gate = gate(&["any:any:reset@5s", "any:any:close=1012,bye@3s"]);
        let start = Instant::now();
        assert_eq!(
            gate.cut().await,
            Cut::Close(Some(1012), Some("bye".to_owned()))
        );
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }
}
