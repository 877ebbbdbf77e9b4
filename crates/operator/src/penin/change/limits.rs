//! How many requests are taken: buckets that fill up again with time.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Requests that one identity may make at once, and how long one takes to come back.
const BURST: f64 = 10.0;
const REFILL: Duration = Duration::from_secs(6);
/// The same for all together, before anybody's token is looked at: a flood must not become one of token reviews.
const BURST_OF_ALL: f64 = 100.0;
const REFILL_OF_ALL: Duration = Duration::from_millis(50);
/// Identities that are remembered.
const MOST_IDENTITIES: usize = 10_000;

/// Buckets that fill up again with time.
#[derive(Default)]
pub struct Limits {
    all: Mutex<Option<Bucket>>,
    each: Mutex<HashMap<String, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(burst: f64, now: Instant) -> Self {
        Self {
            tokens: burst,
            at: now,
        }
    }

    /// Takes one, or says how long until there is one.
    fn take(&mut self, burst: f64, refill: Duration, now: Instant) -> Result<(), Duration> {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() / refill.as_secs_f64();
        self.tokens = (self.tokens + gained).min(burst);
        self.at = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(refill.mul_f64(1.0 - self.tokens))
    }
}

impl Limits {
    pub fn all(&self, now: Instant) -> Result<(), Duration> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_with(|| Bucket::full(BURST_OF_ALL, now))
            .take(BURST_OF_ALL, REFILL_OF_ALL, now)
    }

    pub fn one(&self, user: &str, now: Instant) -> Result<(), Duration> {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        if each.len() >= MOST_IDENTITIES {
            // Those who waited longest have full buckets again and lose nothing.
            each.retain(|_, bucket| now.saturating_duration_since(bucket.at) < REFILL.mul_f64(BURST));
        }
        each.entry(user.to_owned())
            .or_insert_with(|| Bucket::full(BURST, now))
            .take(BURST, REFILL, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_used_up_and_fills_again() {
        let limits = Limits::default();
        let start = Instant::now();
        for _ in 0..10 {
            assert!(limits.one("a", start).is_ok());
        }
        let wait = limits.one("a", start).unwrap_err();
        assert!(wait > Duration::from_secs(5) && wait <= REFILL, "{wait:?}");
        assert!(limits.one("b", start).is_ok(), "others are not held up");
        assert!(limits.one("a", start + REFILL).is_ok());
        assert!(limits.one("a", start + REFILL).is_err());
    }

    #[test]
    fn a_flood_is_stopped_before_anybody_is_asked() {
        let (limits, now) = (Limits::default(), Instant::now());
        let passed = (0..1000).filter(|_| limits.all(now).is_ok()).count();
        assert_eq!(passed, 100);
    }
}
