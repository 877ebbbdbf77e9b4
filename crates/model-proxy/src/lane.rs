//! One lane for each model: who is being served, who waits, and who is turned away.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Requests of one model. Of those present, as many as Ollama works on at once are in flight and the rest waits,
/// wherever it waits: here, when the queue is held here, or in Ollama's own queue.
pub struct Lane {
    present: AtomicUsize,
    parallel: usize,
    held: Option<Held>,
    /// Finished requests and their time, for a guess of when to come back.
    finished: AtomicU64,
    milliseconds: AtomicU64,
    /// Told whenever somebody leaves.
    left: watch::Sender<()>,
}

/// The queue, when it is held here.
struct Held {
    slots: Arc<Semaphore>,
    most: usize,
}

/// The lane is full; come back later.
#[derive(Debug, PartialEq, Eq)]
pub struct Full {
    pub retry_after: Duration,
}

/// A place in a lane; it is left when this is dropped.
pub struct Ticket {
    lane: Arc<Lane>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Lane {
    pub fn new(parallel: usize, queue: Option<usize>, left: watch::Sender<()>) -> Self {
        let parallel = parallel.max(1);
        Self {
            present: AtomicUsize::new(0),
            parallel,
            held: queue.map(|most| Held {
                slots: Arc::new(Semaphore::new(parallel)),
                most,
            }),
            finished: AtomicU64::new(0),
            milliseconds: AtomicU64::new(0),
            left,
        }
    }

    /// Requests that are being worked on.
    pub fn in_flight(&self) -> usize {
        self.present.load(Ordering::Acquire).min(self.parallel)
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.present.load(Ordering::Acquire).saturating_sub(self.parallel)
    }

    pub fn is_empty(&self) -> bool {
        self.present.load(Ordering::Acquire) == 0
    }

    /// Takes a place, and waits for its turn when the queue is held here. First come, first served; a caller that goes
    /// away while it waits leaves its place.
    pub async fn enter(self: &Arc<Self>) -> Result<Ticket, Full> {
        let room = self
            .held
            .as_ref()
            .map_or(usize::MAX, |held| self.parallel.saturating_add(held.most));
        self.present
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |present| {
                (present < room).then_some(present + 1)
            })
            .map_err(|_| self.full())?;
        // From here on the place is given back, also when this future is dropped while it waits.
        let mut ticket = Ticket {
            lane: self.clone(),
            slot: None,
        };
        if let Some(held) = &self.held {
            // It is never closed.
            ticket.slot = held.slots.clone().acquire_owned().await.ok();
        }
        Ok(ticket)
    }

    pub fn finished(&self, took: Duration) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.milliseconds.fetch_add(took, Ordering::Relaxed);
    }

    fn full(&self) -> Full {
        let finished = self.finished.load(Ordering::Relaxed).max(1);
        let mean = Duration::from_millis(self.milliseconds.load(Ordering::Relaxed) / finished);
        Full {
            retry_after: retry_after(self.queued(), self.parallel, mean),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.lane.present.fetch_sub(1, Ordering::AcqRel);
        drop(self.slot.take());
        self.lane.left.send_replace(());
    }
}

/// When about half of those who wait have been served, in whole seconds between 1 and 60.
fn retry_after(queued: usize, parallel: usize, mean: Duration) -> Duration {
    let rounds = queued as f64 / (2 * parallel.max(1)) as f64;
    Duration::from_secs((mean.as_secs_f64() * rounds).ceil().clamp(1.0, 60.0) as u64)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use rstest::rstest;

    use super::*;

    fn lane(parallel: usize, queue: Option<usize>) -> Arc<Lane> {
        Arc::new(Lane::new(parallel, queue, watch::Sender::new(())))
    }

    #[test]
    fn a_queue_that_is_held_here_has_an_end() {
        let lane = lane(1, Some(1));
        let first = lane.enter().now_or_never().unwrap().unwrap();
        let mut second = Box::pin(lane.enter());
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        assert_eq!((lane.in_flight(), lane.queued()), (1, 1));
        let Err(full) = lane.enter().now_or_never().unwrap() else {
            panic!("a third has no place")
        };
        assert_eq!(full.retry_after, Duration::from_secs(1));
        drop(first);
        let second = second.now_or_never().unwrap().unwrap();
        assert_eq!((lane.in_flight(), lane.queued()), (1, 0));
        drop(second);
        assert!(lane.is_empty());
    }

    #[test]
    fn who_stops_waiting_leaves_its_place() {
        let lane = lane(1, Some(1));
        let first = lane.enter().now_or_never().unwrap().unwrap();
        let mut second = Box::pin(lane.enter());
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        assert_eq!((lane.in_flight(), lane.queued()), (1, 0));
        drop(first);
        assert!(lane.enter().now_or_never().unwrap().is_ok());
    }

    #[test]
    fn without_a_queue_of_our_own_everybody_passes_and_is_counted() {
        let lane = lane(2, None);
        let tickets: Vec<_> = (0..5)
            .map(|_| lane.enter().now_or_never().unwrap().unwrap())
            .collect();
        assert_eq!((lane.in_flight(), lane.queued()), (2, 3));
        drop(tickets);
        assert_eq!((lane.in_flight(), lane.queued()), (0, 0));
    }

    #[rstest]
    #[case(0, 1, 0.0, 1)]
    #[case(10, 1, 2.0, 10)]
    #[case(10, 5, 2.0, 2)]
    #[case(1000, 1, 60.0, 60)]
    fn the_guess_stays_in_bounds(
        #[case] queued: usize,
        #[case] parallel: usize,
        #[case] mean: f64,
        #[case] expected: u64,
    ) {
        assert_eq!(
            retry_after(queued, parallel, Duration::from_secs_f64(mean)),
            Duration::from_secs(expected)
        );
    }
}
