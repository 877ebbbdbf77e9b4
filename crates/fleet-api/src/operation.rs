//! Every operation of the API, once. The router, the authorisation, the rate limits, the OpenAPI document and the test
//! that walks them all are made from this list; a new one that any of them forgets does not compile.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use strum::{EnumIter, IntoStaticStr};

use crate as api;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "camelCase")]
pub enum Operation {
    Health,
    OpenApi,
    Docs,
    Login,
    ChangePassword,
    ListOperators,
    RegisterOperator,
    GetOperator,
    ChangeOperator,
    DeleteOperator,
    ListOperatorVersions,
    RefreshOperator,
    ListClusters,
    RegisterCluster,
    GetCluster,
    ChangeCluster,
    DeleteCluster,
    GetClusterHealth,
    ListCrds,
    RegisterCrd,
    GetCrd,
    ChangeCrd,
    DiffCrd,
    ValidateCrd,
    ApproveCrd,
    DeprecateCrd,
    ProveCrd,
    ListWaivers,
    AddWaiver,
    DeleteWaiver,
    ListAudit,
    ListUsers,
    CreateUser,
    DeleteUser,
}

/// What the OpenAPI document says of an operation.
#[derive(Debug)]
pub struct Spec {
    pub method: &'static str,
    pub path: &'static str,
    pub tag: &'static str,
    pub summary: &'static str,
    pub query: &'static [Parameter],
    pub body: Option<MakeSchema>,
    /// The status of success, and its body.
    pub status: u16,
    pub reply: Reply,
    /// Whether `If-Match` is looked at. Where it is not, a request that has one is refused: it would be done though the
    /// caller wanted it not to be.
    pub if_match: bool,
    /// Whether a request with an `Idempotency-Key` is done once. Where it is not, the header is of no meaning: to do it again
    /// does no harm.
    pub idempotency_key: bool,
}

impl Spec {
    /// Changes something that has a revision, beside adding to it.
    fn with_match(self) -> Self {
        Self {
            if_match: true,
            ..self
        }
    }

    /// What it is about has no revision: it is there or not.
    fn without_match(self) -> Self {
        Self {
            if_match: false,
            ..self
        }
    }

    fn with_query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    /// Leaves nothing behind that would be there twice.
    fn without_key(self) -> Self {
        Self {
            idempotency_key: false,
            ..self
        }
    }
}

pub type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

#[derive(Clone, Copy, Debug)]
pub enum Reply {
    Json(MakeSchema),
    Html,
    Any,
    Empty,
}

#[derive(Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: &'static str,
    pub about: &'static str,
}

const fn parameter(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind, about }
}

const LIMIT: Parameter = parameter(
    "limit",
    "integer",
    "How many to answer with: 1 to 100, 20 when absent.",
);
const OFFSET: Parameter = parameter("offset", "integer", "How many to skip: 1000000 at most.");
const LABEL: Parameter = parameter(
    "label",
    "string",
    "Only those with this label, as key=value; repeat for more.",
);

const PAGE: &[Parameter] = &[LIMIT, OFFSET];
const OPERATORS: &[Parameter] = &[
    parameter("namespace", "string", "Only those of this namespace."),
    LABEL,
    parameter(
        "hasUpdate",
        "boolean",
        "Only those with a newer version than the current one, or only those without.",
    ),
    LIMIT,
    OFFSET,
];
const CLUSTERS: &[Parameter] = &[
    parameter("environment", "string", "Only those of this environment."),
    parameter(
        "healthStatus",
        "string",
        "Only those that are Unknown, Healthy, Degraded or Unhealthy.",
    ),
    LABEL,
    LIMIT,
    OFFSET,
];
const DELETE_CLUSTER: &[Parameter] = &[parameter(
    "leaveDeployer",
    "boolean",
    "Remove it though a deployer is bound in it that cannot be taken away: for a cluster that is gone for good.",
)];
const CRDS: &[Parameter] = &[
    parameter("operatorName", "string", "Only those of this operator."),
    parameter("group", "string", "Only those of this API group."),
    parameter(
        "status",
        "string",
        "Only those that are Active, Deprecated or Removed.",
    ),
    parameter(
        "approvalStatus",
        "string",
        "Only those whose newest schema is NotRequired, Pending, Waived, Approved or Rejected.",
    ),
    LIMIT,
    OFFSET,
];
const HISTORY: &[Parameter] = &[
    parameter(
        "limit",
        "integer",
        "How many versions of its history to answer with: 1 to 100, all of them when absent.",
    ),
    parameter(
        "offset",
        "integer",
        "How many of the newest versions to skip: 1000000 at most.",
    ),
];
const DIFF: &[Parameter] = &[
    parameter(
        "from",
        "string",
        "Version of the operator; the one before `to` when absent.",
    ),
    parameter("to", "string", "Version of the operator; the newest when absent."),
];
const AUDIT: &[Parameter] = &[
    parameter(
        "action",
        "string",
        "Only this action, or all that begin with it when it ends with a dot.",
    ),
    parameter("outcome", "string", "Only Succeeded, Failed, Denied or Begun."),
    parameter("actor", "string", "Only what this user did."),
    parameter(
        "targetKind",
        "string",
        "Only what was done to things of this kind.",
    ),
    parameter("targetId", "string", "Only what was done to this one."),
    parameter("since", "string", "Only from this time on (RFC 3339)."),
    parameter("until", "string", "Only before this time (RFC 3339)."),
    parameter("order", "string", "`desc` (newest first, the default) or `asc`."),
    LIMIT,
    OFFSET,
];

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn json<T: JsonSchema>() -> Reply {
    Reply::Json(schema::<T>)
}

