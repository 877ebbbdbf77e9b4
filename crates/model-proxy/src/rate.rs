//! Events per second over the last half minute. Pure: the time is passed in.
//!
//! It is kept here and not where the metrics are read, because whoever asks then gets the same answer at the first
//! question, after a restart and from every replica.

use std::time::Duration;

/// Whole seconds that are looked back on.
pub const WINDOW: usize = 30;
/// A process that has only just started has seen too little to speak of less.
const LEAST: f64 = 5.0;

/// A ring of counts, one for each second.
#[derive(Debug)]
pub struct Rate {
    counts: [u32; WINDOW],
    /// The second that was last written.
    last: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            counts: [0; WINDOW],
            last: 0,
        }
    }
}

impl Rate {
    /// `age` is the time since the process started.
    pub fn add(&mut self, age: Duration) {
        self.forward(age.as_secs());
        if let Some(count) = self.counts.get_mut((self.last % WINDOW as u64) as usize) {
            *count = count.saturating_add(1);
        }
    }

    pub fn per_second(&mut self, age: Duration) -> f64 {
        self.forward(age.as_secs());
        let events: f64 = self.counts.iter().copied().map(f64::from).sum();
        events / age.as_secs_f64().clamp(LEAST, WINDOW as f64)
    }

    /// Empties the seconds between the last event and now.
    fn forward(&mut self, now: u64) {
        let passed = now.saturating_sub(self.last).min(WINDOW as u64);
        for second in 1..=passed {
            // When more than the window has passed, all of it is emptied, in any order.
            if let Some(count) = self
                .counts
                .get_mut(((self.last + second) % WINDOW as u64) as usize)
            {
                *count = 0;
            }
        }
        self.last = self.last.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(number: f64) -> Duration {
        Duration::from_secs_f64(number)
    }

    #[test]
    fn a_steady_load_is_told_as_it_is_and_is_forgotten_when_it_ends() {
        let mut rate = Rate::default();
        for tenth in 0..1000 {
            rate.add(seconds(f64::from(tenth) / 10.0));
        }
        assert!((rate.per_second(seconds(100.0)) - 10.0).abs() < 0.5);
        assert!((rate.per_second(seconds(115.0)) - 5.0).abs() < 0.5);
        assert!(rate.per_second(seconds(131.0)).abs() < f64::EPSILON);
    }

    #[test]
    fn a_young_process_does_not_exaggerate() {
        let mut rate = Rate::default();
        rate.add(seconds(0.01));
        assert!((rate.per_second(seconds(0.02)) - 0.2).abs() < 0.001);
        assert!((rate.per_second(seconds(10.0)) - 0.1).abs() < 0.001);
    }

    proptest! {
        #[test]
        fn it_counts_what_is_in_the_window(mut times in proptest::collection::vec(0u64..200, 0..200), now in 200u64..240) {
            times.sort_unstable();
            let mut rate = Rate::default();
            for time in &times {
                rate.add(Duration::from_secs(*time));
            }
            let expected = times.iter().filter(|time| **time + WINDOW as u64 > now).count();
            let told = rate.per_second(Duration::from_secs(now)) * WINDOW as f64;
            prop_assert!((told - expected as f64).abs() < 0.001);
        }
    }
}
