//! Certificates of a process: the served one, the trusted ones, and the time of the next.
//!
//! A *credential* is a certificate with its key and the authority that signed it; the authority's
//! own key is thrown away at once. A renewal has steps, each a write of its own: the next
//! credential is stored; its authority joins the bundle that callers trust; some time after that
//! was seen, it is served; the old authority stays in the bundle until the renewal after. So a
//! replica never serves a certificate that a caller does not trust, though both hear of every step
//! late. `next_step` decides and knows no clock. It never writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

/// Maximum lag of an API server's clock behind ours.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// A certificate to serve, its key, and the authority that signed it, as PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// Authority that a caller must trust.
    pub authority: String,
    /// The hosts that it stands for.
    pub names: BTreeSet<String>,
    /// When it was made.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

impl Credential {
    /// A new one for these hosts, which ends when `validity` is over.
    ///
    /// # Errors
    /// A host that no certificate can stand for.
    pub fn make(
        names: &BTreeSet<String>,
        now: Timestamp,
        validity: Duration,
    ) -> anyhow::Result<Credential> {
        Credential::signed(
            names,
            vec![ExtendedKeyUsagePurpose::ServerAuth],
            now,
            validity,
        )
    }

    /// One for replicas that call each other: the same certificate serves and calls.
    ///
    /// # Errors
    /// A name that no certificate can stand for.
    pub fn for_peers(name: &str, now: Timestamp, validity: Duration) -> anyhow::Result<Credential> {
        let both = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        Credential::signed(&[name.to_owned()].into(), both, now, validity)
    }

    fn signed(
        names: &BTreeSet<String>,
        uses: Vec<ExtendedKeyUsagePurpose>,
        now: Timestamp,
        validity: Duration,
    ) -> anyhow::Result<Credential> {
        let until = now
            .checked_add(validity)
            .context("the validity is too long")?;
        let moment = |at: Timestamp| {
            let seconds = u64::try_from(at.as_second()).unwrap_or(0);
            date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        let for_so_long = |mut params: CertificateParams, name: &str| {
            params.not_before = moment(now.saturating_sub(SKEW).unwrap_or(now));
            params.not_after = moment(until);
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        // A certificate that is its own authority would do for Go, but not for rustls.
        let mut authority = for_so_long(CertificateParams::default(), "sublet-authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        // Authorities of one name must not be taken for each other.
        authority.use_authority_key_identifier_extension = true;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);

        let hosts: Vec<String> = names.iter().cloned().collect();
        let mut leaf = for_so_long(CertificateParams::new(hosts)?, "sublet");
        leaf.extended_key_usages = uses;
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?.pem();
        Ok(Credential {
            certificate,
            key: key.serialize_pem(),
            authority: authority_pem,
            names: names.clone(),
            from: now,
            until,
        })
    }

    /// TLS settings to serve it: to all callers, or only to callers that `clients` accepts.
    ///
    /// # Errors
    /// A text is no certificate or key, or the two do not belong together.
    pub fn server_config(
        &self,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> anyhow::Result<Arc<ServerConfig>> {
        let (chain, key) = self.chain_and_key()?;
        let mut config = ServerConfig::builder()
            .with_client_cert_verifier(clients.unwrap_or_else(WebPkiClientVerifier::no_client_auth))
            .with_single_cert(chain, key)
            .context("certificate and key cannot be used")?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn chain_and_key(
        &self,
    ) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .context("the certificate cannot be read")?;
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("the key cannot be read")?;
        Ok((chain, key))
    }

    /// Is it time for the next one?
    fn is_due(&self, names: &BTreeSet<String>, now: Timestamp) -> bool {
        self.names != *names || now >= self.renewal()
    }

    /// When the last third of its time begins.
    fn renewal(&self) -> Timestamp {
        let whole = self.until.duration_since(self.from);
        self.until.checked_sub(whole / 3).unwrap_or(self.from)
    }
}

/// A credential that is not served yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// The credential.
    pub credential: Credential,
    /// Since when its authority is known to be in the webhook configuration.
    pub trusted_since: Option<Timestamp>,
}

/// All that is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Credential that all replicas serve.
    pub served: Credential,
    /// Credential that they will serve next.
    pub next: Option<Successor>,
    /// The authority of the last served credential: some may serve it for a moment more.
    pub former_authority: Option<String>,
}

impl Stored {
    /// Only that credential.
    #[must_use]
    pub fn first(served: Credential) -> Stored {
        Stored {
            served,
            next: None,
            former_authority: None,
        }
    }

