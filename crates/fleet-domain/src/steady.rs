//! Whether a clock can be trusted with something that cannot be undone.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// How much clocks may differ, and how much one may be put right at a time.
const SLACK: SignedDuration = SignedDuration::from_mins(5);

/// One look at three clocks: ours, the database's, and one that only counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub ours: Timestamp,
    pub database: Timestamp,
    pub counted: Duration,
}

/// Whether it is as late as our clock says: the database agrees, and since the look before as much time has passed as was
/// counted. One that was put forward is not believed at once, and not at all while the database knows better.
pub fn is_steady(before: Option<Look>, now: Look) -> bool {
    let agree = |one: Timestamp, other: Timestamp| one.duration_since(other).abs() <= SLACK;
    let Some(before) = before else { return false };
    let counted = now.counted.saturating_sub(before.counted);
    let expected = SignedDuration::try_from(counted)
        .ok()
        .and_then(|counted| before.ours.checked_add(counted).ok());
    agree(now.ours, now.database) && expected.is_some_and(|expected| agree(now.ours, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_believed_when_two_looks_and_two_clocks_agree() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let look = |ours: i64, database: i64, counted: u64| Look {
            ours: start + SignedDuration::from_mins(ours),
            database: start + SignedDuration::from_mins(database),
            counted: Duration::from_mins(counted),
        };
        let first = look(0, 0, 0);
        assert!(!is_steady(None, first), "nothing to compare with");
        assert!(is_steady(Some(first), look(10, 10, 10)));
        assert!(is_steady(Some(first), look(13, 9, 10)), "put right a little");
        let year = 60 * 24 * 365;
        assert!(
            !is_steady(Some(first), look(year, 10, 10)),
            "ours was put forward"
        );
        assert!(!is_steady(Some(first), look(10, year, 10)), "the database's was");
        assert!(!is_steady(Some(first), look(year, year, 10)), "both were");
        assert!(!is_steady(Some(first), look(-year, -year, 10)), "or put back");
        let ahead = look(year, 10, 10);
        assert!(!is_steady(Some(ahead), look(year + 10, 20, 20)), "still not so");
    }
}
