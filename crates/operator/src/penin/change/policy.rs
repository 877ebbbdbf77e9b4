//! Whether the cluster's policy allows a change. Whatever it does not allow is refused, by the rule that said so.

use gantry_crds::penin::{PeninOmegaClusterSpec, SelfArchitecting, Service};
use k8s_openapi::{apimachinery::pkg::api::resource::Quantity, jiff::Timestamp};
use serde_json::{Value, json};

use super::fields;

/// What a change is checked against.
pub struct Asked<'a> {
    pub policy: &'a SelfArchitecting,
    /// The cluster's spec as it is stored.
    pub spec: &'a Value,
    pub leaves: &'a [(String, Value)],
    /// Who asks, where that is proven.
    pub requested_by: Option<&'a str>,
    /// Who owns fields that the change wants, by field.
    pub owners: &'a [(String, Vec<String>)],
    pub history: &'a History,
    pub now: Timestamp,
}

/// What changes of this cluster did before, as the ledger tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Changes that were applied on the current day (UTC).
    pub today: u32,
    /// When the last one ended.
    pub last_end: Option<Timestamp>,
    /// Another change that is applied and not judged yet.
    pub open: Option<String>,
}

/// A no, and the rule that said it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    pub rule: &'static str,
    pub message: String,
}

fn denied(rule: &'static str, message: impl Into<String>) -> Denied {
    Denied {
        rule,
        message: message.into(),
    }
}

/// Nothing when the policy allows it.
pub fn check(asked: &Asked<'_>) -> Result<(), Denied> {
    let policy = asked.policy;
    if !policy.enabled() {
        return Err(denied(
            "enabled",
            "the cluster does not allow changes: set spec.selfArchitecting.enabled",
        ));
    }
    proven(asked)?;
    allowed(asked)?;
    owned(asked)?;
    let after = merged(asked.spec, asked.leaves);
    valid(&after)?;
    for (path, value) in asked.leaves {
        bounds(policy, path, value)?;
        step(policy, asked.spec, path, value)?;
    }
    budget(policy, &after)?;
    pace(asked)
}

fn proven(asked: &Asked<'_>) -> Result<(), Denied> {
    if asked.policy.require_proven_requester() && asked.requested_by.is_none() {
        return Err(denied(
            "requireProvenRequester",
            "nobody can tell who made this object: ask over the operator's HTTP endpoint instead",
        ));
    }
    Ok(())
}

fn allowed(asked: &Asked<'_>) -> Result<(), Denied> {
    let changed = asked
        .leaves
        .iter()
        .any(|(path, value)| !fields::same(current(asked.spec, path).as_ref(), Some(value)));
    if !changed {
        return Err(denied("noChange", "the cluster already has these values"));
    }
    for (path, _) in asked.leaves {
        // Its references could carry Secrets into the services.
        if path == "config.env" || path.starts_with("config.env.") {
            return Err(denied("allowedFields", "config.env is never changed by requests"));
        }
        if !asked.policy.allows(path) {
            return Err(denied(
                "allowedFields",
                format!("{path} is not in spec.selfArchitecting.allowedFields of the cluster"),
            ));
        }
        if fields::schema(path).is_none() {
            return Err(denied("schema", format!("a cluster has no field {path}")));
        }
    }
    Ok(())
}

fn owned(asked: &Asked<'_>) -> Result<(), Denied> {
    if asked.policy.take_ownership() {
        return Ok(());
    }
    match asked.owners.iter().find(|(_, owners)| !owners.is_empty()) {
        Some((path, owners)) => Err(denied(
            "takeOwnership",
            format!(
                "{path} belongs to {}: ask there, or set spec.selfArchitecting.takeOwnership",
                owners.join(", ")
            ),
        )),
        None => Ok(()),
    }
}

/// A value as it counts: what stands there, else the default.
fn current(spec: &Value, path: &str) -> Option<Value> {
    fields::get(spec, path).cloned().or_else(|| fields::default(path))
}

/// The spec with the change.
fn merged(spec: &Value, leaves: &[(String, Value)]) -> Value {
    let mut after = spec.clone();
    for (path, value) in leaves {
        fields::set(&mut after, path, Some(value.clone()));
    }
    after
}

fn valid(after: &Value) -> Result<(), Denied> {
    let spec: PeninOmegaClusterSpec = serde_json::from_value(after.clone())
        .map_err(|error| denied("schema", format!("the spec would not decode: {error}")))?;
    match spec.problems().first() {
        Some(problem) => Err(denied("schema", format!("the spec would be invalid: {problem}"))),
        None => Ok(()),
    }
}

