//! Nodes that a cluster does not have yet: `--add 10xNODE`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use sublet_model::{NameError, NodeFacts, NodeName};

/// The most copies of one node. Kubernetes is made for clusters of 5,000 nodes.
const MOST: u32 = 100_000;

/// So many copies of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Add {
    count: u32,
    node: String,
}

/// Reason why nodes cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddError {
    #[error("`{0}` is not a number of copies and a node, such as 10xNODE (at most {MOST})")]
    Form(String),
    #[error("--add {0}: there is no node {node} in the input", node = .0.node)]
    Unknown(Add),
    #[error("--add {add}: there is a node {name} already")]
    Clash { add: Add, name: String },
    #[error("--add {add}: {cause}")]
    Name { add: Add, cause: NameError },
}

impl FromStr for Add {
    type Err = AddError;

    fn from_str(text: &str) -> Result<Add, AddError> {
        let form = || AddError::Form(text.to_owned());
        let (count, node) = text.split_once('x').ok_or_else(form)?;
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=MOST).contains(count));
        if node.is_empty() {
            return Err(form());
        }
        Ok(Add {
            count: count.ok_or_else(form)?,
            node: node.to_owned(),
        })
    }
}

impl fmt::Display for Add {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.count, self.node)
    }
}

/// Adds copies to a list of nodes, for any type that stands for a node. A copy of a copy is a copy
/// of a node of the input, too.
///
/// # Errors
/// A node that is not there, or a copy whose name another node has.
pub(super) fn add<T>(
    adds: &[Add],
    nodes: &mut Vec<T>,
    name: impl Fn(&T) -> &str,
    copy: impl Fn(&T, &str) -> Result<T, NameError>,
) -> Result<(), AddError> {
    let mut names: BTreeSet<String> = nodes.iter().map(|node| name(node).to_owned()).collect();
    for add in adds {
        let original = nodes.iter().position(|node| name(node) == add.node);
        let original = original.ok_or_else(|| AddError::Unknown(add.clone()))?;
        for number in 1..=add.count {
            let new = format!("{}-copy-{number}", add.node);
            if !names.insert(new.clone()) {
                let (add, name) = (add.clone(), new);
                return Err(AddError::Clash { add, name });
            }
            let made = copy(&nodes[original], &new);
            let name = |cause| AddError::Name {
                add: add.clone(),
                cause,
            };
            nodes.push(made.map_err(name)?);
        }
    }
    Ok(())
}

/// The same node under another name.
pub(super) fn renamed(node: &NodeFacts, name: &str) -> Result<NodeFacts, NameError> {
    Ok(NodeFacts {
        name: NodeName::new(name)?,
        ..node.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(adds: &str, nodes: &str) -> Result<String, String> {
        let read = adds.split_whitespace().map(str::parse);
        let adds: Result<Vec<Add>, AddError> = read.collect();
        let mut nodes: Vec<String> = nodes.split_whitespace().map(str::to_owned).collect();
        let copy = |_: &String, name: &str| Ok(name.to_owned());
        adds.and_then(|adds| add(&adds, &mut nodes, String::as_str, copy))
            .map_err(|error| error.to_string())?;
        Ok(nodes.join(" "))
    }

    #[test]
    fn copies_are_numbered_behind_all_others() {
        assert_eq!(added("", "a b"), Ok("a b".to_owned()));
        assert_eq!(
            added("2xa 1xb", "a b"),
            Ok("a b a-copy-1 a-copy-2 b-copy-1".to_owned())
        );
        assert_eq!(
            added("1xx 1xx-copy-1", "x"),
            Ok("x x-copy-1 x-copy-1-copy-1".to_owned())
        );
    }

    #[test]
    fn what_cannot_be_added_is_named() {
        for wrong in ["a", "xa", "0xa", "-1xa", "1x", "100001xa", "1.5xa", "10 a"] {
            let error = wrong.parse::<Add>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{wrong}` is not a number of")),
                "{error}"
            );
        }
        assert_eq!(
            added("3xc", "a b"),
            Err("--add 3xc: there is no node c in the input".to_owned())
        );
        assert_eq!(
            added("2xa", "a a-copy-2"),
            Err("--add 2xa: there is a node a-copy-2 already".to_owned())
        );
        let long = "n".repeat(250);
        let mut nodes = vec![NodeFacts::plain(
            NodeName::new(&long).unwrap(),
            std::sync::Arc::default(),
        )];
        let adds = [format!("1x{long}").parse().unwrap()];
        let error = add(&adds, &mut nodes, |node| node.name.as_str(), renamed).unwrap_err();
        assert!(error.to_string().contains("at most 253"), "{error}");
    }
}
