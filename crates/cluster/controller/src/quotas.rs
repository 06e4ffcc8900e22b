//! May this ElasticQuota be as it is, beside the others? Pure; the words name the field.
//!
//! The API server refuses, by the definition's rules, the faults that one object has by itself. The
//! rules here need the others: a parent that is there, minima that fit into the parent's, one tree.
//! They are Koordinator's. Quotas of scheduler-plugins have no tree and always pass.

use std::collections::{BTreeMap, BTreeSet};

use sublet_api::{ElasticQuota, ElasticQuotaError, QuotaFacts, QuotaScope, keys, tree_of};
use sublet_queue::quantity;

/// The top of every tree.
const ROOT: &str = "koordinator-root-quota";

/// All of Koordinator's quotas, by namespace and name.
pub(crate) type KnownQuotas = BTreeMap<(String, String), ElasticQuota>;

/// A change of a quota.
#[derive(Debug, Clone, Copy)]
pub(crate) enum QuotaChange<'a> {
    /// It comes, or is to be so.
    Set(&'a ElasticQuota),
    /// It goes.
    Gone(&'a ElasticQuota),
}

/// Judges a change; `known` may still have the quota as it was.
///
/// # Errors
/// The fault, with the field and the cure.
pub(crate) fn judge_quota(change: QuotaChange, known: &KnownQuotas) -> Result<(), String> {
    let (QuotaChange::Set(quota) | QuotaChange::Gone(quota)) = change;
    if quota.is_of_plugins() {
        return Ok(());
    }
    let name = &quota.metadata.name;
    let others = known
        .values()
        .filter(|other| &other.metadata.name != name)
        .filter_map(|other| other.facts().ok());
    let others: BTreeMap<String, QuotaFacts> = others
        .map(|facts| (facts.quota.name.to_string(), facts))
        .collect();
    let children: Vec<&QuotaFacts> = others
        .values()
        .filter(|other| other.quota.parent.as_deref() == Some(name))
        .collect();
    let of_children = || {
        let names: Vec<&str> = children.iter().map(|child| &*child.quota.name).collect();
        names.join(", ")
    };
    if let QuotaChange::Gone(_) = change {
        if !children.is_empty() {
            return Err(format!(
                "quota {name} has children: {}; delete them, or give them another parent, first",
                of_children()
            ));
        }
        return has_nobody(quota);
    }
    let unread = |error: &ElasticQuotaError| format!("{}: {error}", error.field());
    let facts = quota.facts().map_err(|error| unread(&error))?;
    if let Some(error) = &facts.odd {
        return Err(unread(error));
    }
    let elsewhere = known.values().find(|other| {
        other.metadata.name == *name && other.metadata.namespace != quota.metadata.namespace
    });
    if let Some(other) = elsewhere {
        let namespace = &other.metadata.namespace;
        return Err(format!(
            "metadata.name: there is a quota {name} in namespace {namespace} already; pods name a \
             quota without its namespace"
        ));
    }
    if facts.scope == QuotaScope::Outside {
        return Ok(());
    }
    if !children.is_empty() && !is_parent(quota) {
        return Err(format!(
            "{}: it must stay `true` while the quota has children: {}",
            label(keys::QUOTA_IS_PARENT),
            of_children()
        ));
    }
    fits_below(&facts, quota, &others, known)?;
    if !is_forced(quota) && !facts.is_root {
        minima_fit(&facts, &children)?;
    }
    let tree = tree_of(&facts, |name| others.get(name));
    same_tree(&facts.quota.name, &tree, &children)
}

/// Do no pods count for it, as far as the controller has written that on it?
fn has_nobody(quota: &ElasticQuota) -> Result<(), String> {
    // What cannot be read was not written by the controller.
    let Ok(QuotaFacts {
        quota: own,
        used,
        mut request,
        ..
    }) = quota.facts()
    else {
        return Ok(());
    };
    if !own.lends {
        // It asks for all of its minimum, whoever is there.
        request.retain(|resource, asked| own.min.get(resource).is_none_or(|min| *asked > *min));
    }
    let amounts = [("status.used", used), ("request", request)];
    let amounts = amounts
        .iter()
        .flat_map(|(field, amounts)| amounts.iter().map(move |amount| (field, amount)));
    let mut there = amounts.filter(|(_, (_, amount))| **amount > 0);
    match there.next() {
        None => Ok(()),
        Some((field, (resource, amount))) => Err(format!(
            "quota {} has pods: {field} has {} of {resource}; delete them, or give them another \
             quota, first",
            quota.metadata.name,
            quantity(resource, *amount),
        )),
    }
}

/// Its place in the tree: the parent is there, is a parent, has the same tree and the same limits
/// by name, and promises enough.
fn fits_below(
    facts: &QuotaFacts,
    quota: &ElasticQuota,
    others: &BTreeMap<String, QuotaFacts>,
    known: &KnownQuotas,
) -> Result<(), String> {
    let Some(parent) = facts.quota.parent.as_deref() else {
        return Ok(());
    };
    let field = label(keys::QUOTA_PARENT);
    let name = &*facts.quota.name;
    if parent == name {
        return Err(format!("{field}: a quota cannot be its own parent"));
    }
    let Some(above) = others.get(parent) else {
        return Err(format!(
            "{field}: there is no quota {parent}; make it first, or write {ROOT}"
        ));
    };
    let object = known.values().find(|one| one.metadata.name == parent);
    if !object.is_some_and(is_parent) {
        return Err(format!(
            "{field}: quota {parent} is no parent; its label {} must be `true`",
            keys::QUOTA_IS_PARENT
        ));
    }
    let mut seen = BTreeSet::from([name]);
    let mut next = Some(parent);
    while let Some(at) = next {
        if !seen.insert(at) {
            return Err(format!(
                "{field}: {name} would be above itself, through {parent}"
            ));
        }
        next = others.get(at).and_then(|one| one.quota.parent.as_deref());
    }
    let tree = tree_of(above, |name| others.get(name));
    if !facts.quota.tree.is_empty() && facts.quota.tree != tree {
        return Err(format!(
            "{}: it is `{}`, and that of the parent {parent} is `{tree}`",
            label(keys::QUOTA_TREE),
            facts.quota.tree,
        ));
    }
    let names = |facts: &QuotaFacts| facts.quota.max.keys().cloned().collect::<BTreeSet<_>>();
    let (own, parents) = (names(facts), names(above));
    if own != parents {
        let differ: Vec<&str> = own
            .symmetric_difference(&parents)
            .map(|key| &**key)
            .collect();
        return Err(format!(
            "spec.max: it must name what the max of the parent {parent} names; they differ in {}",
            differ.join(", ")
        ));
    }
    if is_forced(quota) || above.is_root {
        return Ok(());
    }
    let siblings = others.values().filter(|other| {
        other.quota.parent.as_deref() == Some(parent) && *other.quota.name != *name
    });
    let together: Vec<&QuotaFacts> = siblings.chain([facts]).collect();
    minima_fit(above, &together)
}

/// Do the minima of children fit into their parent's?
fn minima_fit(parent: &QuotaFacts, children: &[&QuotaFacts]) -> Result<(), String> {
    let named = children.iter().flat_map(|child| child.quota.min.keys());
    for resource in named.collect::<BTreeSet<_>>() {
        let of = |facts: &QuotaFacts| facts.quota.min.get(resource).copied().unwrap_or(0);
        let promised = of(parent);
        let together = children.iter().map(|child| of(child));
        let together = together.fold(0, u64::saturating_add);
        if together > promised {
            return Err(format!(
                "spec.min[{resource}]: the children of quota {} would be promised {together} \
                 together, and it has {promised} itself",
                parent.quota.name
            ));
        }
    }
    Ok(())
}

/// Children that name no tree are in that of the quota.
fn same_tree(name: &str, tree: &str, children: &[&QuotaFacts]) -> Result<(), String> {
    let mut named = children.iter().filter(|child| !child.quota.tree.is_empty());
    match named.find(|child| &*child.quota.tree != tree) {
        None => Ok(()),
        Some(child) => Err(format!(
            "{}: that of {name} is `{tree}`, and that of its child {} is `{}`",
            label(keys::QUOTA_TREE),
            child.quota.name,
            child.quota.tree
        )),
    }
}

fn label(key: &str) -> String {
    format!("metadata.labels[{key}]")
}

fn is(quota: &ElasticQuota, key: &str) -> bool {
    quota
        .metadata
        .labels
        .get(key)
        .is_some_and(|is| is == "true")
}

fn is_parent(quota: &ElasticQuota) -> bool {
    is(quota, keys::QUOTA_IS_PARENT)
}

fn is_forced(quota: &ElasticQuota) -> bool {
    is(quota, keys::QUOTA_FORCE)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Quotas as `name parent flags min max`; flags: `p` is a parent, `f` forced, `t` tree `t1`.
    fn quota(text: &str) -> ElasticQuota {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name, parent, flags, min, max] = words[..] else {
            panic!("{text}")
        };
        let mut labels = json!({keys::QUOTA_PARENT: parent});
        if flags.contains('p') {
            labels[keys::QUOTA_IS_PARENT] = "true".into();
        }
        if flags.contains('f') {
            labels[keys::QUOTA_FORCE] = "true".into();
        }
        if flags.contains('t') {
            labels[keys::QUOTA_TREE] = "t1".into();
        }
        let amounts = |text: &str| {
            let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            Value::from_iter(pairs.map(|(key, value)| (key.to_owned(), Value::from(value))))
        };
        serde_json::from_value(json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": name, "namespace": "ns", "labels": labels},
            "spec": {"min": amounts(min), "max": amounts(max)},
        }))
        .unwrap()
    }

    fn known(quotas: &[&str]) -> KnownQuotas {
        let quotas = quotas.iter().map(|text| quota(text));
        quotas
            .map(|quota| (("ns".to_owned(), quota.metadata.name.clone()), quota))
            .collect()
    }

    const TREE: [&str; 4] = [
        "top koordinator-root-quota p cpu=10 cpu=20",
        "mid top p cpu=8 cpu=20",
        "a mid - cpu=3 cpu=20",
        "b mid - cpu=4 cpu=20",
    ];

    #[test]
    fn a_quota_that_does_not_fit_the_tree_is_refused_by_the_name_of_the_field() {
        let tree = known(&TREE);
        for fine in [
            TREE[0],
            TREE[1],
            TREE[2],
            "c mid - cpu=1 cpu=20",
            "c top - cpu=2 cpu=90",
            "c koordinator-root-quota - cpu=90 gpu=1",
            "c mid f cpu=9 cpu=20",
            // Who names no tree is in that of the quota above.
            "top koordinator-root-quota pt cpu=10 cpu=20",
        ] {
            assert_eq!(
                judge_quota(QuotaChange::Set(&quota(fine)), &tree),
                Ok(()),
                "{fine}"
            );
        }
        for (wrong, told) in [
            (
                "c none - cpu=1 cpu=2",
                "parent]: there is no quota none; make it first",
            ),
            ("c a - cpu=1 cpu=20", "parent]: quota a is no parent"),
            (
                "c c p cpu=1 cpu=20",
                "parent]: a quota cannot be its own parent",
            ),
            (
                "mid mid p cpu=8 cpu=20",
                "parent]: a quota cannot be its own parent",
            ),
            (
                "mid top - cpu=8 cpu=20",
                "is-parent]: it must stay `true` while the quota has children: a, b",
            ),
            (
                "mid top p cpu=6 cpu=20",
                "spec.min[cpu]: the children of quota mid would be promised 7000 together, and it has 6000 itself",
            ),
            (
                "c mid - cpu=2 cpu=20",
                "spec.min[cpu]: the children of quota mid would be promised 9000 together, and it has 8000",
            ),
            (
                "c top - cpu=3 cpu=20",
                "spec.min[cpu]: the children of quota top would be promised 11000 together, and it has 10000",
            ),
            (
                "c mid - cpu=1 gpu=20",
                "spec.max: it must name what the max of the parent mid names; they differ in cpu, gpu",
            ),
            (
                "c mid t cpu=1 cpu=20",
                "tree-id]: it is `t1`, and that of the parent mid is ``",
            ),
        ] {
            let said = judge_quota(QuotaChange::Set(&quota(wrong)), &tree).unwrap_err();
            assert!(said.contains(told), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_time_of_a_minimum_that_is_none_is_refused() {
        let mut odd = quota(TREE[0]);
        let within = (keys::QUOTA_MIN_WITHIN.to_owned(), "soon".to_owned());
        odd.metadata.annotations.extend([within]);
        let said = judge_quota(QuotaChange::Set(&odd), &known(&TREE)).unwrap_err();
        assert!(
            said.starts_with("metadata.annotations[sublet.dev/min-within]: \"soon\": it is no"),
            "{said}"
        );
    }

    #[test]
    fn a_circle_is_refused() {
        let tree = known(&[
            "x y p cpu=1 cpu=2",
            "y koordinator-root-quota p cpu=1 cpu=2",
        ]);
        let said = judge_quota(QuotaChange::Set(&quota("y x p cpu=1 cpu=2")), &tree).unwrap_err();
        assert!(
            said.contains("parent]: y would be above itself, through x"),
            "{said}"
        );
    }

    #[test]
    fn a_quota_goes_after_its_children() {
        let tree = known(&TREE);
        let gone = |text| judge_quota(QuotaChange::Gone(&quota(text)), &tree);
        assert_eq!(gone(TREE[3]), Ok(()));
        let said = gone(TREE[1]).unwrap_err();
        assert!(said.starts_with("quota mid has children: a, b;"), "{said}");
    }

    #[test]
    fn a_quota_goes_after_its_pods() {
        let tree = known(&TREE);
        for (used, request, told) in [
            ("0", "0", ""),
            (
                "2",
                "{}",
                "quota b has pods: status.used has 2 of cpu; delete",
            ),
            (
                "0",
                "1500m",
                "quota b has pods: request has 1500m of cpu; delete",
            ),
            // Not by the controller.
            ("lots", "1", ""),
        ] {
            let mut gone = quota(TREE[3]);
            let amount = serde_json::from_value(json!(used)).unwrap();
            gone.status.used.insert("cpu".to_owned(), amount);
            let request = match request {
                "{}" => request.to_owned(),
                request => json!({ "cpu": request }).to_string(),
            };
            let annotations = &mut gone.metadata.annotations;
            annotations.insert(keys::QUOTA_REQUEST.to_owned(), request);
            let said = judge_quota(QuotaChange::Gone(&gone), &tree);
            let said = said.err().unwrap_or_default();
            assert!(
                said.starts_with(told) && said.is_empty() == told.is_empty(),
                "{said}"
            );
        }
    }

    /// A quota that lends nothing asks for its minimum while nobody is there. Found by
    /// `what_plan_queue_says_the_real_controller_does`.
    #[test]
    fn a_quota_that_lends_nothing_goes_too() {
        let tree = known(&TREE);
        let min = quota(TREE[3]).facts().unwrap().quota.min["cpu"];
        for (asked, goes) in [(min, true), (min + 1, false)] {
            let mut gone = quota(TREE[3]);
            let meta = &mut gone.metadata;
            let lends = (keys::QUOTA_LENDS.to_owned(), "false".to_owned());
            meta.labels.extend([lends]);
            let request = json!({ "cpu": format!("{asked}m") }).to_string();
            meta.annotations
                .insert(keys::QUOTA_REQUEST.to_owned(), request);
            let said = judge_quota(QuotaChange::Gone(&gone), &tree);
            assert_eq!(said.is_ok(), goes, "{asked}: {said:?}");
        }
    }

    #[test]
    fn a_tree_goes_on_below_its_root() {
        let tree = known(&[
            "top koordinator-root-quota pt cpu=10 cpu=20",
            "mid top p cpu=8 cpu=20",
            "own koordinator-root-quota p cpu=8 cpu=20",
        ]);
        for (child, told) in [
            ("c mid - cpu=1 cpu=20", ""),
            ("c mid t cpu=1 cpu=20", ""),
            (
                "c own t cpu=1 cpu=20",
                "tree-id]: it is `t1`, and that of the parent own is ``",
            ),
        ] {
            let said = judge_quota(QuotaChange::Set(&quota(child)), &tree);
            let said = said.err().unwrap_or_default();
            assert!(
                said.contains(told) && said.is_empty() == told.is_empty(),
                "{said}"
            );
        }
    }

    #[test]
    fn a_name_is_there_once_and_what_cannot_be_read_is_named() {
        let tree = known(&TREE);
        let mut other = quota(TREE[2]);
        other.metadata.namespace = "elsewhere".to_owned();
        let said = judge_quota(QuotaChange::Set(&other), &tree).unwrap_err();
        assert!(
            said.starts_with("metadata.name: there is a quota a in namespace ns"),
            "{said}"
        );
        let mut wrong = quota(TREE[2]);
        let annotations = &mut wrong.metadata.annotations;
        annotations.insert(keys::QUOTA_WEIGHT.to_owned(), "x".to_owned());
        let said = judge_quota(QuotaChange::Set(&wrong), &tree).unwrap_err();
        assert!(said.contains(keys::QUOTA_WEIGHT), "{said}");
        // One of scheduler-plugins has no tree.
        let mut flat = quota("a none - cpu=1 cpu=2");
        flat.api_version = "scheduling.x-k8s.io/v1alpha1".to_owned();
        assert_eq!(judge_quota(QuotaChange::Set(&flat), &tree), Ok(()));
    }
}
