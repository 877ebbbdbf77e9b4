//! Who may do what. The one place where it is written down.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cluster::Environment;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    Admin,
    Operator,
    Viewer,
    EnvironmentOwner,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Admin, Self::Operator, Self::Viewer, Self::EnvironmentOwner];

    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "Admin",
            Self::Operator => "Operator",
            Self::Viewer => "Viewer",
            Self::EnvironmentOwner => "EnvironmentOwner",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role that there is not.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no role; there are Admin, Operator, Viewer and EnvironmentOwner")]
pub struct NoRole(pub String);

impl FromStr for Role {
    type Err = NoRole;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // People write it in two words, identity providers with a hyphen.
        let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
        Self::ALL
            .into_iter()
            .find(|role| role.name().eq_ignore_ascii_case(&plain))
            .ok_or_else(|| NoRole(text.to_owned()))
    }
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Operators, clusters, definitions, deployments, approvals and their health.
    Read,
    ManageOperators,
    ManageDefinitions,
    ApproveDefinitions,
    ManageClusters,
    ReadAudit,
    ManageUsers,
    /// One's own password.
    ChangePassword,
    Deploy,
    Rollback,
    ApproveDeployments,
}

impl Action {
    pub const ALL: [Self; 11] = [
        Self::Read,
        Self::ManageOperators,
        Self::ManageDefinitions,
        Self::ApproveDefinitions,
        Self::ManageClusters,
        Self::ReadAudit,
        Self::ManageUsers,
        Self::ChangePassword,
        Self::Deploy,
        Self::Rollback,
        Self::ApproveDeployments,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Read => "look at the fleet",
            Self::ManageOperators => "change operators",
            Self::ManageDefinitions => "change definitions",
            Self::ApproveDefinitions => "approve breaking definitions",
            Self::ManageClusters => "change clusters",
            Self::ReadAudit => "read the audit log",
            Self::ManageUsers => "change users",
            Self::ChangePassword => "change one's password",
            Self::Deploy => "deploy",
            Self::Rollback => "roll back",
            Self::ApproveDeployments => "approve deployments",
        }
    }
}

/// How far a role reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Nowhere,
    /// Where the caller's `environments` allow; everywhere when they name none.
    Granted,
    /// Only in environments that are named.
    Named,
    Everywhere,
}

fn reach(role: Role, action: Action) -> Reach {
    use Action as A;
    match (role, action) {
        // Looking around is not cut by environment: a plan names clusters of all of them.
        (Role::Admin, _)
        | (_, A::Read | A::ChangePassword)
        | (Role::Operator, A::ManageOperators | A::ManageDefinitions) => Reach::Everywhere,
        (Role::Operator, A::Deploy) => Reach::Granted,
        (Role::EnvironmentOwner, A::ApproveDeployments) => Reach::Named,
        _ => Reach::Nowhere,
    }
}

/// What names begin with that are the server's own, in whatever case.
const OWN: &str = "system:";

/// Whether a name is one that only the server itself acts under: nobody's token may have it, else the audit log would show
/// what they did as the server's own doing.
pub fn is_own_name(subject: &str) -> bool {
    let beginning = subject.trim_start().get(..OWN.len());
    beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(OWN))
}

/// Somebody whose token was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// As the token names them; a personal datum.
    pub subject: String,
    pub roles: BTreeSet<Role>,
    /// Where they may act; no restriction when absent.
    pub environments: Option<BTreeSet<Environment>>,
    /// The local user whom the token was issued to at a login.
    pub user: Option<LocalUser>,
}

/// A token of a local user counts as long as there is that user, with the password that they had then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalUser {
    pub id: Uuid,
    /// Counts the changes of the password.
    pub generation: i32,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Denied {
    #[error("to {} takes the role {}", action.words(), roles(*action))]
    Role { action: Action },
    #[error("to {} in {environment} is not granted by the environments of this token", action.words())]
    Environment {
        action: Action,
        environment: Environment,
    },
}

fn roles(action: Action) -> String {
    let may: Vec<&str> = Role::ALL
        .into_iter()
        .filter(|role| reach(*role, action) != Reach::Nowhere)
        .map(Role::name)
        .collect();
    may.join(" or ")
}

