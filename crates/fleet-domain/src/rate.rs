//! Requests per minute: a bucket that refills steadily, so that a burst is paid back instead of being free again at
//! every full minute.

use jiff::{SignedDuration, Timestamp};

/// How much the clocks of replicas may differ.
const SKEW: SignedDuration = SignedDuration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    left: f64,
    seen: Timestamp,
}

/// What is told to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    pub limit: u32,
    pub remaining: u32,
    /// Until the bucket is full again.
    pub full_after: SignedDuration,
    /// Until one more request is allowed; nothing when one is.
    pub retry_after: SignedDuration,
}

impl Answer {
    /// For a bucket with so much left in it.
    pub fn of(allowed: bool, left: f64, per_minute: u32) -> Self {
        let limit = f64::from(per_minute);
        let rate = limit / 60.0;
        let until = |missing: f64| {
            if missing <= 0.0 || rate <= 0.0 {
                SignedDuration::ZERO
            } else {
                SignedDuration::from_secs_f64((missing / rate).ceil().min(3600.0))
            }
        };
        Self {
            allowed,
            limit: per_minute,
            remaining: left.floor().max(0.0) as u32,
            full_after: until(limit - left),
            retry_after: until(1.0 - left),
        }
    }
}

impl Bucket {
    pub fn full(per_minute: u32, now: Timestamp) -> Self {
        Self {
            left: f64::from(per_minute),
            seen: now,
        }
    }

    /// Takes one request out, if there is one.
    pub fn take(&mut self, per_minute: u32, now: Timestamp) -> Answer {
        let limit = f64::from(per_minute);
        let rate = limit / 60.0;
        // A clock that goes back gives nothing; one that was put back is the new one.
        let since = now.duration_since(self.seen).as_secs_f64().max(0.0);
        self.left = (self.left + since * rate).min(limit);
        self.seen = if self.seen.duration_since(now) > SKEW {
            now
        } else {
            self.seen.max(now)
        };
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        }
        Answer::of(allowed, self.left, per_minute)
    }

    /// Whether forgetting it changes nothing.
    pub fn is_full(&self, per_minute: u32, now: Timestamp) -> bool {
        let since = now.duration_since(self.seen).as_secs_f64().max(0.0);
        self.left + since * f64::from(per_minute) / 60.0 >= f64::from(per_minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_paid_back_steadily() {
        let mut now = Timestamp::UNIX_EPOCH;
        let mut bucket = Bucket::full(5, now);
        for left in (0..5).rev() {
            let answer = bucket.take(5, now);
            assert!(answer.allowed);
            assert_eq!(answer.remaining, left);
        }
        let refused = bucket.take(5, now);
        assert!(!refused.allowed);
        assert_eq!(refused.retry_after, SignedDuration::from_secs(12));
        assert_eq!(refused.full_after, SignedDuration::from_secs(60));
        now += SignedDuration::from_secs(12);
        assert!(bucket.take(5, now).allowed);
        assert!(!bucket.take(5, now).allowed);
        assert!(!bucket.is_full(5, now));
        assert!(bucket.is_full(5, now + SignedDuration::from_secs(60)));
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_and_takes_nothing() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut bucket = Bucket::full(1, now);
        assert!(bucket.take(1, now).allowed);
        let earlier = now - SignedDuration::from_hours(1);
        assert!(!bucket.take(1, earlier).allowed);
        // It was put back for good: a minute by the new clock is a minute.
        assert!(bucket.take(1, earlier + SignedDuration::from_mins(1)).allowed);
        // Two replicas whose clocks differ a little give no more than one.
        let mut shared = Bucket::full(60, now);
        let ahead = now + SignedDuration::from_secs(30);
        for _ in 0..60 {
            assert!(shared.take(60, now).allowed);
        }
        let more = (0..100).filter(|turn| shared.take(60, if turn % 2 == 0 { ahead } else { now }).allowed);
        assert_eq!(more.count(), 30);
    }
}
