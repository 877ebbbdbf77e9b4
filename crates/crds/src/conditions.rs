//! Names of condition types and reasons, the words that users read in `kubectl describe` and that alerts match on.
//!
//! A reason is the same PascalCase word in a condition, in an event and in a metric label, so it is written down
//! once, here. Reasons that only one controller can give still live here: scripts depend on them.

/// Condition types.
pub mod types {
    /// The object does what its spec asks for.
    pub const READY: &str = "Ready";
    /// kstatus: the controller is still working towards the spec.
    pub const RECONCILING: &str = "Reconciling";
    /// kstatus: nothing will happen until somebody changes something.
    pub const STALLED: &str = "Stalled";
    /// Children are being created or rolled.
    pub const PROGRESSING: &str = "Progressing";
    /// Enough replicas serve.
    pub const AVAILABLE: &str = "Available";
    /// It runs, but something that it needs was lost.
    pub const DEGRADED: &str = "Degraded";
    /// The spec passed every check.
    pub const ACCEPTED: &str = "Accepted";
    /// Every object that the spec names was found.
    pub const RESOLVED_REFS: &str = "ResolvedRefs";
    /// The HTTPRoute or Ingress was made (or is not wanted).
    pub const ROUTED: &str = "Routed";
    /// MCPServer: the tools were read from the live server.
    pub const TOOLS_DISCOVERED: &str = "ToolsDiscovered";
    /// ModelAPI: the volume of the weights is there, as asked for.
    pub const STORAGE_READY: &str = "StorageReady";
    /// Agent: long-term memory is not served; the agent goes on with what it keeps itself.
    pub const MEMORY_DEGRADED: &str = "MemoryDegraded";
    /// Agent: a token or step budget is used up.
    pub const BUDGET_EXHAUSTED: &str = "BudgetExhausted";
    /// Model: the weights are in the store.
    pub const MODEL_PULLED: &str = "ModelPulled";
    /// Model: the store of weights is up.
    pub const STORE_READY: &str = "StoreReady";
    /// Model, as ollama-operator wrote it.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// ScalingPolicy: the target exists, can be scaled, and nobody else scales it.
    pub const TARGET_FOUND: &str = "TargetFound";
    /// ScalingPolicy: the metrics that decide can be read.
    pub const METRICS_AVAILABLE: &str = "MetricsAvailable";
    /// PeninOmegaCluster: the ledger volume is there, with the asked-for size.
    pub const LEDGER_READY: &str = "LedgerReady";
    /// PeninOmegaCluster: the record of changes is copied to the ledger volume.
    pub const LEDGER_KEPT: &str = "LedgerKept";
    /// Model: what was asked for is made for Prometheus.
    pub const MONITORED: &str = "Monitored";
    /// An autoscaler of ours exists where one was asked for.
    pub const AUTOSCALED: &str = "Autoscaled";
}

/// Condition reasons.
pub mod reasons {
    // Success and progress.
    pub const READY: &str = "Ready";
    pub const PROGRESSING: &str = "Progressing";
    pub const ROLLING_OUT: &str = "RollingOut";
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    pub const PAUSED: &str = "Paused";
    pub const TERMINATING: &str = "Terminating";
    pub const DELETED: &str = "Deleted";
    pub const NOT_REQUESTED: &str = "NotRequested";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const UNKNOWN: &str = "Unknown";

    // The spec.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    pub const INVALID_OVERRIDE: &str = "InvalidOverride";
    pub const RUNTIME_NOT_FOUND: &str = "RuntimeNotFound";
    pub const REFERENCE_NOT_ALLOWED: &str = "ReferenceNotAllowed";
    pub const MODEL_NOT_SERVED: &str = "ModelNotServed";
    pub const ENVIRONMENT_CLASH: &str = "EnvironmentClash";

    // Waiting for others.
    pub const WAITING_FOR_MODEL_API: &str = "WaitingForModelAPI";
    pub const WAITING_FOR_MCP_SERVER: &str = "WaitingForMCPServer";
    pub const WAITING_FOR_PEER: &str = "WaitingForPeer";
    pub const WAITING_FOR_SECRET: &str = "WaitingForSecret";
    pub const WAITING_FOR_CONFIG_MAP: &str = "WaitingForConfigMap";
    pub const WAITING_FOR_RUNTIME: &str = "WaitingForRuntime";
    pub const WAITING_FOR_STORE: &str = "WaitingForStore";
    pub const WAITING_FOR_VOLUME: &str = "WaitingForVolume";
    pub const WAITING_FOR_TARGET: &str = "WaitingForTarget";
    pub const DEPENDENCY_LOST: &str = "DependencyLost";

