//! What an agent needs: its ModelAPI, its MCPServers, its peers. Which they are, how they are doing, where they are.

use gantry_crds::{
    conditions::{reasons, types},
    kaos::{Agent, AgentStatus, MCPServer, ModelAPI, ModelAPIMode},
};
use gantry_kit::{ObjectKey, PAUSED, conditions, manager::Roots, store::NamespaceFacts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::peers::{Peer, State as PeerState};
use crate::workload::names;

/// On a namespace: the namespaces whose agents may refer to what is in it, separated by commas, or `*`.
pub const ALLOW_FROM: &str = "gantry.dev/allow-references-from";
/// On a namespace, as a label: `"true"` lets agents of all namespaces refer to what is in it.
pub const ALLOW: &str = "gantry.dev/allow-references";

/// Port of agents, of MCPServers and of ModelAPIs in mode Proxy.
const PORT: i32 = 8000;
/// Port of ModelAPIs in mode Hosted.
const HOSTED_PORT: i32 = 11434;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Model,
    Tools,
    Peer,
}

impl Role {
    pub fn kind(self) -> &'static str {
        match self {
            Self::Model => "ModelAPI",
            Self::Tools => "MCPServer",
            Self::Peer => "Agent",
        }
    }

    /// Name of the controller, which is also the prefix of children and a label of pods.
    pub fn controller(self) -> &'static str {
        match self {
            Self::Model => "modelapi",
            Self::Tools => "mcpserver",
            Self::Peer => "agent",
        }
    }

    fn waiting(self) -> &'static str {
        match self {
            Self::Model => reasons::WAITING_FOR_MODEL_API,
            Self::Tools => reasons::WAITING_FOR_MCP_SERVER,
            Self::Peer => reasons::WAITING_FOR_PEER,
        }
    }
}

/// One object that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    pub role: Role,
    /// As the spec has it: a name, or `namespace/name`.
    pub written: String,
    pub key: ObjectKey,
    /// Namespace of the agent.
    home: String,
}

impl Needed {
    fn new(role: Role, home: &str, written: &str) -> Self {
        let (namespace, name) = written.split_once('/').unwrap_or((home, written));
        Self {
            role,
            written: written.to_owned(),
            key: ObjectKey::new(namespace, name),
            home: home.to_owned(),
        }
    }

    pub fn is_elsewhere(&self) -> bool {
        self.key.namespace != self.home
    }

    /// What the runtime calls it: variables are named after it.
    pub fn alias(&self) -> String {
        if self.is_elsewhere() {
            format!("{}-{}", self.key.namespace, self.key.name)
        } else {
            self.key.name.clone()
        }
    }

    /// Its key in `status.linkedResources`.
    pub fn link(&self) -> String {
        format!("{}/{}", self.role.controller(), self.written)
    }

    fn address(&self, port: i32) -> String {
        let service = names::child(self.role.controller(), &self.key.name);
        format!("http://{service}.{}.svc.cluster.local:{port}", self.key.namespace)
    }
}

/// Everything that the spec names, each object once, sorted: the order of a list must not roll the pods.
pub fn needed(agent: &Agent) -> Vec<Needed> {
    let home = agent.namespace().unwrap_or_default();
    let spec = &agent.spec;
    let of = |role: Role, list: &[String]| {
        let list = list.iter().filter(|written| !written.is_empty());
        let mut list: Vec<Needed> = list.map(|written| Needed::new(role, &home, written)).collect();
        list.sort_by(|one, other| one.key.cmp(&other.key));
        list.dedup_by(|one, other| one.key == other.key);
        list
    };
    let mut all = of(Role::Model, spec.model_api.as_slice());
    all.extend(of(Role::Tools, spec.mcp_servers()));
    all.extend(of(Role::Peer, spec.peers()));
    all
}

/// How an object is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The agent's namespace may not refer to it; the reason and the cure.
    Refused(String),
    Missing,
    NotReady {
        /// What its own Ready condition says.
        reason: Option<String>,
        /// At least one pod serves all the same, as in a rollout.
        serves: bool,
    },
    /// It has no Service.
    NotExposed,
    Ready,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    pub needed: Needed,
    pub state: State,
    pub address: String,
    /// The pods were built with it: it is not waited for again.
    pub linked: bool,
}

impl Dependency {
    pub fn port(&self) -> i32 {
        let port = self.address.rsplit(':').next();
        port.and_then(|port| port.trim_end_matches('/').parse().ok())
            .unwrap_or(PORT)
    }

    /// What stands in the way of starting, in words.
    fn obstacle(&self) -> Option<String> {
        let what = format!("{} {}", self.needed.role.kind(), self.needed.written);
        match &self.state {
            State::Ready => None,
            State::Refused(why) => Some(why.clone()),
            State::Missing => Some(format!("{what} does not exist: create it")),
            State::NotExposed => Some(format!(
                "{what} is not exposed: set its agentNetwork.expose to true"
            )),
            State::NotReady { reason, .. } => Some(match reason {
                Some(reason) => format!("{what} is not ready ({reason})"),
                None => format!("{what} is not ready"),
            }),
        }
    }

