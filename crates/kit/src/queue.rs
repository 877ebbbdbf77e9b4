//! The work queue of one controller.
//!
//! An object is in it at most once, is never worked on twice at the same time, and when it is asked for while being
//! worked on it comes up again afterwards. Delays keep the earliest wish.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::store::ObjectKey;

#[derive(Default)]
pub struct Queue {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    ready: VecDeque<ObjectKey>,
    /// In `ready`, or asked for while running.
    wanted: HashSet<ObjectKey>,
    running: HashSet<ObjectKey>,
    delayed: BTreeSet<(Instant, ObjectKey)>,
    due: HashMap<ObjectKey, Instant>,
    /// Not before this time, whoever asks.
    held: HashMap<ObjectKey, Instant>,
    /// Nobody takes anything, and nothing is taken in.
    rests: bool,
}

impl Queue {
    /// Forgets all that was asked for, and takes nothing in until [`Queue::resume`]. For one who does not lead: what piles
    /// up would be of no use, since a new leader looks at everything.
    pub fn rest(&self) {
        let mut inner = self.lock();
        let running = std::mem::take(&mut inner.running);
        *inner = Inner {
            running,
            rests: true,
            ..Inner::default()
        };
    }

    pub fn resume(&self) {
        self.lock().rests = false;
    }

    pub fn add(&self, key: ObjectKey) {
        self.lock().want(key);
        self.changed.notify_one();
    }

    /// Comes up after `delay`, or earlier if it was to come up earlier already.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        self.lock().delay(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Comes up no earlier than after `wait`, whatever news of it comes: it is the server that wants to be left alone.
    pub fn hold(&self, key: ObjectKey, wait: Duration) {
        self.lock().held.insert(key, Instant::now() + wait);
    }

