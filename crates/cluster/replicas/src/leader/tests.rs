//! Elections without an API server: time is an argument.

use k8s_openapi::api::coordination::v1::LeaseSpec;
use proptest::prelude::*;

use super::*;

const TIMING: LeaseTiming = LeaseTiming {
    lasts: Duration::from_secs(15),
    writes: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

fn lease(version: u64, holder: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            resource_version: Some(version.to_string()),
            annotations: Some([("helm".to_owned(), "a".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(4),
            ..LeaseSpec::default()
        }),
    }
}

fn refused() -> Result<u64, WriteError> {
    Err(WriteError::Refused {
        code: 409,
        message: String::new(),
    })
}

#[test]
fn a_lease_of_somebody_else_is_taken_when_it_has_stood_still() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut election = Election::new("a".to_owned(), TIMING);
    assert_eq!(election.read(None, start), Step::Make);
    assert_eq!(election.read(Some(&lease(7, "b")), after(1)), Step::Wait);
    assert_eq!(election.read(Some(&lease(7, "b")), after(15)), Step::Wait);
    // It was renewed, whatever its times say.
    assert_eq!(election.read(Some(&lease(8, "b")), after(15)), Step::Wait);
    assert_eq!(election.read(Some(&lease(8, "b")), after(29)), Step::Wait);
    let step = election.read(Some(&lease(8, "b")), after(30));
    assert_eq!(step, Step::Take);
    let act = election.act(&step, jiff::Timestamp::UNIX_EPOCH).unwrap();
    let Act::Replace(object) = act else {
        panic!("{act:?}")
    };
    // With what others have written beside.
    assert_eq!(object["metadata"], json!(lease(8, "b").metadata));
    assert_eq!(object["spec"]["holderIdentity"], "a");
    assert_eq!(object["spec"]["leaseTransitions"], 5);
    assert_eq!(object["spec"]["renewTime"], "1970-01-01T00:00:00.000000Z");
    // One that was given back is taken at once.
    assert_eq!(election.read(Some(&lease(9, "")), after(31)), Step::Take);
}

#[test]
fn a_leader_writes_for_a_while_after_each_confirmed_renewal() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut election = Election::new("a".to_owned(), TIMING);
    election.read(None, start);
    election.written(after(0), &Ok(7));
    let first = election.tenure.unwrap();
    assert_eq!((first.number, first.until), (1, after(10)));
    assert_eq!((first.epoch, first.renewed), (7, after(0)));
    assert_eq!(election.read(Some(&lease(1, "a")), after(2)), Step::Renew);
    election.written(after(2), &Err(WriteError::Unanswered(String::new())));
    assert_eq!(election.tenure, Some(first));
    election.written(after(4), &Ok(9));
    let renewed = election.tenure.unwrap();
    assert_eq!((renewed.number, renewed.until), (1, after(14)));
    assert_eq!((renewed.epoch, renewed.renewed), (7, after(4)));
    election.written(after(6), &refused());
    assert_eq!(election.tenure, None);
    // What began before does not go on in a later tenure.
    election.written(after(8), &Ok(12));
    let second = election.tenure.unwrap();
    assert_eq!((second.number, second.epoch), (2, 12));
    // After a time in which nothing was renewed it does, if the Lease is its own still.
    assert_eq!(election.read(Some(&lease(8, "a")), after(30)), Step::Renew);
    assert!(election.tenure.unwrap().until < after(30));
    election.written(after(30), &Ok(20));
    let late = election.tenure.unwrap();
    assert_eq!((late.number, late.epoch, late.until), (2, 12, after(40)));
    assert_eq!(election.read(Some(&lease(9, "b")), after(31)), Step::Wait);
    assert_eq!(election.tenure, None);
    assert_eq!(election.release(), None);
}

#[test]
fn a_write_of_a_swift_leader_has_ended_when_its_successor_begins() {
    let LeaseTiming {
        lasts,
        writes,
        retry,
    } = SWIFT;
    // Clocks: one part in a hundred of each.
    assert!((writes + lasts) / 100 + writes + SWIFT_DEADLINE + SWIFT_JOURNEY <= lasts);
    // Two renewals may fail before a leader must pause.
    assert!(3 * retry <= writes);
    assert!(lasts + 2 * retry <= Duration::from_secs(5));
}

