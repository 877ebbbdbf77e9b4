//! Who may ask: the API server, with its client certificate, in the name of a user. Pure.

use std::collections::BTreeMap;

use http::HeaderMap;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Where the API server publishes how it speaks to others.
pub const NAMESPACE: &str = "kube-system";
pub const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// How the API server shows that it is the API server, and how it says for whom it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxy {
    pub client_ca: Vec<CertificateDer<'static>>,
    /// Common names; none means any.
    allowed_names: Vec<String>,
    user_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
    pub extra: Vec<(String, Vec<String>)>,
}

impl FrontProxy {
    pub fn read(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let list = |key: &str| -> Result<Vec<String>, String> {
            data.get(key).map_or(Ok(Vec::new()), |text| {
                serde_json::from_str(text).map_err(|error| format!("{key} is no list of names: {error}"))
            })
        };
        let pem = data.get("requestheader-client-ca-file").ok_or(
            "it has no requestheader-client-ca-file: the API server runs without an aggregation layer",
        )?;
        let client_ca: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| format!("requestheader-client-ca-file is no certificate: {error}"))?;
        if client_ca.is_empty() {
            return Err("requestheader-client-ca-file holds no certificate".to_owned());
        }
        Ok(Self {
            client_ca,
            allowed_names: list("requestheader-allowed-names")?,
            user_headers: list("requestheader-username-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?
                .into_iter()
                .map(|prefix| prefix.to_ascii_lowercase())
                .collect(),
        })
    }

    /// Whether a certificate that the CA has signed is of one of the allowed names.
    pub fn allows(&self, certificate: &[u8]) -> bool {
        if self.allowed_names.is_empty() {
            return true;
        }
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return false;
        };
        let common_name = certificate
            .subject()
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok());
        common_name.is_some_and(|name| self.allowed_names.iter().any(|allowed| allowed == name))
    }

    /// The user in whose name it asks. Only to be believed of one who showed the certificate.
    pub fn user(&self, headers: &HeaderMap) -> Option<User> {
        let all = |names: &[String]| -> Vec<String> {
            names
                .iter()
                .flat_map(|name| headers.get_all(name))
                .filter_map(|value| value.to_str().ok())
                .map(ToOwned::to_owned)
                .collect()
        };
        let name = all(&self.user_headers)
            .into_iter()
            .next()
            .filter(|name| !name.is_empty())?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            let key = self
                .extra_prefixes
                .iter()
                .find_map(|prefix| header.as_str().strip_prefix(prefix.as_str()));
            if let (Some(key), Ok(value)) = (key, value.to_str()) {
                extra.entry(key.to_owned()).or_default().push(value.to_owned());
            }
        }
        Some(User {
            name,
            groups: all(&self.group_headers),
            extra: extra.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(name: &str) -> rcgen::Certificate {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn data(names: &str) -> BTreeMap<String, String> {
        [
            ("requestheader-client-ca-file", certificate("ca").pem()),
            ("requestheader-allowed-names", names.to_owned()),
            (
                "requestheader-username-headers",
                r#"["X-Remote-User"]"#.to_owned(),
            ),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#.to_owned()),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#.to_owned(),
            ),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    #[test]
    fn only_allowed_names_may_speak_for_others() {
        let front = FrontProxy::read(&data(r#"["front-proxy-client"]"#)).unwrap();
        assert!(front.allows(certificate("front-proxy-client").der()));
        assert!(!front.allows(certificate("kubelet").der()));
        assert!(!front.allows(b"rubbish"));
        assert!(
            FrontProxy::read(&data("[]"))
                .unwrap()
                .allows(certificate("kubelet").der())
        );
    }

    #[test]
    fn the_user_is_in_the_headers_that_the_server_names() {
        let front = FrontProxy::read(&data("[]")).unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(front.user(&headers), None);
        for (name, value) in [
            ("x-remote-user", "jane"),
            ("x-remote-group", "team"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-scopes", "a"),
        ] {
            headers.append(
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_static(value),
            );
        }
        assert_eq!(
            front.user(&headers),
            Some(User {
                name: "jane".into(),
                groups: vec!["team".into(), "system:authenticated".into()],
                extra: vec![("scopes".into(), vec!["a".into()])],
            })
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = FrontProxy::read(&BTreeMap::new()).unwrap_err();
        assert!(error.contains("requestheader-client-ca-file"), "{error}");
        let error = FrontProxy::read(&data("front")).unwrap_err();
        assert!(error.contains("requestheader-allowed-names"), "{error}");
    }
}
