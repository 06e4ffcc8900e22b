//! Addresses at which webhooks are called, and authorities that their callers trust: read from
//! webhook configurations.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;

/// The hosts under which API servers call webhooks.
#[must_use]
pub(crate) fn names_of<'a>(
    webhooks: impl IntoIterator<Item = &'a WebhookClientConfig>,
) -> BTreeSet<String> {
    webhooks.into_iter().filter_map(host_of).collect()
}

fn host_of(client: &WebhookClientConfig) -> Option<String> {
    if let Some(service) = &client.service {
        return Some(format!("{}.{}.svc", service.name, service.namespace));
    }
    let (_, rest) = client.url.as_deref()?.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    if let Some(v6) = authority.strip_prefix('[') {
        let (address, _) = v6.split_once(']')?;
        return address.parse::<IpAddr>().ok().map(|ip| ip.to_string());
    }
    let host = authority.split(':').next()?;
    (!host.is_empty()).then(|| host.to_owned())
}

/// Does the caller of this webhook trust exactly this bundle?
#[must_use]
pub(crate) fn trusts(webhook: &WebhookClientConfig, bundle: &str) -> bool {
    let ours = webhook.ca_bundle.as_ref();
    ours.is_some_and(|ours| ours.0 == bundle.as_bytes())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::admissionregistration::v1::ServiceReference;

    use super::*;

    #[test]
    fn hosts_come_from_the_configuration() {
        let client = |url: Option<&str>, service: Option<(&str, &str)>| WebhookClientConfig {
            url: url.map(str::to_owned),
            service: service.map(|(name, namespace)| ServiceReference {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                ..ServiceReference::default()
            }),
            ca_bundle: Some(ByteString(b"ours".to_vec())),
        };
        for (client, host) in [
            (client(None, Some(("s", "ns"))), Some("s.ns.svc")),
            (
                client(Some("https://127.0.0.1:9443/admit"), None),
                Some("127.0.0.1"),
            ),
            (client(Some("https://[::1]:9443/admit"), None), Some("::1")),
            (
                client(Some("https://gpu.example.org"), None),
                Some("gpu.example.org"),
            ),
            (client(Some("nonsense"), None), None),
            (client(None, None), None),
        ] {
            assert_eq!(host_of(&client).as_deref(), host, "{client:?}");
            assert_eq!(names_of([&client]).len(), usize::from(host.is_some()));
            assert!(trusts(&client, "ours"));
            assert!(!trusts(&client, "theirs"));
        }
    }
}