impl Operation {
    /// The `operationId`.
    pub fn id(self) -> &'static str {
        self.into()
    }

    pub fn spec(self) -> Spec {
        let spec = |method: &'static str, path, tag, summary, query, body, status, reply| Spec {
            method,
            path,
            tag,
            summary,
            query,
            body,
            status,
            reply,
            if_match: matches!(method, "put" | "delete"),
            idempotency_key: method == "post",
        };
        let get = |path, tag, summary, query, reply| spec("get", path, tag, summary, query, None, 200, reply);
        let post = |path, tag, summary, body, status, reply| {
            spec("post", path, tag, summary, &[], body, status, reply)
        };
        let put =
            |path, tag, summary, body, reply| spec("put", path, tag, summary, &[], Some(body), 200, reply);
        let delete = |path, tag, summary| spec("delete", path, tag, summary, &[], None, 204, Reply::Empty);
        match self {
            Self::Health => get(
                "/health",
                "system",
                "Whether the server and its database work",
                &[],
                json::<api::ServerHealth>(),
            ),
            Self::OpenApi => get("/api/v1/openapi.json", "system", "This document", &[], Reply::Any),
            Self::Docs => get(
                "/api/v1/docs",
                "system",
                "This document, for people",
                &[],
                Reply::Html,
            ),
            Self::Login => post(
                "/api/v1/authentication/login",
                "authentication",
                "Exchange a local user's password for a token",
                Some(schema::<api::Login>),
                200,
                json::<api::LoggedIn>(),
            )
            .without_key(),
            Self::ChangePassword => post(
                "/api/v1/authentication/password",
                "authentication",
                "Change one's own password; all tokens of the user end, and the answer has a new one",
                Some(schema::<api::ChangePassword>),
                200,
                json::<api::LoggedIn>(),
            )
            .without_key(),
            Self::ListOperators => get(
                "/api/v1/operators",
                "operators",
                "List operators",
                OPERATORS,
                json::<api::Operators>(),
            ),
            Self::RegisterOperator => post(
                "/api/v1/operators",
                "operators",
                "Register an operator; its chart repository is asked first",
                Some(schema::<api::RegisterOperator>),
                201,
                json::<api::Operator>(),
            ),
            Self::GetOperator => get(
                "/api/v1/operators/{name}",
                "operators",
                "Show an operator",
                &[],
                json::<api::Operator>(),
            ),
            Self::ChangeOperator => put(
                "/api/v1/operators/{name}",
                "operators",
                "Change an operator",
                schema::<api::ChangeOperator>,
                json::<api::Operator>(),
            ),
            Self::DeleteOperator => delete(
                "/api/v1/operators/{name}",
                "operators",
                "Remove an operator that is deployed nowhere",
            ),
            Self::ListOperatorVersions => get(
                "/api/v1/operators/{name}/versions",
                "operators",
                "List the versions in its chart repository, newest first",
                PAGE,
                json::<api::OperatorVersions>(),
            ),
            Self::RefreshOperator => post(
                "/api/v1/operators/{name}/refresh",
                "operators",
                "Ask its chart repository for new versions now",
                None,
                200,
                json::<api::Operator>(),
            ),
            Self::ListClusters => get(
                "/api/v1/clusters",
                "clusters",
                "List clusters",
                CLUSTERS,
                json::<api::Clusters>(),
            ),
            Self::RegisterCluster => post(
                "/api/v1/clusters",
                "clusters",
                "Register a cluster; it is connected to first",
                Some(schema::<api::RegisterCluster>),
                201,
                json::<api::Cluster>(),
            ),
            Self::GetCluster => get(
                "/api/v1/clusters/{name}",
                "clusters",
                "Show a cluster",
                &[],
                json::<api::Cluster>(),
            ),
            Self::ChangeCluster => put(
                "/api/v1/clusters/{name}",
                "clusters",
                "Change a cluster, enable or disable it, or give it new credentials",
                schema::<api::ChangeCluster>,
                json::<api::Cluster>(),
            ),
            Self::DeleteCluster => delete(
                "/api/v1/clusters/{name}",
                "clusters",
                "Remove a cluster with its credentials and personal data",
            )
            .with_query(DELETE_CLUSTER),
            Self::GetClusterHealth => get(
                "/api/v1/clusters/{name}/health",
                "clusters",
                "The last look at a cluster",
                &[],
                json::<api::ClusterHealth>(),
            ),
            Self::ListCrds => get(
                "/api/v1/crds",
                "crds",
                "List definitions",
                CRDS,
                json::<api::Crds>(),
            ),
            Self::RegisterCrd => post(
                "/api/v1/crds",
                "crds",
                "Register a definition, or another version of one",
                Some(schema::<api::RegisterCrd>),
                201,
                json::<api::CrdWithHistory>(),
            )
            .with_match(),
            Self::GetCrd => get(
                "/api/v1/crds/{name}",
                "crds",
                "Show a definition, its history and where it runs",
                HISTORY,
                json::<api::CrdWithHistory>(),
            ),
            Self::ChangeCrd => put(
                "/api/v1/crds/{name}",
                "crds",
                "Write its migration guide",
                schema::<api::ChangeCrd>,
                json::<api::CrdWithHistory>(),
            ),
            Self::DiffCrd => get(
                "/api/v1/crds/{name}/diff",
                "crds",
                "The difference between two of its versions",
                DIFF,
                json::<api::CrdDiff>(),
            ),
            Self::ValidateCrd => post(
                "/api/v1/crds/{name}/validate",
                "crds",
                "What a new schema would do to objects and clients",
                Some(schema::<api::ValidateCrd>),
                200,
                json::<api::CrdValidation>(),
            )
            .without_key(),
            Self::ApproveCrd => post(
                "/api/v1/crds/{name}/approve",
                "crds",
                "Take responsibility for a breaking schema, or reject it",
                Some(schema::<api::ApproveCrd>),
                200,
                json::<api::CrdWithHistory>(),
            )
            .with_match(),
            Self::DeprecateCrd => post(
                "/api/v1/crds/{name}/deprecate",
                "crds",
                "Say that a definition is on its way out",
                Some(schema::<api::DeprecateCrd>),
                200,
                json::<api::CrdWithHistory>(),
            )
            .with_match(),
            Self::ProveCrd => post(
                "/api/v1/crds/{name}/prove",
                "crds",
                "Which objects of these clusters a schema would refuse or prune",
                Some(schema::<api::ProveCrd>),
                200,
                json::<api::CrdProof>(),
            )
            .without_key(),
            Self::ListWaivers => get(
                "/api/v1/crds/{name}/waivers",
                "crds",
                "Findings that somebody has taken responsibility for, in the order in which that was done",
                PAGE,
                json::<api::Waivers>(),
            ),
            Self::AddWaiver => post(
                "/api/v1/crds/{name}/waivers",
                "crds",
                "Take responsibility for one finding, for a time",
                Some(schema::<api::AddWaiver>),
                201,
                json::<api::Waiver>(),
            )
            .with_match(),
            Self::DeleteWaiver => delete(
                "/api/v1/crds/{name}/waivers/{fingerprint}",
                "crds",
                "Take a waiver back",
            ),
            Self::ListAudit => get(
                "/api/v1/audit",
                "audit",
                "What was done, by whom",
                AUDIT,
                json::<api::AuditEntries>(),
            ),
            Self::ListUsers => get(
                "/api/v1/users",
                "users",
                "List local users",
                PAGE,
                json::<api::Users>(),
            ),
            Self::CreateUser => post(
                "/api/v1/users",
                "users",
                "Add a local user",
                Some(schema::<api::CreateUser>),
                201,
                json::<api::User>(),
            ),
            Self::DeleteUser => delete(
                "/api/v1/users/{name}",
                "users",
                "Remove a local user, and their name from the audit log",
            )
            .without_match(),
        }
    }

    /// Whether it changes nothing, neither here nor elsewhere.
    pub fn only_reads(self) -> bool {
        // Sent with a body, and a question all the same.
        self.spec().method == "get" || self == Self::ValidateCrd
    }

    /// Whether it is answered without a token.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Login)
    }
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    fn those(which: fn(&Spec) -> bool) -> Vec<&'static str> {
        let those = Operation::iter().filter(|operation| which(&operation.spec()));
        those.map(Operation::id).collect()
    }

    /// Written down a second time, on purpose: callers rely on both.
    #[test]
    fn which_headers_mean_something_where() {
        assert_eq!(
            those(|spec| spec.if_match),
            [
                "changeOperator",
                "deleteOperator",
                "changeCluster",
                "deleteCluster",
                "registerCrd",
                "changeCrd",
                "approveCrd",
                "deprecateCrd",
                "addWaiver",
                "deleteWaiver",
            ]
        );
        assert_eq!(
            those(|spec| spec.idempotency_key),
            [
                "registerOperator",
                "refreshOperator",
                "registerCluster",
                "registerCrd",
                "approveCrd",
                "deprecateCrd",
                "addWaiver",
                "createUser",
            ]
        );
    }
}
