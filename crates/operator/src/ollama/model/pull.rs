//! Downloads into stores, in the background.
//!
//! A visit says which model it needs in which store and gets what is known so far; a task of its own looks whether the
//! model is there, downloads it if not, and wakes the Models that need it: at most every few seconds while it goes on, and
//! when it is over. Nothing is lost with the task: a download that is asked for again goes on where it stopped.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use gantry_kit::{ObjectKey, backoff, error::Retry, queue::Queue};
use tokio::{task::AbortHandle, time::Instant};

use super::{
    api::{Fault, Info, Ollama, PullLine},
    name::ModelName,
};

/// A model that is there is looked for again after this long: somebody may have removed it.
const FRESH: Duration = Duration::from_secs(600);
const AGAIN: Retry = Retry {
    first: Duration::from_secs(2),
    most: Duration::from_secs(300),
};
/// Progress is told this often at most.
const PACE: Duration = Duration::from_secs(3);

/// What is known of a model in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Present(Arc<Info>),
    /// On its way: what Ollama does just now, and how much of it is done.
    Pulling(String),
    /// Ollama's words.
    Failed(String),
    Unreachable(String),
}

/// What is to be in which store, and how it may get there. Models that agree about all of it share one download.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// Namespace and name of the store.
    pub store: ObjectKey,
    /// As Ollama lists it.
    pub model: String,
    pub insecure: bool,
    pub may_pull: bool,
    pub stall: Duration,
    /// Of the store's workload: another one has other contents.
    pub uid: String,
}

#[derive(Default)]
pub struct Pulls {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    entries: HashMap<Order, Entry>,
    /// What each Model needs.
    needs: HashMap<ObjectKey, Order>,
}

struct Entry {
    state: Option<State>,
    users: HashSet<ObjectKey>,
    task: Option<AbortHandle>,
    failures: u32,
    next: Instant,
    told: Instant,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Pulls {
    /// What is known; asks in the background when that is nothing, or old.
    pub fn look(&self, key: &ObjectKey, order: &Order, queue: &Arc<Queue>, ollama: &Ollama) -> Option<State> {
        let now = Instant::now();
        let mut inner = lock(&self.inner);
        if inner.needs.get(key).is_some_and(|before| before != order) {
            inner.forget(key);
        }
        inner.needs.insert(key.clone(), order.clone());
        let entry = inner.entries.entry(order.clone()).or_insert_with(|| Entry {
            state: None,
            users: HashSet::new(),
            task: None,
            failures: 0,
            next: now,
            told: now,
        });
        entry.users.insert(key.clone());
        if entry.task.is_none() {
            if now < entry.next {
                // A visit clears what was planned for the object, so plan again.
                queue.add_after(key.clone(), entry.next - now);
            } else {
                let work = Work {
                    inner: self.inner.clone(),
                    order: order.clone(),
                    queue: queue.clone(),
                    ollama: ollama.clone(),
                };
                entry.task = Some(tokio::spawn(work.run()).abort_handle());
            }
        }
        entry.state.clone()
    }

    /// The store is down, or its contents were changed: what is known is asked for again as soon as possible.
    pub fn expire(&self, store: &ObjectKey, model: &str) {
        let mut inner = lock(&self.inner);
        for (order, entry) in &mut inner.entries {
            if order.store == *store && order.model == model && entry.task.is_none() {
                entry.failures = 0;
                entry.next = Instant::now();
            }
        }
    }

    /// This Model is gone. A download that nobody else needs is broken off.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.inner).forget(key);
    }
}

impl Inner {
    fn forget(&mut self, key: &ObjectKey) {
        let Some(order) = self.needs.remove(key) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(&order) {
            entry.users.remove(key);
            if entry.users.is_empty() {
                self.entries.remove(&order);
            }
        }
    }
}

struct Work {
    inner: Arc<Mutex<Inner>>,
    order: Order,
    queue: Arc<Queue>,
    ollama: Ollama,
}

