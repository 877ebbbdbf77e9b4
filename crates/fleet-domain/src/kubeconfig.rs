//! Uploaded kubeconfigs, which are hostile until proven otherwise: they can name programs to run, files to read and
//! proxies to pass through. What is kept is built anew from the few fields that are harmless; everything else that
//! would change how the cluster is reached is refused by name.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use url::{Host, Url};

/// What an administrator may loosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allow {
    /// `insecure-skip-tls-verify`, and plain http.
    pub insecure: bool,
}

/// A kubeconfig with one cluster, one user and one context, and nothing that runs or reads anything.
#[derive(Clone, PartialEq)]
pub struct Sanitised {
    pub server: String,
    pub document: Value,
}

impl std::fmt::Debug for Sanitised {
    // It holds credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sanitised")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Fields that are refused, and why.
const CLUSTER: [(&str, &str); 3] = [
    (
        "certificate-authority",
        "names a file; put the certificate in as certificate-authority-data",
    ),
    (
        "proxy-url",
        "sends the credentials through a proxy; name an address that the server reaches by itself",
    ),
    (
        "insecure-skip-tls-verify",
        "sends the credentials to whoever answers, which is not allowed here",
    ),
];
const USER: [(&str, &str); 12] = [
    (
        "exec",
        "names a program to run; use a service account's token or a client certificate",
    ),
    (
        "auth-provider",
        "needs a plugin; use a service account's token or a client certificate",
    ),
    ("tokenFile", "names a file; put the token in as token"),
    (
        "client-certificate",
        "names a file; put the certificate in as client-certificate-data",
    ),
    ("client-key", "names a file; put the key in as client-key-data"),
    (
        "username",
        "is basic authentication, which Kubernetes no longer has",
    ),
    (
        "password",
        "is basic authentication, which Kubernetes no longer has",
    ),
    (
        "as",
        "acts in another's name; upload the credentials that are meant",
    ),
    (
        "as-uid",
        "acts in another's name; upload the credentials that are meant",
    ),
    (
        "as-groups",
        "acts in another's name; upload the credentials that are meant",
    ),
    (
        "as-user-extra",
        "acts in another's name; upload the credentials that are meant",
    ),
    (
        "impersonate",
        "acts in another's name; upload the credentials that are meant",
    ),
];

/// What is wrong with it, in words without any value of it.
pub fn sanitise(document: &Value, allow: Allow) -> Result<Sanitised, Vec<String>> {
    let mut wrong = Vec::new();
    let Some(current) = current_context(document) else {
        return Err(vec!["has no context that current-context names".to_owned()]);
    };
    let name = |field: &str| current.get(field).and_then(Value::as_str).unwrap_or_default();
    let (Some(cluster), Some(user)) = (
        named(document, "clusters", name("cluster"), "cluster"),
        named(document, "users", name("user"), "user"),
    ) else {
        return Err(vec![
            "its current context names a cluster or a user that is not in it".to_owned(),
        ]);
    };
    for (field, why) in CLUSTER {
        let allowed = match field {
            "insecure-skip-tls-verify" => allow.insecure || cluster.get(field) == Some(&Value::Bool(false)),
            _ => false,
        };
        if present(cluster, field) && !allowed {
            wrong.push(format!("the cluster's {field} {why}"));
        }
    }
    for (field, why) in USER {
        if present(user, field) {
            wrong.push(format!("the user's {field} {why}"));
        }
    }
    let server = text(cluster, "server");
    if let Err(why) = check_server(&server, allow) {
        wrong.push(format!("the cluster's server {why}"));
    }
    let mut kept_cluster = json!({"server": server});
    for field in ["certificate-authority-data", "tls-server-name"] {
        keep(cluster, &mut kept_cluster, field, &mut wrong);
    }
    if allow.insecure && cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) {
        kept_cluster["insecure-skip-tls-verify"] = Value::Bool(true);
    }
    let mut kept_user = json!({});
    for field in ["token", "client-certificate-data", "client-key-data"] {
        keep(user, &mut kept_user, field, &mut wrong);
    }
    let has = |field: &str| kept_user.get(field).is_some();
    if wrong.is_empty() && !has("token") && !(has("client-certificate-data") && has("client-key-data")) {
        wrong.push("its user has neither a token nor a client certificate with its key".to_owned());
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(Sanitised {
        document: json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "target", "cluster": kept_cluster}],
            "users": [{"name": "gantry", "user": kept_user}],
            "contexts": [{"name": "target", "context": {"cluster": "target", "user": "gantry"}}],
            "current-context": "target",
        }),
        server,
    })
}

fn present(node: &Map<String, Value>, field: &str) -> bool {
    match node.get(field) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

fn text(node: &Map<String, Value>, field: &str) -> String {
    node.get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Copies a text field; what must be base64 has to be.
fn keep(from: &Map<String, Value>, to: &mut Value, field: &str, wrong: &mut Vec<String>) {
    if !present(from, field) {
        return;
    }
    let Some(value) = from.get(field).and_then(Value::as_str) else {
        wrong.push(format!("{field} is not a text"));
        return;
    };
    let value: String = value.split_whitespace().collect();
    if field.ends_with("-data") && STANDARD.decode(&value).is_err() {
        wrong.push(format!("{field} is not base64"));
    }
    if value.chars().any(char::is_control) {
        wrong.push(format!("{field} has control characters"));
    }
    to[field] = Value::String(value);
}

fn current_context(document: &Value) -> Option<&Map<String, Value>> {
    let contexts = document.get("contexts")?.as_array()?;
    let wanted = document
        .get("current-context")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match contexts.as_slice() {
        // There is no choice to be made.
        [only] if wanted.is_empty() => only.get("context")?.as_object(),
        _ => named(document, "contexts", wanted, "context"),
    }
}

fn named<'d>(document: &'d Value, list: &str, name: &str, inner: &str) -> Option<&'d Map<String, Value>> {
    document
        .get(list)?
        .as_array()?
        .iter()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?
        .get(inner)?
        .as_object()
}

