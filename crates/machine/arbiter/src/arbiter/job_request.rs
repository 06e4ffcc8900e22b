//! Reads the text of a request for a job into a question to the machine: amounts and names of
//! cards. A refusal says what is wrong with the text.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_abi::MAX_DEVICES;
use sublet_model::{Count, Gpu, Inventory, SliceLength, parse_size};
use sublet_share::{Amount, ComputeRange, JobAsk, JobId, UserId};

use crate::admin::{Request, Submit, is_name_of, parse_amount, parse_compute};

/// The longest name of a job.
const NAME_MAX: usize = 128;

/// A request as a question to the machine, or why it is none.
pub(super) fn ask_of(submit: &Submit, user: UserId, machine: &Inventory) -> Result<JobAsk, String> {
    let memory = match &submit.memory {
        None => Amount::Whole,
        Some(text) => parse_amount(text).map_err(|error| error.to_string())?,
    };
    if submit.gpus as usize > MAX_DEVICES {
        return Err(format!("a job has at most {MAX_DEVICES} GPUs"));
    }
    let bad = |c: char| c.is_control();
    if submit.name.len() > NAME_MAX || submit.name.contains(bad) {
        return Err(format!(
            "a job's name has at most {NAME_MAX} characters and none that a terminal acts on"
        ));
    }
    let cards = submit.cards.as_ref().map(|names| cards_of(names, machine));
    let cards = cards.transpose()?;
    let compute = submit.compute.as_deref().map(parse_compute).transpose();
    let compute = compute.map_err(|error| error.to_string())?;
    let slice = submit.slice.as_deref().map(str::parse::<SliceLength>);
    let slice = slice.transpose().map_err(|error| error.to_string())?;
    let pinned = submit.pinned_memory.as_deref().map(parse_size).transpose();
    Ok(JobAsk {
        name: Arc::from(submit.name.as_str()),
        memory,
        request: memory,
        pinned: pinned.map_err(|error| error.to_string())?,
        compute: compute.unwrap_or(ComputeRange::ANY),
        class: submit.class,
        slice: slice.map(SliceLength::time),
        gpus: Count::new(submit.gpus),
        cards,
        user: Some(user),
        priority: submit.priority,
        may_wait: submit.wait,
    })
}

