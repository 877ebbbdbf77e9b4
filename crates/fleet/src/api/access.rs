//! Which right an operation takes. Who has it is `fleet-domain::access`'s to say.

use gantry_fleet_api::Operation;
use gantry_fleet_domain::access::Action;

/// Nothing for those that are open to everybody.
pub fn action(operation: Operation) -> Option<Action> {
    use Operation as O;
    Some(match operation {
        O::Health | O::Login => return None,
        O::OpenApi
        | O::Docs
        | O::ListOperators
        | O::GetOperator
        | O::ListOperatorVersions
        | O::ListClusters
        | O::GetCluster
        | O::GetClusterHealth
        | O::ListCrds
        | O::GetCrd
        | O::DiffCrd
        | O::ListWaivers
        // Looks like a write and is a question.
        | O::ValidateCrd => Action::Read,
        O::RegisterOperator | O::ChangeOperator | O::DeleteOperator | O::RefreshOperator => Action::ManageOperators,
        // A proof reads other people's objects in clusters: not for those who may only look at the fleet.
        O::RegisterCrd | O::ChangeCrd | O::DeprecateCrd | O::ProveCrd => Action::ManageDefinitions,
        O::ApproveCrd | O::AddWaiver | O::DeleteWaiver => Action::ApproveDefinitions,
        O::RegisterCluster | O::ChangeCluster | O::DeleteCluster => Action::ManageClusters,
        O::ListAudit => Action::ReadAudit,
        O::ChangePassword => Action::ChangePassword,
        O::ListUsers | O::CreateUser | O::DeleteUser => Action::ManageUsers,
    })
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn what_needs_no_right_needs_no_token_and_the_other_way_round() {
        for operation in Operation::iter() {
            assert_eq!(action(operation).is_none(), operation.is_open(), "{operation:?}");
        }
    }
}
