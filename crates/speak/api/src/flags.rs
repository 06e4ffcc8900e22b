//! Values of flags that name a thing of the engine: a policy, a rule of the queue, a unit. The names
//! come from the engine itself, and clap lists them in the help, completes them, and suggests one
//! in the place of a mistyped name. Here no flag is defined.

use std::error::Error;
use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};
use sublet_model::Unit;
use sublet_plan::{Policy, PolicyError};
use sublet_queue::{GROUP_FILTERS, GROUP_SCORES, GroupFilter, GroupScore, SiteRule};

/// Reader of a policy, or of a mix of some.
#[must_use]
pub fn policy() -> impl TypedValueParser<Value = Policy> {
    let unknown = |text: &str| match text.parse::<Policy>() {
        Err(PolicyError::Unknown(name)) => Some(name),
        _ => None,
    };
    NameParser {
        names: PossibleValuesParser::new(Policy::names()),
        unknown,
        read: Policy::from_str,
    }
}

/// Reader of a unit of memory, in small letters too.
#[must_use]
pub fn unit() -> impl TypedValueParser<Value = Unit> {
    NameParser {
        names: PossibleValuesParser::new(["MiB", "GiB"]),
        unknown: whole::<Unit>,
        read: Unit::from_str,
    }
}

/// Reader of a rule that keeps groups waiting.
#[must_use]
pub fn group_filter() -> impl TypedValueParser<Value = GroupFilter> {
    NameParser {
        names: rules(GROUP_FILTERS),
        unknown: whole::<GroupFilter>,
        read: GroupFilter::from_str,
    }
}

/// Reader of an order of groups.
#[must_use]
pub fn group_score() -> impl TypedValueParser<Value = GroupScore> {
    NameParser {
        names: rules(GROUP_SCORES),
        unknown: whole::<GroupScore>,
        read: GroupScore::from_str,
    }
}

fn rules<F: Copy>(all: &[SiteRule<F>]) -> PossibleValuesParser {
    let value = |rule: &SiteRule<F>| PossibleValue::new(rule.name()).help(rule.about());
    PossibleValuesParser::new(all.iter().map(value))
}

/// The whole text, if it is no name.
fn whole<T: FromStr>(text: &str) -> Option<String> {
    text.parse::<T>().is_err().then(|| text.to_owned())
}

/// Parser of texts with names in them.
struct NameParser<T, E> {
    /// The names that there are.
    names: PossibleValuesParser,
    /// Returns the name in a text that is none of these.
    unknown: fn(&str) -> Option<String>,
    read: fn(&str) -> Result<T, E>,
}

// Not derived: `T` and `E` need not be cloned.
impl<T, E> Clone for NameParser<T, E> {
    fn clone(&self) -> NameParser<T, E> {
        NameParser {
            names: self.names.clone(),
            unknown: self.unknown,
            read: self.read,
        }
    }
}

impl<T, E> TypedValueParser for NameParser<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Error + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        if let Some(name) = value.to_str().and_then(self.unknown) {
            self.names.parse_ref(command, arg, OsStr::new(&name))?;
        }
        TypedValueParser::parse_ref(&self.read, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.names.possible_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value as it is printed, or clap's error.
    fn read<T>(parser: impl TypedValueParser<Value = T>, text: &str) -> Result<String, String>
    where
        T: ToString + Clone + Send + Sync + 'static,
    {
        let flag = Arg::new("flag").long("flag").value_parser(parser);
        let command = Command::new("test").no_binary_name(true).arg(flag);
        let matches = command.try_get_matches_from(["--flag", text]);
        let value = matches.map(|matches| matches.get_one::<T>("flag").map(ToString::to_string));
        value
            .map(Option::unwrap_or_default)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_read_as_the_engine_reads_them() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(read(policy(), "tiling"), ok("tiling"));
        let mix = "fgd=0.7,best-fit=0.3";
        assert_eq!(read(policy(), mix), ok(mix));
        assert_eq!(read(unit(), "gib"), ok("GiB"));
        assert_eq!(read(group_filter(), "known-end"), ok("known-end"));
        assert_eq!(read(group_score(), "need"), ok("need"));
    }

    #[test]
    fn a_mistyped_name_has_a_suggestion() {
        let check = |told: Result<String, String>, similar: &str| {
            let error = told.unwrap_err();
            let tip = format!("a similar value exists: '{similar}'");
            assert!(error.contains(&tip), "{error}");
            assert!(error.contains("[possible values: "), "{error}");
        };
        check(read(policy(), "binpak"), "binpack");
        check(read(policy(), "fgd=0.7,bestfit=0.3"), "best-fit");
        check(read(unit(), "GiBs"), "GiB");
        check(read(group_filter(), "knownend"), "known-end");
        check(read(group_score(), "priorty"), "priority");
        // Other faults are told as they are.
        let error = read(policy(), "fgd=x").unwrap_err();
        assert!(error.contains("`x` is no weight"), "{error}");
        let error = read(policy(), "fgd,fgd").unwrap_err();
        assert!(error.contains("`fgd` is named twice"), "{error}");
    }
}
