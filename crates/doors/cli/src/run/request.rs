//! Request of `sublet run` to the arbiter, made from its arguments. Pure, but for `complete`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use sublet_arbiter::admin::{Class, Mode, Placed, PlacedGpu, Submit, is_name_of, parse_compute};
use sublet_model::Milli;
use sublet_share::{ComputeRange, JobRefusal};

use super::args::{Args, Cards, NAME_MAX};
use super::setup::Setup;
use super::visible_cards::{self, DriverQuestion};
use crate::answer::Advised;

/// Was all of the request understood? An older arbiter passes over fields that it does not know.
///
/// # Errors
/// A limit was asked that nobody enforces.
pub(super) fn check(submit: &Submit, placed: &Placed) -> Result<(), Advised> {
    if submit.pinned_memory.is_some() && placed.pinned_limit_mib.is_none() {
        return Err(Advised::new(
            "the arbiter is of an older version of sublet, which limits no pinned memory",
            "end its jobs, and the next one starts a new arbiter; or leave out --pinned-memory",
        ));
    }
    let shares = submit.compute.is_some() || submit.class != Class::default();
    if shares && placed.compute.is_none() {
        return Err(Advised::new(
            "the arbiter is of an older version of sublet, which shares no compute time",
            "end its jobs, and the next one starts a new arbiter; or leave out --compute and \
             --class",
        ));
    }
    // An arbiter that knows of no choice may have taken any card.
    let is_named = |gpu: &PlacedGpu| {
        let names = submit.cards.as_ref();
        names.is_none_or(|names| {
            names
                .iter()
                .any(|name| is_name_of(name, gpu.index, &gpu.uuid))
        })
    };
    if let Some(other) = placed.gpus.iter().find(|gpu| !is_named(gpu)) {
        return Err(Advised::new(
            format!(
                "the arbiter is of an older version of sublet, which chooses the GPUs itself: \
                 it chose GPU {}",
                other.index
            ),
            "end its jobs, and the next one starts a new arbiter; or leave out --allowed-gpus, and \
             unset CUDA_VISIBLE_DEVICES",
        ));
    }
    Ok(())
}

/// Refuses flags that contradict each other. No machine could serve them, so none is asked.
///
/// # Errors
/// More cards are asked than are named, or a promise for a job of the class that has none.
pub(super) fn refuse_contradiction(args: &Args) -> Result<(), Advised> {
    if let Some(Cards(names)) = &args.allowed_gpus
        && names.len() < args.gpus as usize
    {
        let (asked, named) = (args.gpus, names.len());
        return Err(Advised::new(
            format!("{asked} GPUs asked with --gpus, but --allowed-gpus names {named}"),
            "name as many or more, or ask for fewer",
        )
        .of_input());
    }
    let compute = args.compute.as_deref().map(parse_compute);
    let promised = compute.and_then(Result::ok).map(ComputeRange::request);
    match promised {
        Some(asked) if asked > Milli::ZERO && args.class == Class::Opportunistic => {
            let refusal = JobRefusal::Opportunistic { asked };
            let hint = refusal.hint().unwrap_or_default();
            Err(Advised::new(refusal.to_string(), hint).of_input())
        }
        _ => Ok(()),
    }
}

/// The request, with the cards that `CUDA_VISIBLE_DEVICES` leaves if none were named. `say` gets
/// notes for people about them.
///
/// # Errors
/// The driver does not say which cards these are, or they are too few.
pub(super) fn complete(
    args: &Args,
    setup: &Setup,
    mut say: impl FnMut(&str),
) -> anyhow::Result<Submit> {
    let mut submit = submit(args);
    if submit.cards.is_none() {
        let chosen = visible_cards::by_variable(&DriverQuestion {
            driver: &setup.driver.0,
            fake: setup.fake.as_deref(),
            gpus: args.gpus,
        })?;
        chosen.note.iter().for_each(|note| say(note));
        submit.cards = chosen.cards;
    }
    Ok(submit)
}

/// The request, as the arguments have it.
fn submit(args: &Args) -> Submit {
    let program = args.command.first().map(OsString::as_os_str);
    Submit {
        name: match &args.name {
            Some(name) => name.clone(),
            None => name_of(program.unwrap_or_default()),
        },
        memory: args.memory.clone(),
        pinned_memory: args.pinned_memory.clone(),
        compute: args.compute.clone(),
        class: args.class,
        slice: args.slice.map(|slice| slice.to_string()),
        gpus: args.gpus,
        cards: args.allowed_gpus.clone().map(|Cards(names)| names),
        wait: !args.no_wait,
        priority: args.priority,
        mode: if args.compat {
            Mode::Compat
        } else {
            Mode::Strict
        },
    }
}

