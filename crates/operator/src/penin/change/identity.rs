//! Who asked for a change: what the operator signed, and what a name alone tells.

use gantry_crds::penin::{InfrastructureChange, InfrastructureChangeSpec};
use gantry_ledger::{Head, PublicKey, SignedHead, Signer};
use kube::ResourceExt;
use serde_json::{Value, json};

/// Annotations of a request that came through the endpoint: who asked, and the operator's signature for it.
pub const REQUESTED_BY: &str = "penin.ai/requested-by";
pub const PROOF: &str = "penin.ai/requested-by-proof";
/// What the signature is for, so that it is never taken for that of a ledger.
const PURPOSE: &str = "gantry/requests";

/// Who is said to have asked for a change.
pub struct Claim {
    pub user: String,
    proof: String,
    subject: String,
}

impl Claim {
    /// Before it is signed.
    pub fn new(user: String, namespace: &str, name: &str, spec: &InfrastructureChangeSpec) -> Self {
        Self {
            user,
            proof: String::new(),
            subject: subject(namespace, name, spec),
        }
    }
}

/// What the annotations of a request say about who asked; whether that is true is told by [`Claim::proven`].
pub fn claimed(change: &InfrastructureChange) -> Option<Claim> {
    let annotations = change.annotations();
    Some(Claim {
        user: annotations.get(REQUESTED_BY)?.clone(),
        proof: annotations.get(PROOF)?.clone(),
        subject: subject(
            &change.namespace().unwrap_or_default(),
            &change.name_any(),
            &change.spec,
        ),
    })
}

fn subject(namespace: &str, name: &str, spec: &InfrastructureChangeSpec) -> String {
    let digest = gantry_kit::wish::digest(&whole(json!(spec)));
    format!("{namespace}\n{name}\n{digest}")
}

/// Whole numbers without a fraction, as a server gives `2.0` back.
fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => {
                json!(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, value)| (name, whole(value)))
            .collect(),
        other => other,
    }
}

impl Claim {
    fn head(&self) -> Head {
        Head::genesis(&format!("{}\n{}", self.subject, self.user))
    }

    pub fn signed(&self, signer: &Signer) -> String {
        signer.sign(PURPOSE, &self.head()).signature
    }

    /// Whether the operator itself wrote this.
    pub fn proven(&self, key: &PublicKey) -> bool {
        let Head { seq, hash } = self.head();
        let signed = SignedHead {
            ledger: PURPOSE.to_owned(),
            seq,
            hash,
            key: key.id(),
            signature: self.proof.clone(),
        };
        key.check(PURPOSE, &signed).is_ok()
    }
}

/// Namespace and name of a service account.
pub fn service_account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?.split_once(':')
}

/// The groups that a user is in by name alone.
pub fn groups(user: &str) -> Vec<String> {
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some((namespace, _)) = service_account(user) {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(user: &str, proof: &str, reason: &str) -> InfrastructureChange {
        serde_json::from_value(json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "InfrastructureChange",
            "metadata": {"name": "c", "namespace": "ns", "annotations": {REQUESTED_BY: user, PROOF: proof}},
            "spec": {"cluster": "demo", "reason": reason, "patch": {"replicas": {"sigmaGuard": 3}}},
        }))
        .unwrap()
    }

    #[test]
    fn who_asked_is_proven_by_the_operators_signature_and_nothing_else() {
        let signer = Signer::generate().unwrap();
        let proof = claimed(&change("sr", "", "why")).unwrap().signed(&signer);
        let proven = |change: &InfrastructureChange| claimed(change).unwrap().proven(&signer.public_key());
        assert!(proven(&change("sr", &proof, "why")));
        assert!(!proven(&change("alice", &proof, "why")), "another name");
        assert!(!proven(&change("sr", &proof, "because")), "another request");
        assert!(!proven(&change("sr", "AAAA", "why")));
        let other = Signer::generate().unwrap();
        let forged = claimed(&change("sr", "", "why")).unwrap().signed(&other);
        assert!(!proven(&change("sr", &forged, "why")));
    }

    #[test]
    fn a_service_account_is_in_its_groups() {
        assert_eq!(
            groups("system:serviceaccount:ns:sr"),
            [
                "system:authenticated",
                "system:serviceaccounts",
                "system:serviceaccounts:ns"
            ]
        );
        assert_eq!(groups("alice"), ["system:authenticated"]);
    }
}
