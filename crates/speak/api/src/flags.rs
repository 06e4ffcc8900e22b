//! Values of flags that name a thing of the engine: a policy, a rule of the queue, a unit. The names
//! come from the engine itself, and clap lists them in the help, completes them, and suggests one
//! in the place of a mistyped name. The settings of the queue are flags of the controller and of the
//! commands that ask the queue on paper; they stand here once.

use std::error::Error;
use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgGroup, Args, Command};
use sublet_model::Unit;
use sublet_plan::{Policy, PolicyError};
use sublet_queue::{
    GROUP_FILTERS, GROUP_SCORES, GroupFilter, GroupScore, QUEUE_PROFILES, QueueProfile, QueueRules,
    SiteRule,
};

use crate::duration::milliseconds;

/// Settings of a site's queue.
#[derive(Debug, Clone, Default, Args)]
pub struct QueueRuleArgs {
    /// Rule of the queue that keeps groups waiting; can be given several times
    #[arg(long, value_name = "NAME", value_parser = group_filter())]
    pub queue_filter: Vec<GroupFilter>,
    /// Order of the groups of a quota
    #[arg(long, default_value_t, value_name = "NAME", value_parser = group_score())]
    pub queue_score: GroupScore,
    /// Profile of the queue: who may start beyond an entitlement, and who goes for whom
    #[arg(long, default_value_t, value_name = "PROFILE", value_parser = queue_profile())]
    pub queue_profile: QueueProfile,
    /// Longest wait of a group that the min of its quota has room for, by the profiles fair and
    /// strict. A quota's annotation sublet.dev/min-within wins over it [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub queue_min_within: Option<u64>,
    /// Time between checkpoints of jobs that do not say it (sublet.dev/checkpoint-every): an eviction
    /// costs them no more [default: they write none]
    #[arg(long, value_name = "DURATION", value_parser = period)]
    pub queue_checkpoint_every: Option<u64>,
}

impl QueueRuleArgs {
    /// The settings, with the engine's own for those that are not given.
    #[must_use]
    pub fn rules(&self) -> QueueRules {
        let shipped = QueueRules::default();
        QueueRules {
            filters: self.queue_filter.clone(),
            score: self.queue_score,
            profile: self.queue_profile,
            min_within_ms: self.queue_min_within.unwrap_or(shipped.min_within_ms),
            saves_every_ms: self.queue_checkpoint_every,
            ..shipped
        }
    }

    /// Rule of a command in which they need the flag `--queue`.
    #[must_use]
    pub fn need_queue() -> ArgGroup {
        ArgGroup::new("settings-of-the-queue")
            .args([
                "queue_filter",
                "queue_score",
                "queue_profile",
                "queue_min_within",
                "queue_checkpoint_every",
            ])
            .multiple(true)
            .requires("queue")
    }
}

/// Reads a duration, in milliseconds.
fn duration(text: &str) -> Result<u64, &'static str> {
    milliseconds(text).ok_or("write it as in `90s`, `1h` or `24h`")
}

/// Reads a duration above zero.
fn period(text: &str) -> Result<u64, &'static str> {
    match duration(text)? {
        0 => Err("it must be above zero"),
        ms => Ok(ms),
    }
}

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
fn group_filter() -> impl TypedValueParser<Value = GroupFilter> {
    NameParser {
        names: rules(GROUP_FILTERS),
        unknown: whole::<GroupFilter>,
        read: GroupFilter::from_str,
    }
}

/// Reader of an order of groups.
fn group_score() -> impl TypedValueParser<Value = GroupScore> {
    NameParser {
        names: rules(GROUP_SCORES),
        unknown: whole::<GroupScore>,
        read: GroupScore::from_str,
    }
}

/// Reader of a profile of the queue.
#[must_use]
pub fn queue_profile() -> impl TypedValueParser<Value = QueueProfile> {
    NameParser {
        names: rules(QUEUE_PROFILES),
        unknown: whole::<QueueProfile>,
        read: QueueProfile::from_str,
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
    use clap::{ArgAction, FromArgMatches};

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
        assert_eq!(read(queue_profile(), "strict"), ok("strict"));
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
        check(read(queue_profile(), "fare"), "fair");
        // Other faults are told as they are.
        let error = read(policy(), "fgd=x").unwrap_err();
        assert!(error.contains("`x` is no weight"), "{error}");
        let error = read(policy(), "fgd,fgd").unwrap_err();
        assert!(error.contains("`fgd` is named twice"), "{error}");
    }

    /// The settings that these flags give, of a command with the flag `--queue`.
    fn settings(flags: &str) -> Result<QueueRules, String> {
        let queue = Arg::new("queue").long("queue").action(ArgAction::SetTrue);
        let command = Command::new("test").no_binary_name(true).arg(queue);
        let command = QueueRuleArgs::augment_args(command.group(QueueRuleArgs::need_queue()));
        let matches = command.try_get_matches_from(flags.split_whitespace());
        let matches = matches.map_err(|error| error.to_string())?;
        Ok(QueueRuleArgs::from_arg_matches(&matches).unwrap().rules())
    }

    #[test]
    fn the_settings_of_a_queue_are_read_once_for_all_commands() {
        let shipped = QueueRules::default();
        for flags in ["", "--queue"] {
            let rules = settings(flags).unwrap();
            assert_eq!(rules.profile.name(), shipped.profile.name());
            assert_eq!(rules.min_within_ms, shipped.min_within_ms);
            assert_eq!(rules.saves_every_ms, None);
        }
        let rules = settings(
            "--queue --queue-profile strict --queue-min-within 0s --queue-checkpoint-every 30m \
             --queue-score need --queue-filter known-end",
        );
        let rules = rules.unwrap();
        assert_eq!(
            (rules.profile.name(), rules.score.name()),
            ("strict", "need")
        );
        assert_eq!((rules.min_within_ms, rules.filters.len()), (0, 1));
        assert_eq!(rules.saves_every_ms, Some(1_800_000));
        for (flags, told) in [
            ("--queue-profile fair", "--queue"),
            ("--queue-min-within 1h", "--queue"),
            ("--queue --queue-min-within=-1h", "write it as"),
            ("--queue --queue-min-within soon", "write it as in `90s`"),
            (
                "--queue --queue-checkpoint-every 0s",
                "it must be above zero",
            ),
        ] {
            let error = settings(flags).unwrap_err();
            assert!(error.contains(told), "{flags}: {error}");
        }
    }
}
