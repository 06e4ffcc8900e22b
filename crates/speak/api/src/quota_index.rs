//! Elastic quota that a pod, a job or a PodGroup counts for.
//!
//! The order is Koordinator's (`getPodAssociateQuotaName`): the label, the quota that is called like
//! the namespace, a quota that lists the namespace, and else the default one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::elastic_quota::{ElasticQuota, ElasticQuotaError, QuotaFacts};
use crate::keys;
use crate::object::{Meta, Pod};

/// The quota of pods that belong to no other (Koordinator).
pub const DEFAULT_QUOTA: &str = "koordinator-default-quota";

/// Facts of several quotas, in their order. If two have the same name, the names of both get their
/// namespaces as prefixes.
pub fn elastic_quotas<'a>(
    quotas: impl Iterator<Item = &'a ElasticQuota> + Clone,
) -> Vec<Result<QuotaFacts, ElasticQuotaError>> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for quota in quotas.clone() {
        *names.entry(&quota.metadata.name).or_default() += 1;
    }
    let read = |quota: &ElasticQuota| {
        let meta = &quota.metadata;
        let mut facts = quota.facts()?;
        if names[meta.name.as_str()] > 1 {
            facts.quota.name = format!("{}/{}", meta.namespace, meta.name).into();
        }
        Ok(facts)
    };
    let mut facts: Vec<_> = quotas.map(read).collect();
    inherit_trees(&mut facts);
    facts
}

/// The value of that quota among those by name.
#[must_use]
pub fn of_quota<'a, T>(
    by_name: &'a BTreeMap<Arc<str>, T>,
    Meta {
        namespace, name, ..
    }: &Meta,
) -> Option<&'a T> {
    let found = by_name.get(name.as_str());
    found.or_else(|| by_name.get(&*format!("{namespace}/{name}")))
}

/// A quota that names no tree is in that of the quota above it. Koordinator's webhook writes it into
/// the quota.
fn inherit_trees(facts: &mut [Result<QuotaFacts, ElasticQuotaError>]) {
    let all = facts.iter().flatten();
    let all: BTreeMap<&str, &QuotaFacts> = all.map(|one| (&*one.quota.name, one)).collect();
    let trees = facts.iter().map(|one| {
        let one = one.as_ref().ok()?;
        Some(tree_of(one, |name| all.get(name).copied()))
    });
    let trees: Vec<Option<Arc<str>>> = trees.collect();
    for (one, tree) in facts.iter_mut().zip(trees) {
        if let (Ok(one), Some(tree)) = (one, tree) {
            one.quota.tree = tree;
        }
    }
}

/// The tree that a quota is in: its own word, or that of the next quota above that says one.
pub fn tree_of<'a>(
    quota: &'a QuotaFacts,
    by_name: impl Fn(&str) -> Option<&'a QuotaFacts>,
) -> Arc<str> {
    let mut seen = BTreeSet::new();
    let mut next = Some(quota);
    // Quotas in a circle can be written, and have no tree.
    while let Some(at) = next.filter(|at| seen.insert(&at.quota.name)) {
        if !at.quota.tree.is_empty() {
            return Arc::clone(&at.quota.tree);
        }
        next = at.quota.parent.as_deref().and_then(&by_name);
    }
    Arc::from("")
}

/// Quotas by name, and by the namespaces that they list.
#[derive(Debug, Clone, Default)]
pub struct QuotaIndex {
    names: BTreeSet<Arc<str>>,
    of_namespace: BTreeMap<String, Arc<str>>,
}

/// The quota that something counts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodQuota {
    /// Its name.
    pub quota: Arc<str>,
    /// The name that was asked for, if no quota has it.
    pub unknown: Option<String>,
}

