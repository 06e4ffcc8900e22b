//! What is offered for what is typed; shells and sockets are in the tests of the executable.

use std::path::Path;

use clap::{CommandFactory, Parser};

use super::*;
use crate::jobs::tests::example;
use crate::{explain, inspect, limit, run};

/// Candidates as they are offered: those that are hidden are in brackets.
fn texts(offered: &[CompletionCandidate]) -> Vec<String> {
    let text = |one: &CompletionCandidate| {
        let value = one.get_value().to_string_lossy();
        match one.is_hide_set() {
            true => format!("({value})"),
            false => value.into_owned(),
        }
    };
    offered.iter().map(text).collect()
}

#[test]
fn a_policy_follows_those_of_the_mix() {
    let all: Vec<&str> = Policy::names().collect();
    assert_eq!(texts(&policies("")), all);
    let mixed = texts(&policies("fgd=0.7,be"));
    assert_eq!(mixed.len(), all.len() - 1);
    assert!(mixed.contains(&"fgd=0.7,best-fit".to_owned()), "{mixed:?}");
    assert!(mixed.iter().all(|one| one.starts_with("fgd=0.7,")));
    assert!(!mixed.contains(&"fgd=0.7,fgd".to_owned()));
}

#[test]
fn jobs_have_names_and_else_numbers() {
    let mut snapshot = example();
    assert_eq!(
        texts(&jobs(&snapshot)),
        ["train", "(1)", "serve", "(2)", "later", "(3)"]
    );
    snapshot.tenants[0].name = "serve".to_owned();
    snapshot.tenants[2].name = "two words".to_owned();
    assert_eq!(texts(&jobs(&snapshot)), ["1", "2", "3"]);
    snapshot.tenants[2].name = "--memory".to_owned();
    assert_eq!(texts(&jobs(&snapshot)), ["1", "2", "3"]);
}

#[test]
fn cards_follow_those_of_the_list() {
    let card = |index, uuid: &str| GpuRow {
        index,
        uuid: uuid.to_owned(),
        model: "Fake".to_owned(),
        ..GpuRow::default()
    };
    let known = [card(0, "GPU-a"), card(1, "GPU-b"), card(2, "")];
    let check = |begun: &str| texts(&cards(begun, &known));
    assert_eq!(check(""), ["0", "(GPU-a)", "1", "(GPU-b)", "2"]);
    assert_eq!(check("1,"), ["1,0", "(1,GPU-a)", "1,2"]);
    assert_eq!(check("GPU-a,2,GP"), ["GPU-a,2,1", "(GPU-a,2,GPU-b)"]);
}

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    _command: Below,
}

#[derive(Debug, clap::Subcommand)]
enum Below {
    Run(Box<run::Args>),
    Limit(Box<limit::Args>),
    Explain(Box<explain::Args>),
    Inspect(inspect::Args),
}

fn typed(words: &[&str]) -> Typed {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    Typed::of(Line::command(), &words)
}

#[test]
fn an_unfinished_line_says_which_machine_and_namespace_is_meant() {
    for words in [
        &["sublet", "limit", "--fake-gpu", "1x7GiB"][..],
        &["sublet", "limit", "--memory", "1GiB", "--fake-gpu=1x7GiB"],
        &["sublet", "run", "--fake-gpu", "1x7GiB", "--allowed-gpus"],
        &[
            "sublet",
            "run",
            "--fake-gpu",
            "1x7GiB",
            "--memory",
            "x",
            "--",
            "prog",
        ],
    ] {
        let fake = typed(words).fake_gpu;
        assert_eq!(fake.unwrap().text(), "1x7GiB", "{words:?}");
    }
    let pods = typed(&[
        "sublet",
        "explain",
        "pod",
        "-n",
        "team",
        "--kubeconfig",
        "/k",
    ]);
    assert_eq!(pods.namespace.as_deref(), Some("team"));
    assert_eq!(pods.kubeconfig.as_deref(), Some(Path::new("/k")));
    // What stands behind `--` is the job's.
    let words = ["sublet", "run", "--", "prog", "--fake-gpu", "1x7GiB"];
    let fake = typed(&words).fake_gpu;
    assert!(fake.is_none_or(|fake| fake.text() != "1x7GiB"));

    let begins = |words: &[&str]| typed(words).begins_command;
    assert!(begins(&["sublet", "run", "--"]));
    assert!(!begins(&["sublet", "run", "--", "python"]));
    assert!(!begins(&["sublet", "run"]));
}

#[test]
fn words_that_bash_splits_are_whole_again() {
    let check = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (whole, hidden) = whole_words(&words, words.len() - 1);
        let whole: Vec<_> = whole.iter().map(|word| word.to_string_lossy()).collect();
        format!("{} without {hidden:?}", whole.join(" "))
    };
    for (words, wanted) in [
        (
            &["s", "plan", "--policy", "f"][..],
            "s plan --policy f without \"\"",
        ),
        (
            &["s", "plan", "--policy", "=", "f"],
            "s plan --policy=f without \"--policy=\"",
        ),
        (
            &["s", "--policy", "fgd", "=", "0.7,b"],
            "s --policy fgd=0.7,b without \"fgd=\"",
        ),
        (
            &["s", "--policy", "=", "fgd", "=", "0.7,b"],
            "s --policy=fgd=0.7,b without \"--policy=fgd=\"",
        ),
        (
            &["s", "--policy", "=", "fgd", "-o", ""],
            "s --policy=fgd -o  without \"\"",
        ),
        (
            &["s", "--policy", "fgd=0.7,b"],
            "s --policy fgd=0.7,b without \"\"",
        ),
    ] {
        assert_eq!(check(words), wanted);
    }
}

#[test]
fn an_answer_that_is_late_is_none() {
    let mut typed = typed(&["sublet"]);
    assert_eq!(typed.within(|| Some(1)), Some(1));
    assert_eq!(typed.within(|| None::<u8>), None);
    typed.until = Instant::now() + Duration::from_millis(50);
    let begun = Instant::now();
    let (_never, told) = mpsc::channel::<u8>();
    assert_eq!(typed.within(move || told.recv().ok()), None);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn every_kind_of_value_has_an_argument() {
    let mut names: Vec<String> = Vec::new();
    let mut left = vec![Line::command()];
    while let Some(command) = left.pop() {
        for arg in command.get_arguments() {
            let values = arg.get_value_names().unwrap_or_default();
            names.extend(values.iter().map(ToString::to_string));
        }
        left.extend(command.get_subcommands().cloned());
    }
    for (name, _) in VALUES {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
}
