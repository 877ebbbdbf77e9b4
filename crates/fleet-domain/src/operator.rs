//! A registered operator: what may be said of it.

use serde_json::Value;
use url::Url;

use crate::{
    fields::{Complaints, Labels},
    version::OperatorVersion,
};

/// What is asked for when an operator is registered.
#[derive(Clone, Debug)]
pub struct NewOperator {
    pub name: String,
    pub description: String,
    pub namespace: String,
    pub chart_repository: String,
    pub chart_name: String,
    pub current_version: Option<String>,
    pub labels: Labels,
    pub default_values: Value,
}

/// Where charts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repository {
    /// An `index.yaml` and archives beside it.
    Http(Url),
    /// A registry; the chart's name is the last part of the path.
    Oci(Url),
}

/// Whether a registry's credentials may go to the server that it names for tokens: one under the same name, or under the
/// domain that the registry itself is in, as `auth.docker.io` is for `registry-1.docker.io`. Addresses have no domain.
pub fn is_token_server_of(registry: &Url, server: &Url) -> bool {
    let (Some(url::Host::Domain(ours)), Some(url::Host::Domain(theirs))) = (registry.host(), server.host())
    else {
        return registry.host().is_some() && registry.host() == server.host();
    };
    let is_in = |domain: &str| {
        let rest = theirs.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    // `com` is nobody's.
    let parent = ours.split_once('.').map(|(_, parent)| parent);
    is_in(ours) || parent.is_some_and(|parent| parent.contains('.') && is_in(parent))
}

/// Values are sent to Helm and stored: a person's settings, not a data store.
const MAX_VALUES: usize = 256 << 10;

impl NewOperator {
    pub fn check(&self) -> Result<Repository, Complaints> {
        let mut complaints = Complaints::default();
        complaints.dns_label("name", &self.name);
        complaints.dns_label("namespace", &self.namespace);
        complaints.at_most("description", &self.description, 2000);
        complaints.labels("labels", &self.labels);
        chart_name(&mut complaints, &self.chart_name);
        values(&mut complaints, "defaultValues", &self.default_values);
        if let Some(Err(error)) = self.current_version.as_deref().map(str::parse::<OperatorVersion>) {
            complaints.add("currentVersion", error.to_string());
        }
        match repository(&self.chart_repository) {
            Ok(repository) => complaints.or(repository),
            Err(message) => {
                complaints.add("chartRepository", message);
                Err(complaints)
            }
        }
    }
}

/// Whether credentials may be sent there: not over a network where others read along.
pub fn keeps_secrets(repository: &Repository) -> bool {
    let (Repository::Http(url) | Repository::Oci(url)) = repository;
    let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
    // A registry is asked over TLS unless it is on this very machine.
    url.scheme() != "http" || is_local
}

pub fn values(complaints: &mut Complaints, field: &str, values: &Value) {
    if !(values.is_object() || values.is_null()) {
        complaints.add(field, "must be an object, as in a values file");
    }
    if values.to_string().len() > MAX_VALUES {
        complaints.add(field, format!("must have at most {} KiB", MAX_VALUES >> 10));
    }
}

fn chart_name(complaints: &mut Complaints, name: &str) {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // A slash or two dots would reach for other files of the repository.
    if !(1..=250).contains(&name.len()) || !name.chars().all(good) || name.starts_with(['.', '-']) {
        complaints.add(
            "chartName",
            "must be the name of a chart: letters, digits, hyphens, underscores and dots",
        );
    }
}

/// Reads the address of a repository. Credentials in it would end up in logs and answers.
pub fn repository(text: &str) -> Result<Repository, String> {
    if text.len() > 2048 {
        return Err("must have at most 2048 characters".to_owned());
    }
    let url =
        Url::parse(text).map_err(|_| "must be an address such as https://charts.example.com".to_owned())?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not have a user or password in it".to_owned());
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("must name a host".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must not have a query or fragment".to_owned());
    }
    match url.scheme() {
        "http" | "https" => Ok(Repository::Http(url)),
        "oci" => Ok(Repository::Oci(url)),
        other => Err(format!(
            "must begin with https://, http:// or oci://, not {other}://"
        )),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn operator() -> NewOperator {
        NewOperator {
            name: "cert-manager".to_owned(),
            description: String::new(),
            namespace: "cert-manager".to_owned(),
            chart_repository: "https://charts.jetstack.io".to_owned(),
            chart_name: "cert-manager".to_owned(),
            current_version: Some("v1.14.0".to_owned()),
            labels: Labels::new(),
            default_values: Value::Null,
        }
    }

    #[rstest]
    #[case("https://charts.example.com", true)]
    #[case("oci://ghcr.io/x", true)]
    #[case("http://127.0.0.1:8080", true)]
    #[case("http://charts.example.com", false)]
    fn credentials_go_where_nobody_reads_along(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(keeps_secrets(&repository(text).unwrap()), expected);
    }

    #[test]
    fn a_good_one_passes() {
        assert!(matches!(operator().check(), Ok(Repository::Http(_))));
    }

    #[rstest]
    #[case("ftp://example.com")]
    #[case("charts.example.com")]
    #[case("https://user:secret@example.com")]
    #[case("https://example.com/?a=b")]
    #[case("file:///etc/passwd")]
    fn repositories_that_are_refused(#[case] address: &str) {
        assert!(repository(address).is_err(), "{address}");
    }

    #[test]
    fn everything_wrong_is_named_at_once() {
        let bad = NewOperator {
            name: "Not A Name".to_owned(),
            namespace: String::new(),
            chart_name: "../../etc/passwd".to_owned(),
            current_version: Some("latest".to_owned()),
            default_values: Value::from("text"),
            chart_repository: "nothing".to_owned(),
            ..operator()
        };
        let fields: Vec<String> = bad.check().unwrap_err().0.into_iter().map(|c| c.field).collect();
        assert_eq!(
            fields,
            [
                "name",
                "namespace",
                "chartName",
                "defaultValues",
                "currentVersion",
                "chartRepository"
            ]
        );
    }

    #[rstest]
    #[case::itself("https://charts.example.com", "https://charts.example.com:5001/token", true)]
    #[case::beside_it("https://registry-1.docker.io", "https://auth.docker.io/token", true)]
    #[case::above_it("https://registry.gitlab.com", "https://gitlab.com/jwt/auth", true)]
    #[case::below_it("https://example.com", "https://auth.example.com/token", true)]
    #[case::elsewhere("https://charts.example.com", "https://example.org/token", false)]
    #[case::looks_alike("https://charts.example.com", "https://evilexample.com/token", false)]
    #[case::only_the_ending("https://example.com", "https://another.com/token", false)]
    #[case::an_address("https://192.0.2.1", "https://192.0.2.1:5001/token", true)]
    #[case::another_address("https://192.0.2.1", "https://192.0.2.2/token", false)]
    #[case::name_and_address("http://localhost", "http://127.0.0.1/token", false)]
    fn credentials_stay_with_the_registry(
        #[case] registry: &str,
        #[case] server: &str,
        #[case] expected: bool,
    ) {
        let (registry, server) = (registry.parse().unwrap(), server.parse().unwrap());
        assert_eq!(is_token_server_of(&registry, &server), expected);
    }
}
