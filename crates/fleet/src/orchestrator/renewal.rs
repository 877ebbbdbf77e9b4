//! What an older Gantry found out about schemas in another way, found out anew. Until then such a schema is recognised on no
//! cluster, and all versions count there.

use gantry_fleet_domain::crd_digest;
use uuid::Uuid;

use super::{Fleet, comparisons::judged};
use crate::{Error, infrastructure::store::crd_schemas as store};

/// Definitions may have a megabyte each.
const AT_ONCE: i64 = 10;

/// Not only at the start: a replica of the older Gantry may still be at work.
pub async fn renew(fleet: &Fleet) -> Result<(), Error> {
    let mut after = (Uuid::nil(), String::new());
    let mut count = 0;
    loop {
        let rows = store::stale(&fleet.pool, crd_digest::FORM, (after.0, &after.1), AT_ONCE).await?;
        let Some(last) = rows.last() else { break };
        after = (last.crd_id, last.operator_version.clone());
        for row in rows {
            let digest = crd_digest::digest(&row.definition);
            // What cannot be compared stays unknown.
            let back = match judged(row.before.clone(), row.definition.clone()).await {
                Ok(judged) => judged.back,
                Err(_) => "null".to_owned(),
            };
            store::renew(&fleet.pool, &row, &digest, &back).await?;
            count += 1;
        }
    }
    if count > 0 {
        tracing::info!(schemas = count, "what is known of stored schemas is up to date");
    }
    Ok(())
}
