//! Puts the parts together: watches that always run, workers that run while the lease is held, one shutdown for all.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DeserializeGuard, DynamicObject, PartialObjectMeta},
    runtime::watcher,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    apis::Apis,
    apply::{Children, id},
    backoff::Backoff,
    child::Child,
    client::{self, Caller},
    controller::{Context, Controller},
    dependents::{Links, SHARED},
    driver::Driver,
    error::Result,
    leader::{Elector, Fence, LeaseOptions},
    metrics::Metrics,
    optional::Optional,
    pods::{self, INSTANCE_LABEL, NAME_LABEL, PodSummary},
    queue::Queue,
    references::{References, Source},
    store::{Cached, NamespaceFacts, ObjectKey, Store, trim},
    team::{StartWorkers, Team, work},
    watch::Watch,
};

/// Selects what we made; nothing else is ever cached.
const OURS: &str = "app.kubernetes.io/managed-by=gantry";

#[derive(Clone, Debug)]
pub struct Options {
    /// Namespaces to look after; all when empty.
    pub namespaces: Vec<String>,
    /// The operator's own namespace, whose ConfigMaps are followed in any case.
    pub own_namespace: String,
    /// Visits at the same time, for each kind.
    pub concurrency: usize,
    /// Every object is visited at least this often, in case a watch missed something.
    pub resync: Duration,
    /// No lease: this process is the only one.
    pub lease: Option<LeaseOptions>,
    /// How long work under way may go on after a request to stop.
    pub grace: Duration,
    /// Longest wait for one answer of the API server.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            own_namespace: "default".to_owned(),
            concurrency: 8,
            resync: Duration::from_secs(600),
            lease: None,
            grace: Duration::from_secs(10),
            deadline: client::DEADLINE,
        }
    }
}

/// A kind of child that the controllers make.
#[derive(Clone, Debug)]
pub struct ChildResource {
    pub resource: ApiResource,
    /// Name of the CRD that must exist before it can be watched.
    pub needs_crd: Option<String>,
}

impl ChildResource {
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            resource: ApiResource::erase::<K>(&()),
            needs_crd: None,
        }
    }

    pub fn optional(resource: ApiResource) -> Self {
        let needs_crd = Some(format!("{}.{}", resource.plural, resource.group));
        Self { resource, needs_crd }
    }
}

/// The queues of all controllers, by name and by the kind they look after.
#[derive(Default)]
pub struct Wakers {
    queues: RwLock<HashMap<String, Waker>>,
}

struct Waker {
    controller: &'static str,
    queue: Arc<Queue>,
    /// The root that a label means.
    root: Box<dyn Fn(ObjectKey) -> ObjectKey + Send + Sync>,
}

impl Wakers {
    pub fn wake(&self, controller: &str, key: ObjectKey) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = queues.values().find(|waker| waker.controller == controller) {
            waker.queue.add(key);
        }
    }

    /// Wakes the root that the labels of a pod or child name.
    fn wake_labelled(&self, controller: &str, key: ObjectKey) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = queues.values().find(|waker| waker.controller == controller) {
            waker.queue.add((waker.root)(key));
        }
    }

    fn wake_owner(&self, child: &Child, links: &Links) {
        let Some(owner) = child.controller() else {
            links.changed(SHARED, child.key().clone());
            // A retained child has no owner, but carries the labels of one.
            let json = child.json().unwrap_or_default();
            let label = |name: &str| json["metadata"]["labels"][name].as_str();
            if let (Some(controller), Some(root)) = (label(NAME_LABEL), label(INSTANCE_LABEL)) {
                self.wake_labelled(controller, ObjectKey::new(child.key().namespace.clone(), root));
            }
            return;
        };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = queues.get(&format!("{}.{group}", owner.kind)) {
            waker
                .queue
                .add(ObjectKey::new(child.key().namespace.clone(), owner.name));
        }
    }

    fn register<C: Controller>(&self, queue: Arc<Queue>, store: Arc<Roots<C::Kind>>) {
        let kind = format!("{}.{}", C::Kind::kind(&()), C::Kind::group(&()));
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let waker = Waker {
            controller: C::NAME,
            queue,
            root: Box::new(move |key| pods::labelled(&store, key)),
        };
        queues.insert(kind, waker);
    }
}

