//! Placement policies by name, alone or mixed.
//!
//! `binpack` is one policy; `fgd=0.7,best-fit=0.3` is a mix. In a mix each score is scaled to 0 to
//! 100 over the nodes that fit, as the stock scheduler does with its plugins, and then weighted.
//! To add a policy, write a file in `score`, and add a line to the list there.

use std::fmt;
use std::str::FromStr;

use crate::score::{ALL, Cost, Kind};

/// The most policies in one mix.
pub(crate) const MAX_PARTS: usize = 4;

/// The costs of one place, one for each policy of a mix.
pub(crate) type Costs = [Cost; MAX_PARTS];

/// The rule that chooses among places that fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    parts: Vec<Weighed>,
    is_relative: bool,
    learns: bool,
    sees_host: bool,
    ties: Ties,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weighed {
    kind: &'static Kind,
    /// The weight in thousandths.
    weight: u32,
}

/// The order of nodes that cost the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ties {
    /// In order of the name.
    ByName,
    /// In a fixed scattered order of the names. Names often follow racks and kinds of machines, and
    /// by name a policy with coarse steps would fill one kind after the other.
    Scattered,
}

/// Reason why a text does not name a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyError {
    /// There is no policy of that name.
    Unknown(String),
    /// The text after `=` is not a weight.
    Weight(String),
    /// A name stands twice in a mix.
    Twice(String),
    /// More policies than one mix may have.
    TooMany(usize),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::Unknown(name) => {
                let known: Vec<_> = Policy::names().collect();
                write!(f, "`{name}` is no policy; there are {}", known.join(", "))
            }
            PolicyError::Weight(text) => write!(
                f,
                "`{text}` is no weight: it is a number above 0 and at most 1000, with up to three decimals"
            ),
            PolicyError::Twice(name) => write!(f, "`{name}` is named twice"),
            PolicyError::TooMany(count) => {
                write!(f, "{count} policies in one mix; {MAX_PARTS} are the most")
            }
        }
    }
}

impl std::error::Error for PolicyError {}

impl Default for Policy {
    fn default() -> Policy {
        Policy::of(ALL[0])
    }
}

impl Policy {
    /// Packs by memory. It serves a single machine, and any question about the fit alone, since it
    /// needs to know nothing of nodes or pods.
    #[must_use]
    pub fn binpack() -> Policy {
        "binpack".parse().expect("a policy of that name")
    }

    /// The names of all policies; the first is the default.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|kind| kind.name)
    }

    fn of(kind: &'static Kind) -> Policy {
        let weight = 1000;
        Policy::mixed(vec![Weighed { kind, weight }])
    }

    /// Computes once the data that follow from the parts of the mix.
    fn mixed(parts: Vec<Weighed>) -> Policy {
        let made: Vec<_> = parts.iter().map(|part| (part.kind.make)()).collect();
        let mut policy = Policy {
            is_relative: made.len() > 1 || made.iter().any(|part| part.is_relative()),
            learns: made.iter().any(|part| part.learns()),
            sees_host: made.iter().any(|part| part.sees_host()),
            ties: Ties::Scattered,
            parts,
        };
        if made[policy.leader()].pack().is_some() {
            policy.ties = Ties::ByName;
        }
        policy
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static Kind> {
        self.parts.iter().map(|part| part.kind)
    }

    /// The part that chooses the card on a node: the first one with the greatest weight.
    pub(crate) fn leader(&self) -> usize {
        let parts = self.parts.iter().enumerate();
        let best = parts.rev().max_by_key(|(_, part)| part.weight);
        best.map_or(0, |(at, _)| at)
    }

    /// Can the costs of a place only be compared among the nodes of one question?
    pub(crate) fn is_relative(&self) -> bool {
        self.is_relative
    }

    /// The order of nodes that cost the same: by name where costs are fine, in a scattered order
    /// where many nodes cost the same.
    #[must_use]
    pub fn ties(&self) -> Ties {
        self.ties
    }

    /// Does the policy also decide where pods without GPU go? The two policies of memory do not: to
    /// them all nodes are alike for such a pod.
    #[must_use]
    pub fn sees_host(&self) -> bool {
        self.sees_host
    }

    /// Does the policy need to see the pods that arrive?
    #[must_use]
    pub fn learns(&self) -> bool {
        self.learns
    }

    /// One cost from the costs of all parts. If they are relative, `range` has the least and the
    /// largest cost of each part.
    pub(crate) fn total(&self, costs: &Costs, range: &[(Cost, Cost); MAX_PARTS]) -> Cost {
        if !self.is_relative() {
            return costs[0];
        }
        let mut total = 0;
        for (at, part) in self.parts.iter().enumerate() {
            let (least, most) = range[at];
            let spread = most - least;
            let score = (most - costs[at]) * 100 / spread.max(1);
            total -= score * Cost::from(part.weight);
        }
        total
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let mut parts: Vec<Weighed> = Vec::new();
        for word in text.split(',').map(str::trim) {
            let (name, weight) = match word.split_once('=') {
                Some((name, weight)) => (name.trim(), weigh(weight.trim())?),
                None => (word, 1000),
            };
            let found = ALL.iter().find(|kind| kind.name == name);
            let kind = *found.ok_or_else(|| PolicyError::Unknown(name.to_owned()))?;
            if parts.iter().any(|part| part.kind == kind) {
                return Err(PolicyError::Twice(name.to_owned()));
            }
            parts.push(Weighed { kind, weight });
        }
        if parts.len() > MAX_PARTS {
            return Err(PolicyError::TooMany(parts.len()));
        }
        Ok(Policy::mixed(parts))
    }
}

