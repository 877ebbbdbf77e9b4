//! The loop that drives all pods of all nodes: one watch, one set of timers, a bounded number of writes.
//!
//! A pod that has nothing before it (Ready, or done) costs a small entry. The state machine's view of a pod is held
//! only while something is due; whatever wakes a settled pod comes as a new object from the watch.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};

use super::{
    events::{Recorder, Sent},
    ipam::Ipam,
    write::{Target, Written, write},
};
use crate::pods::{Env, PodEvent, PodView, behaviour::Defaults, step};

/// How long a pod waits for a free address before it asks again.
const NO_ADDRESS: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// A pod, what became of its write, and the Events to send if it went well.
type Finished = (Arc<str>, Written, Vec<PodEvent>);
type Timers = BinaryHeap<Reverse<(Timestamp, Arc<str>)>>;

struct Entry {
    ip: Option<Ipv4Addr>,
    resource_version: u64,
    stage: u64,
    entered: Timestamp,
    /// `None` once settled.
    view: Option<Box<PodView>>,
    /// When to look again; timers that say another time are stale.
    due: Option<Timestamp>,
    /// A write is queued or under way.
    busy: bool,
    failures: u32,
    sent: Sent,
}

pub struct Runner {
    client: Client,
    nodes: Arc<HashMap<String, Ipv4Addr>>,
    defaults: Defaults,
    ipam: Ipam,
    concurrency: usize,
    recorder: Recorder,
    pods: HashMap<Arc<str>, Entry>,
    timers: Timers,
    queue: VecDeque<Arc<str>>,
    writes: FuturesUnordered<BoxFuture<'static, Finished>>,
    /// Pods named by the list in progress; `None` between lists.
    listed: Option<HashSet<Arc<str>>>,
    complaints: Complaints,
    /// No address is given out before the first list is complete: some pod may have it.
    synced: bool,
}

impl Runner {
    pub fn new(
        client: Client,
        nodes: Arc<HashMap<String, Ipv4Addr>>,
        defaults: Defaults,
        ipam: Ipam,
        concurrency: usize,
        events: bool,
    ) -> Self {
        Self {
            recorder: Recorder::new(client.clone(), events),
            client,
            nodes,
            defaults,
            ipam,
            concurrency,
            pods: HashMap::new(),
            timers: BinaryHeap::new(),
            queue: VecDeque::new(),
            writes: FuturesUnordered::new(),
            listed: None,
            complaints: Complaints::default(),
            synced: false,
        }
    }

    pub async fn run(mut self) {
        let selector = match self.nodes.keys().next() {
            Some(only) if self.nodes.len() == 1 => format!("spec.nodeName={only}"),
            _ => "spec.nodeName!=".to_owned(),
        };
        let config = watcher::Config::default().fields(&selector);
        let mut watch = watcher(Api::<Pod>::all(self.client.clone()), config)
            .default_backoff()
            .boxed();
        loop {
            let due = self.timers.peek().map(|Reverse((time, _))| *time);
            tokio::select! {
                event = watch.next() => match event {
                    Some(Ok(event)) => self.on_event(event),
                    Some(Err(error)) => tracing::warn!(%error, "watch of pods"),
                    None => return,
                },
                Some((uid, written, events)) = self.writes.next(), if !self.writes.is_empty() => {
                    self.on_written(&uid, written, events);
                }
                () = sleep_until(due), if due.is_some() => self.on_timers(),
            }
            self.work();
        }
    }