pub struct Manager {
    client: Client,
    options: Options,
    fence: Fence,
    elector: Option<Elector>,
    metrics: Metrics,
    readiness: Readiness,
    children: Arc<Children>,
    child_resources: Vec<ChildResource>,
    pods: Arc<Store<PodSummary>>,
    references: Arc<References>,
    links: Arc<Links>,
    namespaces: Arc<Store<NamespaceFacts>>,
    /// `Arc<Store<DeserializeGuard<K>>>` by `K`.
    roots: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
    apis: Arc<Apis>,
    wakers: Arc<Wakers>,
    caller: Caller,
    /// Watches, and whatever else runs from start to end.
    watches: Vec<BoxFuture<'static, ()>>,
    /// Starts the workers of one controller; called each time the lease is gained.
    workers: Vec<StartWorkers>,
    queues: Vec<Arc<Queue>>,
    everybody: Vec<Arc<dyn Fn() + Send + Sync>>,
}

/// The cache of one kind of root.
pub type Roots<K> = Store<DeserializeGuard<K>>;

impl Manager {
    /// `readiness` waits for what is watched; who serves it is not our concern.
    pub fn new(
        client: Client,
        options: Options,
        metrics: Metrics,
        readiness: Readiness,
        children: Vec<ChildResource>,
    ) -> Self {
        let (elector, fence) = if let Some(lease) = options.lease.clone() {
            let (elector, fence) = Elector::new(client.clone(), lease, metrics.clone());
            (Some(elector), fence)
        } else {
            metrics.leads_alone();
            (None, Fence::open())
        };
        let caller = Caller::new(client.clone(), fence.clone(), options.deadline);
        let wakers = Arc::new(Wakers::default());
        Self {
            references: Arc::new(References::new(caller.clone(), wakers.clone())),
            children: Arc::new(Children::new(
                caller.clone(),
                children.iter().map(|child| child.resource.clone()),
            )),
            child_resources: children,
            pods: Arc::default(),
            links: Arc::new(Links::new(wakers.clone())),
            namespaces: Arc::default(),
            roots: HashMap::new(),
            apis: Arc::default(),
            readiness,
            watches: Vec::new(),
            workers: Vec::new(),
            queues: Vec::new(),
            everybody: Vec::new(),
            client,
            options,
            fence,
            elector,
            metrics,
            wakers,
            caller,
        }
    }

    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// For what runs beside the controllers: the same client, and the same fence on writes.
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// The cache of a kind of root, for controllers that look at other roots than their own.
    pub fn roots<K: Resource + Send + Sync + 'static>(&mut self) -> Arc<Roots<K>> {
        let store = self
            .roots
            .entry(TypeId::of::<K>())
            .or_insert_with(|| Box::new(Arc::<Roots<K>>::default()));
        store.downcast_ref::<Arc<Roots<K>>>().cloned().unwrap_or_default()
    }

    /// Something that runs beside the controllers from start to end, whoever holds the lease.
    pub fn beside(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.watches.push(Box::pin(task));
    }

    /// Adds a kind.
    pub fn add<C: Controller>(&mut self, controller: C) {
        let queue = Arc::new(Queue::default());
        self.metrics.queue(C::NAME, queue.clone());
        self.queues.push(queue.clone());
        let store = self.roots::<C::Kind>();
        self.wakers.register::<C>(queue.clone(), store.clone());
        for namespace in self.scopes() {
            let api = match &namespace {
                Some(namespace) => Api::namespaced(self.client.clone(), namespace),
                None => Api::all(self.client.clone()),
            };
            let watch = Watch {
                api,
                config: watcher::Config::default(),
                keep: trim::<DeserializeGuard<C::Kind>>,
                store: store.clone(),
                resource: ApiResource::erase::<C::Kind>(&()),
                gate: self
                    .readiness
                    .gate(gate_name(&format!("root {}", C::NAME), namespace.as_deref())),
                metrics: self.metrics.clone(),
                namespace,
            };
            let (queue, links) = (queue.clone(), self.links.clone());
            self.watches.push(Box::pin(async move {
                watch
                    .run(|object| {
                        let key = object.identity().key();
                        queue.add(key.clone());
                        links.changed(C::NAME, key);
                    })
                    .await;
            }));
        }
        let lease = self.options.lease.as_ref();
        let driver = Arc::new(Driver {
            controller,
            context: Context {
                caller: self.caller.clone(),
                children: self.children.clone(),
                pods: self.pods.clone(),
                references: self.references.clone(),
                links: self.links.clone(),
                namespaces: self.namespaces.clone(),
                apis: self.apis.clone(),
                queue: queue.clone(),
                field_manager: format!("gantry-{}", C::NAME),
                refused: std::sync::Mutex::default(),
            },
            store: store.clone(),
            backoff: Backoff::default(),
            instance: lease.map_or_else(|| "gantry".to_owned(), |lease| lease.identity.clone()),
            metrics: self.metrics.clone(),
            resync: self.options.resync,
            known: std::sync::Mutex::default(),
        });
        let (wake_all, visited) = (queue.clone(), driver.clone());
        self.everybody.push(Arc::new(move || {
            // Those that are gone as well: what is remembered of them is dropped by a visit.
            let keys = store.keys().into_iter().chain(visited.visited());
            keys.for_each(|key| wake_all.add(key));
        }));
        let concurrency = self.options.concurrency.max(1);
        let readiness = self.readiness.clone();
        self.workers.push(Box::new(move |tasks, stop| {
            for _ in 0..concurrency {
                let (driver, queue, readiness) = (driver.clone(), queue.clone(), readiness.clone());
                let stop = stop.clone();
                tasks.spawn(async move {
                    readiness.until_open(|gate| concerns::<C>(gate)).await;
                    work(&driver, &queue, &stop).await;
                });
            }
        }));
    }

    /// Runs until `shutdown` resolves; then finishes what is under way and gives the lease back.
    pub async fn run(mut self, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
        let mut background = JoinSet::new();
        for watch in std::mem::take(&mut self.watches) {
            background.spawn(watch);
        }
        self.watch_children(&mut background);
        self.watch_pods(&mut background);
        self.watch_references(&mut background);
        self.watch_namespaces(&mut background);
        let stop_leading = CancellationToken::new();
        // In a set of its own, so that it ends with this future, however that ends.
        let mut electing = JoinSet::new();
        if let Some(elector) = self.elector.take() {
            let stop = stop_leading.clone();
            electing.spawn(elector.run(async move { stop.cancelled().await }));
        }
        let Self {
            fence,
            workers,
            queues,
            everybody,
            options,
            ..
        } = self;
        Team {
            fence,
            workers,
            queues,
            everybody,
            grace: options.grace,
        }
        .lead_until(shutdown)
        .await;
        stop_leading.cancel();
        while electing.join_next().await.is_some() {}
        background.shutdown().await;
        Ok(())
    }

    fn watch_children(&self, tasks: &mut JoinSet<()>) {
        let mut optional: HashMap<String, Optional> = HashMap::new();
        for child in &self.child_resources {
            let Some(kind) = self
                .children
                .kinds()
                .find(|kind| id(&kind.resource) == id(&child.resource))
            else {
                continue;
            };
            for namespace in self.scopes() {
                let api = match &namespace {
                    Some(namespace) => {
                        Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &child.resource)
                    }
                    None => Api::all_with(self.client.clone(), &child.resource),
                };
                // An optional kind must not hold readiness up: it may never come.
                let readiness = if child.needs_crd.is_some() {
                    Readiness::default()
                } else {
                    self.readiness.clone()
                };
                let (store, resource) = (kind.store.clone(), child.resource.clone());
                let gate = readiness.gate(gate_name(&child.resource.kind, namespace.as_deref()));
                let metrics = self.metrics.clone();
                let (wakers, links) = (self.wakers.clone(), self.links.clone());
                let start = move || -> BoxFuture<'static, ()> {
                    let watch = Watch {
                        api: api.clone(),
                        config: watcher::Config::default().labels(OURS).page_size(200),
                        keep: Child::new,
                        store: store.clone(),
                        resource: resource.clone(),
                        gate: gate.clone(),
                        metrics: metrics.clone(),
                        namespace: namespace.clone(),
                    };
                    let (wakers, links) = (wakers.clone(), links.clone());
                    Box::pin(async move { watch.run(|child| wakers.wake_owner(child, &links)).await })
                };
                let Some(crd) = &child.needs_crd else {
                    tasks.spawn(start());
                    continue;
                };
                let optional = optional.entry(crd.clone()).or_insert_with(|| Optional {
                    start: Vec::new(),
                    store: kind.store.clone(),
                    running: JoinSet::new(),
                });
                optional.start.push(Box::new(start));
            }
        }
        self.watch_apis(tasks, optional);
    }

    /// The pods behind our children, for the causes of trouble.
    fn watch_pods(&self, tasks: &mut JoinSet<()>) {
        for namespace in self.scopes() {
            let watch = Watch {
                api: scoped::<Pod>(&self.client, namespace.as_deref()),
                config: watcher::Config::default().labels(OURS).page_size(200),
                keep: PodSummary::new,
                store: self.pods.clone(),
                resource: ApiResource::erase::<Pod>(&()),
                gate: self.readiness.gate(gate_name("Pod", namespace.as_deref())),
                metrics: self.metrics.clone(),
                namespace,
            };
            let (wakers, links) = (self.wakers.clone(), self.links.clone());
            tasks.spawn(async move {
                watch
                    .run(|pod| {
                        if let Some((controller, root)) = pod.root() {
                            links.changed(SHARED, root.clone());
                            wakers.wake_labelled(controller, root);
                        }
                    })
                    .await;
            });
        }
    }

    /// Follows the CRDs, watches the kinds of those that are there, and wakes everybody when an optional API came or went.
    fn watch_apis(&self, tasks: &mut JoinSet<()>, mut optional: HashMap<String, Optional>) {
        let (sender, mut arrivals) = tokio::sync::mpsc::unbounded_channel::<String>();
        let (apis, client) = (self.apis.clone(), self.client.clone());
        let (gate, metrics) = (self.readiness.gate("CRDs"), self.metrics.clone());
        let known: Vec<String> = optional.keys().cloned().collect();
        tasks.spawn(async move {
            apis.watch(client, gate, metrics, |name| {
                if known.iter().any(|known| known == name) {
                    let _ = sender.send(name.to_owned());
                }
            })
            .await;
        });
        let (apis, everybody) = (self.apis.clone(), self.everybody.clone());
        tasks.spawn(async move {
            while let Some(name) = arrivals.recv().await {
                if let Some(optional) = optional.get_mut(&name) {
                    optional.follow(apis.has(&name)).await;
                }
                for wake_all in &everybody {
                    wake_all();
                }
            }
        });
    }

    fn watch_references(&self, tasks: &mut JoinSet<()>) {
        let name = |source: Source, namespace: &Option<String>| {
            gate_name(&format!("referenced {source}s"), namespace.as_deref())
        };
        for namespace in self.scopes() {
            tasks.spawn(self.references.clone().watch::<Secret>(
                Source::Secret,
                scoped::<PartialObjectMeta<Secret>>(&self.client, namespace.as_deref()),
                namespace.clone(),
                self.readiness.gate(name(Source::Secret, &namespace)),
                self.metrics.clone(),
            ));
        }
        let mut scopes = self.scopes();
        let own = Some(self.options.own_namespace.clone());
        if !self.options.namespaces.is_empty() && !scopes.contains(&own) {
            scopes.push(own);
        }
        for namespace in scopes {
            tasks.spawn(self.references.clone().watch::<ConfigMap>(
                Source::ConfigMap,
                scoped::<PartialObjectMeta<ConfigMap>>(&self.client, namespace.as_deref()),
                namespace.clone(),
                self.readiness.gate(name(Source::ConfigMap, &namespace)),
                self.metrics.clone(),
            ));
        }
    }

    /// Only an operator for the whole cluster may read namespaces.
    fn watch_namespaces(&self, tasks: &mut JoinSet<()>) {
        if !self.options.namespaces.is_empty() {
            return;
        }
        let watch = Watch {
            api: Api::<PartialObjectMeta<Namespace>>::all(self.client.clone()),
            config: watcher::Config::default(),
            keep: NamespaceFacts::new,
            store: self.namespaces.clone(),
            resource: ApiResource::erase::<Namespace>(&()),
            gate: self.readiness.gate(gate_name(NamespaceFacts::KIND, None)),
            metrics: self.metrics.clone(),
            namespace: None,
        };
        let links = self.links.clone();
        tasks.spawn(async move {
            let changed = |namespace: &Arc<NamespaceFacts>| {
                links.changed(NamespaceFacts::KIND, namespace.identity().key());
            };
            watch.run(changed).await;
        });
    }

    fn scopes(&self) -> Vec<Option<String>> {
        if self.options.namespaces.is_empty() {
            vec![None]
        } else {
            self.options.namespaces.iter().cloned().map(Some).collect()
        }
    }
}

/// Whether a controller's first visit waits for this gate: not for the roots of others, unless it looks at them.
fn concerns<C: Controller>(gate: &str) -> bool {
    let Some(root) = gate.strip_prefix("root ") else {
        return !gate.starts_with(admin::SERVING);
    };
    let name = root.split(' ').next().unwrap_or(root);
    name == C::NAME || C::LOOKS_AT.contains(&name)
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn gate_name(what: &str, namespace: Option<&str>) -> String {
    namespace.map_or_else(|| what.to_owned(), |namespace| format!("{what} in {namespace}"))
}