impl Work {
    async fn run(self) {
        let state = match self.bring().await {
            Ok(info) => State::Present(Arc::new(info)),
            Err(Fault::Said(words)) => State::Failed(words),
            Err(Fault::Unreachable(why)) => State::Unreachable(why),
        };
        let mut inner = lock(&self.inner);
        let Some(entry) = inner.entries.get_mut(&self.order) else {
            return;
        };
        entry.task = None;
        let wait = if matches!(state, State::Present(_)) {
            entry.failures = 0;
            FRESH
        } else {
            entry.failures += 1;
            backoff::delay(&self.order.store, entry.failures - 1, AGAIN)
        };
        entry.next = Instant::now() + wait;
        let is_news = entry.state.as_ref() != Some(&state);
        entry.state = Some(state);
        for user in &entry.users {
            if is_news {
                self.queue.add(user.clone());
            }
            self.queue.add_after(user.clone(), wait);
        }
    }

    async fn bring(&self) -> Result<Info, Fault> {
        let order = &self.order;
        let Some(name) = ModelName::parse(&order.model) else {
            return Err(Fault::Said("invalid model name".to_owned()));
        };
        if let Some(info) = self.ollama.find(&name).await? {
            return Ok(info);
        }
        if !order.may_pull {
            return Err(Fault::Said(format!("{} is not in the store", order.model)));
        }
        let mut lines = self.ollama.pull(&name, order.insecure).await?;
        let mut progress = Progress::default();
        let mut moved = Instant::now();
        loop {
            let line = tokio::time::timeout_at(moved + order.stall, lines.next()).await;
            let Ok(line) = line else {
                let seconds = order.stall.as_secs();
                return Err(Fault::Said(format!("the download did not move for {seconds} s")));
            };
            let line = line
                .unwrap_or_else(|| Err(Fault::Said("the download broke off".to_owned())))
                .map_err(broken_off)?;
            if let Some(words) = line.error {
                return Err(Fault::Said(words));
            }
            if line.status == "success" {
                break;
            }
            if progress.take(&line) {
                moved = Instant::now();
                self.tell(&progress);
            }
        }
        let lost = || Fault::Said("the download ended, but the store does not list the model".to_owned());
        self.ollama.find(&name).await?.ok_or_else(lost)
    }

    fn tell(&self, progress: &Progress) {
        let mut inner = lock(&self.inner);
        let Some(entry) = inner.entries.get_mut(&self.order) else {
            return;
        };
        // A failure stands until another try gets further than its first words.
        let failed = matches!(entry.state, Some(State::Failed(_) | State::Unreachable(_)));
        if failed && progress.percent().is_none() {
            return;
        }
        let state = Some(State::Pulling(progress.stage()));
        let is_first = !matches!(entry.state, Some(State::Pulling(_)));
        if entry.state != state && (is_first || entry.told.elapsed() >= PACE) {
            entry.state = state;
            entry.told = Instant::now();
            entry.users.iter().for_each(|user| self.queue.add(user.clone()));
        }
    }
}

/// A store that was there a moment ago is not out of reach: it restarts, and the download goes on then. Pods that are made for
/// stores out of reach would only wait.
fn broken_off(fault: Fault) -> Fault {
    match fault {
        Fault::Unreachable(why) => Fault::Said(why),
        said @ Fault::Said(_) => said,
    }
}

/// How far a download is, over all its parts.
#[derive(Default)]
pub struct Progress {
    status: String,
    /// By digest: how much there is, and how much of it is here.
    parts: BTreeMap<String, (u64, u64)>,
}

impl Progress {
    /// True when anything moved.
    fn take(&mut self, line: &PullLine) -> bool {
        let mut moved = self.status != line.status;
        self.status.clone_from(&line.status);
        if let (Some(digest), Some(total)) = (&line.digest, line.total) {
            let part = (total, line.completed.unwrap_or(0));
            moved |= self.parts.insert(digest.clone(), part) != Some(part);
        }
        moved
    }

    fn percent(&self) -> Option<u64> {
        let (total, done) = self.parts.values().fold((0_u64, 0_u64), |(total, done), part| {
            (total + part.0, done + part.1)
        });
        (total > 0 && done > 0).then(|| done.min(total) * 100 / total)
    }

    fn stage(&self) -> String {
        let is_part = self.status.starts_with("pulling ") && self.status != "pulling manifest";
        match self.percent() {
            Some(percent) if is_part => format!("pulling {percent}%"),
            _ if is_part => "pulling".to_owned(),
            _ => gantry_kit::error::shorten(self.status.clone(), 100),
        }
    }
}

fn lock(inner: &Mutex<Inner>) -> std::sync::MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}
