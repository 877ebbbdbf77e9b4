//! The deployer in the target cluster: it may do what an operator's chart needs, and is there only while a deployment
//! runs.

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use uuid::Uuid;

use super::{Unreachable, identity, lasting};

/// The shortest that servers grant.
const SECONDS: i64 = 600;

/// One for each deployment: whoever takes an old one back, however late, takes nothing from the next.
fn name(deployment: Uuid) -> String {
    identity::name("deployer", deployment)
}

/// Makes the deployer, binds it to the role, and gives a token with when to ask for the next one.
pub async fn bind(
    client: &Client,
    deployment: Uuid,
    role: &str,
    now: Timestamp,
) -> Result<(String, Timestamp), Unreachable> {
    let name = name(deployment);
    identity::make_account(client, &name).await?;
    lasting::prevent(client, &name).await?;
    identity::bind(client, &name, role).await?;
    let token = identity::token(client, &name, SECONDS).await?;
    Ok((token, now + SignedDuration::from_secs(SECONDS / 2)))
}

/// Takes it away: the binding first, and with the account every token of it.
pub async fn unbind(client: &Client, deployment: Uuid) -> Result<(), Unreachable> {
    identity::remove(client, &name(deployment)).await
}
