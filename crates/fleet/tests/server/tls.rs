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
async fn another_authority_of_clients_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let (server, server_key) = certificate(folder.path(), "server");
    let (before, before_key) = certificate(folder.path(), "before");
    let (after, after_key) = certificate(folder.path(), "after");
    let used = folder.path().join("clients.crt");
    std::fs::copy(&before, &used).unwrap();
    let running = Running::with(|settings| {
        settings.tls = Some(TlsFiles {
            certificate: server.clone().into(),
            key: server_key.into(),
            client_authority: Some(used.clone()),
        });
    })
    .await;
    let url = format!("https://{}/health", running.server.address);
    // A new client each time: what is open stays open.
    let works = async |certificate: &str, key: &str| {
        let asked = client(&server, Some((certificate, key))).get(&url).send().await;
        asked.is_ok_and(|got| got.status() == 200)
    };
    assert!(works(&before, &before_key).await);
    assert!(!works(&after, &after_key).await);
    std::fs::copy(&after, &used).unwrap();
    until("the new authority counts", async || {
        works(&after, &after_key).await.then_some(())
    })
    .await;
    assert!(
        !works(&before, &before_key).await,
        "the old one does not any more"
    );
    // One that cannot be read changes nothing, least of all that clients have to show something.
    std::fs::write(&used, "no certificate").unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    assert!(works(&after, &after_key).await);
    let stranger = client(&server, None).get(&url).send().await;
    assert!(stranger.is_err());
    running.server.stop().await;
}

/// What a client begins with that knows nothing newer than `version`: all else is such that the server would take it.
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    // ECDHE with a P-256 key and AES: with GCM as since 1.2, and with CBC as before. X25519 and P-256.
    let suites = [0xc0, 0x2b, 0xc0, 0x09];
    let extensions = [
        &[0, 10, 0, 6, 0, 4, 0, 29, 0, 23][..],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 4, 0, 2, 4, 3],
        &[0, 23, 0, 0],
    ]
    .concat();
    let body = [
        &version[..],
        &[7; 32],
        &[0],
        &[0, suites.len() as u8],
        &suites,
        &[1, 0],
        &[0, extensions.len() as u8],
        &extensions,
    ]
    .concat();
    let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    [&[22, 3, 1, 0, message.len() as u8][..], &message].concat()
}

#[tokio::test]
async fn tls_1_2_is_spoken_and_nothing_older() {
    use std::sync::Arc;

    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(folder.path(), "server");
    let running = Running::with(|settings| {
        settings.tls = Some(TlsFiles {
            certificate: certificate.clone().into(),
            key: key.into(),
            client_authority: None,
        });
    })
    .await;
    let address = running.server.address;

    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&certificate).unwrap())
        .unwrap();
    let config = rustls::ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12])
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    let mut stream = connector.connect(name, stream).await.unwrap();
    let version = stream.get_ref().1.protocol_version();
    assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_2));
    let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");

    let answered = async |version: [u8; 2]| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&client_hello(version)).await.unwrap();
        let mut head = [0; 7];
        stream.read_exact(&mut head).await.unwrap();
        (head[0], [head[5], head[6]])
    };
    // A handshake goes on with the server's hello (2); what is refused gets a fatal (2) alert: `protocol_version` (70).
    let (kind, first) = answered([3, 3]).await;
    assert_eq!((kind, first[0]), (22, 2), "1.2 in the same words");
    for older in [[3, 2], [3, 1]] {
        assert_eq!(answered(older).await, (21, [2, 70]), "{older:?}");
    }
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