/// Reads a weight in thousandths: `0.7` is 700.
fn weigh(text: &str) -> Result<u32, PolicyError> {
    let wrong = || PolicyError::Weight(text.to_owned());
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 3 || whole.len() > 4 {
        return Err(wrong());
    }
    let thousandths: u32 = format!("{whole}{decimals:0<3}")
        .parse()
        .map_err(|_| wrong())?;
    if (1..=1_000_000).contains(&thousandths) {
        Ok(thousandths)
    } else {
        Err(wrong())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [Weighed { kind, weight: 1000 }] = self.parts[..] {
            return f.write_str(kind.name);
        }
        for (at, part) in self.parts.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let weight = f64::from(part.weight) / 1000.0;
            write!(f, "{comma}{}={weight}", part.kind.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mix_is_written_as_it_is_read() {
        for text in ["binpack", "fgd=0.7,best-fit=0.3", "fgd=1,random=0.125"] {
            let policy: Policy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text);
        }
        let policy: Policy = " fgd , best-fit = 2 ".parse().unwrap();
        assert_eq!(policy.to_string(), "fgd=1,best-fit=2");
        assert_eq!(policy.leader(), 1);
        assert_eq!(Policy::default().to_string(), "tiling");
        assert_eq!(Policy::names().next(), Some("tiling"));
    }

    #[test]
    fn what_is_no_policy_is_named() {
        let error = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
        assert!(error("").starts_with("`` is no policy; there are tiling, binpack, spread"));
        assert!(error("fgd,fgd").starts_with("`fgd` is named twice"));
        for weight in ["0", "-1", "x", "", "1.2345", "1001", "99999", "1e3", "+1"] {
            let text = format!("fgd={weight}");
            assert!(error(&text).contains("is no weight"), "{text}");
        }
        assert!(error("fgd,binpack,spread,random,best-fit").starts_with("5 policies"));
    }

    #[test]
    fn costs_of_a_mix_are_scaled_before_they_are_weighed() {
        let policy: Policy = "best-fit=0.25,spread=0.75".parse().unwrap();
        let range = [(-9, 1), (0, 1000), (0, 0), (0, 0)];
        // First: nine of ten steps up, and the worst. Second: the worst, and the best.
        assert_eq!(policy.total(&[-8, 1000, 0, 0], &range), -90 * 250);
        assert_eq!(policy.total(&[1, 0, 0, 0], &range), -100 * 750);
        let alike = [(5, 5), (7, 7), (0, 0), (0, 0)];
        assert_eq!(policy.total(&[5, 7, 0, 0], &alike), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[a-z=,.0-9 -]{0,40}") {
            if let Ok(policy) = text.parse::<Policy>() {
                prop_assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
            }
        }
    }
}
