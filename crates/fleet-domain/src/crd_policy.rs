//! What a comparison of definitions means for those who run the fleet: which changes break, and whether somebody has to
//! take responsibility before they reach production.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::crd_diff::{
    Class, Crd, Direction, Finding, Impact, Options, Report, ServerVersion, compare, is_definition,
};

/// Whether a schema may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Approval {
    /// It breaks nothing.
    NotRequired,
    Pending,
    /// Each of its breaking changes is waived today.
    Waived,
    Approved,
    Rejected,
}

impl Approval {
    pub fn name(self) -> &'static str {
        match self {
            Self::NotRequired => "NotRequired",
            Self::Pending => "Pending",
            Self::Waived => "Waived",
            Self::Approved => "Approved",
            Self::Rejected => "Rejected",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::NotRequired,
            Self::Pending,
            Self::Waived,
            Self::Approved,
            Self::Rejected,
        ]
        .into_iter()
        .find(|approval| approval.name().eq_ignore_ascii_case(name))
    }

    /// Whether somebody may decide so now: on what waits, and on what was decided before if they name it.
    pub fn may_become(self, decided: Self, is_named: bool) -> bool {
        match self {
            Self::NotRequired => false,
            Self::Pending | Self::Waived => true,
            Self::Approved | Self::Rejected => is_named && self != decided,
        }
    }

    /// What is left of a decision when the changes that it was about are other ones. An approval was given for what broke
    /// then and for no more; a rejection holds as long as something breaks.
    pub fn after(decided: Option<Self>, anew: Self, is_covered: bool) -> Self {
        match decided {
            Some(Self::Approved) if is_covered => Self::Approved,
            Some(Self::Rejected) if anew != Self::NotRequired => Self::Rejected,
            _ => anew,
        }
    }

    /// What a new schema starts with. What nobody can decide is for a person to decide.
    pub fn of(report: &Report) -> Self {
        let is_one = |finding: &&Finding| finding.direction == Direction::Forward && is_harmful(finding);
        let mut harmful = report.findings.iter().filter(is_one).peekable();
        if harmful.peek().is_none() {
            Self::NotRequired
        } else if harmful.all(|finding| finding.waiver.is_some()) {
            Self::Waived
        } else {
            Self::Pending
        }
    }
}

/// One change, in the words of the REST API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// `Added`, `Modified` or `Removed`.
    pub change_type: String,
    pub field_path: String,
    pub previous_type: String,
    pub new_type: String,
    pub is_breaking: bool,
    pub description: String,
    /// `Critical` (data is lost), `High` (objects or clients are refused), `Medium` (undecidable), `Low`, `Info`.
    pub severity: String,
    /// What to do about it.
    pub action: String,
    pub fingerprint: String,
    /// Somebody has taken responsibility for it.
    #[serde(default)]
    pub is_waived: bool,
}

impl Change {
    fn of(finding: &Finding) -> Self {
        // The things that come and go are named so; a rule or limit that is added modifies the field it is about.
        let change_type = match finding.kind.id() {
            "crd-added" | "version-added" | "field-added" | "status-subresource-added" => "Added",
            "crd-removed"
            | "version-removed"
            | "field-removed"
            | "status-subresource-removed"
            | "scale-subresource-removed"
            | "selectable-field-removed" => "Removed",
            _ => "Modified",
        };
        let severity = match (finding.impact, finding.class) {
            (Impact::Breaking, Class::DataLoss) => "Critical",
            (Impact::Breaking, _) => "High",
            (Impact::Undecidable, _) => "Medium",
            (Impact::Warning, _) => "Low",
            (Impact::Info, _) => "Info",
        };
        let version = finding
            .version
            .as_deref()
            .map(|version| format!("{version}: "))
            .unwrap_or_default();
        Self {
            change_type: change_type.to_owned(),
            field_path: format!("{version}{}", finding.path),
            previous_type: finding.before.clone(),
            new_type: finding.after.clone(),
            is_breaking: stops(finding),
            description: finding
                .undecidable
                .clone()
                .unwrap_or_else(|| finding.why.to_string()),
            severity: severity.to_owned(),
            action: finding.action.to_owned(),
            fingerprint: finding.fingerprint.clone(),
            is_waived: finding.waiver.is_some(),
        }
    }

    /// What needs an approval: it breaks, or nobody can tell.
    pub fn breaking(report: &Report) -> Vec<Self> {
        Self::which(report, stops)
    }

    pub fn harmless(report: &Report) -> Vec<Self> {
        Self::which(report, |finding| !stops(finding))
    }

    /// What breaks on the way back.
    pub fn back(report: &Report) -> Vec<Self> {
        Self::towards(Direction::Backward, report, stops)
    }

    fn which(report: &Report, pick: impl Fn(&Finding) -> bool) -> Vec<Self> {
        Self::towards(Direction::Forward, report, pick)
    }

    fn towards(direction: Direction, report: &Report, pick: impl Fn(&Finding) -> bool) -> Vec<Self> {
        report
            .findings
            .iter()
            .filter(|finding| finding.direction == direction && pick(finding))
            .map(Self::of)
            .collect()
    }
}