/// A job's name if none was given: the program's.
fn name_of(program: &OsStr) -> String {
    let file = Path::new(program).file_name().unwrap_or(program);
    let printable = |c: char| if c.is_control() { '?' } else { c };
    file.to_string_lossy()
        .chars()
        .map(printable)
        .take(NAME_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn args(words: &[&str]) -> Result<Args, String> {
        let command = Args::augment_args(Command::new("run").no_binary_name(true));
        let matches = command.try_get_matches_from(words);
        matches
            .and_then(|matches| Args::from_arg_matches(&matches))
            .map_err(|error| error.to_string())
    }

    fn parse(words: &[&str]) -> Result<Submit, String> {
        args(words).map(|args| submit(&args))
    }

    #[test]
    fn arguments_become_a_request() {
        let plain = parse(&["--", "python", "train.py", "--memory", "1"]).unwrap();
        assert_eq!(plain.name, "python");
        assert_eq!((plain.memory, plain.gpus, plain.wait), (None, 1, true));
        assert_eq!((plain.pinned_memory, plain.cards), (None, None));
        assert_eq!((plain.compute, plain.class), (None, Class::Guaranteed));
        assert_eq!(plain.slice, None);
        let last = parse(&["--class", "opportunistic", "a"]).unwrap();
        assert_eq!(last.class, Class::Opportunistic);
        assert_eq!(plain.mode, Mode::Strict);
        let words = "--memory 4g --pinned-memory 1GB --compute 30%..80% --slice 2ms --gpus 2 --allowed-gpus 1,GPU-ab --no-wait --priority -3 --name a-b --compat -- /usr/bin/x";
        let full = parse(&words.split(' ').collect::<Vec<_>>()).unwrap();
        let expected = Submit {
            name: "a-b".to_owned(),
            memory: Some("4096 MiB".to_owned()),
            pinned_memory: Some("1024 MiB".to_owned()),
            compute: Some("30 %..80 %".to_owned()),
            class: Class::Guaranteed,
            slice: Some("2ms".to_owned()),
            gpus: 2,
            cards: Some(vec!["1".to_owned(), "GPU-ab".to_owned()]),
            wait: false,
            priority: -3,
            mode: Mode::Compat,
        };
        assert_eq!(full, expected);
        // Without `--` too, where the command's name is not like a flag.
        let short = parse(&["--memory", "25%", "/opt/x/train", "--gpus", "8"]).unwrap();
        assert_eq!((short.name.as_str(), short.gpus), ("train", 1));
        let last = parse(&["--no-wait", "--wait", "a"]).unwrap();
        assert!(last.wait);
    }

    #[test]
    fn nonsense_is_refused_before_anything_starts() {
        let refused = |words: &[&str], part: &str| {
            let error = parse(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        };
        refused(&[], "CMD");
        refused(&["--memory", "4", "--", "a"], "`4` has no unit");
        for nothing in ["0", "00", "0MiB", "0%"] {
            refused(&["--memory", nothing, "--", "a"], "more than zero");
        }
        refused(&["--memory", "-1", "--", "a"], "less than nothing");
        refused(&["--memory", "-1GiB", "--", "a"], "less than nothing");
        refused(&["--memory", "4 parsecs", "--", "a"], "is not an amount");
        refused(&["--memory", "4 gigs", "--", "a"], "did you mean `4GiB`?");
        refused(&["--memory", "101%", "--", "a"], "more than 100 %");
        refused(&["--pinned-memory", "50%", "--", "a"], "is not a size");
        refused(&["--pinned-memory", "0MiB", "--", "a"], "more than zero");
        refused(
            &["--pinned-memory", "-1GiB", "--", "a"],
            "less than nothing",
        );
        for gpus in ["0", "-1", "17", "two", "1.5", ""] {
            refused(&["--gpus", gpus, "--", "a"], "a job has 1 to 16 GPUs");
        }
        for (device, why) in [
            ("", "a GPU without a name"),
            ("0,", "a GPU without a name"),
            ("-1", "`-1` is neither"),
            ("one", "`one` is neither"),
            ("GPU-", "`GPU-` is neither"),
            ("0x1", "`0x1` is neither"),
            ("MIG-ab", "`MIG-ab` is neither"),
            ("GPU-xyz", "`GPU-xyz` is neither"),
            ("1,0,1", "`1` is named twice"),
            ("GPU-ab,gpu-AB", "`gpu-AB` is named twice"),
            ("ü", "`ü` is neither"),
        ] {
            refused(&["--allowed-gpus", device, "--", "a"], why);
        }
        for (compute, why) in [
            ("30", "`30` is no compute time"),
            ("0%", "promises nothing"),
            ("0%..0%", "would never let it run"),
            ("60%..30%", "promises more than its limit"),
            ("-30%", "is no compute time"),
            ("101%", "more than 100 %"),
        ] {
            refused(&["--compute", compute, "--", "a"], why);
        }
        refused(&["--class", "best", "--", "a"], "opportunistic");
        for (slice, why) in [
            ("2", "write `2ms`"),
            ("0ms", "not between 1ms and 20ms"),
            ("-2ms", "write `2ms`"),
            ("50ms", "not between 1ms and 20ms"),
        ] {
            refused(&["--slice", slice, "--", "a"], why);
        }
        refused(&["--fake-gpu", "nothing", "--", "a"], "2x16GiB");
        refused(&["--strict", "--compat", "--", "a"], "cannot be used with");
        refused(&["--name", "12", "--", "a"], "not a number");
        refused(&["--name", "a\nb", "--", "a"], "control");
        refused(&["--memori", "4GiB", "--", "a"], "--memory");
    }

    #[test]
    fn flags_that_contradict_each_other_are_wrong_arguments() {
        let check = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            refuse_contradiction(&args(&words).unwrap()).map_err(|error| {
                let error = error.into();
                assert_eq!(crate::exit_code(&error), crate::BAD_INPUT);
                crate::error_text(&error)
            })
        };
        for (words, part) in [
            ("--gpus 2 --allowed-gpus 1 a", "--allowed-gpus names 1"),
            (
                "--class opportunistic --compute 30% a",
                "an opportunistic job is promised no compute time, and 30 % is asked\nhint: ",
            ),
        ] {
            let error = check(words).unwrap_err();
            assert!(error.contains(part), "{words}: {error}");
        }
        for good in [
            "--gpus 2 --allowed-gpus 1,0,3 a",
            "--gpus 2 a",
            "--class opportunistic --compute 0%..30% a",
            "--class guaranteed --compute 30% a",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn a_limit_that_an_older_arbiter_passed_over_is_not_taken_for_kept() {
        let words = ["--pinned-memory", "1GiB", "--", "a"];
        let (limited, free) = (parse(&words).unwrap(), parse(&words[2..]).unwrap());
        let placed = |pinned_limit_mib| Placed {
            id: 1,
            gpus: Vec::new(),
            pinned_limit_mib,
            compute: None,
            mps: None,
            dir: "/r".to_owned(),
        };
        assert!(check(&limited, &placed(Some(1024))).is_ok());
        assert!(check(&free, &placed(None)).is_ok());
        let error = check(&limited, &placed(None)).unwrap_err().to_string();
        assert!(error.contains("limits no pinned memory"), "{error}");
        for words in [["--compute", "30%", "a"], ["--class", "opportunistic", "a"]] {
            let shared = parse(&words).unwrap();
            let error = check(&shared, &placed(None)).unwrap_err().to_string();
            assert!(error.contains("shares no compute time"), "{error}");
            let kept = Placed {
                compute: Some("30 %..100 %".to_owned()),
                ..placed(None)
            };
            assert!(check(&shared, &kept).is_ok());
        }
    }

    #[test]
    fn a_choice_that_an_older_arbiter_passed_over_is_not_taken_for_heeded() {
        let on = |index, uuid: &str| Placed {
            id: 1,
            gpus: vec![PlacedGpu {
                index,
                uuid: uuid.to_owned(),
                limit_mib: 1024,
                context_mib: 0,
            }],
            pinned_limit_mib: None,
            compute: None,
            mps: None,
            dir: "/r".to_owned(),
        };
        let chosen = parse(&["--allowed-gpus", "1,GPU-ab", "--", "a"]).unwrap();
        assert!(check(&chosen, &on(1, "GPU-cd12")).is_ok());
        assert!(check(&chosen, &on(0, "GPU-AB12")).is_ok());
        let error = check(&chosen, &on(0, "GPU-cd12")).unwrap_err().to_string();
        assert!(error.ends_with("it chose GPU 0"), "{error}");
        let free = parse(&["--", "a"]).unwrap();
        assert!(check(&free, &on(0, "GPU-cd12")).is_ok());
    }

    #[test]
    fn a_program_s_name_is_made_printable() {
        assert_eq!(name_of(OsStr::new("/a/b\u{7}c")), "b?c");
        assert_eq!(name_of(OsStr::new("/")), "/");
        assert_eq!(name_of(OsStr::new(&"x".repeat(99))).len(), NAME_MAX);
    }
}