    /// What a running agent misses, in words.
    pub fn loss(&self) -> Option<String> {
        match self.state {
            State::NotReady { serves: true, .. } => None,
            _ => self.obstacle(),
        }
    }
}

/// What is known of everything that an agent needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    pub all: Vec<Dependency>,
    /// Models that the ModelAPI serves, when it exists.
    pub served: Option<Vec<String>>,
    /// The model that the pods were built with.
    pub model_before: Option<String>,
    /// Peers that are not ready wait for this agent too, and for nothing else.
    pub circle: bool,
}

impl Dependencies {
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Dependency> {
        self.all.iter().filter(move |one| one.needed.role == role)
    }

    pub fn refused(&self) -> Option<&str> {
        self.all.iter().find_map(|one| match &one.state {
            State::Refused(why) => Some(why.as_str()),
            _ => None,
        })
    }

    /// A peer that nobody can talk to, however long one waits.
    pub fn unexposed(&self) -> Option<String> {
        let hidden = |one: &&Dependency| !one.linked && one.state == State::NotExposed;
        self.all.iter().find(hidden).and_then(Dependency::obstacle)
    }

    /// Why the pods have to wait, as a reason and words that name everything: what is served first, then peers.
    pub fn wait(&self, roles: &[Role]) -> Option<(&'static str, String)> {
        let open = |one: &&Dependency| !one.linked && one.state != State::Ready;
        let waited_for = |role: Role| roles.contains(&role) && !(self.circle && role == Role::Peer);
        let mut first = self
            .all
            .iter()
            .filter(open)
            .filter(|one| waited_for(one.needed.role));
        let reason = first.next()?.needed.role.waiting();
        let words: Vec<String> = self
            .all
            .iter()
            .filter(open)
            .filter_map(Dependency::obstacle)
            .collect();
        Some((reason, words.join("; ")))
    }

    /// What a running agent misses.
    pub fn lost(&self) -> Option<String> {
        let words: Vec<String> = self.all.iter().filter_map(Dependency::loss).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// Where a dependency is looked up.
pub struct Caches<'a> {
    pub model_apis: &'a Roots<ModelAPI>,
    pub mcp_servers: &'a Roots<MCPServer>,
    pub agents: &'a Roots<Agent>,
}

/// What an object of any of the three kinds tells about itself.
struct Told<'a> {
    ready: bool,
    endpoint: Option<&'a str>,
    conditions: Option<&'a [Condition]>,
}

impl Caches<'_> {
    /// Looks one object up; `before` is the agent's status, which remembers addresses.
    pub fn find(&self, needed: &Needed, before: Option<&AgentStatus>) -> Dependency {
        let link = needed.link();
        let links = before.and_then(|status| status.linked_resources.as_ref());
        let remembered = links.and_then(|links| links.get(&link));
        let (state, address) = match needed.role {
            Role::Model => self.model(needed),
            Role::Tools => self.tools(needed),
            Role::Peer => self.peer(needed),
        }
        .unwrap_or((State::Missing, None));
        // By name: addresses do not change because an object is away for a while.
        let address = address
            .or_else(|| remembered.cloned())
            .unwrap_or_else(|| needed.address(PORT));
        Dependency {
            linked: remembered.is_some() || before.is_some_and(ran_under_the_original),
            needed: needed.clone(),
            state,
            address,
        }
    }

    fn model(&self, needed: &Needed) -> Option<(State, Option<String>)> {
        let found = self.model_apis.get(&needed.key)?;
        let Ok(object) = &found.0 else {
            return Some((unreadable(), None));
        };
        let told = object.status.as_ref().map(|status| Told {
            ready: status.ready == Some(true),
            endpoint: status.endpoint.as_deref(),
            conditions: status.conditions.as_deref(),
        });
        let port = match object.spec.mode {
            Some(ModelAPIMode::Hosted) => HOSTED_PORT,
            _ => PORT,
        };
        Some(judge(object.metadata.deletion_timestamp.is_some(), told, || {
            needed.address(port)
        }))
    }

    fn tools(&self, needed: &Needed) -> Option<(State, Option<String>)> {
        let found = self.mcp_servers.get(&needed.key)?;
        let Ok(object) = &found.0 else {
            return Some((unreadable(), None));
        };
        let told = object.status.as_ref().map(|status| Told {
            ready: status.ready == Some(true),
            endpoint: status.endpoint.as_deref(),
            conditions: status.conditions.as_deref(),
        });
        let deleted = object.metadata.deletion_timestamp.is_some();
        Some(judge(deleted, told, || needed.address(PORT)))
    }

    fn peer(&self, needed: &Needed) -> Option<(State, Option<String>)> {
        let found = self.agents.get(&needed.key)?;
        let Ok(object) = &found.0 else {
            return Some((unreadable(), None));
        };
        if !object.spec.expose() {
            return Some((State::NotExposed, None));
        }
        let told = object.status.as_ref().map(|status| Told {
            ready: status.ready == Some(true),
            endpoint: status.endpoint.as_deref(),
            conditions: status.conditions.as_deref(),
        });
        let deleted = object.metadata.deletion_timestamp.is_some();
        Some(judge(deleted, told, || needed.address(PORT)))
    }

    /// The models that a ModelAPI serves: as it tells of its present spec, else as the spec says.
    pub fn served(&self, needed: &Needed) -> Option<Vec<String>> {
        let found = self.model_apis.get(&needed.key)?;
        let object = found.0.as_ref().ok()?;
        let told = object.status.as_ref().and_then(|status| {
            let current = status.observed_generation == object.metadata.generation;
            status.supported_models.clone().filter(|_| current)
        });
        let served = told.unwrap_or_else(|| object.spec.supported_models());
        (!served.is_empty()).then_some(served)
    }

    /// An agent as those see it who wait for it.
    pub fn as_peer(&self, key: &ObjectKey) -> Peer {
        let found = self.agents.get(key);
        let object = found.as_deref().and_then(|found| found.0.as_ref().ok());
        object.map_or(
            Peer {
                state: PeerState::Held,
                waits_for: Vec::new(),
            },
            as_peer,
        )
    }
}

