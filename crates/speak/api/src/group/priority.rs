//! The priority of a group: a number, or the name of one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::field::{Field, GroupError};

/// PriorityClasses, by name.
#[derive(Debug, Clone, Default)]
pub struct PriorityClasses {
    all: BTreeMap<String, PriorityClass>,
    /// Value for pods that name no class.
    usual: Option<i32>,
}

/// Facts of one PriorityClass.
#[derive(Debug, Clone, Copy)]
struct PriorityClass {
    value: i32,
    /// It counts for pods that name no class.
    is_default: bool,
}

impl PriorityClasses {
    /// Enters a class, in place of its earlier facts.
    ///
    /// # Errors
    /// A field that cannot be read. The class is not there then.
    pub fn enter(&mut self, name: &str, object: &Value) -> Result<(), GroupError> {
        let root = Field::root(object);
        let read = || {
            let value = root.get("value")?;
            let value = value.number()?.ok_or_else(|| value.wrong("it is missing"));
            let is_default = root.get("globalDefault")?.flag()?;
            Ok(PriorityClass {
                value: value?,
                is_default,
            })
        };
        match read() {
            Ok(class) => {
                self.all.insert(name.to_owned(), class);
                self.count();
                Ok(())
            }
            Err(error) => {
                self.remove(name);
                Err(error)
            }
        }
    }

    /// The class of that name is gone.
    pub fn remove(&mut self, name: &str) {
        self.all.remove(name);
        self.count();
    }

    /// Keeps only the classes that are still there.
    pub fn retain(&mut self, mut is_there: impl FnMut(&str) -> bool) {
        self.all.retain(|name, _| is_there(name));
        self.count();
    }

    /// The value of the class of that name. The empty name gives the value for pods that name no
    /// class. If there are several defaults, the smallest counts (`getDefaultPriorityClass` in
    /// Kubernetes' `plugin/pkg/admission/priority/admission.go`).
    #[must_use]
    pub fn value(&self, name: &str) -> Option<i32> {
        match name {
            "" => self.usual,
            name => self.all.get(name).map(|class| class.value),
        }
    }

    fn count(&mut self) {
        let defaults = self.all.values().filter(|class| class.is_default);
        self.usual = defaults.map(|class| class.value).min();
    }
}

/// A priority as it is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AskedPriority {
    /// As a number, which wins.
    pub number: Option<i32>,
    /// The name of a PriorityClass.
    pub class: Option<String>,
}

impl AskedPriority {
    /// Its value; `None` if no priority is asked. `class`: the value of a PriorityClass.
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

    /// This priority, or the other one if this asks nothing.
    #[must_use]
    pub fn or(self, other: impl FnOnce() -> AskedPriority) -> AskedPriority {
        let is_asked =
            self.number.is_some() || self.class.as_deref().is_some_and(|c| !c.is_empty());
        if is_asked { self } else { other() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_several_defaults_the_smallest_counts_as_long_as_it_is_there() {
        let mut classes = PriorityClasses::default();
        let mut class = |name: &str, object: Value| {
            let wrong = classes.enter(name, &object).err();
            (classes.value(""), wrong.map(|wrong| wrong.to_string()))
        };
        let default = |value: i32| json!({"value": value, "globalDefault": true});
        assert_eq!(class("high", json!({"value": 9})), (None, None));
        assert_eq!(class("usual", default(5)), (Some(5), None));
        assert_eq!(class("least", default(-3)), (Some(-3), None));
        assert_eq!(class("last", default(7)), (Some(-3), None));
        assert_eq!(class("least", json!({"value": -3})), (Some(5), None));
        for (object, why) in [
            (
                json!({"value": "5"}),
                "field `value`: it is no whole number of 32 bits",
            ),
            (json!({}), "field `value`: it is missing"),
        ] {
            assert_eq!(class("usual", object), (Some(7), Some(why.to_owned())));
        }
        assert_eq!(
            (classes.value("high"), classes.value("usual")),
            (Some(9), None)
        );
        classes.retain(|name| name != "last");
        assert_eq!(classes.value(""), None);
    }
}
