//! HTTP: extracts, authorises, calls a use case, answers. No SQL and no decisions.

mod access;
mod answer;
mod audit;
mod clusters;
mod crds;
mod docs;
mod extract;
mod guard;
mod operators;
mod people;
mod rates;
mod system;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
    routing::{MethodRouter, delete, get, post, put},
};
use gantry_fleet_api::Operation;
use gantry_fleet_domain::origin::Network;
use strum::IntoEnumIterator;
use tokio::sync::Semaphore;

pub use access::action;
pub use rates::RateLimits;

use crate::{
    infrastructure::yaml::{self, Bounds},
    orchestrator::Fleet,
};

/// A whole definition can be large; everything else is small.
const LARGE_BODY: Bounds = Bounds {
    bytes: 6 << 20,
    nodes: yaml::DEFINITION.nodes + 100,
    ..yaml::DEFINITION
};
const SMALL_BODY: Bounds = Bounds {
    bytes: 1 << 20,
    nodes: 50_000,
    ..yaml::SMALL
};
/// Large bodies that are worked with at once; others wait. In memory each may take a hundred megabytes.
const LARGE_AT_ONCE: usize = 2;

/// What handlers work with.
#[derive(Clone)]
pub struct App {
    pub fleet: Arc<Fleet>,
    pub rates: Arc<RateLimits>,
    pub document: Arc<serde_json::Value>,
    /// Whether browsers are told to insist on TLS.
    pub secure: bool,
    pub trusted_proxies: Arc<[Network]>,
    large_bodies: Arc<Semaphore>,
    pulse: Arc<system::Pulse>,
}

impl App {
    pub fn new(fleet: Arc<Fleet>, secure: bool, trusted_proxies: Arc<[Network]>) -> Self {
        Self {
            rates: Arc::new(RateLimits::new(fleet.rates)),
            document: Arc::new(gantry_fleet_api::document(env!("CARGO_PKG_VERSION"))),
            fleet,
            secure,
            trusted_proxies,
            large_bodies: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            pulse: Arc::default(),
        }
    }
}

/// Every operation of the list, each behind the guard that knows which one it is.
pub fn router(app: App) -> Router {
    let mut router = Router::new();
    for operation in Operation::iter() {
        let guard = from_fn_with_state((app.clone(), operation), guard::guard);
        router = router.route(operation.spec().path, handler(operation).route_layer(guard));
    }
    router
        .fallback(guard::unknown)
        .method_not_allowed_fallback(guard::unknown)
        .layer(from_fn_with_state(app.clone(), answer::finish))
        .layer(from_fn(answer::traced))
        .with_state(app)
}

/// One arm for each: an operation without a handler does not compile.
fn handler(operation: Operation) -> MethodRouter<App> {
    use Operation as O;
    let handler = match operation {
        O::Health => get(system::health),
        O::OpenApi => get(system::openapi),
        O::Docs => get(docs::page),
        O::Login => post(people::login),
        O::ChangePassword => post(people::change_password),
        O::ListOperators => get(operators::list),
        O::RegisterOperator => post(operators::register),
        O::GetOperator => get(operators::show),
        O::ChangeOperator => put(operators::change),
        O::DeleteOperator => delete(operators::remove),
        O::ListOperatorVersions => get(operators::versions),
        O::RefreshOperator => post(operators::refresh),
        O::ListClusters => get(clusters::list),
        O::RegisterCluster => post(clusters::register),
        O::GetCluster => get(clusters::show),
        O::ChangeCluster => put(clusters::change),
        O::DeleteCluster => delete(clusters::remove),
        O::GetClusterHealth => get(clusters::health),
        O::ListCrds => get(crds::list),
        O::RegisterCrd => post(crds::register),
        O::GetCrd => get(crds::show),
        O::ChangeCrd => put(crds::change),
        O::DiffCrd => get(crds::diff),
        O::ValidateCrd => post(crds::validate),
        O::ApproveCrd => post(crds::approve),
        O::DeprecateCrd => post(crds::deprecate),
        O::ProveCrd => post(crds::prove),
        O::ListWaivers => get(crds::waivers),
        O::AddWaiver => post(crds::waive),
        O::DeleteWaiver => delete(crds::unwaive),
        O::ListAudit => get(audit::list),
        O::ListUsers => get(people::list),
        O::CreateUser => post(people::create),
        O::DeleteUser => delete(people::remove),
    };
    handler.layer(DefaultBodyLimit::max(body_bounds(operation).bytes))
}

/// Whether its bodies have whole definitions in them.
fn is_large(operation: Operation) -> bool {
    use Operation as O;
    matches!(operation, O::RegisterCrd | O::ValidateCrd | O::ProveCrd)
}

fn body_bounds(operation: Operation) -> Bounds {
    if is_large(operation) {
        LARGE_BODY
    } else {
        SMALL_BODY
    }
}