fn bounds(policy: &SelfArchitecting, path: &str, value: &Value) -> Result<(), Denied> {
    let Some(amount) = fields::amount(value) else {
        // What cannot be compared cannot be allowed.
        return if fields::is_amount(path) {
            Err(denied(
                "schema",
                format!("{path}: {value} is no amount that can be reckoned with"),
            ))
        } else {
            Ok(())
        };
    };
    for bound in policy.bounds.iter().flatten() {
        if !bound.field.as_deref().is_some_and(|field| covers(field, path)) {
            continue;
        }
        if let Some((least, text)) = limit("bounds", bound.min.as_ref())?
            && amount < least
        {
            return Err(denied("bounds", format!("{path} may not be less than {text}")));
        }
        if let Some((most, text)) = limit("bounds", bound.max.as_ref())?
            && amount > most
        {
            return Err(denied("bounds", format!("{path} may not be more than {text}")));
        }
    }
    Ok(())
}

/// A limit of the policy, and as it is written there. One that cannot be read allows nothing.
fn limit<'a>(rule: &'static str, quantity: Option<&'a Quantity>) -> Result<Option<(f64, &'a str)>, Denied> {
    let Some(Quantity(text)) = quantity else {
        return Ok(None);
    };
    match fields::amount(&json!(text)) {
        Some(amount) => Ok(Some((amount, text))),
        None => Err(denied(
            rule,
            format!("the policy's limit {text:?} is no amount that can be reckoned with: correct it"),
        )),
    }
}

/// Whether a path of the policy means this field: as [`SelfArchitecting::allows`].
fn covers(pattern: &str, path: &str) -> bool {
    let one = SelfArchitecting {
        allowed_fields: Some(vec![pattern.to_owned()]),
        ..SelfArchitecting::default()
    };
    one.allows(path)
}

fn step(policy: &SelfArchitecting, spec: &Value, path: &str, value: &Value) -> Result<(), Denied> {
    let Some(to) = fields::amount(value) else {
        return Ok(());
    };
    let Some(from) = current(spec, path).as_ref().and_then(fields::amount) else {
        let bounded = policy.bounds.iter().flatten().any(|bound| {
            bound.field.as_deref().is_some_and(|field| covers(field, path))
                && bound.min.is_some()
                && bound.max.is_some()
        });
        return if bounded {
            Ok(())
        } else {
            Err(denied(
                "maxStep",
                format!("{path} has no value to step from: set one, or give it bounds with min and max"),
            ))
        };
    };
    let replicas = path.starts_with("replicas.") || path.ends_with("Replicas");
    if replicas {
        let most = policy.max_step_replicas();
        if (to - from).abs() > f64::from(most) {
            return Err(denied(
                "maxStep",
                format!("{path} may go from {from} by {most} at most, not to {to}"),
            ));
        }
        return Ok(());
    }
    let percent = policy.max_step_percent();
    // A whisker of room, so that 50 % of 0.1 is not refused for the sake of a binary fraction.
    if (to - from).abs() > from.abs() * f64::from(percent) / 100.0 * (1.0 + 1e-9) {
        return Err(denied(
            "maxStep",
            format!("{path} may change by {percent} % at most"),
        ));
    }
    Ok(())
}

/// What all pods would use together. An autoscaler counts with the most that it may make.
fn budget(policy: &SelfArchitecting, after: &Value) -> Result<(), Denied> {
    let Some(budget) = &policy.budget else {
        return Ok(());
    };
    let spec: PeninOmegaClusterSpec = serde_json::from_value(after.clone()).unwrap_or_default();
    let (mut pods, mut cpu, mut memory) = (0.0, 0.0, 0.0);
    for service in Service::ALL {
        let most = spec
            .auto_scaling(service)
            .map_or_else(|| spec.replicas(service), |scaled| scaled.max_replicas);
        let (one_cpu, one_memory) = spec.resources(service);
        let each = |quantity: Quantity| {
            fields::amount(&json!(quantity.0)).ok_or_else(|| {
                let (name, text) = (service.name(), quantity.0);
                denied(
                    "budget",
                    format!("what {name} asks for, {text:?}, is no amount that can be reckoned with"),
                )
            })
        };
        let most = f64::from(most);
        pods += most;
        cpu += most * each(one_cpu)?;
        memory += most * each(one_memory)?;
    }
    if let Some(most) = budget.max_pods.filter(|most| pods > f64::from(*most)) {
        return Err(denied(
            "budget.maxPods",
            format!("the cluster would have up to {pods} pods, {most} are allowed"),
        ));
    }
    if limit("budget.maxCPU", budget.max_cpu.as_ref())?.is_some_and(|(most, _)| cpu > most) {
        return Err(denied(
            "budget.maxCPU",
            format!("all pods together would ask for {cpu} CPUs, which is more than allowed"),
        ));
    }
    if limit("budget.maxMemory", budget.max_memory.as_ref())?.is_some_and(|(most, _)| memory > most) {
        return Err(denied(
            "budget.maxMemory",
            format!("all pods together would ask for {memory} bytes of memory, which is more than allowed"),
        ));
    }
    Ok(())
}

