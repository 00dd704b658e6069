//! Times of the clock on the wall, as they are told to others. Nothing is measured by them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, and 0 before that.
pub fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A moment in the Gregorian calendar, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    /// The year.
    pub year: u64,
    /// The month, from 1.
    pub month: u64,
    /// The day of the month, from 1.
    pub day: u64,
    /// The hour, to 23.
    pub hour: u64,
    /// The minute.
    pub minute: u64,
    /// The second.
    pub second: u64,
    /// The millisecond.
    pub ms: u32,
}

impl Utc {
    /// Days become dates as in Howard Hinnant's `civil_from_days`. What is before 1970 is taken for its beginning.
    pub fn of(at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        // Years begin in March, so that the leap day is a year's last; 400 of them are an era of always the same length.
        let day = days + 719_468;
        let (era, day) = (day / 146_097, day % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 {
            (month + 3, 0)
        } else {
            (month - 9, 1)
        };
        Self {
            year: era * 400 + year + next,
            month,
            day,
            hour: second / 3_600,
            minute: second / 60 % 60,
            second: second % 60,
            ms: since.subsec_millis(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates_also_around_leap_days() {
        for (seconds, year, month, day) in [
            (0, 1970, 1, 1),
            (951_782_400, 2000, 2, 29),
            (951_868_800, 2000, 3, 1),
            (1_709_164_800, 2024, 2, 29),
            (4_107_542_400, 2100, 3, 1),
        ] {
            let at = UNIX_EPOCH + Duration::from_millis(seconds * 1_000 + 3_723_004);
            let utc = Utc::of(at);
            assert_eq!((utc.year, utc.month, utc.day), (year, month, day));
            assert_eq!((utc.hour, utc.minute, utc.second, utc.ms), (1, 2, 3, 4));
            assert_eq!(unix_ms(at), seconds * 1_000 + 3_723_004);
        }
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!((Utc::of(before).year, unix_ms(before)), (1970, 0));
    }
}