    /// The next object to look at. Call [`Queue::done`] when finished with it.
    pub async fn next(&self) -> ObjectKey {
        loop {
            let wait_until = {
                let mut inner = self.lock();
                let now = Instant::now();
                inner.promote(now);
                while let Some(key) = inner.ready.pop_front() {
                    inner.wanted.remove(&key);
                    if let Some(until) = inner.held.remove(&key).filter(|until| *until > now) {
                        inner.delay(key.clone(), until);
                        inner.held.insert(key, until);
                        continue;
                    }
                    inner.cancel_delay(&key);
                    inner.running.insert(key.clone());
                    if !inner.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return key;
                }
                inner.delayed.first().map(|(due, _)| *due)
            };
            match wait_until {
                Some(due) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    pub fn done(&self, key: &ObjectKey) {
        {
            let mut inner = self.lock();
            inner.running.remove(key);
            if inner.wanted.contains(key) {
                inner.ready.push_back(key.clone());
            }
        }
        self.changed.notify_one();
    }

    /// Work that is waiting: ready now, or being worked on and wanted again.
    pub fn depth(&self) -> usize {
        self.lock().wanted.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn want(&mut self, key: ObjectKey) {
        if !self.rests && self.wanted.insert(key.clone()) && !self.running.contains(&key) {
            self.ready.push_back(key);
        }
    }

    fn delay(&mut self, key: ObjectKey, due: Instant) {
        if self.rests || self.due.get(&key).is_some_and(|known| *known <= due) {
            return;
        }
        self.cancel_delay(&key);
        self.due.insert(key.clone(), due);
        self.delayed.insert((due, key));
    }

    fn promote(&mut self, now: Instant) {
        while let Some((due, _)) = self.delayed.first()
            && *due <= now
            && let Some((_, key)) = self.delayed.pop_first()
        {
            self.due.remove(&key);
            self.want(key);
        }
    }

    fn cancel_delay(&mut self, key: &ObjectKey) {
        if let Some(due) = self.due.remove(key) {
            self.delayed.remove(&(due, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        Take,
        /// Of those being worked on, this one is finished.
        Done(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0_u8..4).prop_map(Step::Add),
            Just(Step::Take),
            (0_usize..4).prop_map(Step::Done),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        /// However often and in whatever order objects are asked for: none is lost, none is worked on twice at a time,
        /// and what is asked for twice is looked at once.
        #[test]
        fn every_wish_is_met_and_by_one_worker_at_a_time(steps in steps()) {
            let queue = Queue::default();
            let (mut wanted, mut running) = (HashSet::new(), Vec::new());
            let end = std::iter::repeat_n([Step::Take, Step::Done(0)], 12).flatten();
            for step in steps.into_iter().chain(end) {
                match step {
                    Step::Add(n) => {
                        wanted.insert(key(&n.to_string()));
                        queue.add(key(&n.to_string()));
                    }
                    Step::Take => match queue.next().now_or_never() {
                        Some(next) => {
                            prop_assert!(!running.contains(&next), "worked on twice");
                            prop_assert!(wanted.remove(&next), "nobody asked");
                            running.push(next);
                        }
                        None => prop_assert!(wanted.iter().all(|key| running.contains(key)), "left lying"),
                    },
                    Step::Done(n) if n < running.len() => queue.done(&running.remove(n)),
                    Step::Done(_) => {}
                }
                prop_assert_eq!(queue.depth(), wanted.len());
            }
            prop_assert!(wanted.is_empty() && running.is_empty());
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    async fn soon(queue: &Queue) -> Option<ObjectKey> {
        tokio::time::timeout(Duration::from_millis(1), queue.next())
            .await
            .ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_object_is_queued_once() {
        let queue = Queue::default();
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!(queue.next().await, key("a"));
        queue.done(&key("a"));
        assert_eq!(soon(&queue).await, None);
        assert_eq!(queue.depth(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_for_while_running_comes_again_but_not_in_parallel() {
        let queue = Queue::default();
        queue.add(key("a"));
        queue.next().await;
        queue.add(key("a"));
        assert_eq!(soon(&queue).await, None, "still being worked on");
        queue.done(&key("a"));
        assert_eq!(soon(&queue).await, Some(key("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn delays_keep_the_earliest_wish_and_end_with_a_visit() {
        let queue = Queue::default();
        queue.add_after(key("a"), Duration::from_secs(60));
        queue.add_after(key("a"), Duration::from_secs(5));
        queue.add_after(key("a"), Duration::from_secs(30));
        let start = Instant::now();
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.done(&key("a"));
        let nothing = tokio::time::timeout(Duration::from_secs(120), queue.next()).await;
        assert!(nothing.is_err(), "a visit clears the other wishes");
    }

    #[tokio::test(start_paused = true)]
    async fn news_does_not_disturb_a_server_that_wants_to_be_left_alone() {
        let queue = Queue::default();
        queue.add(key("a"));
        let start = Instant::now();
        assert_eq!(queue.next().await, key("a"));
        // While it is worked on, and after that: by news, and by somebody's wish for a time.
        queue.add(key("a"));
        queue.hold(key("a"), Duration::from_secs(6));
        queue.add_after(key("a"), Duration::from_secs(8));
        queue.done(&key("a"));
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.next().await, key("b"), "others go on");
        queue.done(&key("b"));
        queue.add_after(key("a"), Duration::from_secs(2));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 6);
        queue.add(key("a"));
        queue.done(&key("a"));
        assert_eq!(soon(&queue).await, Some(key("a")), "it is over");
        queue.done(&key("a"));
        let nothing = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_piles_up_while_it_rests() {
        let queue = Queue::default();
        queue.add(key("a"));
        queue.add(key("b"));
        queue.add_after(key("c"), Duration::from_secs(1));
        assert_eq!(queue.next().await, key("a"));
        queue.rest();
        // The visit that was under way is given back.
        queue.add(key("a"));
        queue.done(&key("a"));
        queue.add(key("d"));
        queue.add_after(key("d"), Duration::from_secs(1));
        assert_eq!(queue.depth(), 0);
        queue.resume();
        let nothing = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        queue.add(key("a"));
        assert_eq!(soon(&queue).await, Some(key("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn every_worker_is_woken() {
        let queue = std::sync::Arc::new(Queue::default());
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        tokio::task::yield_now().await;
        for name in ["a", "b", "c", "d"] {
            queue.add(key(name));
        }
        for worker in workers {
            tokio::time::timeout(Duration::from_secs(1), worker)
                .await
                .expect("woken")
                .expect("joined");
        }
    }
}
