//! The certificate, read again when its files change: connections from then on get the new one.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsAcceptor;

use crate::settings::TlsFiles;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to read {what} from {path}")]
    Read {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate and its key do not fit together, or are not usable")]
    Unfit(#[source] rustls::Error),
    #[error("the authority of clients cannot be used")]
    Authority,
}

pub struct Reloading {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
    /// What the first one was made from: long may pass between that and the first look for another.
    loaded: Digest,
}

/// Of the files; the key is not kept for it.
type Digest = [u8; 32];

impl Reloading {
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        // Before they are used: what changes in between is seen as a change then.
        let loaded = content(&files);
        let current = RwLock::new(config(&files)?);
        Ok(Arc::new(Self {
            files,
            current,
            loaded,
        }))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        let current = self
            .current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        TlsAcceptor::from(current)
    }

    /// Files that do not fit together are no reason to stop serving: a renewal writes one after the other.
    pub async fn watch(&self) {
        let mut before = self.loaded;
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let now = content(&self.files);
            if now == before {
                continue;
            }
            match config(&self.files) {
                Ok(config) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
                    tracing::info!(certificate = %self.files.certificate.display(), "the new certificate is in use");
                    before = now;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "the certificate's files changed and do not fit yet; the old one stays in use"
                    );
                }
            }
        }
    }
}

fn content(files: &TlsFiles) -> Digest {
    let mut hash = Sha256::new();
    for path in [
        Some(&files.certificate),
        Some(&files.key),
        files.client_authority.as_ref(),
    ] {
        let text = path.and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(&text);
    }
    hash.finalize().into()
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates("the certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| TlsError::Read {
        what: "the key",
        path: files.key.clone(),
        source,
    })?;
    // TLS 1.2 and 1.3: rustls has nothing older.
    let builder = ServerConfig::builder();
    let builder = match &files.client_authority {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("the authority of clients", path)? {
                roots.add(certificate).map_err(|_| TlsError::Authority)?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
                .build()
                .map_err(|_| TlsError::Authority)?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Unfit)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(what: &'static str, path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Read {
        what,
        path: path.clone(),
        source,
    };
    CertificateDer::pem_file_iter(path)
        .map_err(wrong)?
        .collect::<Result<_, _>>()
        .map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(files: &TlsFiles) {
        let mut command = std::process::Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]);
        command.args(["-subj", "/CN=x", "-keyout"]).arg(&files.key);
        let done = command.arg("-out").arg(&files.certificate).output();
        assert!(done.unwrap().status.success());
    }

    #[tokio::test]
    async fn what_is_renewed_before_the_first_look_is_taken_over() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
            client_authority: None,
        };
        certificate(&files);
        let reloading = Reloading::load(files.clone()).unwrap();
        let current = || reloading.current.read().unwrap().clone();
        let first = current();
        // While the server waits for its database.
        certificate(&files);
        let renewed = async {
            while Arc::ptr_eq(&first, &current()) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = reloading.watch() => panic!("it watches for ever"),
            renewed = tokio::time::timeout(Duration::from_secs(60), renewed) => renewed.unwrap(),
        }
    }
}
