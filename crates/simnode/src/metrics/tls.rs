//! TLS of the metrics API: a certificate made at the start, and the front proxy's client certificate.

use std::{net::IpAddr, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use x509_parser::prelude::{FromDer as _, X509Certificate};

const HANDSHAKE: Duration = Duration::from_secs(10);

/// Our own authority and the certificate it gave us.
pub struct Identity {
    pub ca_pem: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    pub fn generate(names: &[String], address: IpAddr) -> anyhow::Result<Self> {
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.distinguished_name
            .push(DnType::CommonName, "gantry-simnode-metrics-ca");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let names: Vec<String> = names.iter().cloned().chain([address.to_string()]).collect();
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name
            .push(DnType::CommonName, "gantry-simnode-metrics");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let leaf = leaf.signed_by(&key, &ca)?;
        Ok(Self {
            ca_pem: ca.pem(),
            chain: vec![leaf.der().clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    /// Clients may come without a certificate (and get a readable refusal); one that they show must be of `client_ca`.
    pub fn server_config(self, client_ca: &str) -> anyhow::Result<ServerConfig> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(client_ca.as_bytes()) {
            roots.add(certificate.context("bad client CA")?)?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
            .allow_unauthenticated()
            .build()?;
        let mut config = ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// It showed the front proxy's certificate.
    pub trusted: bool,
}

/// Whether a verified certificate is of one of the allowed names; no names allow all.
pub fn is_allowed(certificate: &[u8], names: &[String]) -> bool {
    if names.is_empty() {
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
    common_name.is_some_and(|name| names.iter().any(|allowed| allowed == name))
}

/// Accepts connections and does their handshakes beside each other.
pub struct TlsListener {
    accepted: mpsc::Receiver<(TlsStream<TcpStream>, Connection)>,
    local: SocketAddr,
}

/// The address of a connection, with what its certificate says.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    peer: Peer,
}

impl TlsListener {
    pub fn new(listener: TcpListener, config: ServerConfig, allowed: Vec<String>) -> anyhow::Result<Self> {
        let local = listener.local_addr()?;
        let (sender, accepted) = mpsc::channel(64);
        tokio::spawn(accept(
            listener,
            TlsAcceptor::from(Arc::new(config)),
            Arc::new(allowed),
            sender,
        ));
        Ok(Self { accepted, local })
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    allowed: Arc<Vec<String>>,
    sender: mpsc::Sender<(TlsStream<TcpStream>, Connection)>,
) {
    while !sender.is_closed() {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, sender, allowed) = (acceptor.clone(), sender.clone(), allowed.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    let trusted = certificate.is_some_and(|certificate| is_allowed(certificate, &allowed));
                    let _ = sender
                        .send((
                            stream,
                            Connection {
                                peer: Peer { trusted },
                            },
                        ))
                        .await;
                }
                Ok(Err(error)) => tracing::debug!(%address, %error, "handshake"),
                Err(_) => tracing::debug!(%address, "handshake took too long"),
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = Connection;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The accepting task never ends while we hold the receiver.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        tracing::trace!(local = %self.local, "local address");
        Ok(Connection {
            peer: Peer { trusted: false },
        })
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        stream.remote_addr().peer
    }
}
