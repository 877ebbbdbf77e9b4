//! The set of definitions that an operator brings. One that its newest version leaves out is shown as removed: an upgrade
//! leaves it behind in the cluster without anybody who looks after its objects.

use gantry_fleet_domain::version::{OperatorVersion, latest};
use serde_json::json;

use super::{Record, Work, crds::KIND};
use crate::{
    Error,
    infrastructure::store::{
        crds::{self as store, OwnedRow},
        operators::{self, OperatorRow},
        time,
    },
};

/// Brings the status of each definition of an operator up to date with what is known of its versions. The operator's row
/// is held by the caller.
pub(super) async fn settle(work: &mut Work<'_>, operator: &OperatorRow) -> Result<(), Error> {
    let brought = operators::brought(work.db(), operator.id).await?;
    let versions: Vec<OperatorVersion> = brought
        .iter()
        .filter_map(|(version, _)| version.parse().ok())
        .collect();
    let Some(newest) = latest(&versions) else {
        return Ok(());
    };
    let names = brought.iter().find(|(version, _)| version == newest.as_str());
    let names = names.map(|(_, names)| names.as_slice()).unwrap_or_default();
    let now = time(work.now);
    let mut changed = Vec::new();
    for owned in store::owned(work.db(), &operator.name).await? {
        let status = status(&owned, newest, names);
        if status != owned.status {
            store::set_status(work.db(), owned.id, status, now).await?;
            changed.push((owned, status));
        }
    }
    for (owned, status) in changed {
        work.record(Record {
            action: if status == "Removed" {
                "crd.removed"
            } else {
                "crd.returned"
            },
            outcome: "Succeeded",
            target_kind: KIND,
            target_id: &owned.id.to_string(),
            details: json!({"name": owned.name, "operator": operator.name, "operatorVersion": newest.as_str()}),
        })
        .await?;
    }
    Ok(())
}

/// A definition is removed when the newest version does not bring it, and it has no schema of that version or a newer one.
fn status(owned: &OwnedRow, newest: &OperatorVersion, names: &[String]) -> &'static str {
    let is_known = owned
        .operator_versions
        .iter()
        .filter_map(|version| version.parse::<OperatorVersion>().ok())
        .any(|version| version >= *newest);
    if !is_known && !names.contains(&owned.name) {
        "Removed"
    } else if owned.is_deprecated {
        "Deprecated"
    } else {
        "Active"
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use uuid::Uuid;

    use super::*;

    #[rstest]
    #[case::brought(&["1.0.0", "2.0.0"], &["things.example.com"], false, "Active")]
    #[case::left_out(&["1.0.0"], &[], false, "Removed")]
    #[case::left_out_after_it_was_deprecated(&["1.0.0"], &[], true, "Removed")]
    #[case::there_but_its_schema_was_not_taken(&["1.0.0"], &["things.example.com"], true, "Deprecated")]
    #[case::registered_by_a_person(&["v2.0.0"], &[], false, "Active")]
    #[case::only_in_what_comes_next(&["3.0.0-rc.1"], &[], false, "Active")]
    fn statuses(
        #[case] versions: &[&str],
        #[case] names: &[&str],
        #[case] is_deprecated: bool,
        #[case] expected: &str,
    ) {
        let owned = OwnedRow {
            id: Uuid::nil(),
            name: "things.example.com".to_owned(),
            status: "Active".to_owned(),
            is_deprecated,
            operator_versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        };
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(status(&owned, &"2.0.0".parse().unwrap(), &names), expected);
    }
}
