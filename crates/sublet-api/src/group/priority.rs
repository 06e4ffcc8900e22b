//! The priority of a group: a number, or the name of one.

/// A priority as it is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedPriority {
    /// As a number, which wins.
    pub number: Option<i32>,
    /// The name of a PriorityClass.
    pub class: Option<String>,
}

impl AskedPriority {
    /// Its number; none where nothing is asked. `class`: the number of a PriorityClass.
    ///
    /// # Errors
    /// The name of a PriorityClass that is not there.
    pub fn resolve(&self, class: &dyn Fn(&str) -> Option<i32>) -> Result<Option<i32>, String> {
        match (self.number, self.class.as_deref()) {
            (Some(number), _) => Ok(Some(number)),
            (None, None | Some("")) => Ok(None),
            (None, Some(name)) => class(name).map(Some).ok_or_else(|| name.to_owned()),
        }
    }

    /// This one, or the other where it asks nothing.
    #[must_use]
    pub fn or(self, other: impl FnOnce() -> AskedPriority) -> AskedPriority {
        let is_asked =
            self.number.is_some() || self.class.as_deref().is_some_and(|c| !c.is_empty());
        if is_asked { self } else { other() }
    }
}