impl Caller {
    /// Whether the action is allowed; in an environment where that matters.
    pub fn may(&self, action: Action, environment: Option<&Environment>) -> Result<(), Denied> {
        let reaches: Vec<Reach> = self.roles.iter().map(|role| reach(*role, action)).collect();
        if reaches.iter().all(|reach| *reach == Reach::Nowhere) {
            return Err(Denied::Role { action });
        }
        let Some(environment) = environment else {
            return Ok(());
        };
        let named = self.environments.as_ref();
        let inside = |reach: &Reach| match reach {
            Reach::Nowhere => false,
            Reach::Everywhere => true,
            Reach::Granted => named.is_none_or(|named| named.contains(environment)),
            Reach::Named => named.is_some_and(|named| named.contains(environment)),
        };
        if reaches.iter().any(inside) {
            Ok(())
        } else {
            Err(Denied::Environment {
                action,
                environment: environment.clone(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(role: Role, environments: Option<&[&str]>) -> Caller {
        Caller {
            subject: "someone".to_owned(),
            roles: [role].into(),
            environments: environments.map(|names| names.iter().map(|name| name.parse().unwrap()).collect()),
            user: None,
        }
    }

    /// The seed's table, line by line.
    #[test]
    fn the_table() {
        use Action as A;
        use Role as R;
        let only = |action: A| -> Vec<Role> {
            let may = |role: &Role| caller(*role, None).may(action, None).is_ok();
            Role::ALL.into_iter().filter(may).collect()
        };
        assert_eq!(only(A::Read), R::ALL);
        assert_eq!(only(A::ChangePassword), R::ALL);
        assert_eq!(only(A::ManageOperators), [R::Admin, R::Operator]);
        assert_eq!(only(A::ManageDefinitions), [R::Admin, R::Operator]);
        assert_eq!(only(A::ApproveDefinitions), [R::Admin]);
        assert_eq!(only(A::ManageClusters), [R::Admin]);
        assert_eq!(only(A::ReadAudit), [R::Admin]);
        assert_eq!(only(A::ManageUsers), [R::Admin]);
        assert_eq!(only(A::Deploy), [R::Admin, R::Operator]);
        assert_eq!(only(A::Rollback), [R::Admin]);
        assert_eq!(only(A::ApproveDeployments), [R::Admin, R::EnvironmentOwner]);
    }

    #[test]
    fn an_environment_owner_approves_only_in_environments_that_are_named() {
        let production = Environment::Production;
        let owner = |environments| caller(Role::EnvironmentOwner, environments);
        let approve = Action::ApproveDeployments;
        assert!(owner(Some(&["Prod"])).may(approve, Some(&production)).is_ok());
        assert!(owner(Some(&["Staging"])).may(approve, Some(&production)).is_err());
        assert!(owner(None).may(approve, Some(&production)).is_err());
        assert!(
            caller(Role::Admin, Some(&["Staging"]))
                .may(approve, Some(&production))
                .is_ok()
        );
    }

    #[test]
    fn environments_narrow_where_an_operator_deploys() {
        let production = Environment::Production;
        let operator = |environments| caller(Role::Operator, environments);
        assert!(operator(None).may(Action::Deploy, Some(&production)).is_ok());
        let denied = operator(Some(&["Dev"])).may(Action::Deploy, Some(&production));
        assert_eq!(
            denied.unwrap_err().to_string(),
            "to deploy in Production is not granted by the environments of this token"
        );
    }

    #[test]
    fn a_denial_names_the_role_it_takes() {
        let denied = caller(Role::Viewer, None).may(Action::Deploy, None).unwrap_err();
        assert_eq!(denied.to_string(), "to deploy takes the role Admin or Operator");
    }

    #[test]
    fn roles_are_read_as_people_write_them() {
        for text in [
            "EnvironmentOwner",
            "Environment Owner",
            "environment-owner",
            "environment_owner",
        ] {
            assert_eq!(text.parse::<Role>(), Ok(Role::EnvironmentOwner), "{text}");
        }
        assert!("root".parse::<Role>().is_err());
    }
}