fn check_server(text: &str, allow: Allow) -> Result<(), &'static str> {
    let url = Url::parse(text).map_err(|_| "is not an address such as https://10.0.0.1:6443")?;
    match url.scheme() {
        "https" => {}
        "http" if allow.insecure => {}
        "http" => return Err("is http: the credentials would go over the wire in the open"),
        _ => return Err("is not an https address"),
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("has a user or password in it");
    }
    match url.host() {
        None => Err("names no host"),
        Some(Host::Ipv4(address)) if is_nobodys(IpAddr::V4(address)) => Err(NOBODYS),
        Some(Host::Ipv6(address)) if is_nobodys(IpAddr::V6(address)) => Err(NOBODYS),
        Some(_) => Ok(()),
    }
}

const NOBODYS: &str = "is an address where no cluster is, such as a cloud's metadata service";

/// Addresses that are never a cluster's or a repository's: link-local (metadata services), unspecified, multicast.
pub fn is_nobodys(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_nobodys(IpAddr::V4(v4)),
            None => v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast(),
        },
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn config(cluster: Value, user: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "x"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        })
    }

    fn good_cluster() -> Value {
        json!({"server": "https://10.1.2.3:6443", "certificate-authority-data": "Y2E="})
    }

    #[test]
    fn only_what_is_harmless_is_kept() {
        let mut document = config(
            good_cluster(),
            json!({"token": "t0ken", "extensions": [{"name": "x"}]}),
        );
        document["preferences"] = json!({"colors": true});
        let kept = sanitise(&document, Allow::default()).unwrap();
        assert_eq!(kept.server, "https://10.1.2.3:6443");
        let user = &kept.document["users"][0]["user"];
        assert_eq!(user, &json!({"token": "t0ken"}));
        assert!(kept.document.get("preferences").is_none());
        assert!(!format!("{kept:?}").contains("t0ken"));
    }

    #[rstest]
    #[case(json!({"exec": {"command": "sh"}}), "exec")]
    #[case(json!({"auth-provider": {"name": "gcp"}, "token": "t"}), "auth-provider")]
    #[case(json!({"tokenFile": "/etc/passwd"}), "tokenFile")]
    #[case(json!({"client-key": "/root/.ssh/id_rsa", "client-certificate-data": "Y2E="}), "client-key")]
    #[case(json!({"username": "a", "password": "b"}), "username")]
    #[case(json!({"token": "t", "as": "system:masters"}), "as")]
    #[case(json!({}), "neither a token")]
    #[case(json!({"client-certificate-data": "Y2E="}), "neither a token")]
    #[case(json!({"client-certificate-data": "not base64!", "client-key-data": "Y2E="}), "base64")]
    #[case(json!({"token": ["a"]}), "not a text")]
    fn users_that_are_refused(#[case] user: Value, #[case] names: &str) {
        let wrong = sanitise(&config(good_cluster(), user), Allow::default())
            .unwrap_err()
            .join("; ");
        assert!(wrong.contains(names), "{wrong}");
        assert!(!wrong.contains("passwd") && !wrong.contains("id_rsa"), "{wrong}");
    }

    #[rstest]
    #[case(json!({"server": "http://10.0.0.1"}))]
    #[case(json!({"server": "https://169.254.169.254/latest"}))]
    #[case(json!({"server": "https://[::ffff:169.254.169.254]"}))]
    #[case(json!({"server": "https://[fe80::1]:6443"}))]
    #[case(json!({"server": "https://u:p@10.0.0.1"}))]
    #[case(json!({"server": "unix:///var/run/docker.sock"}))]
    #[case(json!({"server": 7}))]
    #[case(json!({"server": "https://10.0.0.1", "certificate-authority": "/etc/shadow"}))]
    #[case(json!({"server": "https://10.0.0.1", "proxy-url": "http://evil"}))]
    #[case(json!({"server": "https://10.0.0.1", "insecure-skip-tls-verify": true}))]
    fn clusters_that_are_refused(#[case] cluster: Value) {
        assert!(sanitise(&config(cluster, json!({"token": "t"})), Allow::default()).is_err());
    }

    #[test]
    fn an_administrator_may_allow_more() {
        let cluster = json!({"server": "http://10.0.0.1", "insecure-skip-tls-verify": true});
        let allow = Allow { insecure: true };
        let kept = sanitise(&config(cluster.clone(), json!({"token": "t"})), allow).unwrap();
        assert_eq!(kept.document["clusters"][0]["cluster"], cluster);
    }

    #[rstest]
    #[case(json!({}))]
    #[case(json!([1]))]
    #[case(json!({"contexts": [], "current-context": "x"}))]
    #[case(json!({"contexts": [{"name": "x", "context": {"cluster": "no", "user": "no"}}]}))]
    fn nothing_to_use(#[case] document: Value) {
        assert!(sanitise(&document, Allow::default()).is_err());
    }
}