fn as_peer(agent: &Agent) -> Peer {
    let status = agent.status.clone().unwrap_or_default();
    let reason = status
        .conditions
        .as_deref()
        .and_then(|known| conditions::find(known, types::READY))
        .map(|ready| ready.reason.as_str());
    let is_current = status.observed_generation == agent.metadata.generation;
    let is_left_alone = agent.metadata.deletion_timestamp.is_some()
        || agent
            .annotations()
            .get(PAUSED)
            .is_some_and(|paused| paused == "true");
    let state = if status.ready == Some(true) {
        PeerState::Ready
    } else if status.linked_resources.is_some() {
        PeerState::Started
    } else if !is_left_alone && is_current && reason == Some(reasons::WAITING_FOR_PEER) {
        PeerState::Waits
    } else {
        PeerState::Held
    };
    let peers = needed(agent)
        .into_iter()
        .filter(|needed| needed.role == Role::Peer);
    let waits = agent.spec.wait_for_dependencies();
    Peer {
        state,
        waits_for: peers.filter(|_| waits).map(|needed| needed.key).collect(),
    }
}

/// The original operator wrote this status, and it says that pods run: they had all they need.
fn ran_under_the_original(status: &AgentStatus) -> bool {
    status.observed_generation.is_none() && status.ready == Some(true)
}

fn unreadable() -> State {
    State::NotReady {
        reason: Some(reasons::INVALID_SPEC.to_owned()),
        serves: false,
    }
}

fn judge(deleted: bool, told: Option<Told<'_>>, predict: impl Fn() -> String) -> (State, Option<String>) {
    let address = told
        .as_ref()
        .and_then(|told| told.endpoint)
        .filter(|endpoint| !endpoint.is_empty())
        .map_or_else(predict, ToOwned::to_owned);
    if deleted {
        return (State::Missing, Some(address));
    }
    let state = match told {
        Some(told) if told.ready => State::Ready,
        told => {
            let known = told.and_then(|told| told.conditions).unwrap_or_default();
            State::NotReady {
                reason: conditions::find(known, types::READY).map(|ready| ready.reason.clone()),
                serves: conditions::is_true(known, types::AVAILABLE),
            }
        }
    };
    (state, Some(address))
}

/// Why a reference into another namespace is not allowed; nothing when it is. `target` is that namespace, if it exists
/// and namespaces can be seen at all.
pub fn refusal(needed: &Needed, sees_namespaces: bool, target: Option<&NamespaceFacts>) -> Option<String> {
    if !needed.is_elsewhere() {
        return None;
    }
    let (namespace, home) = (&needed.key.namespace, &needed.home);
    let what = format!("{} {}", needed.role.kind(), needed.written);
    if !sees_namespaces {
        return Some(format!(
            "{what} is in another namespace, and this operator looks after single namespaces (--watch-namespace), \
             where it cannot see what {namespace} allows: name one in {home}"
        ));
    }
    let from = target
        .and_then(|target| target.get(ALLOW_FROM))
        .unwrap_or_default();
    let listed = from
        .split(',')
        .map(str::trim)
        .any(|name| name == "*" || name == home);
    let open = target.and_then(|target| target.get(ALLOW)) == Some("true");
    (!listed && !open).then(|| {
        format!(
            "{what} may not be used from namespace {home}: annotate namespace {namespace} with {ALLOW_FROM}={home}"
        )
    })
}