    /// Authorities that API servers must trust, as PEM.
    #[must_use]
    pub fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| &next.credential.authority);
        let all = self.former_authority.iter().chain([&self.served.authority]);
        all.chain(next).map(String::as_str).collect()
    }

    /// TLS settings to serve only callers with a certificate of the same authorities, and
    /// settings to call such a server. An authority signs nothing else, so its certificate
    /// identifies the process; a caller checks the name in it too.
    ///
    /// # Errors
    /// A text is no certificate or key, or the two do not belong together.
    pub fn peer_configs(&self) -> anyhow::Result<(Arc<ServerConfig>, ClientConfig)> {
        let bundle = self.bundle();
        let server = self.served.server_config(Some(verifier(&bundle)?))?;
        let (chain, key) = self.served.chain_and_key()?;
        let client = ClientConfig::builder()
            .with_root_certificates(authorities(&bundle)?)
            .with_client_auth_cert(chain, key)
            .context("certificate and key cannot be used")?;
        Ok((server, client))
    }
}

/// Makes a verifier that accepts callers with a certificate of these authorities, as PEM.
///
/// # Errors
/// There is no authority in the text, or one that cannot be read.
pub fn verifier(authorities_pem: &str) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    WebPkiClientVerifier::builder(authorities(authorities_pem)?.into())
        .build()
        .context("no authority to trust")
}

fn authorities(pem: &str) -> anyhow::Result<RootCertStore> {
    let mut trusted = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let authority = authority.context("an authority cannot be read")?;
        trusted.add(authority).context("an authority is none")?;
    }
    Ok(trusted)
}

/// Step that is due for the certificates.
#[derive(Debug, Clone, PartialEq)]
pub enum CertificateStep {
    /// Store this.
    Store(Box<Stored>),
    /// Put this bundle into the webhook configurations that lack it.
    Trust(String),
    /// Do nothing before this time has passed.
    Wait(Duration),
}

/// The next step. `stored`: the stored credentials, if they can be read. `trusted`: true if every
/// webhook has their bundle. `fresh`: a new credential for `names`. `settle`: longest time until
/// API servers hear of a new bundle.
#[must_use]
pub fn next_step(
    stored: Option<&Stored>,
    trusted: bool,
    fresh: &Credential,
    settle: Duration,
    now: Timestamp,
) -> CertificateStep {
    let Some(stored) = stored else {
        return CertificateStep::Store(Box::new(Stored::first(fresh.clone())));
    };
    if !trusted {
        return CertificateStep::Trust(stored.bundle());
    }
    let with = |next| {
        CertificateStep::Store(Box::new(Stored {
            next,
            ..stored.clone()
        }))
    };
    let until = |at: Timestamp| {
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        // Timers end late rather than early, but a clock may have been set.
        CertificateStep::Wait(left.max(Duration::from_millis(50)))
    };
    let succeed = |credential| {
        with(Some(Successor {
            credential,
            trusted_since: None,
        }))
    };
    match &stored.next {
        None if stored.served.is_due(&fresh.names, now) => succeed(fresh.clone()),
        None => until(stored.served.renewal()),
        Some(next) if next.credential.is_due(&fresh.names, now) => succeed(fresh.clone()),
        Some(next) => match next.trusted_since {
            None => with(Some(Successor {
                trusted_since: Some(now),
                ..next.clone()
            })),
            Some(since) => {
                let ready = since.checked_add(settle).unwrap_or(since);
                if now < ready {
                    return until(ready);
                }
                CertificateStep::Store(Box::new(Stored {
                    served: next.credential.clone(),
                    next: None,
                    former_authority: Some(stored.served.authority.clone()),
                }))
            }
        },
    }
}

#[cfg(test)]
mod tests;
