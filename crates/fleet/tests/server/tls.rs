//! HTTPS: a certificate that is renewed while connections come in, and clients that have to show one.

use std::path::Path;

use super::support::{Running, settings, token, until};
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