fn stops(finding: &Finding) -> bool {
    finding.waiver.is_none() && is_harmful(finding)
}

fn is_harmful(finding: &Finding) -> bool {
    matches!(finding.impact, Impact::Breaking | Impact::Undecidable)
}

/// Compares one definition with the one before it, both ways.
pub fn assess(old: &Crd, new: &Crd, server: Option<ServerVersion>) -> Report {
    let options = Options {
        forward: true,
        backward: true,
        server,
        old_is_cluster: false,
        new_is_cluster: false,
    };
    compare(std::slice::from_ref(old), std::slice::from_ref(new), &options)
}

/// A proposed schema as people send it: a whole definition, or only the `openAPIV3Schema` that its versions shall have.
pub fn proposed(current: &Value, proposal: Value) -> Result<Value, &'static str> {
    if is_definition(&proposal) {
        return Ok(proposal);
    }
    let schema = proposal.get("openAPIV3Schema").unwrap_or(&proposal);
    if !["type", "properties", "x-kubernetes-preserve-unknown-fields"]
        .iter()
        .any(|field| schema.get(field).is_some())
    {
        return Err("is neither a CustomResourceDefinition nor an openAPIV3Schema");
    }
    let mut document = current.clone();
    let versions = document
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
        .ok_or("cannot be put into the stored definition, which has no list of versions; send the whole definition")?;
    for version in versions {
        version["schema"] = serde_json::json!({"openAPIV3Schema": schema});
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(properties: Value, required: &[&str]) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {"spec": {"type": "object", "properties": properties, "required": required}},
                }}}],
            },
        })
    }

    fn report(old: &Value, new: &Value) -> Report {
        assess(&Crd::parse(old).unwrap(), &Crd::parse(new).unwrap(), None)
    }

    #[test]
    fn a_removed_field_needs_approval_and_an_added_one_does_not() {
        let one = definition(json!({"a": {"type": "string"}}), &[]);
        let two = definition(json!({"a": {"type": "string"}, "b": {"type": "string"}}), &[]);
        let grown = report(&one, &two);
        assert_eq!(Approval::of(&grown), Approval::NotRequired);
        let shrunk = report(&two, &one);
        assert_eq!(Approval::of(&shrunk), Approval::Pending);
        let [change] = &Change::breaking(&shrunk)[..] else {
            panic!("{shrunk:?}")
        };
        assert_eq!(
            (change.change_type.as_str(), change.severity.as_str()),
            ("Removed", "Critical")
        );
        assert!(change.field_path.contains("spec.b"), "{change:?}");
        let [back] = &Change::back(&grown)[..] else {
            panic!("{grown:?}")
        };
        assert!(back.is_breaking && back.field_path.contains("spec.b"), "{back:?}");
        assert!(Change::back(&shrunk).is_empty(), "{shrunk:?}");
    }

    #[test]
    fn a_required_field_is_breaking() {
        let one = definition(json!({"a": {"type": "string"}}), &[]);
        let two = definition(json!({"a": {"type": "string"}}), &["a"]);
        assert_eq!(Approval::of(&report(&one, &two)), Approval::Pending);
    }

    #[test]
    fn a_bare_schema_is_put_into_the_definition() {
        let one = definition(json!({"a": {"type": "string"}}), &[]);
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "integer"}}}}});
        let whole = proposed(&one, json!({"openAPIV3Schema": schema})).unwrap();
        assert_eq!(whole, proposed(&one, schema.clone()).unwrap());
        assert_eq!(Approval::of(&report(&one, &whole)), Approval::Pending);
        assert!(proposed(&one, json!({"kind": "Pod"})).is_err());
        assert!(proposed(&one, json!(7)).is_err());
    }

    #[test]
    fn what_waits_is_decided_on_and_what_was_decided_by_name_only() {
        use Approval as A;
        assert!(!A::NotRequired.may_become(A::Rejected, true));
        for waiting in [A::Pending, A::Waived] {
            assert!(waiting.may_become(A::Approved, false) && waiting.may_become(A::Rejected, false));
        }
        assert!(!A::Rejected.may_become(A::Approved, false));
        assert!(A::Rejected.may_become(A::Approved, true));
        assert!(A::Approved.may_become(A::Rejected, true));
        assert!(!A::Approved.may_become(A::Approved, true));
    }

    #[test]
    fn a_decision_outlives_other_changes_as_far_as_it_goes() {
        use Approval as A;
        assert_eq!(A::after(Some(A::Approved), A::Pending, true), A::Approved);
        assert_eq!(A::after(Some(A::Approved), A::Pending, false), A::Pending);
        assert_eq!(A::after(Some(A::Rejected), A::Pending, false), A::Rejected);
        assert_eq!(A::after(Some(A::Rejected), A::NotRequired, true), A::NotRequired);
        assert_eq!(A::after(Some(A::Pending), A::NotRequired, true), A::NotRequired);
        assert_eq!(A::after(None, A::Pending, true), A::Pending);
    }
}
