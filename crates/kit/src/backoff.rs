//! How long to wait before looking at a failing object again: doubling, capped, and spread by object so that a
//! thousand objects hit by the same outage do not come back in the same instant.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{error::Retry, store::ObjectKey};

#[derive(Default)]
pub struct Backoff {
    attempts: Mutex<HashMap<ObjectKey, u32>>,
}

impl Backoff {
    pub fn failed(&self, key: &ObjectKey, retry: Retry) -> Duration {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = attempts.entry(key.clone()).or_insert(0);
        let delay = delay(key, *attempt, retry);
        *attempt = attempt.saturating_add(1);
        delay
    }

    pub fn succeeded(&self, key: &ObjectKey) {
        self.attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

/// Pure, so that the law can be tested: between 80 % and 120 % of the doubled base, never above the cap.
pub fn delay(key: &ObjectKey, attempt: u32, retry: Retry) -> Duration {
    let doubled = retry.first.saturating_mul(2_u32.saturating_pow(attempt.min(20)));
    let capped = doubled.min(retry.most);
    let mut hasher = DefaultHasher::new();
    (key, attempt).hash(&mut hasher);
    let spread = 0.8 + 0.4 * ((hasher.finish() % 1000) as f64 / 1000.0);
    capped.mul_f64(spread).min(retry.most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stays_within_its_bounds(name in "[a-z]{1,8}", attempt in 0_u32..1000) {
            let retry = Retry { first: Duration::from_secs(1), most: Duration::from_secs(300) };
            let waited = delay(&ObjectKey::new("ns", name), attempt, retry);
            prop_assert!(waited >= Duration::from_millis(800));
            prop_assert!(waited <= Duration::from_secs(300));
        }
    }

    #[test]
    fn grows_and_starts_over_after_success() {
        let backoff = Backoff::default();
        let key = ObjectKey::new("ns", "a");
        let retry = Retry {
            first: Duration::from_secs(1),
            most: Duration::from_secs(300),
        };
        let first = backoff.failed(&key, retry);
        let third = {
            backoff.failed(&key, retry);
            backoff.failed(&key, retry)
        };
        assert!(third > first * 2, "{first:?} then {third:?}");
        backoff.succeeded(&key);
        assert_eq!(backoff.failed(&key, retry), first);
    }

    #[test]
    fn spreads_objects_apart() {
        let retry = Retry {
            first: Duration::from_secs(10),
            most: Duration::from_secs(300),
        };
        let delays: std::collections::HashSet<_> = (0..50)
            .map(|n| delay(&ObjectKey::new("ns", n.to_string()), 0, retry))
            .collect();
        assert!(delays.len() > 25);
    }
}
