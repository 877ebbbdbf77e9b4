//! The server on a real socket: who gets in and who does not. What it answers is tested beside the pure parts.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use kube::{Client, client::Body};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rstest::rstest;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::TlsConnector;

use super::{
    access::Access,
    front::FrontProxy,
    identity::Identity,
    serve::{Answers, Terms, serve},
    source::Source,
};
use crate::settings::Reach;

const HOST: &str = "gantry-metrics.team.svc";

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, "front-proxy-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A client certificate with this name.
fn card(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (
        certificate.der().clone(),
        PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
    )
}

/// An API server that lets `jane` see everything and has no pods.
fn cluster() -> Client {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let path = request.uri().path().to_owned();
        let sent = request.into_body().collect().await.unwrap().to_bytes();
        let body = if path.ends_with("/subjectaccessreviews") {
            let review: serde_json::Value = serde_json::from_slice(&sent).unwrap();
            let allowed = review["spec"]["user"] == "jane";
            serde_json::json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                               "metadata": {}, "spec": {}, "status": {"allowed": allowed}})
        } else {
            serde_json::json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []})
        };
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(body.to_string().into_bytes())))
    });
    Client::new(service, "default")
}

async fn ask(who: Option<&str>, foreign: bool, user: Option<&str>, path: &str) -> Result<StatusCode, String> {
    let ours = authority();
    let data: BTreeMap<String, String> = [
        ("requestheader-client-ca-file", ours.pem()),
        (
            "requestheader-allowed-names",
            r#"["front-proxy-client"]"#.to_owned(),
        ),
        (
            "requestheader-username-headers",
            r#"["X-Remote-User"]"#.to_owned(),
        ),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    let front = FrontProxy::read(&data).unwrap();
    let identity = Identity::generate(vec![HOST.to_owned()], Timestamp::now()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let terms = Terms {
        config: Arc::new(identity.server_config(&front).unwrap()),
        front: Arc::new(front),
    };
    let answers = Arc::new(Answers {
        source: Source::new(cluster(), Reach::Direct),
        access: Access::new(cluster()),
    });
    let (_keep, terms) = watch::channel(Some(terms));
    tokio::spawn(serve(listener, terms, answers));

    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(identity.authority.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match who {
        Some(name) => {
            let signer = if foreign { authority() } else { ours };
            let (certificate, key) = card(&signer, name);
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from(HOST).unwrap(), stream)
        .await
        .map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let mut request = Request::get(path).header("host", HOST);
    if let Some(user) = user {
        request = request.header("X-Remote-User", user);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let answer = sender
        .send_request(request)
        .await
        .map_err(|error| error.to_string())?;
    Ok(answer.status())
}

const LIST: &str = "/apis/external.metrics.k8s.io/v1beta1";
const VALUES: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_queue_depth";

#[rstest]
#[case::the_api_server_for_jane(Some("front-proxy-client"), Some("jane"), VALUES, 200)]
#[case::for_somebody_without_rights(Some("front-proxy-client"), Some("joe"), VALUES, 403)]
#[case::anybody_may_discover(Some("front-proxy-client"), Some("joe"), LIST, 200)]
#[case::nobody_is_named(Some("front-proxy-client"), None, LIST, 401)]
#[case::no_certificate(None, None, LIST, 401)]
#[case::a_forged_header(None, Some("jane"), VALUES, 401)]
#[case::another_name_of_the_same_authority(Some("kubelet"), Some("jane"), VALUES, 401)]
#[case::health_is_no_secret(None, None, "/healthz", 200)]
#[case::no_such_metric(
    Some("front-proxy-client"),
    Some("jane"),
    "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/up",
    404
)]
#[tokio::test]
async fn who_gets_in(
    #[case] certificate: Option<&str>,
    #[case] user: Option<&str>,
    #[case] path: &str,
    #[case] expected: u16,
) {
    assert_eq!(
        ask(certificate, false, user, path).await.unwrap().as_u16(),
        expected
    );
}

#[tokio::test]
async fn a_certificate_of_another_authority_does_not_get_through_the_handshake() {
    let answer = ask(Some("front-proxy-client"), true, Some("jane"), VALUES).await;
    assert!(answer.is_err(), "{answer:?}");
}
