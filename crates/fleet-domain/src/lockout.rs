//! Logins that fail too often. Slows the guessing of one account's password down to a few tries an hour, from however many
//! addresses. The price: who goes on guessing keeps the account locked for as long as they do. Nothing that is done with a
//! token depends on it: those that were issued go on to count, and administrators get others from their identity provider or
//! from the secret itself.

use jiff::{SignedDuration, Timestamp};

/// Failures in a row that are forgiven.
pub const FORGIVEN: i32 = 5;
const FIRST: SignedDuration = SignedDuration::from_mins(1);
const LONGEST: SignedDuration = SignedDuration::from_mins(15);

/// Until when an account is locked after this many failures in a row; not at all for the first ones.
pub fn locked_until(failures: i32, now: Timestamp) -> Option<Timestamp> {
    let over = u32::try_from(failures - FORGIVEN).ok()?;
    let doubled = FIRST.checked_mul(1 << over.min(8)).unwrap_or(LONGEST);
    Some(now + doubled.min(LONGEST))
}

/// Until when a lock still holds that was noted; nothing when it does not. No lock is longer than the longest from now: one
/// that is was noted by a clock that ran ahead.
pub fn still_locked(noted: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    noted
        .filter(|until| *until > now)
        .map(|until| until.min(now + LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_doubles_up_to_a_quarter_of_an_hour() {
        let now = Timestamp::UNIX_EPOCH;
        let minutes = |failures| locked_until(failures, now).map(|until| until.as_second() / 60);
        let expected = [None, Some(1), Some(2), Some(4), Some(8), Some(15), Some(15)];
        let found: Vec<Option<i64>> = [4, 5, 6, 7, 8, 9, 400].map(minutes).into();
        assert_eq!(found, expected);
    }

    #[test]
    fn no_lock_is_longer_than_the_longest_whatever_a_clock_said() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |minutes: i64| Some(now + SignedDuration::from_mins(minutes));
        assert_eq!(still_locked(None, now), None);
        assert_eq!(still_locked(after(-1), now), None);
        assert_eq!(still_locked(after(0), now), None);
        assert_eq!(still_locked(after(14), now), after(14));
        assert_eq!(still_locked(after(60 * 24 * 365), now), after(15));
    }
}