/// Words against a request, and the remedy if it is not to ask for less or to wait.
pub(super) type Objection = (String, Option<&'static str>);

/// Objection to a request of a user who is not the operator. `owner` tells whose a job is, and
/// `is_settled` whether the time is over in which jobs come back after a restart.
pub(super) fn objection(
    user: UserId,
    request: &Request,
    owner: impl Fn(JobId) -> Option<Option<UserId>>,
    is_settled: bool,
) -> Option<Objection> {
    if is_operator(user) {
        return None;
    }
    match request {
        Request::Submit(submit) if submit.priority > 0 => {
            let why = format!(
                "priority {} is above 0, which is for root and the arbiter's own user",
                submit.priority
            );
            let hint = "leave out --priority, or choose 0 or less: below 0 a job gives way";
            Some((why, Some(hint)))
        }
        Request::Limit { id, .. }
        | Request::LimitPinned { id, .. }
        | Request::LimitCompute { id, .. } => {
            let hint = "its owner can change it, and so can root and the arbiter's own user";
            let is_own = owner(JobId(*id))? == Some(user);
            (!is_own).then(|| (format!("job {id} is not yours"), Some(hint)))
        }
        // Who brings a job back passes the line.
        Request::Resume { .. } if is_settled => {
            let why = "the time in which jobs of before come back is over";
            Some((why.to_owned(), None))
        }
        Request::Shutdown => Some(("the arbiter serves others too".to_owned(), None)),
        _ => None,
    }
}

/// Checks whether a user may act on everyone's jobs: root, and the user of the arbiter.
fn is_operator(user: UserId) -> bool {
    user.0 == 0 || user.0 == rustix::process::geteuid().as_raw()
}

/// The positions of the named cards. Each name must mean one card.
fn cards_of(names: &[String], machine: &Inventory) -> Result<BTreeSet<usize>, String> {
    let mut cards = BTreeSet::new();
    for name in names {
        let is_it = |gpu: &Gpu| {
            let uuid = gpu.uuid.as_ref();
            is_name_of(name, gpu.index.0, uuid.map_or("", |uuid| uuid.as_str()))
        };
        let gpus = machine.gpus().iter().enumerate();
        let mut fitting = gpus.filter(|(_, gpu)| is_it(gpu)).map(|(card, _)| card);
        let card = match (fitting.next(), fitting.next()) {
            (Some(only), None) => only,
            (None, _) => return Err(format!("there is no GPU `{name}`; {}", all(machine))),
            _ => return Err(format!("`{name}` is the beginning of several GPUs' UUIDs")),
        };
        if !cards.insert(card) {
            let index = machine.gpus()[card].index;
            return Err(format!("GPU {index} is named twice"));
        }
    }
    Ok(cards)
}

/// A short list of the cards.
fn all(machine: &Inventory) -> String {
    match machine.gpus() {
        [] => "this machine has none".to_owned(),
        [only] => format!("this machine has GPU {}", only.index),
        [first, .., last] => format!("this machine has GPUs {} to {}", first.index, last.index),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sublet_model::{Class, GpuIndex, GpuUuid, MiB};

    use super::*;

    fn machine(uuids: &[&str]) -> Inventory {
        let gpus = (0..).zip(uuids).map(|(index, uuid)| Gpu {
            uuid: GpuUuid::new(uuid).ok(),
            ..Gpu::plain(GpuIndex(index), MiB::from(1024))
        });
        Inventory::new(gpus.collect(), vec![], vec![], vec![]).unwrap()
    }

    #[test]
    fn cards_are_named_by_number_or_by_the_beginning_of_a_uuid() {
        let three = machine(&["GPU-aa01", "GPU-aa02", "GPU-bb01"]);
        let check = |names: &str| {
            let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
            match cards_of(&names, &three) {
                Ok(cards) => format!("{cards:?}"),
                Err(error) => error,
            }
        };
        assert_eq!(check("0"), "{0}");
        assert_eq!(check("2 0"), "{0, 2}");
        assert_eq!(check("GPU-aa02"), "{1}");
        assert_eq!(check("GPU-b GPU-AA01"), "{0, 2}");
        assert_eq!(
            check("3"),
            "there is no GPU `3`; this machine has GPUs 0 to 2"
        );
        assert_eq!(
            check("0 GPU-cc"),
            "there is no GPU `GPU-cc`; this machine has GPUs 0 to 2"
        );
        assert_eq!(
            check("GPU-aa"),
            "`GPU-aa` is the beginning of several GPUs' UUIDs"
        );
        assert_eq!(check("1 GPU-aa02"), "GPU 1 is named twice");
        for bad in ["", "x", "-1", "aa01", "gpu", "99999999999999999999"] {
            assert!(check(bad).starts_with("there is no GPU"), "{bad}");
        }
        assert_eq!(cards_of(&[], &three), Ok(BTreeSet::new()));
        let error = |uuids: &[&str]| cards_of(&["9".to_owned()], &machine(uuids)).unwrap_err();
        assert!(error(&[]).ends_with("this machine has none"));
        assert!(error(&["GPU-aa01"]).ends_with("this machine has GPU 0"));
    }

    /// The request of a command, as it comes over the socket.
    fn submit(more: &str) -> Result<Submit, String> {
        let text = format!(r#"{{"name": "a", "memory": "1GiB", "wait": true{more}}}"#);
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    fn asked(more: &str) -> Result<JobAsk, String> {
        ask_of(&submit(more)?, UserId(1000), &machine(&["GPU-aa01"]))
    }

    #[test]
    fn only_the_operator_goes_before_others_and_changes_what_is_theirs() {
        let (anne, bert) = (UserId(u32::MAX), UserId(u32::MAX - 1));
        let owner = |JobId(id)| (id == 7).then_some(Some(anne));
        let check = |user, request: &Request| objection(user, request, owner, true);
        let with = |priority: i32| {
            let submit = submit(&format!(r#", "priority": {priority}"#)).unwrap();
            Request::Submit(submit)
        };
        let limit = |id| Request::LimitPinned {
            id,
            memory: "1GiB".to_owned(),
        };
        for (request, why, remedy) in [
            (with(1), "priority 1 is above 0", "leave out --priority"),
            (limit(7), "job 7 is not yours", "its owner can change it"),
        ] {
            let (reason, hint) = check(bert, &request).unwrap();
            assert!(reason.starts_with(why), "{reason}");
            assert!(hint.unwrap().starts_with(remedy), "{hint:?}");
            assert_eq!(check(UserId(0), &request), None);
        }
        assert!(check(bert, &Request::Resume { id: 7 }).is_some());
        assert!(check(bert, &Request::Shutdown).is_some());
        for permitted in [with(0), with(-5), limit(8), Request::List] {
            assert_eq!(check(bert, &permitted), None);
        }
        assert_eq!(check(anne, &limit(7)), None);
        assert_eq!(asked(r#", "priority": -5"#).map(|ask| ask.priority), Ok(-5));
    }

    #[test]
    fn compute_time_and_class_are_read_and_have_defaults() {
        let check = |more: &str| {
            let ask = asked(more);
            ask.map(|ask| format!("{} {}", ask.compute, ask.class.word()))
        };
        let read = |more, expected: &str| assert_eq!(check(more), Ok(expected.to_owned()));
        read("", "0 %..100 % guaranteed");
        read(r#", "compute": "30%""#, "30 %..100 % guaranteed");
        read(
            r#", "compute": "0%..30%", "class": "opportunistic""#,
            "0 %..30 % opportunistic",
        );
        let error = check(r#", "compute": "30%..20%""#).unwrap_err();
        assert!(error.contains("promises more than its limit"), "{error}");
        let error = check(r#", "class": "best""#).unwrap_err();
        assert!(
            error.contains("expected `guaranteed` or `opportunistic`"),
            "{error}"
        );
        let default = asked("").map(|ask| (ask.class, ask.slice));
        assert_eq!(default, Ok((Class::Guaranteed, None)));
        let slice = asked(r#", "slice": "2ms""#).map(|ask| ask.slice);
        assert_eq!(slice, Ok(Some(Duration::from_millis(2))));
        let error = asked(r#", "slice": "1s""#).unwrap_err();
        assert!(error.contains("write `2ms`"), "{error}");
    }
}
