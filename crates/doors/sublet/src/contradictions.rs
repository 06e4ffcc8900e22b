//! Flags that contradict each other in ways that clap cannot say: clap takes a variable that is set
//! for a flag, and a variable contradicts nothing. Only flags that were typed are looked at.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error};

/// Refuses flags of which one makes the other meaningless.
///
/// # Errors
/// clap's own error about both.
pub(crate) fn refuse(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let Some((name, matches)) = matches.subcommand() else {
        return Ok(());
    };
    let found = match name {
        "agent" => of_agent(matches),
        "scheduler" => pair(matches, "listen", &["port"]),
        _ => None,
    };
    let (Some((one, other)), Some(command)) = (found, command.find_subcommand_mut(name)) else {
        return Ok(());
    };
    let flag = |id: &str| {
        let mut all = command.get_arguments();
        let flag = all.find(|flag| flag.get_id() == id);
        flag.map_or_else(|| id.to_owned(), ToString::to_string)
    };
    let said = format!(
        "the argument '{}' cannot be used with '{}'",
        flag(&one),
        flag(&other)
    );
    Err(command.error(ErrorKind::ArgumentConflict, said))
}

/// A machine's agent has none of the flags of a node's; without the arbiter nobody shares time.
fn of_agent(matches: &ArgMatches) -> Option<(String, String)> {
    let node = sublet_agent::Args::augment_args(Command::new("agent"));
    let node: Vec<&str> = node
        .get_arguments()
        .map(|flag| flag.get_id().as_str())
        .collect();
    let off = matches.get_raw("isolation");
    let is_off = off.is_some_and(|mut words| words.any(|word| word == "off"));
    let time = ["mps", "exclusive_slices"];
    pair(matches, "standalone", &node).or_else(|| match is_off {
        true => pair(matches, "isolation", &time),
        false => None,
    })
}

/// The flag and the first of `others`, if both were typed.
fn pair(matches: &ArgMatches, flag: &str, others: &[&str]) -> Option<(String, String)> {
    let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    if !is_typed(flag) {
        return None;
    }
    let other = others.iter().find(|other| is_typed(other))?;
    Some((flag.to_owned(), (*other).to_owned()))
}
