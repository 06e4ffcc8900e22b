//! Keys, certificates and tokens of one cluster, made in the process.
//!
//! One authority signs the API server's certificate and the one with which it calls kubelets. A
//! certificate that is its own authority would be enough for Go, but rustls refuses it. Users have
//! bearer tokens in the API server's token file, so each component and each test has its real user
//! name, and RBAC and the Node authorizer are in force. None of this is safe for a cluster that
//! others can reach.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A user of the API server, with a token of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user name as RBAC sees it, such as `system:serviceaccount:NAMESPACE:NAME`.
    pub name: String,
    /// Groups besides `system:authenticated`.
    pub groups: Vec<String>,
}

impl User {
    /// A user in some groups.
    #[must_use]
    pub fn new(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
        }
    }

    /// The user that the API server sees for a pod that runs under a service account.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str) -> User {
        User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ],
        }
    }
}

/// The folder `pki` of a cluster.
#[derive(Debug)]
pub(crate) struct Pki {
    dir: PathBuf,
    tokens: Vec<(String, String)>,
}

impl Pki {
    /// Makes all files in `dir` for these users.
    pub(crate) fn create(dir: &Path, users: &[User]) -> Result<Pki> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        certificates(dir).context("make the certificates")?;

        let mut pki = Pki {
            dir: dir.to_owned(),
            tokens: Vec::new(),
        };
        let mut lines = String::new();
        for User { name, groups } in users {
            let token = random_hex()?;
            lines += &format!("{token},{name},{name},\"{}\"\n", groups.join(","));
            pki.tokens.push((name.clone(), token));
        }
        fs::write(pki.path("tokens.csv"), lines)?;
        Ok(pki)
    }

    /// The path of a file in this folder.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// A kubeconfig for a user, with the API server's address and the user's token.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str) -> Result<String> {
        let (_, token) = self
            .tokens
            .iter()
            .find(|(name, _)| name == user)
            .with_context(|| {
                let known: Vec<&str> = self.tokens.iter().map(|(name, _)| name.as_str()).collect();
                format!(
                    "no user `{user}` in this cluster; there are {}",
                    known.join(", ")
                )
            })?;
        Ok(self.kubeconfig_of_token(server, token))
    }

    /// The same with any token.
    pub(crate) fn kubeconfig_of_token(&self, server: &str, token: &str) -> String {
        format!(
            r#"apiVersion: v1
kind: Config
current-context: default
clusters: [{{name: default, cluster: {{server: "{server}", certificate-authority: "{ca}"}}}}]
users: [{{name: default, user: {{token: "{token}"}}}}]
contexts: [{{name: default, context: {{cluster: default, user: default}}}}]
"#,
            ca = self.path("authority.crt").display()
        )
    }
}

fn certificates(dir: &Path) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority
        .distinguished_name
        .push(DnType::CommonName, "sublet-testbed");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let authority_key = KeyPair::generate()?;
    let certificate = authority.self_signed(&authority_key)?;
    fs::write(dir.join("authority.crt"), certificate.pem())?;
    let issuer = Issuer::new(authority, authority_key);

    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
    let mut server = CertificateParams::new(names)?;
    server
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_key = KeyPair::generate()?;
    fs::write(
        dir.join("apiserver.crt"),
        server.signed_by(&server_key, &issuer)?.pem(),
    )?;
    fs::write(dir.join("apiserver.key"), server_key.serialize_pem())?;

    // The API server calls a real kubelet with this certificate, for logs and exec.
    let mut client = CertificateParams::default();
    client
        .distinguished_name
        .push(DnType::OrganizationName, "system:masters");
    client
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver-kubelet-client");
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let client_key = KeyPair::generate()?;
    fs::write(
        dir.join("kubelet-client.crt"),
        client.signed_by(&client_key, &issuer)?.pem(),
    )?;
    fs::write(dir.join("kubelet-client.key"), client_key.serialize_pem())?;

    let accounts = KeyPair::generate()?;
    fs::write(dir.join("service-account.key"), accounts.serialize_pem())?;
    fs::write(dir.join("service-account.pub"), accounts.public_key_pem())?;
    Ok(())
}

fn random_hex() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?
        .read_exact(&mut bytes)
        .context("read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_has_a_token_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let users = [
            User::new("admin", &["system:masters"]),
            User::new("eve", &["a", "b"]),
        ];
        let pki = Pki::create(dir.path(), &users).unwrap();
        let tokens = fs::read_to_string(pki.path("tokens.csv")).unwrap();
        let lines: Vec<Vec<&str>> = tokens
            .lines()
            .map(|line| line.splitn(4, ',').collect())
            .collect();
        assert_eq!(lines[0][1..], ["admin", "admin", "\"system:masters\""]);
        assert_eq!(lines[1][1..], ["eve", "eve", "\"a,b\""]);
        assert_ne!(lines[0][0], lines[1][0]);

        let config = pki.kubeconfig("https://127.0.0.1:1", "eve").unwrap();
        assert!(config.contains(lines[1][0]), "{config}");
        let error = pki
            .kubeconfig("https://127.0.0.1:1", "bob")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "no user `bob` in this cluster; there are admin, eve");
    }
}
