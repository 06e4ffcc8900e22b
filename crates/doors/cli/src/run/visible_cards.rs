//! Cards that a job may use: the cards of `--allowed-gpus`, or else the cards that `CUDA_VISIBLE_DEVICES`
//! leaves. The driver itself interprets the variable, in a process of its own, because only the
//! driver knows which card is CUDA's first.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::environment::without_ours;
use crate::answer::{Advised, Answer, DONE};
use crate::paste;
use crate::standalone::executable;

/// The variable that chooses among the cards.
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The command that asks the driver.
const ASK: &str = "visible-cards";

/// Parameters of the question to the driver.
pub(super) struct DriverQuestion<'a> {
    /// The driver's library.
    pub(super) driver: &'a Path,
    /// The fake machine's folder.
    pub(super) fake: Option<&'a Path>,
    /// Number of cards that the job asks for.
    pub(super) gpus: u32,
}

/// Cards that the user has chosen by the variable.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Their UUIDs, in CUDA's order; `None` if the variable is not set.
    pub(super) cards: Option<Vec<String>>,
    /// Note for people about the choice.
    pub(super) note: Option<String>,
}

/// The cards that the variable leaves for the job.
pub(super) fn by_variable(question: &DriverQuestion) -> anyhow::Result<Chosen> {
    let Some(value) = std::env::var_os(VARIABLE) else {
        return Ok(Chosen::default());
    };
    let cards = ask(question).map_err(|error| {
        let what = format!("cannot tell which GPUs {} means", shown(&value));
        let hint =
            format!("--allowed-gpus names GPUs without the driver; `unset {VARIABLE}` allows all");
        Advised::new(what, hint).caused_by(error)
    })?;
    Ok(chosen(&value, cards, question.gpus)?)
}

/// Meaning of the driver's answer.
fn chosen(value: &OsStr, cards: Vec<String>, gpus: u32) -> Result<Chosen, Advised> {
    let shown = shown(value);
    let text = value.to_string_lossy();
    let mut names = text.split(',').skip(cards.len());
    let unknown = names.next().map(str::trim).unwrap_or_default();
    // A negative number is how people end the list on purpose.
    let is_cut = !unknown.is_empty() && !unknown.starts_with('-');
    let why = match is_cut {
        true => format!(": CUDA ends the list at `{unknown}`, which it does not take for a GPU"),
        false => String::new(),
    };
    let left = match cards.len() {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    };
    if cards.is_empty() || cards.len() < gpus as usize {
        let asked = match cards.len() {
            0 => String::new(),
            _ => format!(", and {gpus} are asked"),
        };
        return Err(Advised::new(
            format!("{shown} leaves {left} for the job{asked}{why}"),
            format!("`unset {VARIABLE}` allows all GPUs; --allowed-gpus names others"),
        ));
    }
    Ok(Chosen {
        cards: Some(cards),
        note: is_cut.then(|| format!("{shown} leaves {left}{why}")),
    })
}

/// The setting as one types it.
fn shown(value: &OsStr) -> String {
    match value.is_empty() {
        true => format!("{VARIABLE}="),
        false => format!("{VARIABLE}={}", paste::word(value)),
    }
}

/// Starts this program again, to ask the driver.
fn ask(question: &DriverQuestion) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new(executable()?);
    command.arg0("sublet").arg(ASK).arg(question.driver);
    // The driver itself is asked, and not what a job around this one sees of it.
    command.env_remove("LD_PRELOAD");
    if let Some(preload) = without_ours(std::env::var_os("LD_PRELOAD").as_deref()) {
        command.env("LD_PRELOAD", preload);
    }
    if let Some(machine) = question.fake {
        command.env(sublet_fakegpu::machine::VARIABLE, machine);
    }
    command.stdin(Stdio::null());
    let output = command
        .output()
        .context("cannot start this program again")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("error: ").replace('\n', " ");
        anyhow::bail!(
            "the driver does not say which GPUs it shows: {said} ({})",
            output.status
        );
    }
    let cards = String::from_utf8(output.stdout).context("the driver's answer is not text")?;
    Ok(cards.lines().map(str::to_owned).collect())
}

/// Arguments of the command that asks the driver.
#[derive(Debug, clap::Args)]
pub struct VisibleCardsArgs {
    /// The driver's library
    driver: PathBuf,
}

/// Answers with the cards that the driver shows this process, by UUID, a line each.
///
/// # Errors
/// The driver does not say.
pub fn visible_cards(args: &VisibleCardsArgs) -> anyhow::Result<Answer> {
    let cards = sublet_arbiter::visible_cards(&args.driver)?;
    Ok(Answer {
        text: cards.iter().map(|card| format!("{card}\n")).collect(),
        notes: Vec::new(),
        code: DONE,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_list_that_is_too_short_says_why() {
        let check = |value: &str, n_cards: usize, gpus: u32| {
            let cards: Vec<_> = (0..n_cards).map(|n| format!("GPU-{n}")).collect();
            match chosen(&OsString::from(value), cards, gpus) {
                Ok(chosen) => chosen.note.unwrap_or_default(),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(check("1", 1, 1), "");
        assert_eq!(check("1,0", 2, 2), "");
        assert_eq!(check("0,-1,1", 1, 1), "");
        let variable = "CUDA_VISIBLE_DEVICES=";
        let cut = "CUDA ends the list at `7`, which it does not take for a GPU";
        for (value, n_cards, gpus, expected) in [
            ("", 0, 1, "leaves no GPU for the job".to_owned()),
            ("-1", 0, 1, "-1 leaves no GPU for the job".to_owned()),
            ("7", 0, 1, format!("7 leaves no GPU for the job: {cut}")),
            ("0,7,1", 1, 1, format!("0,7,1 leaves 1 GPU: {cut}")),
            (
                "0,7,1",
                1,
                2,
                format!("0,7,1 leaves 1 GPU for the job, and 2 are asked: {cut}"),
            ),
            (
                "0,1",
                2,
                3,
                "0,1 leaves 2 GPUs for the job, and 3 are asked".to_owned(),
            ),
        ] {
            let said = check(value, n_cards, gpus);
            let gap = if value.is_empty() { " " } else { "" };
            assert_eq!(said, format!("{variable}{gap}{expected}"), "{value}");
        }
        // CUDA takes a card that is named twice for a mistake in all of it.
        assert!(check("1,1", 0, 1).contains("ends the list at `1`"));
    }
}
