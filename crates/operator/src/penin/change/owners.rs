//! Who owns a field, as the server's `managedFields` tell.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

/// Start of the names of field managers of changes; each change has its own.
const OURS: &str = "gantry-change-";

/// The field manager of one change.
pub fn manager(uid: &str) -> String {
    format!("{OURS}{uid}")
}

/// Managers other than changes that own a field of the spec, or a part of it, or all that it is in.
pub fn of(entries: &[ManagedFieldsEntry], path: &str) -> Vec<String> {
    found(entries, |fields| owns(fields, path))
}

/// Managers other than changes that apply this very field. Whoever lost it by force may still own what it is in, and servers
/// keep whoever once updated it.
pub fn of_itself(entries: &[ManagedFieldsEntry], path: &str) -> Vec<String> {
    let names = || std::iter::once("spec").chain(path.split('.'));
    let applied = entries
        .iter()
        .filter(|entry| entry.operation.as_deref() == Some("Apply"));
    found(applied, |fields| {
        names()
            .try_fold(fields, |at, name| at.get(format!("f:{name}")))
            .is_some()
    })
}

fn found<'a>(
    entries: impl IntoIterator<Item = &'a ManagedFieldsEntry>,
    owns: impl Fn(&Value) -> bool,
) -> Vec<String> {
    let mut owners: Vec<String> = entries
        .into_iter()
        .filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)))
        .filter_map(|entry| entry.manager.clone())
        .filter(|manager| !manager.starts_with(OURS))
        .collect();
    owners.sort();
    owners.dedup();
    owners
}

fn owns(fields: &Value, path: &str) -> bool {
    let mut at = fields;
    for name in std::iter::once("spec").chain(path.split('.')) {
        let Some(inner) = at.get(format!("f:{name}")) else {
            return false;
        };
        // Nothing below: the whole of it is owned.
        if inner.as_object().is_none_or(serde_json::Map::is_empty) {
            return true;
        }
        at = inner;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
    use rstest::rstest;
    use serde_json::json;

    fn entry(manager: &str, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }
    }

    #[rstest]
    #[case::the_field(json!({"f:spec": {"f:replicas": {"f:sigmaGuard": {}}}}), true)]
    #[case::with_its_parents(json!({"f:spec": {".": {}, "f:replicas": {".": {}, "f:sigmaGuard": {}}}}), true)]
    #[case::the_block_as_a_whole(json!({"f:spec": {"f:replicas": {}}}), true)]
    #[case::only_the_parent(json!({"f:spec": {"f:replicas": {".": {}, "f:omegaMeta": {}}}}), false)]
    #[case::another_field(json!({"f:spec": {"f:version": {}}}), false)]
    #[case::the_status(json!({"f:status": {"f:replicas": {"f:sigmaGuard": {}}}}), false)]
    fn owners_are_found(#[case] fields: Value, #[case] owned: bool) {
        let found = of(&[entry("argocd", fields)], "replicas.sigmaGuard");
        assert_eq!(found == ["argocd"], owned, "{found:?}");
    }

    #[rstest]
    #[case::the_field(json!({"f:spec": {"f:resources": {"f:sigmaGuard": {"f:cpu": {}}}}}), true)]
    #[case::what_is_left_after_it_was_taken(json!({"f:spec": {"f:resources": {"f:sigmaGuard": {}}}}), false)]
    #[case::another_field(json!({"f:spec": {"f:resources": {"f:sigmaGuard": {".": {}, "f:memory": {}}}}}), false)]
    fn owners_of_the_field_itself_are_found(#[case] fields: Value, #[case] owned: bool) {
        let mut entry = entry("argocd", fields);
        assert!(
            of_itself(std::slice::from_ref(&entry), "resources.sigmaGuard.cpu").is_empty(),
            "not applied"
        );
        entry.operation = Some("Apply".to_owned());
        let found = of_itself(&[entry], "resources.sigmaGuard.cpu");
        assert_eq!(found == ["argocd"], owned, "{found:?}");
    }

    #[test]
    fn changes_before_this_one_do_not_count() {
        let fields = json!({"f:spec": {"f:replicas": {"f:sigmaGuard": {}}}});
        let entries = [entry(&manager("u-1"), fields.clone()), entry("kubectl", fields)];
        assert_eq!(of(&entries, "replicas.sigmaGuard"), ["kubectl"]);
        assert!(of(&entries[..1], "replicas.sigmaGuard").is_empty());
    }
}
