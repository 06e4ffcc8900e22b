//! The operator's wishes as labels of the node object.

use clap::ValueEnum;
use sublet_api::keys;
use sublet_api::object::Node;
use tracing::warn;

use crate::publish::offer::SharingWord;

/// The operator's wishes on the node object.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Labels {
    sharing: Option<String>,
    pub(super) no_isolation: bool,
}

impl Labels {
    pub(super) fn of(node: &Node) -> Labels {
        let labels = &node.metadata.labels;
        let no_isolation = labels.get(keys::CGPU_DISABLE_LABEL);
        Labels {
            sharing: labels.get(keys::SHARING_LABEL).cloned(),
            no_isolation: no_isolation.is_some_and(|text| text == "true"),
        }
    }

    pub(super) fn sharing(&self) -> Option<SharingWord> {
        let text = self.sharing.as_deref()?;
        SharingWord::from_str(text, false).ok()
    }

    pub(super) fn warn_of_garbage(&self) {
        if let (Some(value), None) = (&self.sharing, self.sharing()) {
            let label = keys::SHARING_LABEL;
            warn!(
                label,
                value, "label ignored: not `memory`, `whole` or `both`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_and_garbage_is_none() {
        let check = |key: &str, value: &str| {
            let mut node = Node::default();
            node.metadata.labels = [(key.to_owned(), value.to_owned())].into();
            let labels = Labels::of(&node);
            (labels.sharing(), labels.no_isolation)
        };
        assert_eq!(
            check(keys::SHARING_LABEL, "whole"),
            (Some(SharingWord::Whole), false)
        );
        assert_eq!(check(keys::SHARING_LABEL, "Whole"), (None, false));
        assert_eq!(check(keys::CGPU_DISABLE_LABEL, "true"), (None, true));
        assert_eq!(check(keys::CGPU_DISABLE_LABEL, "false"), (None, false));
    }
}
