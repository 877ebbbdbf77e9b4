//! Telling the API server whom to trust: our authority in the bundle of each APIService.
//!
//! The chart makes the APIServices and takes them away again; one that nobody serves would block the deletion of every
//! namespace. Each replica writes, leader or not, because each serves with a key of its own.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{ByteString, kube_aggregator::pkg::apis::apiregistration::v1::APIService};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{identity, path::Version};

const DEADLINE: Duration = Duration::from_secs(10);

/// Whose backend we are: of those that exist, the ones that lead to our Service.
pub struct Registration {
    pub client: Client,
    pub service: String,
    pub namespace: String,
}

impl Registration {
    /// Puts our authority where it is missing. What went wrong is told; the caller tries again.
    pub async fn publish(&self, authority: &str) -> Result<(), String> {
        let mut found = false;
        for version in Version::ALL {
            let name = version.api_service();
            let wrote = tokio::time::timeout(DEADLINE, self.publish_one(&name, authority)).await;
            found |= match wrote {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    return Err(format!(
                        "failed to write the bundle of APIService {name}: {error}"
                    ));
                }
                Err(_) => return Err(format!("failed to write the bundle of APIService {name} in time")),
            };
        }
        if found {
            Ok(())
        } else {
            Err(format!(
                "no APIService leads to Service {}/{}: the chart makes them with operator.metricsAPI.enabled",
                self.namespace, self.service
            ))
        }
    }

    /// Whether it is there and ours.
    async fn publish_one(&self, name: &str, authority: &str) -> kube::Result<bool> {
        let api: Api<APIService> = Api::all(self.client.clone());
        let Some(current) = api.get_opt(name).await? else {
            return Ok(false);
        };
        let spec = current.spec.unwrap_or_default();
        let ours = spec.service.is_some_and(|service| {
            service.name.as_deref() == Some(&self.service)
                && service.namespace.as_deref() == Some(&self.namespace)
        });
        if !ours {
            // Somebody else's adapter; two cannot serve one group.
            tracing::warn!(
                api_service = name,
                "another server is registered for these metrics"
            );
            return Ok(false);
        }
        let existing = spec.ca_bundle.unwrap_or_default().0;
        let existing = String::from_utf8_lossy(&existing);
        if let Some(bundle) = identity::bundle(&existing, authority, Timestamp::now()) {
            // With the version that was read: another replica may be writing its own.
            let patch = json!({
                "metadata": {"resourceVersion": current.metadata.resource_version},
                "spec": {"caBundle": ByteString(bundle.into_bytes())},
            });
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
            tracing::info!(api_service = name, "our authority is in the bundle");
        }
        Ok(true)
    }
}
