//! Rules that a site chooses by their names: the form of a rule, and the answer to a name that is
//! none. It knows no rule itself.

use std::fmt;

/// Rule that a site chooses by its name.
#[derive(Debug, Clone, Copy)]
pub struct SiteRule<F> {
    name: &'static str,
    about: &'static str,
    rule: F,
}

/// Reason why a text names no rule, with the names that there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of {known}", known = .1.join(", "))]
pub struct SiteRuleError(String, Vec<&'static str>);

impl<F: Copy> SiteRule<F> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its meaning in a few words.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about
    }

    pub(crate) const fn new(name: &'static str, about: &'static str, rule: F) -> SiteRule<F> {
        SiteRule { name, about, rule }
    }

    pub(crate) fn rule(&self) -> F {
        self.rule
    }

    pub(crate) fn named(all: &[SiteRule<F>], name: &str) -> Result<SiteRule<F>, SiteRuleError> {
        let found = all.iter().find(|rule| rule.name == name);
        let known = || all.iter().map(SiteRule::name).collect();
        found
            .copied()
            .ok_or_else(|| SiteRuleError(name.to_owned(), known()))
    }
}

impl<F> fmt::Display for SiteRule<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
