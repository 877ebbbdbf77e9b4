//! What the operator may do: the sum of what each controller declares beside its code.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::PolicyRule;

/// One declaration: a group, its resources, and the verbs on them.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub group: &'static str,
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
}

/// For objects that a controller owns and shapes.
pub const OWN: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];
/// For objects that are only looked at.
pub const READ: &[&str] = &["get", "list", "watch"];

/// What the kit itself needs, whichever controllers run.
const KIT: &[Rule] = &[
    Rule {
        group: "",
        resources: &["configmaps", "pods", "secrets"],
        verbs: READ,
    },
    Rule {
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create"],
    },
];

/// For an operator that looks after the whole cluster: namespaces say who may refer to what is in them.
const WHOLE_CLUSTER: &[Rule] = &[Rule {
    group: "",
    resources: &["namespaces"],
    verbs: READ,
}];

/// Cluster-wide also when the operator looks after a few namespaces only.
const CLUSTER: &[Rule] = &[
    Rule {
        group: "apiextensions.k8s.io",
        resources: &["customresourcedefinitions"],
        verbs: READ,
    },
    // Whether a claim may grow is said by its class.
    Rule {
        group: "storage.k8s.io",
        resources: &["storageclasses"],
        verbs: &["get"],
    },
];

/// In the operator's own namespace only.
const HOME: &[Rule] = &[
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "create", "update"],
    },
    // The runtime registry, also when other namespaces are looked after.
    Rule {
        group: "",
        resources: &["configmaps"],
        verbs: READ,
    },
];

/// Rules for the namespaces that are looked after.
pub fn namespaced() -> Vec<PolicyRule> {
    merge([
        KIT,
        crate::kaos::agent::RBAC,
        crate::kaos::mcpserver::RBAC,
        crate::kaos::modelapi::RBAC,
        crate::ollama::model::RBAC,
        crate::penin::cluster::RBAC,
        crate::penin::change::RBAC,
    ])
}

pub fn cluster() -> Vec<PolicyRule> {
    merge([CLUSTER, crate::penin::change::CLUSTER_RBAC])
}

/// On top of the others, cluster-wide, where changes can be asked for by HTTP.
pub fn changes_endpoint() -> Vec<PolicyRule> {
    merge([crate::penin::change::ENDPOINT_RBAC])
}

/// On top of the others when all namespaces are looked after.
pub fn whole_cluster() -> Vec<PolicyRule> {
    merge([WHOLE_CLUSTER])
}

pub fn own_namespace() -> Vec<PolicyRule> {
    merge([HOME, crate::penin::change::HOME_RBAC])
}

/// One rule for each group and verb set, sorted, so that the generated file changes only when a declaration does.
fn merge<const N: usize>(declared: [&[Rule]; N]) -> Vec<PolicyRule> {
    let mut verbs: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for rule in declared.into_iter().flatten() {
        for resource in rule.resources {
            let known = verbs.entry((rule.group, resource)).or_default();
            known.extend(
                rule.verbs
                    .iter()
                    .filter(|verb| !known.contains(verb))
                    .copied()
                    .collect::<Vec<_>>(),
            );
        }
    }
    let mut rules: BTreeMap<(&str, Vec<&str>), Vec<&str>> = BTreeMap::new();
    for ((group, resource), mut verbs) in verbs {
        verbs.sort_unstable();
        rules.entry((group, verbs)).or_default().push(resource);
    }
    let owned = |list: Vec<&str>| list.into_iter().map(ToOwned::to_owned).collect::<Vec<String>>();
    rules
        .into_iter()
        .map(|((group, verbs), resources)| PolicyRule {
            api_groups: Some(vec![group.to_owned()]),
            resources: Some(owned(resources)),
            verbs: owned(verbs),
            ..PolicyRule::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_granted_by_wildcard() {
        let metrics = [crate::metrics_api::rules(), crate::metrics_api::reader_rules()].concat();
        let ours = [
            namespaced(),
            cluster(),
            changes_endpoint(),
            whole_cluster(),
            own_namespace(),
        ];
        for rule in [ours.concat(), metrics].concat() {
            let words = [rule.api_groups, rule.resources, Some(rule.verbs)]
                .into_iter()
                .flatten()
                .flatten();
            assert!(words.into_iter().all(|word| !word.contains('*')));
        }
    }

    #[test]
    fn secrets_are_read_and_made_but_never_changed() {
        let secrets: Vec<PolicyRule> = namespaced()
            .into_iter()
            .filter(|rule| {
                rule.resources
                    .iter()
                    .flatten()
                    .any(|resource| resource == "secrets")
            })
            .collect();
        assert_eq!(secrets.len(), 1);
        // Made: the password of a cache, once.
        assert_eq!(secrets[0].verbs, ["create", "get", "list", "watch"]);
    }

    #[test]
    fn security_md_names_all_that_may_be_touched() {
        let told = include_str!("../../../SECURITY.md").to_lowercase();
        let rules = [
            namespaced(),
            cluster(),
            changes_endpoint(),
            whole_cluster(),
            own_namespace(),
            crate::metrics_api::rules(),
        ];
        for rule in rules.concat() {
            // Our own kinds have a row together.
            let groups = rule.api_groups.unwrap_or_default();
            let is_ours = groups
                .iter()
                .any(|group| group.ends_with("kaos.tools") || group.ends_with("ayaka.io"));
            for resource in rule.resources.unwrap_or_default() {
                let resource = resource.split('/').next().unwrap_or_default();
                assert!(
                    is_ours || resource == "peninaomegaclusters" || told.contains(resource),
                    "{resource} of {groups:?}"
                );
            }
        }
    }
}