impl QuotaIndex {
    /// Makes the index of these quotas. If two quotas list one namespace, the last counts.
    pub fn new<'a>(quotas: impl IntoIterator<Item = &'a QuotaFacts>) -> QuotaIndex {
        let mut index = QuotaIndex::default();
        for facts in quotas {
            let name = &facts.quota.name;
            index.names.insert(Arc::clone(name));
            for namespace in &facts.namespaces {
                let entry = (namespace.clone(), Arc::clone(name));
                index.of_namespace.extend([entry]);
            }
        }
        index
    }

    /// The quota of a pod.
    #[must_use]
    pub fn of_pod(&self, pod: &Pod) -> PodQuota {
        let named = pod.metadata.labels.get(keys::QUOTA_NAME);
        self.of(named, &pod.metadata.namespace)
    }

    /// The quota of something in that namespace, which names these quotas: the first that is there.
    pub fn of<'a>(&self, named: impl IntoIterator<Item = &'a String>, namespace: &str) -> PodQuota {
        let mut unknown = None;
        for name in named {
            match self.names.get(name.as_str()) {
                Some(quota) => {
                    let quota = Arc::clone(quota);
                    return PodQuota { quota, unknown };
                }
                None => unknown = unknown.or_else(|| Some(name.clone())),
            }
        }
        let own = self.names.get(namespace);
        let own = own.or_else(|| self.of_namespace.get(namespace));
        let quota = own.map_or_else(|| Arc::from(DEFAULT_QUOTA), Arc::clone);
        PodQuota { quota, unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> Vec<QuotaFacts> {
        let quotas: Vec<ElasticQuota> = serde_saphyr::from_str(yaml).unwrap();
        let facts = elastic_quotas(quotas.iter()).into_iter();
        facts.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn the_order_is_koordinators() {
        let index = QuotaIndex::new(&read(
            r#"
- {metadata: {name: a}}
- {metadata: {name: b}}
- metadata:
    name: c
    annotations: {quota.scheduling.koordinator.sh/namespaces: '["n", "b"]'}
- {apiVersion: scheduling.x-k8s.io/v1alpha1, metadata: {name: q, namespace: team}}
"#,
        ));
        for (label, namespace, quota, unknown) in [
            (Some("a"), "b", "a", None),
            (None, "b", "b", None),
            (None, "n", "c", None),
            (None, "team", "q", None),
            (None, "other", DEFAULT_QUOTA, None),
            (Some("x"), "n", "c", Some("x")),
        ] {
            let mut pod = Pod::default();
            pod.metadata.namespace = namespace.to_owned();
            let label = label.map(|label| (keys::QUOTA_NAME.to_owned(), label.to_owned()));
            pod.metadata.labels.extend(label);
            let found = index.of_pod(&pod);
            assert_eq!((&*found.quota, found.unknown.as_deref()), (quota, unknown));
        }
    }

    #[test]
    fn a_quota_without_a_tree_is_in_that_of_the_quota_above() {
        let of = |name: &str, parent: &str, tree: &str| {
            format!(
                "{{metadata: {{name: {name}, labels: {{\"{}\": \"{parent}\", \"{}\": \"{tree}\"}}}}}}",
                keys::QUOTA_PARENT,
                keys::QUOTA_TREE
            )
        };
        let quotas = [
            of("root", "koordinator-root-quota", "t1"),
            of("mid", "root", ""),
            of("leaf", "mid", ""),
            of("other", "mid", "t2"),
            of("own", "", ""),
            of("x", "y", ""),
            of("y", "x", ""),
        ];
        let facts = read(&format!("[{}]", quotas.join(", ")));
        let trees: Vec<&str> = facts.iter().map(|facts| &*facts.quota.tree).collect();
        assert_eq!(trees, ["t1", "t1", "t1", "t2", "", "", ""]);
    }

    #[test]
    fn two_quotas_of_one_name_are_told_apart() {
        let facts = read(
            "[{metadata: {name: q, namespace: a}}, {metadata: {name: q, namespace: b}}, \
             {metadata: {name: r, namespace: b}}]",
        );
        let names = facts.iter().map(|facts| &*facts.quota.name);
        assert_eq!(names.collect::<Vec<_>>(), ["a/q", "b/q", "r"]);
    }
}
