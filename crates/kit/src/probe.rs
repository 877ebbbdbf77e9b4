//! Asking workloads something without making a reconcile wait for the answer.
//!
//! A visit says what it would like to know and gets what is known so far; the question is put in the background,
//! bounded in number and time, and the object is woken when the answer is new. Failures are asked again later and later.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use tokio::{sync::Semaphore, time::Instant};

use crate::{backoff, error::Retry, queue::Queue, store::ObjectKey};

const AT_ONCE: usize = 16;
const DEADLINE: Duration = Duration::from_secs(10);
const ASK_AGAIN: Retry = Retry {
    first: Duration::from_secs(2),
    most: Duration::from_secs(300),
};

/// The answer, or why there is none.
pub type Answer<R> = Result<R, String>;

pub struct Probes<R> {
    entries: Arc<Mutex<HashMap<ObjectKey, Entry<R>>>>,
    permits: Arc<Semaphore>,
    /// A good answer is asked for again after this long.
    fresh_for: Duration,
}

struct Entry<R> {
    /// What was asked: when it changes, earlier answers are void.
    subject: String,
    answer: Option<Answer<R>>,
    asking: bool,
    failures: u32,
    next: Instant,
}

impl<R: Clone + PartialEq + Send + 'static> Probes<R> {
    pub fn new(fresh_for: Duration) -> Self {
        Self {
            entries: Arc::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            fresh_for,
        }
    }

    /// What is known about `subject`; asks in the background when that is nothing, or old.
    pub fn look<F>(
        &self,
        key: &ObjectKey,
        subject: &str,
        queue: &Arc<Queue>,
        ask: impl FnOnce() -> F,
    ) -> Option<Answer<R>>
    where
        F: Future<Output = Answer<R>> + Send + 'static,
    {
        self.look_every(self.fresh_for, key, subject, queue, ask)
    }

    /// The same for an object that says itself how long a good answer is good for.
    pub fn look_every<F>(
        &self,
        fresh_for: Duration,
        key: &ObjectKey,
        subject: &str,
        queue: &Arc<Queue>,
        ask: impl FnOnce() -> F,
    ) -> Option<Answer<R>>
    where
        F: Future<Output = Answer<R>> + Send + 'static,
    {
        let now = Instant::now();
        let mut entries = lock(&self.entries);
        let entry = entries
            .entry(key.clone())
            .or_insert_with(|| Entry::about(subject, now));
        if entry.subject != subject {
            *entry = Entry::about(subject, now);
        }
        if entry.asking {
            return entry.answer.clone();
        }
        if now < entry.next {
            // A visit clears what was planned for the object, so plan again.
            queue.add_after(key.clone(), entry.next - now);
        } else {
            entry.asking = true;
            let question = Question {
                key: key.clone(),
                subject: subject.to_owned(),
                entries: self.entries.clone(),
                permits: self.permits.clone(),
                queue: queue.clone(),
                fresh_for,
            };
            tokio::spawn(question.put(ask()));
        }
        entry.answer.clone()
    }

    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.entries).remove(key);
    }
}

impl<R> Entry<R> {
    fn about(subject: &str, now: Instant) -> Self {
        Self {
            subject: subject.to_owned(),
            answer: None,
            asking: false,
            failures: 0,
            next: now,
        }
    }
}

struct Question<R> {
    key: ObjectKey,
    subject: String,
    entries: Arc<Mutex<HashMap<ObjectKey, Entry<R>>>>,
    permits: Arc<Semaphore>,
    queue: Arc<Queue>,
    fresh_for: Duration,
}

impl<R: Clone + PartialEq + Send> Question<R> {
    async fn put(self, ask: impl Future<Output = Answer<R>> + Send) {
        let answer = {
            let _permit = self.permits.acquire().await;
            let late = || Err(format!("no answer within {} s", DEADLINE.as_secs()));
            // A bug in the question must not keep it from ever being put again.
            let asked = AssertUnwindSafe(tokio::time::timeout(DEADLINE, ask)).catch_unwind();
            match asked.await {
                Ok(answer) => answer.unwrap_or_else(|_| late()),
                Err(_) => Err("the question failed; the operator's log has the cause".to_owned()),
            }
        };
        let mut entries = lock(&self.entries);
        let Some(entry) = entries
            .get_mut(&self.key)
            .filter(|entry| entry.subject == self.subject)
        else {
            return;
        };
        entry.asking = false;
        let wait = if answer.is_ok() {
            entry.failures = 0;
            self.fresh_for
        } else {
            entry.failures += 1;
            backoff::delay(&self.key, entry.failures - 1, ASK_AGAIN)
        };
        entry.next = Instant::now() + wait;
        if entry.answer.as_ref() != Some(&answer) {
            entry.answer = Some(answer);
            self.queue.add(self.key.clone());
        }
        self.queue.add_after(self.key.clone(), wait);
    }
}

fn lock<R>(
    entries: &Mutex<HashMap<ObjectKey, Entry<R>>>,
) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Entry<R>>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("ns", "a")
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_look_knows_nothing_and_the_answer_wakes_the_object() {
        let probes = Probes::new(Duration::from_secs(600));
        let queue = Arc::new(Queue::default());
        assert_eq!(probes.look(&key(), "v1", &queue, || async { Ok(1) }), None);
        assert_eq!(queue.next().await, key());
        queue.done(&key());
        assert_eq!(
            probes.look(&key(), "v1", &queue, || async { Ok(2) }),
            Some(Ok(1)),
            "still fresh"
        );
        assert_eq!(
            probes.look(&key(), "v2", &queue, || async { Ok(3) }),
            None,
            "another subject"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_panics_is_put_again() {
        let probes = Probes::<i32>::new(Duration::from_secs(600));
        let queue = Arc::new(Queue::default());
        probes.look(&key(), "v1", &queue, || async { panic!("a bug") });
        queue.next().await;
        queue.done(&key());
        let failed = probes.look(&key(), "v1", &queue, || async { Ok(1) });
        assert!(
            failed.is_some_and(|answer| answer.is_err()),
            "told, and not asked again at once"
        );
        queue.next().await;
        queue.done(&key());
        probes.look(&key(), "v1", &queue, || async { Ok(1) });
        queue.next().await;
        assert_eq!(probes.look(&key(), "v1", &queue, || async { Ok(1) }), Some(Ok(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_answer_ends_and_is_put_again() {
        let probes = Probes::<i32>::new(Duration::from_secs(600));
        let queue = Arc::new(Queue::default());
        probes.look(&key(), "v1", &queue, std::future::pending);
        let start = Instant::now();
        assert_eq!(queue.next().await, key());
        assert_eq!(start.elapsed(), DEADLINE);
        queue.done(&key());
        let known = probes.look(&key(), "v1", &queue, || async { Ok(1) });
        assert_eq!(
            known,
            Some(Err("no answer within 10 s".to_owned())),
            "not asked again at once"
        );
        queue.next().await;
        queue.done(&key());
        probes.look(&key(), "v1", &queue, || async { Ok(1) });
        queue.next().await;
        assert_eq!(probes.look(&key(), "v1", &queue, || async { Ok(1) }), Some(Ok(1)));
    }
}
