//! The last word after a command that failed: if it was refused memory at its limit, that is likely
//! the reason, and its own words rarely say so. One line with the limit, the refused request, and
//! the command that asks for more. A function of the arbiter's snapshot.

use std::ffi::OsString;

use sublet_arbiter::admin::{RefusalRow, Snapshot, TenantRow};

use super::Args;
use super::job_connection::JobConnection;
use super::supervise::Ending;
use crate::jobs::{duration, mib, size};
use crate::machine::{FakeGpu, Machine};
use crate::paste;

/// Variables that decide which cards a command may use. The hint repeats them before the command if
/// they were set.
const VARIABLES: [&str; 2] = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

/// Prints the line, if there is one. Asks the arbiter for it.
pub(super) fn after(
    ending: Ending,
    args: &Args,
    machine: &Machine,
    connection: &mut JobConnection<'_>,
    mut say: impl FnMut(&str),
) {
    if may_explain(ending)
        && let Some((id, snapshot)) = connection.snapshot()
        && let Some(line) = line(&snapshot, id, args, machine.fake.as_ref(), |name| {
            std::env::var_os(name)
        })
    {
        say(&line);
    }
}

/// True for an end that a lack of memory may explain. A command that was sent a signal to end, or
/// whose shell reports one, ended for another reason.
fn may_explain(ending: Ending) -> bool {
    const SENT: [i32; 5] = [1, 2, 3, 9, 15];
    let code = i32::from(ending.code());
    code != 0 && !SENT.contains(&(code - 128))
}

/// The last refusal of the job.
struct LastRefusal<'a> {
    row: &'a RefusalRow,
    /// The card; `None` for memory of the machine.
    gpu: Option<u16>,
    limit_mib: u64,
    /// The most that there could be.
    most_mib: u64,
}

/// The line, if job `id` was refused something at its limit. `fake` is the machine if it is a fake
/// one; `set` returns the earlier value of a variable.
fn line(
    snapshot: &Snapshot,
    id: u64,
    args: &Args,
    fake: Option<&FakeGpu>,
    set: impl Fn(&str) -> Option<OsString>,
) -> Option<String> {
    let job = snapshot.tenants.iter().find(|job| job.id == Some(id))?;
    let refused = last(snapshot, job)?;
    let (limit, asked) = (mib(refused.limit_mib), size(refused.row.bytes));
    let (time, what) = (duration(refused.row.ago_ms), where_of(refused.gpu));
    let told = format!(
        "out of memory: {asked} asked {what}, {time} before the end, at the limit of {limit}"
    );
    let more_mib = refused.row.bytes.div_ceil(1 << 20);
    let wanted = refused.limit_mib.saturating_add(more_mib);
    let wanted = wanted.min(refused.most_mib);
    if wanted <= refused.limit_mib {
        return Some(format!("{told}, which is all there is"));
    }
    let more = again(args, fake, refused.gpu.is_some(), wanted, set);
    Some(format!("{told}; for more: {more}"))
}

fn where_of(gpu: Option<u16>) -> String {
    match gpu {
        Some(index) => format!("of GPU {index}"),
        None => "to pin of the machine's own".to_owned(),
    }
}

/// The newest refusal, on any card or of pinned memory.
fn last<'a>(snapshot: &Snapshot, job: &'a TenantRow) -> Option<LastRefusal<'a>> {
    let on_cards = job.per_gpu.iter().filter_map(|part| {
        let card = snapshot.gpus.iter().find(|gpu| gpu.index == part.index)?;
        Some(LastRefusal {
            row: part.last_refusal.as_ref()?,
            gpu: Some(part.index),
            limit_mib: part.limit_mib,
            most_mib: card.memory_mib,
        })
    });
    let pinned = job.pinned_last_refusal.as_ref().map(|row| LastRefusal {
        row,
        gpu: None,
        limit_mib: job.pinned_limit_mib.unwrap_or(u64::MAX),
        most_mib: u64::MAX,
    });
    on_cards
        .chain(pinned)
        .min_by_key(|refused| refused.row.ago_ms)
}

