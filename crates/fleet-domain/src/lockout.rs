//! Logins that fail too often. Slows guessing down without letting a stranger shut somebody out for long.

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
}