fn pace(asked: &Asked<'_>) -> Result<(), Denied> {
    if let Some(open) = &asked.history.open {
        return Err(denied(
            "oneAtATime",
            format!("change {open} is not judged yet: ask again when it has ended"),
        ));
    }
    if let Some(most) = asked
        .policy
        .budget
        .as_ref()
        .and_then(|budget| budget.changes_per_day)
        && i64::from(asked.history.today) >= i64::from(most)
    {
        return Err(denied(
            "budget.changesPerDay",
            format!(
                "{} changes were applied today (UTC), {most} are allowed",
                asked.history.today
            ),
        ));
    }
    if let Some(end) = asked.history.last_end {
        let wait = i64::from(asked.policy.cooldown_seconds());
        let passed = asked.now.as_second() - end.as_second();
        if passed < wait {
            return Err(denied(
                "cooldownSeconds",
                format!(
                    "the last change ended {passed} s ago: ask again in {} s",
                    wait - passed
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn policy(more: Value) -> SelfArchitecting {
        let mut base = json!({
            "enabled": true, "allowedFields": ["replicas.*", "resources.*", "config.*", "autoScaling.*"],
            "verdict": {"metric": "srScore"},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            base[name] = value.clone();
        }
        serde_json::from_value(base).unwrap()
    }

    fn ask(policy: &SelfArchitecting, spec: &Value, patch: Value, history: &History) -> Result<(), Denied> {
        let leaves = fields::leaves(patch.as_object().unwrap());
        let owners = spec["owners"]
            .as_str()
            .map(|owner| vec![("replicas.sigmaGuard".to_owned(), vec![owner.to_owned()])])
            .unwrap_or_default();
        check(&Asked {
            policy,
            spec,
            leaves: &leaves,
            requested_by: spec["requestedBy"].as_str(),
            owners: &owners,
            history,
            now: "2026-01-02T12:00:00Z".parse().unwrap(),
        })
    }

    #[rstest]
    #[case::one_more(json!({}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), None)]
    #[case::switched_off(json!({"enabled": false}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("enabled"))]
    #[case::nothing_new(json!({}), json!({}), json!({"replicas": {"sigmaGuard": 2}}), Some("noChange"))]
    #[case::nothing_at_all(json!({}), json!({}), json!({"replicas": {}}), Some("noChange"))]
    #[case::another_field(json!({"allowedFields": ["replicas.omegaMeta"]}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("allowedFields"))]
    #[case::one_of_two(json!({"allowedFields": ["replicas.sigmaGuard"]}), json!({}), json!({"replicas": {"sigmaGuard": 3, "omegaMeta": 2}}), Some("allowedFields"))]
    #[case::environment(json!({}), json!({}), json!({"config": {"env": [{"name": "A", "value": "b"}]}}), Some("allowedFields"))]
    #[case::no_such_field(json!({}), json!({}), json!({"config": {"nope": 1}}), Some("schema"))]
    #[case::breaks_a_rule(json!({"maxStep": {"replicas": 99}}), json!({}), json!({"autoScaling": {"minReplicas": 20}}), Some("schema"))]
    #[case::owned(json!({}), json!({"owners": "argocd"}), json!({"replicas": {"sigmaGuard": 3}}), Some("takeOwnership"))]
    #[case::owned_but_may_take(json!({"takeOwnership": true}), json!({"owners": "argocd"}), json!({"replicas": {"sigmaGuard": 3}}), None)]
    #[case::nobody_knows_who(json!({"requireProvenRequester": true}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("requireProvenRequester"))]
    #[case::it_is_known_who(json!({"requireProvenRequester": true}), json!({"requestedBy": "sr"}), json!({"replicas": {"sigmaGuard": 3}}), None)]
    #[case::two_more(json!({}), json!({}), json!({"replicas": {"sigmaGuard": 4}}), Some("maxStep"))]
    #[case::two_less(json!({}), json!({"replicas": {"sigmaGuard": 5}}), json!({"replicas": {"sigmaGuard": 3}}), Some("maxStep"))]
    #[case::a_wider_step(json!({"maxStep": {"replicas": 2}}), json!({}), json!({"replicas": {"sigmaGuard": 4}}), None)]
    #[case::half_more_cpu(json!({}), json!({}), json!({"resources": {"sigmaGuard": {"cpu": "375m"}}}), None)]
    #[case::twice_the_cpu(json!({}), json!({}), json!({"resources": {"sigmaGuard": {"cpu": "500m"}}}), Some("maxStep"))]
    #[case::a_fraction(json!({}), json!({"config": {"budgetDailyUsd": 0.1}}), json!({"config": {"budgetDailyUsd": 0.15}}), None)]
    #[case::from_nothing(json!({}), json!({}), json!({"autoScaling": {"services": {"sigmaGuard": {"minReplicas": 3}}}}), Some("maxStep"))]
    #[case::from_nothing_with_bounds(
        json!({"bounds": [{"field": "autoScaling.*", "min": 1, "max": 5}]}), json!({}),
        json!({"autoScaling": {"services": {"sigmaGuard": {"minReplicas": 3}}}}), None)]
    #[case::too_high(json!({"bounds": [{"field": "replicas.sigmaGuard", "max": 2}]}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("bounds"))]
    #[case::too_low(json!({"bounds": [{"field": "replicas.*", "min": "2"}]}), json!({}), json!({"replicas": {"sigmaGuard": 1}}), Some("bounds"))]
    #[case::bounds_of_another(json!({"bounds": [{"field": "replicas.omegaMeta", "max": 2}]}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), None)]
    #[case::memory_bound(json!({"bounds": [{"field": "resources.*", "max": "300Mi"}]}), json!({}), json!({"resources": {"sigmaGuard": {"memory": "320Mi"}}}), Some("bounds"))]
    #[case::pods(json!({"budget": {"maxPods": 5}}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("budget.maxPods"))]
    #[case::pods_that_fit(json!({"budget": {"maxPods": 6}}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), None)]
    #[case::pods_of_an_autoscaler(json!({"budget": {"maxPods": 20}}), json!({"autoScaling": {"maxReplicas": 5}}), json!({"autoScaling": {"maxReplicas": 6}}), Some("budget.maxPods"))]
    #[case::cpu(json!({"budget": {"maxCPU": "1900m"}}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("budget.maxCPU"))]
    #[case::cpu_that_fits(json!({"budget": {"maxCPU": "2"}}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), None)]
    #[case::memory(json!({"budget": {"maxMemory": "2047Mi"}}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("budget.maxMemory"))]
    #[case::an_exponent(json!({}), json!({}), json!({"resources": {"sigmaGuard": {"cpu": "1e3"}}}), Some("maxStep"))]
    #[case::exabytes(json!({"bounds": [{"field": "resources.*", "max": "1Gi"}]}), json!({}), json!({"resources": {"sigmaGuard": {"memory": "7Ei"}}}), Some("bounds"))]
    #[case::many_digits(json!({}), json!({}), json!({"resources": {"sigmaGuard": {"cpu": "9.00000000000000000001"}}}), Some("maxStep"))]
    #[case::beyond_reckoning(json!({}), json!({}), json!({"resources": {"sigmaGuard": {"cpu": "1e99"}}}), Some("schema"))]
    #[case::unreadable_bound(json!({"bounds": [{"field": "replicas.*", "max": "1e99"}]}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("bounds"))]
    #[case::unreadable_budget(json!({"budget": {"maxCPU": "1e99"}}), json!({}), json!({"replicas": {"sigmaGuard": 3}}), Some("budget.maxCPU"))]
    #[case::unreadable_use(
        json!({"budget": {"maxCPU": "9"}}), json!({"resources": {"omegaMeta": {"cpu": "1e99"}}}),
        json!({"replicas": {"sigmaGuard": 3}}), Some("budget"))]
    #[case::exponent_that_fits(json!({}), json!({}), json!({"resources": {"sigmaGuard": {"cpu": "375e-3"}}}), None)]
    fn the_rule_that_says_no(
        #[case] more: Value,
        #[case] spec: Value,
        #[case] patch: Value,
        #[case] rule: Option<&str>,
    ) {
        let answer = ask(&policy(more), &spec, patch, &History::default());
        assert_eq!(
            answer.as_ref().err().map(|denied| denied.rule),
            rule,
            "{answer:?}"
        );
    }

    #[rstest]
    #[case::fresh(History::default(), None)]
    #[case::one_is_open(History { open: Some("a".into()), ..History::default() }, Some("oneAtATime"))]
    #[case::too_soon(History { last_end: Some("2026-01-02T11:55:00Z".parse().unwrap()), ..History::default() }, Some("cooldownSeconds"))]
    #[case::long_enough_ago(History { last_end: Some("2026-01-02T11:50:00Z".parse().unwrap()), ..History::default() }, None)]
    #[case::used_up(History { today: 3, ..History::default() }, Some("budget.changesPerDay"))]
    #[case::one_left(History { today: 2, ..History::default() }, None)]
    fn the_pace(#[case] history: History, #[case] rule: Option<&str>) {
        let policy = policy(json!({"budget": {"changesPerDay": 3}}));
        let answer = ask(
            &policy,
            &json!({}),
            json!({"replicas": {"sigmaGuard": 3}}),
            &history,
        );
        assert_eq!(
            answer.as_ref().err().map(|denied| denied.rule),
            rule,
            "{answer:?}"
        );
    }
}