    fn on_event(&mut self, event: watcher::Event<Pod>) {
        match event {
            watcher::Event::Init => self.listed = Some(HashSet::new()),
            watcher::Event::InitApply(pod) => {
                if let Some(uid) = self.observe(pod) {
                    self.listed.get_or_insert_default().insert(uid);
                }
            }
            watcher::Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let gone: Vec<Arc<str>> = self
                    .pods
                    .keys()
                    .filter(|uid| !listed.contains(*uid))
                    .cloned()
                    .collect();
                for uid in gone {
                    self.forget(&uid);
                }
                if !self.synced {
                    self.synced = true;
                    tracing::info!(pods = self.pods.len(), "watching pods");
                    for uid in listed {
                        self.enqueue(&uid);
                    }
                }
            }
            watcher::Event::Apply(pod) => {
                self.observe(pod);
            }
            watcher::Event::Delete(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    self.forget(&Arc::from(uid));
                }
            }
        }
    }

    /// Takes in a newer sight of a pod and acts on it.
    fn observe(&mut self, pod: Pod) -> Option<Arc<str>> {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())?;
        if !self.nodes.contains_key(node) {
            return None;
        }
        let view = PodView::new(pod, &self.defaults)?;
        let now = Timestamp::now();
        let (uid, stage) = (Arc::<str>::from(view.uid.as_str()), view.stage());
        let mut fresh = false;
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| {
            fresh = true;
            Entry {
                ip: None,
                resource_version: 0,
                stage,
                entered: view.stage_since().unwrap_or(now).min(now),
                view: None,
                due: None,
                busy: false,
                failures: 0,
                sent: Sent::default(),
            }
        });
        // Replies to our own writes may be ahead of the watch, and of a list.
        if view.resource_version <= entry.resource_version {
            return Some(uid);
        }
        entry.resource_version = view.resource_version;
        if entry.stage != stage {
            entry.stage = stage;
            entry.entered = now;
        }
        if fresh {
            for problem in &view.behaviour.problems {
                tracing::warn!(pod = view.name, namespace = view.namespace, "{problem}");
            }
            if let Some(ip) = view
                .ip()
                .filter(|_| !view.host_network)
                .and_then(|ip| ip.parse().ok())
                && self.ipam.reserve(ip)
            {
                entry.ip = Some(ip);
            }
        }
        entry.view = Some(Box::new(view));
        if self.synced {
            self.enqueue(&uid);
        }
        Some(uid)
    }

    /// Puts a pod in line, unless it is there or a write of it is under way.
    fn enqueue(&mut self, uid: &Arc<str>) {
        if let Some(entry) = self.pods.get_mut(uid)
            && !entry.busy
            && entry.view.is_some()
        {
            entry.busy = true;
            entry.due = None;
            self.queue.push_back(uid.clone());
        }
    }

    /// Takes pods from the line as long as writes may be started.
    fn work(&mut self) {
        while self.writes.len() < self.concurrency {
            let Some(uid) = self.queue.pop_front() else { return };
            self.advance(&uid);
        }
    }

    /// Asks the state machine what is next, and starts the write or sets the timer.
    fn advance(&mut self, uid: &Arc<str>) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        entry.busy = false;
        let Some(view) = &entry.view else { return };
        let Some(host_ip) = self.nodes.get(&view.node) else {
            return;
        };
        let now = Timestamp::now();
        if entry.ip.is_none() && !view.host_network {
            entry.ip = self.ipam.allocate();
            if entry.ip.is_none() {
                tracing::warn!(pod = view.name, "no address is free in --pod-cidr");
                return set_timer(&mut self.timers, entry, uid, now, NO_ADDRESS);
            }
        }
        let host_ip = host_ip.to_string();
        let pod_ip = entry.ip.map_or_else(|| host_ip.clone(), |ip| ip.to_string());
        let next = step(
            view,
            &Env {
                now,
                entered: entry.entered,
                pod_ip: &pod_ip,
                host_ip: &host_ip,
            },
        );
        if next.is_idle() {
            match next.wake {
                Some(wake) => {
                    entry.due = Some(wake);
                    self.timers.push(Reverse((wake, uid.clone())));
                }
                None => entry.view = None,
            }
            return;
        }
        entry.busy = true;
        let target = Target {
            namespace: view.namespace.clone(),
            name: view.name.clone(),
            uid: view.uid.clone(),
        };
        let work = write(
            self.client.clone(),
            target,
            next.status.map(Box::new),
            next.delete,
        );
        let (uid, events) = (uid.clone(), next.events);
        self.writes.push(async move { (uid, work.await, events) }.boxed());
    }

    fn on_written(&mut self, uid: &Arc<str>, written: Written, events: Vec<PodEvent>) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        entry.busy = false;
        let now = Timestamp::now();
        match written {
            Written::Done(pod) => {
                entry.failures = 0;
                if let Some(view) = &entry.view {
                    let target = Target {
                        namespace: view.namespace.clone(),
                        name: view.name.clone(),
                        uid: view.uid.clone(),
                    };
                    self.recorder.record(&mut entry.sent, &target, &view.node, events);
                }
                match pod {
                    Some(pod) => {
                        self.observe(*pod);
                        // What the watch brought meanwhile may be newer than the reply.
                        self.enqueue(uid);
                    }
                    // Deleted: the watch tells the rest.
                    None => entry.view = None,
                }
            }
            Written::Gone => self.forget(uid),
            Written::Conflict => set_timer(&mut self.timers, entry, uid, now, FIRST_RETRY),
            Written::Failed(error) => {
                let delay = FIRST_RETRY
                    .saturating_mul(1 << entry.failures.min(16))
                    .min(LAST_RETRY);
                entry.failures += 1;
                set_timer(&mut self.timers, entry, uid, now, delay);
                self.complaints.add(&error);
            }
        }
    }

    fn on_timers(&mut self) {
        let now = Timestamp::now();
        while let Some(Reverse((time, _))) = self.timers.peek()
            && *time <= now
        {
            let Some(Reverse((time, uid))) = self.timers.pop() else {
                return;
            };
            if self.pods.get(&uid).is_some_and(|entry| entry.due == Some(time)) {
                self.enqueue(&uid);
            }
        }
    }

    fn forget(&mut self, uid: &Arc<str>) {
        if let Some(ip) = self.pods.remove(uid).and_then(|entry| entry.ip) {
            self.ipam.release(ip);
        }
    }
}

/// Says what failed at most once a second: when the API server is away, every pod fails.
#[derive(Debug, Default)]
struct Complaints {
    last: Option<Instant>,
    silent: u32,
}

impl Complaints {
    fn add(&mut self, error: &str) {
        if self
            .last
            .is_some_and(|last| last.elapsed() < Duration::from_secs(1))
        {
            self.silent += 1;
            return;
        }
        tracing::warn!(
            error,
            others = self.silent,
            "failed to write a pod, will try again"
        );
        *self = Self {
            last: Some(Instant::now()),
            silent: 0,
        };
    }
}

fn set_timer(timers: &mut Timers, entry: &mut Entry, uid: &Arc<str>, now: Timestamp, delay: Duration) {
    let due = now.checked_add(delay).unwrap_or(Timestamp::MAX);
    entry.due = Some(due);
    timers.push(Reverse((due, uid.clone())));
}

/// Sleeps until a time of the wall clock, which is what the pods' statuses are in.
async fn sleep_until(due: Option<Timestamp>) {
    let left = due.map(|due| due.duration_since(Timestamp::now()));
    tokio::time::sleep(
        left.and_then(|left| Duration::try_from(left).ok())
            .unwrap_or_default(),
    )
    .await;
}
