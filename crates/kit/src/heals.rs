//! How often children are brought back to one and the same wish, so that somebody who changes one again and again, another
//! controller say, is not fought without end. No IO; the time is passed in.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::store::ObjectKey;

/// A child by the id of its kind and its name.
pub type Entry = (String, ObjectKey);

/// This often within [`WITHIN`] a child is brought back at once.
const AT_ONCE: u32 = 5;
const WITHIN: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct Heals {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    known: HashMap<Entry, Healed>,
    swept: Option<Instant>,
}

struct Healed {
    /// Digest of the wish.
    wish: String,
    first: Instant,
    last: Instant,
    /// How often it was written again.
    times: u32,
    /// Who changes it, once that was asked.
    rival: Option<String>,
}

impl Healed {
    fn is_contested(&self) -> bool {
        self.times >= AT_ONCE
    }

    fn pause(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.times.saturating_sub(AT_ONCE).min(10));
        FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
    }
}

impl Heals {
    /// Whether a child that differs from this wish is to be written now.
    pub fn may_write(&self, entry: &Entry, wish: &str, now: Instant) -> bool {
        let inner = self.lock();
        inner
            .known
            .get(entry)
            .filter(|healed| healed.wish == wish && healed.is_contested())
            .is_none_or(|healed| now >= healed.last + healed.pause())
    }

    /// A child that was there was written.
    pub fn wrote(&self, entry: Entry, wish: &str, now: Instant) {
        let mut inner = self.lock();
        inner.sweep(now);
        if let Some(healed) = inner.known.get_mut(&entry)
            && healed.wish == wish
            && (healed.is_contested() || now < healed.first + WITHIN)
        {
            healed.times += 1;
            healed.last = now;
            return;
        }
        let healed = Healed {
            wish: wish.to_owned(),
            first: now,
            last: now,
            times: 0,
            rival: None,
        };
        inner.known.insert(entry, healed);
    }

    /// Whether somebody is at it. `holds`: it is as it was written last; when it is that for long enough, it is over.
    pub fn is_contested(&self, entry: &Entry, holds: bool, now: Instant) -> bool {
        let mut inner = self.lock();
        let Some(healed) = inner.known.get(entry).filter(|healed| healed.is_contested()) else {
            return false;
        };
        let is_over = holds && now >= healed.last + WITHIN;
        if is_over {
            inner.known.remove(entry);
        }
        !is_over
    }

    pub fn rival(&self, entry: &Entry) -> Option<String> {
        self.lock().known.get(entry)?.rival.clone()
    }

    pub fn remember_rival(&self, entry: &Entry, rival: String) {
        if let Some(healed) = self.lock().known.get_mut(entry) {
            healed.rival = Some(rival);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Drops what is long over, now and then.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now >= swept + WITHIN) {
            self.known
                .retain(|_, healed| now < healed.last + LONGEST_PAUSE + WITHIN);
            self.swept = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        ("things".to_owned(), ObjectKey::new("ns", "a"))
    }

    #[test]
    fn a_child_that_is_changed_now_and_then_is_always_healed_at_once() {
        let (heals, start) = (Heals::default(), Instant::now());
        for n in 0..100 {
            let now = start + Duration::from_secs(20) * n;
            assert!(heals.may_write(&entry(), "wish", now));
            heals.wrote(entry(), "wish", now);
            assert!(!heals.is_contested(&entry(), true, now));
        }
    }

    #[test]
    fn one_that_is_changed_at_once_is_healed_ever_more_seldom_until_it_is_left_alone() {
        let (heals, start) = (Heals::default(), Instant::now());
        let (mut writes, mut now) = (Vec::new(), start);
        while now < start + Duration::from_secs(3600) {
            if heals.may_write(&entry(), "wish", now) {
                heals.wrote(entry(), "wish", now);
                writes.push(now);
            }
            now += Duration::from_secs(1);
        }
        let gaps: Vec<u64> = writes.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
        assert_eq!(gaps[..11], [1, 1, 1, 1, 1, 15, 30, 60, 120, 240, 300]);
        assert!(gaps.len() < 25, "{gaps:?}");
        assert!(heals.is_contested(&entry(), false, now));
        assert!(heals.may_write(&entry(), "another wish", now));
        let last = *writes.last().unwrap();
        heals.wrote(entry(), "wish", last);
        assert!(heals.is_contested(&entry(), true, last + WITHIN / 2));
        assert!(!heals.is_contested(&entry(), true, last + WITHIN));
        assert!(heals.may_write(&entry(), "wish", last + WITHIN));
    }
}
