//! HTTPS: a certificate that is renewed while connections come in, and clients that have to show one.

use std::path::Path;

use super::support::{Running, kube::kubeconfig, settings, token, until};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_fleet::{Server, settings::TlsFiles};
use gantry_fleet_domain::access::Role;

fn openssl(arguments: &[&str]) {
    let done = std::process::Command::new("openssl")
        .args(arguments)
        .output()
        .expect("openssl is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A certificate for 127.0.0.1 that is its own authority.
fn certificate(folder: &Path, name: &str) -> (String, String) {
    let (key, certificate) = (
        folder.join(format!("{name}.key")),
        folder.join(format!("{name}.crt")),
    );
    let (key, certificate) = (
        key.to_str().unwrap().to_owned(),
        certificate.to_str().unwrap().to_owned(),
    );
    openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        &format!("/CN={name}"),
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        &key,
        "-out",
        &certificate,
    ]);
    (certificate, key)
}

fn client(authority: &str, identity: Option<(&str, &str)>) -> reqwest::Client {
    let pem = std::fs::read(authority).unwrap();
    let mut builder =
        reqwest::Client::builder().tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()]);
    if let Some((certificate, key)) = identity {
        let both = [std::fs::read(key).unwrap(), std::fs::read(certificate).unwrap()].concat();
        builder = builder.identity(reqwest::Identity::from_pem(&both).unwrap());
    }
    builder.build().unwrap()
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_over_and_half_of_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (first, first_key) = certificate(folder.path(), "first");
    let (second, second_key) = certificate(folder.path(), "second");
    let (used, used_key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::copy(&first, &used).unwrap();
    std::fs::copy(&first_key, &used_key).unwrap();
    let running = Running::with(|settings| {
        settings.tls = Some(TlsFiles {
            certificate: used.clone(),
            key: used_key.clone(),
            client_authority: None,
        });
    })
    .await;
    let url = format!("https://{}/health", running.server.address);
    let works = async |authority: &str| {
        client(authority, None)
            .get(&url)
            .send()
            .await
            .is_ok_and(|got| got.status() == 200)
    };
    assert!(works(&first).await);
    assert!(!works(&second).await);
    let got = client(&first, None).get(&url).send().await.unwrap();
    assert!(got.headers().contains_key("strict-transport-security"));
    // Half of it: the old pair stays in use.
    std::fs::copy(&second, &used).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    assert!(works(&first).await);
    std::fs::copy(&second_key, &used_key).unwrap();
    until("the new certificate is in use", async || {
        works(&second).await.then_some(())
    })
    .await;
    // Plain HTTP gets no answer here.
    let plain = format!("http://{}/health", running.server.address);
    assert!(reqwest::get(plain).await.is_err());
    running.server.stop().await;
}

#[tokio::test]
async fn clients_have_to_show_a_certificate_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (server, server_key) = certificate(folder.path(), "server");
    let (known, known_key) = certificate(folder.path(), "known");
    let (stranger, stranger_key) = certificate(folder.path(), "stranger");
    let running = Running::with(|settings| {
        settings.tls = Some(TlsFiles {
            certificate: server.clone().into(),
            key: server_key.into(),
            client_authority: Some(known.clone().into()),
        });
    })
    .await;
    let url = format!("https://{}/api/v1/operators", running.server.address);
    let token = token("admin", Role::Admin);
    let ask = async |identity| {
        client(&server, identity)
            .get(&url)
            .bearer_auth(&token)
            .send()
            .await
    };
    assert_eq!(
        ask(Some((known.as_str(), known_key.as_str())))
            .await
            .unwrap()
            .status(),
        200
    );
    assert!(
        ask(Some((stranger.as_str(), stranger_key.as_str())))
            .await
            .is_err()
    );
    assert!(ask(None).await.is_err());
    running.server.stop().await;
}

#[tokio::test]
async fn plain_http_on_an_open_address_has_to_be_meant() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&super::support::database().await, folder.path());
    settings.address = ([0, 0, 0, 0], 0).into();
    let refused = Server::start(settings).await.err().unwrap();
    assert!(refused.to_string().contains("--insecure-http"), "{refused}");
}

/// A certificate for 127.0.0.1, its own authority, that was good until an hour ago.
fn expired(folder: &Path) -> (String, String) {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let settings = format!(
        "[ca]\ndefault_ca = d\n[d]\ndatabase = {}\nserial = {}\nnew_certs_dir = {}\ndefault_md = sha256\npolicy = p\n\
         x509_extensions = e\n[e]\nsubjectAltName = IP:127.0.0.1\nbasicConstraints = critical,CA:FALSE\n[p]\n\
         commonName = supplied\n",
        path("index"),
        path("serial"),
        path(""),
    );
    std::fs::write(path("ca.cnf"), settings).unwrap();
    std::fs::write(path("index"), "").unwrap();
    std::fs::write(path("serial"), "01\n").unwrap();
    let (key, request, certificate) = (path("old.key"), path("old.request"), path("old.crt"));
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let mut arguments = vec!["req", "-new", "-subj", "/CN=old"];
    arguments.extend(new_key);
    arguments.extend(["-keyout", &key, "-out", &request]);
    openssl(&arguments);
    let utc = |hours: i64| {
        let at = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(hours);
        at.to_zoned(jiff::tz::TimeZone::UTC)
            .strftime("%Y%m%d%H%M%SZ")
            .to_string()
    };
    let (from, until, configuration) = (utc(48), utc(1), path("ca.cnf"));
    let mut arguments = vec!["ca", "-batch", "-selfsign", "-notext", "-config", &configuration];
    arguments.extend(["-in", &request, "-keyfile", &key, "-out", &certificate]);
    arguments.extend(["-startdate", &from, "-enddate", &until]);
    openssl(&arguments);
    (certificate, key)
}

#[tokio::test]
async fn a_cluster_whose_certificate_has_expired_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = expired(folder.path());
    // Anything that has such a certificate.
    let cluster = Running::with(|settings| {
        settings.tls = Some(TlsFiles {
            certificate: certificate.clone().into(),
            key: key.into(),
            client_authority: None,
        });
    })
    .await;
    let running = Running::start().await;
    let mut kubeconfig = kubeconfig(&format!("https://{}", cluster.server.address), "t");
    let authority = std::fs::read(&certificate).unwrap();
    kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] = STANDARD.encode(authority).into();
    let body = serde_json::json!({"name": "old", "environment": "Dev", "kubeconfig": kubeconfig});
    let refused = running.admin.post("/clusters", &body).await;
    let refused = refused.refused(503, "CLUSTER_UNREACHABLE");
    assert!(
        refused.text.contains("a certificate has expired"),
        "{}",
        refused.text
    );
    running.server.stop().await;
    cluster.server.stop().await;
}
