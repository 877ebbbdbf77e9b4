//! Credentials that somebody gives for a cluster: read, proven, and held against the cluster that they are for.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_fleet_api as api;
use gantry_fleet_domain::kubeconfig::{Sanitised, sanitise};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Ask, Fleet, accesses::Attempt};
use crate::{
    Error,
    infrastructure::{
        kubernetes::{self, Look, Unreachable},
        yaml,
    },
};

pub(super) fn read_kubeconfig(fleet: &Fleet, given: &api::Kubeconfig) -> Result<Sanitised, Error> {
    let bad = |messages: Vec<String>| Error::Refused {
        code: "INVALID_KUBECONFIG",
        message: "the kubeconfig cannot be used".to_owned(),
        details: messages
            .into_iter()
            .map(|message| api::Detail {
                field: "kubeconfig".to_owned(),
                message,
            })
            .collect(),
    };
    let document = match &given.0 {
        Value::Object(_) if yaml::is_too_deep(&given.0, yaml::SMALL) => {
            return Err(bad(vec!["is nested too deeply".to_owned()]));
        }
        Value::Object(_) if yaml::nodes(&given.0) > yaml::SMALL.nodes => {
            return Err(bad(vec!["has more in it than a kubeconfig should".to_owned()]));
        }
        Value::Object(_) => given.0.clone(),
        Value::String(text) => {
            let compact: String = text.split_whitespace().collect();
            let bytes = STANDARD.decode(compact).map_err(|_| {
                bad(vec![
                    "is not base64; send the file in base64, or as a JSON object".to_owned(),
                ])
            })?;
            let text = String::from_utf8(bytes).map_err(|_| bad(vec!["is not text".to_owned()]))?;
            yaml::document(&text, yaml::SMALL).map_err(|error| bad(vec![error.to_string()]))?
        }
        _ => {
            return Err(bad(vec![
                "must be the file in base64, or a JSON object".to_owned(),
            ]));
        }
    };
    sanitise(&document, fleet.allow).map_err(bad)
}

/// What credentials lead to.
pub(super) struct Proven {
    pub look: Look,
    /// Which cluster it is, where they may know.
    pub identity: Option<String>,
}

/// Connects, or says why that does not work. Who asked for it is known either way.
#[tracing::instrument(name = "cluster.connect", skip_all, fields(server = credentials.server))]
pub(super) async fn prove(
    fleet: &Fleet,
    ask: &Ask,
    id: Uuid,
    credentials: &Sanitised,
    purpose: &str,
) -> Result<Proven, Error> {
    let details = json!({"purpose": purpose, "server": credentials.server});
    let attempt = Attempt::begin(fleet, Some(ask), id, details).await?;
    let slots = &fleet.connections.slots;
    let look = async {
        let client = kubernetes::connect(&credentials.document, slots).await?;
        Ok(Proven {
            look: kubernetes::look(&client, &[], kubernetes::FIRST_DEFINITIONS).await?,
            identity: kubernetes::identity(&client).await,
        })
    };
    let proven = attempt.ended(fleet, look.await).await;
    proven.map_err(|why: Unreachable| Error::Unavailable {
        code: "CLUSTER_UNREACHABLE",
        message: format!("the cluster cannot be used: {}", why.message),
    })
}

/// What is stored belongs to one cluster: our account in it, what it runs, who may do what there. Where one of the two is not
/// known, somebody has to be believed.
pub(super) fn is_another(known: Option<&str>, proven: Option<&str>) -> bool {
    matches!((known, proven), (Some(known), Some(proven)) if known != proven)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_cluster_is_told_where_both_are_known() {
        assert!(is_another(Some("a"), Some("b")));
        for (known, proven) in [(Some("a"), Some("a")), (None, Some("b")), (Some("a"), None)] {
            assert!(!is_another(known, proven));
        }
    }
}