    // Children in trouble.
    pub const CRASH_LOOP: &str = "CrashLoop";
    pub const OUT_OF_MEMORY: &str = "OutOfMemory";
    pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    pub const PACKAGE_INSTALL_FAILED: &str = "PackageInstallFailed";
    pub const PROBE_FAILED: &str = "ProbeFailed";
    pub const CONTAINER_CONFIG: &str = "ContainerConfig";
    pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";

    // Talking to the API server.
    pub const CONFLICT: &str = "Conflict";
    pub const API_UNAVAILABLE: &str = "ApiUnavailable";
    pub const FORBIDDEN: &str = "Forbidden";
    pub const REJECTED: &str = "Rejected";
    pub const NOT_OURS: &str = "NotOurs";

    // Of failed visits. The first belongs in a condition as well; the others are labels of a metric only.
    pub const UNDECODABLE: &str = "Undecodable";
    pub const NOT_LEADER: &str = "NotLeader";
    pub const PANICKED: &str = "Panicked";

    // Tools of an MCPServer.
    pub const TOOLS_LISTED: &str = "ToolsListed";
    pub const TOOLS_UNREACHABLE: &str = "ToolsUnreachable";
    pub const NOT_ASKED_YET: &str = "NotAskedYet";

    // Routes.
    pub const ROUTE_CREATED: &str = "RouteCreated";
    pub const GATEWAY_API_MISSING: &str = "GatewayApiMissing";

    // Monitoring.
    pub const MONITORING_API_MISSING: &str = "MonitoringApiMissing";

    // Memory of an Agent.
    pub const MEMORY_STORE_NOT_SERVED: &str = "MemoryStoreNotServed";
    pub const MEMORY_STORE_NOT_READY: &str = "MemoryStoreNotReady";
    pub const MEMORY_HEALTHY: &str = "MemoryHealthy";
    pub const INVALID_MEMORY_READ_SCOPE: &str = "InvalidMemoryReadScope";

    // Model.
    pub const PULLING: &str = "Pulling";
    pub const PULL_FAILED: &str = "PullFailed";
    pub const PULLED: &str = "Pulled";
    pub const LOADING: &str = "Loading";
    pub const STORE_UNREACHABLE: &str = "StoreUnreachable";
    pub const STORE_CONFLICT: &str = "StoreConflict";
    pub const ACCESS_MODE_IMPOSSIBLE: &str = "AccessModeImpossible";
    pub const INVALID_CLAIM: &str = "InvalidClaim";

    // ScalingPolicy, as NimbusGuard wrote them.
    pub const POLICY_INITIALIZED: &str = "PolicyInitialized";
    pub const POLICY_ACTIVE: &str = "PolicyActive";
    pub const WORKFLOW_COMPLETED: &str = "WorkflowCompleted";
    pub const WORKFLOW_FAILED: &str = "WorkflowFailed";
    pub const TARGET_NOT_FOUND: &str = "TargetNotFound";
    pub const COMPETING_AUTOSCALER: &str = "CompetingAutoscaler";
    pub const METRICS_UNAVAILABLE: &str = "MetricsUnavailable";

    // PeninOmegaCluster.
    pub const ALL_SERVICES_HEALTHY: &str = "AllServicesHealthy";
    pub const SERVICES_PENDING: &str = "ServicesPending";
    pub const ALL_SERVICES_FAILED: &str = "AllServicesFailed";
    pub const VOLUME_CANNOT_SHRINK: &str = "VolumeCannotShrink";
    pub const VOLUME_CANNOT_GROW: &str = "VolumeCannotGrow";
    pub const METRICS_NOT_SERVED: &str = "MetricsNotServed";
    pub const METRICS_READ: &str = "MetricsRead";
    pub const LEDGER_PINS_PODS: &str = "LedgerPinsPods";
    pub const LEDGER_DISAGREES: &str = "LedgerDisagrees";
    pub const LEDGER_NOT_WRITABLE: &str = "LedgerNotWritable";
    pub const SERVICE_MONITOR_MISSING: &str = "ServiceMonitorMissing";

    // InfrastructureChange: the ends are called as the phase.
    pub const KEPT: &str = "Kept";
    pub const ROLLED_BACK: &str = "RolledBack";
    pub const INCONCLUSIVE: &str = "Inconclusive";
    pub const SUPERSEDED: &str = "Superseded";
    pub const MEASURING: &str = "Measuring";
    pub const AWAITING_APPROVAL: &str = "AwaitingApproval";
    pub const WAITING_FOR_CLUSTER: &str = "WaitingForCluster";
    pub const OBSERVING: &str = "Observing";
    pub const LEDGER_BROKEN: &str = "LedgerBroken";
    pub const SELF_APPROVAL: &str = "SelfApproval";
}