/// A successor does not sleep through the end of the time.
#[test]
fn a_candidate_looks_again_when_the_lease_has_stood_still() {
    let start = Instant::now();
    let after = |ms| start + Duration::from_millis(ms);
    let mut election = Election::new("a".to_owned(), SWIFT);
    assert_eq!(election.pause(start), SWIFT.retry);
    let mut last = lease(7, "b");
    last.spec.as_mut().unwrap().lease_duration_seconds = Some(4);
    assert_eq!(election.read(Some(&last), start), Step::Wait);
    assert_eq!(election.pause(after(1_000)), SWIFT.retry);
    assert_eq!(election.pause(after(3_900)), Duration::from_millis(100));
    assert_eq!(election.read(Some(&last), after(4_000)), Step::Take);
    // One that could not be taken is not asked for without a pause.
    assert_eq!(election.pause(after(4_000)), SWIFT.retry);
}

#[test]
fn who_made_the_lease_does_not_know_of_earlier_leaders() {
    let start = Instant::now();
    let mut election = Election::new("a".to_owned(), SWIFT);
    election.read(None, start);
    election.written(start, &Ok(1));
    let made = election.tenure.unwrap();
    assert_eq!(made.quiet_at(&SWIFT), Some(start + SWIFT.lasts));
    let mut other = Election::new("b".to_owned(), SWIFT);
    other.read(Some(&lease(2, "")), start);
    other.written(start, &Ok(3));
    assert_eq!(other.tenure.unwrap().quiet_at(&SWIFT), None);
}

#[tokio::test]
async fn a_write_without_an_answer_keeps_the_lease() {
    for (answer, is_answered) in [
        (Ok(()), true),
        (refused().map(drop), true),
        (Err(WriteError::Unanswered(String::new())), false),
    ] {
        let (campaigner, leadership, number) = leads();
        let answered = leadership.write(number, async { answer }).await;
        assert!(answered.is_some());
        assert_eq!(campaigner.all_answered(), is_answered);
    }
    let (campaigner, leadership, number) = leads();
    let given_up = leadership.write(number, std::future::pending());
    let _late = tokio::time::timeout(Duration::ZERO, given_up).await;
    assert!(!campaigner.all_answered());
}

#[tokio::test]
async fn after_its_tenure_nothing_is_sent() {
    let (campaigner, leadership, number) = leads();
    let send = || std::future::ready(Ok(()));
    assert!(leadership.write(number + 1, send()).await.is_none());
    campaigner.tenure.send_replace(None);
    assert!(leadership.write(number, send()).await.is_none());
    assert!(campaigner.all_answered());
}

/// A process that leads, and the number of its tenure.
fn leads() -> (Campaigner, Leadership, u64) {
    let (campaigner, leadership) = candidacy();
    let mut election = Election::new("a".to_owned(), TIMING);
    election.read(None, Instant::now());
    election.written(Instant::now(), &Ok(1));
    campaigner.tenure.send_replace(election.tenure);
    (campaigner, leadership, election.tenures)
}

/// An API server's one Lease: a version, and its holder.
struct Server {
    version: u64,
    holder: String,
}

impl Server {
    /// Answers a write as the API server would.
    fn write(&mut self, act: &Act) -> Result<u64, WriteError> {
        let object = match act {
            Act::Create(object) if self.version == 0 => object,
            Act::Replace(object)
                if object["metadata"]["resourceVersion"].as_str()
                    == Some(self.version.to_string().as_str()) =>
            {
                object
            }
            _ => return refused(),
        };
        self.version += 1;
        self.holder = object["spec"]["holderIdentity"]
            .as_str()
            .unwrap()
            .to_owned();
        Ok(self.version)
    }
}

proptest! {
    /// Candidates act at any times, see answers late or never, and freeze between the steps.
    #[test]
    fn never_do_two_lead(turns in proptest::collection::vec((0..3_usize, 0..9_000_u64, 0..3_u8), 1..120)) {
        let mut now = Instant::now();
        let mut server = Server { version: 0, holder: String::new() };
        let mut all: Vec<Election> = ["a", "b", "c"]
            .map(|me| Election::new(me.to_owned(), TIMING)).into();
        for (who, wait, answer) in turns {
            now += Duration::from_millis(wait);
            let seen = (server.version > 0).then(|| lease(server.version, &server.holder));
            let step = all[who].read(seen.as_ref(), now);
            if let Some(act) = all[who].act(&step, jiff::Timestamp::UNIX_EPOCH) {
                let sent = now;
                match answer {
                    0 => {} // never arrives
                    1 => { let _lost = server.write(&act); }
                    _ => {
                        let answer = server.write(&act);
                        all[who].written(sent, &answer);
                    }
                }
            }
            let leads = |one: &&Election| one.tenure.is_some_and(|tenure| now < tenure.until);
            prop_assert!(all.iter().filter(leads).count() <= 1);
        }
    }
}
