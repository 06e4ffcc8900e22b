//! Renewals without an API server: time is an argument.

use proptest::prelude::*;

use super::*;

fn names(hosts: &[&str]) -> BTreeSet<String> {
    hosts.iter().map(ToString::to_string).collect()
}

/// A credential of which only the times and the authority count.
fn credential(number: u64, from: Timestamp, validity: Duration) -> Credential {
    Credential {
        certificate: format!("certificate {number}"),
        key: String::new(),
        authority: format!("<{number}>"),
        names: names(&["a"]),
        from,
        until: from + validity,
    }
}

const START: Timestamp = Timestamp::UNIX_EPOCH;
const VALIDITY: Duration = Duration::from_secs(900);
const SETTLE: Duration = Duration::from_secs(60);

#[test]
fn a_renewal_has_its_steps_in_order() {
    let mut now = START;
    let mut stored: Option<Stored> = None;
    let mut bundle = String::new();
    let mut seen = Vec::new();
    for number in 1..20 {
        let fresh = credential(number, now, VALIDITY);
        let trusted = stored
            .as_ref()
            .is_some_and(|stored| stored.bundle() == bundle);
        let at = now.as_second();
        match next_step(stored.as_ref(), trusted, &fresh, SETTLE, now) {
            CertificateStep::Store(new) => {
                let next = new.next.as_ref().map(|next| next.trusted_since.is_some());
                seen.push(format!("{at} serve {} next {next:?}", new.served.authority));
                stored = Some(*new);
            }
            CertificateStep::Trust(new) => {
                seen.push(format!("{at} trust {new}"));
                bundle = new;
            }
            CertificateStep::Wait(time) => now += time,
        }
    }
    let wanted = [
        "0 serve <1> next None",
        "0 trust <1>",
        "600 serve <1> next Some(false)",
        "600 trust <1><4>",
        "600 serve <1> next Some(true)",
        "660 serve <4> next None",
        // The bundle is the same: former and served.
        "1200 serve <4> next Some(false)",
        "1200 trust <1><4><10>",
        "1200 serve <4> next Some(true)",
        "1260 serve <10> next None",
        "1260 trust <4><10>",
    ];
    assert_eq!(seen[..wanted.len()], wanted);
}

#[test]
fn another_host_is_a_reason_to_renew() {
    let stored = Stored::first(credential(1, START, VALIDITY));
    let mut fresh = credential(2, START, VALIDITY);
    let wait = next_step(Some(&stored), true, &fresh, SETTLE, START);
    assert_eq!(wait, CertificateStep::Wait(Duration::from_secs(600)));
    fresh.names = names(&["b"]);
    let step = next_step(Some(&stored), true, &fresh, SETTLE, START);
    let CertificateStep::Store(new) = step else {
        panic!("{step:?}")
    };
    assert_eq!(new.next.unwrap().credential.names, names(&["b"]));
    assert_eq!(new.served, stored.served);
}

proptest! {
    /// The leader, the API server and a replica hear of everything late, and the API server always
    /// trusts the replica's certificate, if none is later than the time to settle.
    #[test]
    fn what_is_served_is_trusted(
        steps in proptest::collection::vec((0..30_u64, 0..30_u64, 0..30_u64), 1..200)
    ) {
        let mut now = START;
        let mut stored: Vec<(Timestamp, Stored)> = Vec::new();
        let mut bundles: Vec<(Timestamp, String)> = Vec::new();
        for (number, (wait, late_server, late_replica)) in (0..).zip(steps) {
            now += Duration::from_secs(wait);
            let fresh = credential(number, now, VALIDITY);
            let (last, bundle) = (stored.last().map(|(_, s)| s), bundles.last().map(|(_, b)| b));
            let trusted = last.is_some_and(|last| Some(&last.bundle()) == bundle);
            match next_step(last, trusted, &fresh, SETTLE, now) {
                CertificateStep::Store(new) => stored.push((now, *new)),
                CertificateStep::Trust(new) => bundles.push((now, new)),
                CertificateStep::Wait(time) => now += time.min(Duration::from_secs(30)),
            }
            let known = |late: u64| now - Duration::from_secs(late);
            let served = stored.iter().rev().find(|(at, _)| *at <= known(late_replica));
            let trusted = bundles.iter().rev().find(|(at, _)| *at <= known(late_server));
            if let (Some((_, served)), Some((_, trusted))) = (served, trusted) {
                prop_assert!(
                    trusted.contains(&served.served.authority),
                    "{} is served, {trusted} trusted", served.served.authority
                );
                prop_assert!(now < served.served.until);
            }
        }
    }

    #[test]
    fn any_text_is_a_credential_or_an_error(certificate in ".{0,80}", key in ".{0,80}") {
        let wrong = Credential { certificate, key, ..credential(1, START, VALIDITY) };
        prop_assert!(wrong.server_config(None).is_err());
    }
}

#[test]
fn what_is_made_can_be_served_and_stored() {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let hosts = names(&["127.0.0.1", "sublet-controller.sublet-system.svc"]);
    let now = Timestamp::now();
    let made = Credential::make(&hosts, now, VALIDITY).unwrap();
    made.server_config(None).unwrap();
    let other = Credential::make(&hosts, now, VALIDITY).unwrap();
    assert_ne!(made.authority, other.authority);
    // A key of another certificate is found.
    let mixed = Credential {
        key: other.key.clone(),
        ..made.clone()
    };
    assert!(mixed.server_config(None).is_err());
    let stored = Stored {
        next: Some(Successor {
            credential: other,
            trusted_since: Some(now),
        }),
        former_authority: Some("x".to_owned()),
        ..Stored::first(made)
    };
    let text = serde_json::to_string(&stored).unwrap();
    assert_eq!(serde_json::from_str::<Stored>(&text).unwrap(), stored);
}
