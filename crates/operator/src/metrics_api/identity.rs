//! Our own serving certificate, and the bundle of authorities that the API server trusts. Pure but for the keys.
//!
//! Every replica makes its own: an authority that signs one certificate and is then forgotten, so that no key is ever
//! stored or sent. The API server trusts all that stand in the bundle, and each replica adds its own.

use std::sync::Arc;

use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::front::FrontProxy;

/// How long a certificate holds, in days; a new one is made after half of it.
pub const DAYS: i64 = 30;
const NAME: &str = "gantry-metrics-api";
/// Replicas come and go; the newest authorities are those in use.
const MOST: usize = 32;
const END: &str = "-----END CERTIFICATE-----";

/// A certificate for our Service, and who signed it.
pub struct Identity {
    pub authority: String,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to make a certificate")]
    Make(#[from] rcgen::Error),
    #[error("failed to use a certificate")]
    Use(#[from] rustls::Error),
    #[error("failed to trust the API server's client authority: {0}")]
    Trust(String),
}

impl Identity {
    pub fn generate(names: Vec<String>, now: Timestamp) -> Result<Self, Error> {
        let mut authority = CertificateParams::new(Vec::new())?;
        // Named by its making, so that two of them are told apart.
        authority
            .distinguished_name
            .push(DnType::CommonName, format!("{NAME}-ca-{}", now.as_millisecond()));
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        validity(&mut authority, now);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name.push(DnType::CommonName, NAME);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        validity(&mut leaf, now);
        let key = KeyPair::generate()?;
        let leaf = leaf.signed_by(&key, &authority)?;
        Ok(Self {
            authority: authority.pem(),
            chain: vec![leaf.der().clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    /// Clients may come without a certificate, and get a readable refusal; one that they show must be of the front
    /// proxy's authority.
    pub fn server_config(&self, front: &FrontProxy) -> Result<ServerConfig, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in &front.client_ca {
            roots.add(certificate.clone())?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| Error::Trust(error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// From yesterday, because clocks differ.
fn validity(params: &mut CertificateParams, now: Timestamp) {
    let day = |days: i64| {
        let date = now.to_zoned(TimeZone::UTC).date().saturating_add(days.days());
        date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8)
    };
    params.not_before = day(-1);
    params.not_after = day(DAYS);
}

/// The bundle with our authority in it and without those that have run out; none when it is so already.
pub fn bundle(existing: &str, authority: &str, now: Timestamp) -> Option<String> {
    let mut blocks: Vec<(i64, String)> = existing
        .split_inclusive(END)
        .filter_map(|block| {
            let block = block.trim();
            let until = expiry(block)?;
            (until > now.as_second()).then(|| (until, block.to_owned()))
        })
        .collect();
    let ours = authority.trim();
    if !blocks.iter().any(|(_, block)| block == ours) {
        blocks.push((expiry(ours).unwrap_or(i64::MAX), ours.to_owned()));
    }
    if blocks.len() > MOST {
        // Ours stays, whatever the clocks of others say.
        blocks.sort_by_key(|(until, block)| (block != ours, std::cmp::Reverse(*until)));
        blocks.truncate(MOST);
    }
    let texts: Vec<String> = blocks.into_iter().map(|(_, block)| block).collect();
    let wished = format!("{}\n", texts.join("\n"));
    (wished.trim() != existing.trim()).then_some(wished)
}

fn expiry(block: &str) -> Option<i64> {
    let certificate = CertificateDer::from_pem_slice(block.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn made(text: &str) -> String {
        Identity::generate(vec!["gantry.team.svc".to_owned()], at(text))
            .unwrap()
            .authority
    }

    fn count(bundle: &str) -> usize {
        bundle.matches(END).count()
    }

    #[test]
    fn a_certificate_holds_from_yesterday_for_a_month() {
        let now = at("2026-01-31T12:00:00Z");
        let identity = Identity::generate(vec!["gantry.team.svc".to_owned()], now).unwrap();
        let (_, leaf) = X509Certificate::from_der(&identity.chain[0]).unwrap();
        let seconds = |text: &str| at(text).as_second();
        assert_eq!(
            leaf.validity().not_before.timestamp(),
            seconds("2026-01-30T00:00:00Z")
        );
        assert_eq!(
            leaf.validity().not_after.timestamp(),
            seconds("2026-03-02T00:00:00Z")
        );
        let (_, authority) = x509_parser::pem::parse_x509_pem(identity.authority.as_bytes()).unwrap();
        let authority = authority.parse_x509().unwrap();
        assert_eq!(leaf.issuer(), authority.subject());
        assert!(authority.is_ca());
    }

    #[test]
    fn each_replica_adds_its_own_and_drops_what_ran_out() {
        let (old, one, two) = (
            made("2025-11-01T00:00:00Z"),
            made("2026-01-01T00:00:00Z"),
            made("2026-01-02T00:00:00Z"),
        );
        let now = at("2026-01-05T00:00:00Z");
        let first = bundle("", &one, now).unwrap();
        assert_eq!(count(&first), 1);
        let both = bundle(&format!("{old}\n{first}"), &two, now).unwrap();
        assert_eq!(count(&both), 2);
        assert!(both.contains(one.trim()) && both.contains(two.trim()));
        assert_eq!(bundle(&both, &one, now), None, "nothing to do");
        assert_eq!(bundle(&both, &two, now), None);
        let later = bundle(&both, &two, at("2026-01-31T12:00:00Z")).unwrap();
        assert_eq!(count(&later), 1, "one has run out");
    }

    #[test]
    fn rubbish_is_dropped_and_there_is_an_end() {
        let now = at("2026-01-05T00:00:00Z");
        let ours = made("2026-01-01T00:00:00Z");
        assert_eq!(count(&bundle(&format!("rubbish {END}"), &ours, now).unwrap()), 1);
        let many: Vec<String> = (0..40).map(|_| made("2026-01-04T00:00:00Z")).collect();
        let cut = bundle(&many.concat(), &ours, now).unwrap();
        assert_eq!(count(&cut), MOST);
        assert!(cut.contains(ours.trim()));
    }
}
