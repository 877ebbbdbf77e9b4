//! Requests per minute, per user and operation. Replicas share what they count in the database. What a replica has
//! counted itself can only be less than that, so it refuses alone where it can, and counts alone while the database is
//! away.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use gantry_fleet_api::Operation;
use gantry_fleet_domain::rate::{Answer, Bucket};
use jiff::Timestamp;
use sqlx::PgPool;

use crate::{
    infrastructure::store::{rates as store, time},
    settings::Rates,
};

/// A database that is slow must not make every request slower than that.
const PATIENCE: Duration = Duration::from_millis(500);

/// Buckets that are full again are dropped when there are this many.
const MANY: usize = 10_000;

pub struct RateLimits {
    rates: Rates,
    /// By user and operation; without one for what there is not.
    buckets: Mutex<HashMap<(String, Option<Operation>), Bucket>>,
    /// By address.
    strangers: Mutex<HashMap<String, Bucket>>,
}

impl RateLimits {
    pub fn new(rates: Rates) -> Self {
        Self {
            rates,
            buckets: Mutex::default(),
            strangers: Mutex::default(),
        }
    }

    fn per_minute(&self, operation: Option<Operation>) -> u32 {
        let Some(operation) = operation else {
            return self.rates.read;
        };
        match operation {
            // Both take a guess at a password.
            Operation::Login | Operation::ChangePassword => self.rates.login,
            Operation::RegisterCluster => self.rates.register_cluster,
            other if other.spec().method == "get" => self.rates.read,
            _ => self.rates.write,
        }
    }

    /// Counts a request of somebody here, which costs nothing: before anything is done for it. `/health` is not counted,
    /// since those who watch us must always get an answer.
    pub fn take(&self, who: &str, operation: Operation, now: Timestamp) -> Option<Answer> {
        (operation != Operation::Health).then(|| self.take_from(who, Some(operation), now))
    }

    /// Counts a request of somebody for what there is not. Each replica counts for itself, as it does for strangers.
    pub fn take_unknown(&self, who: &str, now: Timestamp) -> Answer {
        self.take_from(who, None, now)
    }

    /// Counts one that was let through here for all replicas.
    pub async fn share(
        &self,
        pool: &PgPool,
        who: &str,
        operation: Operation,
        here: Answer,
        now: Timestamp,
    ) -> Answer {
        let shared = store::take(pool, who, operation.id(), here.limit, time(now));
        match tokio::time::timeout(PATIENCE, shared).await {
            Ok(Ok((allowed, remaining))) => Answer::of(allowed, remaining, here.limit),
            _ => here,
        }
    }

    /// Counts a request without a token that anybody we know has signed, whatever it asks for; as many are let through as
    /// one user may read. Each replica counts for itself: strangers are no work for the database.
    pub fn take_stranger(&self, address: &str, now: Timestamp) -> Answer {
        let per_minute = self.rates.read;
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !strangers.contains_key(address);
        if is_new && strangers.len() >= MANY {
            strangers.retain(|_, bucket| !bucket.is_full(per_minute, now));
        }
        // From more addresses than are remembered: those that come now are counted as one.
        let by = if is_new && strangers.len() >= MANY {
            ""
        } else {
            address
        };
        let bucket = strangers
            .entry(by.to_owned())
            .or_insert_with(|| Bucket::full(per_minute, now));
        bucket.take(per_minute, now)
    }

    fn take_from(&self, who: &str, operation: Option<Operation>, now: Timestamp) -> Answer {
        let per_minute = self.per_minute(operation);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MANY {
            buckets.retain(|(_, operation), bucket| !bucket.is_full(self.per_minute(*operation), now));
        }
        let bucket = buckets
            .entry((who.to_owned(), operation))
            .or_insert_with(|| Bucket::full(per_minute, now));
        bucket.take(per_minute, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_and_one_operation_do_not_use_up_anothers() {
        let limits = RateLimits::new(Rates::default());
        let now = Timestamp::UNIX_EPOCH;
        let take = |who: &str, operation| {
            limits
                .take(who, operation, now)
                .is_some_and(|answer| answer.allowed)
        };
        for _ in 0..5 {
            assert!(take("a", Operation::RegisterCluster));
        }
        assert!(!take("a", Operation::RegisterCluster));
        assert!(take("b", Operation::RegisterCluster));
        assert!(take("a", Operation::ListClusters));
        assert_eq!(limits.take("a", Operation::Health, now), None);
        for _ in 0..limits.rates.read {
            assert!(limits.take_unknown("a", now).allowed);
        }
        assert!(!limits.take_unknown("a", now).allowed);
        assert!(limits.take_unknown("b", now).allowed);
        assert!(take("a", Operation::ListOperators));
    }

    #[test]
    fn strangers_are_counted_each_and_remembered_within_bounds() {
        let limits = RateLimits::new(Rates {
            read: 2,
            ..Rates::default()
        });
        let now = Timestamp::UNIX_EPOCH;
        let take = |who: &str, now| limits.take_stranger(who, now).allowed;
        assert!(take("a", now) && take("a", now));
        assert!(!take("a", now));
        for number in 1..MANY {
            assert!(take(&number.to_string(), now));
        }
        // No more are remembered; those who come now share what one of them has.
        assert!(take("b", now) && take("c", now));
        assert!(!take("d", now));
        assert!(limits.strangers.lock().unwrap().len() <= MANY + 1);
        assert!(!take("a", now), "it is not forgotten for it");
        assert!(
            take("d", now + jiff::SignedDuration::from_mins(1)),
            "the others are"
        );
    }
}