/// The same command with so much more memory.
fn again(
    args: &Args,
    fake: Option<&FakeGpu>,
    of_cards: bool,
    wanted_mib: u64,
    set: impl Fn(&str) -> Option<OsString>,
) -> String {
    let mut words: Vec<OsString> = vec!["run".into()];
    let mut flag = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([name.into(), value.into()]);
        }
    };
    let wanted = Some(format!("{wanted_mib}MiB"));
    let without_gap = |amount: &Option<String>| Some(amount.as_ref()?.replace(' ', ""));
    flag("--fake-gpu", fake.map(|fake| fake.text().to_owned()));
    if of_cards {
        flag("--memory", wanted);
        flag("--pinned-memory", without_gap(&args.pinned_memory));
    } else {
        flag("--memory", without_gap(&args.memory));
        flag("--pinned-memory", wanted);
    }
    flag("--gpus", (args.gpus != 1).then(|| args.gpus.to_string()));
    flag(
        "--allowed-gpus",
        args.allowed_gpus.as_ref().map(|cards| cards.0.join(",")),
    );
    flag("--name", args.name.clone());
    for (name, is_set) in [("--no-wait", args.no_wait), ("--compat", args.compat)] {
        words.extend(is_set.then(|| name.into()));
    }
    words.push("--".into());
    words.extend(args.command.iter().cloned());
    let before = VARIABLES.iter().filter(|_| args.allowed_gpus.is_none());
    let before = before.filter_map(|name| Some((name, set(name)?)));
    let before: String = before
        .map(|(name, value)| format!("{name}={} ", paste::word(value)))
        .collect();
    let words = paste::line(words.iter().map(OsString::as_os_str));
    format!("{before}{} {words}", paste::program())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;
    use crate::jobs::tests::example;

    fn args(words: &[&str]) -> Args {
        let command = Args::augment_args(Command::new("run").no_binary_name(true));
        let matches = command.try_get_matches_from(words).unwrap();
        Args::from_arg_matches(&matches).unwrap()
    }

    /// The line for the example's first job, without the program's name.
    fn check(snapshot: &Snapshot, words: &[&str], set: &[(&str, &str)]) -> String {
        let value = |name: &str| {
            let (_, value) = set.iter().find(|(set, _)| *set == name)?;
            Some(OsString::from(value))
        };
        let args = args(words);
        let fake = args.machine.fake_gpu.as_ref();
        let line = line(snapshot, 1, &args, fake, value).unwrap_or_default();
        line.replace(&format!("{} run", paste::program()), "SUBLET run")
    }

    #[test]
    fn a_refusal_is_told_with_the_command_that_asks_for_more() {
        let mut snapshot = example();
        let part = &mut snapshot.tenants[0].per_gpu[1];
        (part.index, part.limit_mib) = (0, 4096);
        snapshot.tenants[0].per_gpu.remove(0);
        let told = "out of memory: 512 MiB asked of GPU 0, 3 s before the end, at the limit of \
                    4096 MiB";
        assert_eq!(
            check(
                &snapshot,
                &["--memory", "4G", "--", "python", "train.py", "a b"],
                &[]
            ),
            format!("{told}; for more: SUBLET run --memory 4608MiB -- python train.py 'a b'")
        );
        let words = "--fake-gpu 2x16GiB --memory 25% --pinned-memory 1G --gpus 2 --name n \
                     --no-wait --compat ./x";
        let variables = [
            ("CUDA_VISIBLE_DEVICES", "1,0"),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ];
        assert_eq!(
            check(&snapshot, &words.split(' ').collect::<Vec<_>>(), &variables),
            format!(
                "{told}; for more: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1,0 SUBLET \
                 run --fake-gpu 2x16GiB --memory 4608MiB --pinned-memory 1024MiB --gpus 2 --name \
                 n --no-wait --compat -- ./x"
            )
        );
        // The flag goes before the variable.
        let said = check(&snapshot, &["--allowed-gpus", "0,1", "a"], &variables);
        assert!(
            said.ends_with("; for more: SUBLET run --memory 4608MiB --allowed-gpus 0,1 -- a"),
            "{said}"
        );
        // No more than the card has, and nothing where that is the limit.
        snapshot.gpus[0].memory_mib = 4200;
        let said = check(&snapshot, &["a"], &[]);
        assert!(said.ends_with(" run --memory 4200MiB -- a"), "{said}");
        snapshot.gpus[0].memory_mib = 4096;
        assert_eq!(
            check(&snapshot, &["a"], &[]),
            format!("{told}, which is all there is")
        );
        // Of pinned memory, if that is newer.
        snapshot.tenants[0].pinned_limit_mib = Some(30);
        snapshot.tenants[0].pinned_last_refusal = Some(RefusalRow {
            bytes: 1,
            ago_ms: 0,
        });
        assert_eq!(
            check(&snapshot, &["--memory", "50%", "a"], &[]),
            "out of memory: 1 B asked to pin of the machine's own, 0 s before the end, at the \
             limit of 30 MiB; for more: SUBLET run --memory 50% --pinned-memory 31MiB -- a"
        );
    }

    #[test]
    fn who_was_refused_nothing_is_told_nothing() {
        let mut snapshot = example();
        snapshot.tenants[0].per_gpu.clear();
        assert_eq!(check(&snapshot, &["a"], &[]), "");
        assert_eq!(check(&Snapshot::default(), &["a"], &[]), "");
    }

    #[test]
    fn only_a_failure_of_the_command_s_own_is_explained() {
        for (ending, expected) in [
            (Ending::Code(0), false),
            (Ending::Code(1), true),
            (Ending::Code(134), true),
            (Ending::Signal(6), true),
            (Ending::Signal(11), true),
            (Ending::Signal(15), false),
            (Ending::Signal(9), false),
            (Ending::Code(143), false),
            (Ending::Interrupted, false),
        ] {
            assert_eq!(may_explain(ending), expected, "{ending:?}");
        }
    }
}
