//! Affinity, anti-affinity and exclusion tags: they decide which pods share a card.

use std::sync::Arc;

use sublet_model::{Book, CardTags, Entry, Grant, Ledger};

use crate::script::check;

/// Checks that the tags of a new entry on the card at `at` allow the entries that were there.
pub(super) fn check_tags(entry: &Entry, at: usize, book: &Book, before: &Ledger) {
    let inventory = &book.facts().unwrap().inventory;
    let is_here = |grant: &Grant| inventory.position(&grant.card) == Some(at);
    let new = entry.claim.tags();
    let others = before.entries().filter(|other| {
        let mut granted = other.allocation.iter().flat_map(|one| &one.grants);
        other.node == entry.node && other.uid != entry.uid && granted.any(is_here)
    });
    let there: Vec<_> = others.map(|other| other.claim.tags()).collect();
    for one in &there {
        assert_eq!(new.exclusion, one.exclusion);
        let apart = new.anti_affinity.is_none() || new.anti_affinity != one.anti_affinity;
        assert!(apart, "{new:?} {one:?}");
    }
    let finds = |of: fn(&CardTags) -> &Option<Arc<str>>| {
        of(new).is_none() || there.is_empty() || there.iter().any(|one| of(one) == of(new))
    };
    assert!(finds(|tags| &tags.affinity), "{new:?} {there:?}");
    assert!(finds(|tags| &tags.virtual_gpu), "{new:?} {there:?}");
    let mut on_node = before.entries().filter(|other| other.node == entry.node);
    let elsewhere = on_node.any(|other| {
        let mut granted = other.allocation.iter().flat_map(|one| &one.grants);
        // A card that is gone is no card of the node, and nobody can join who had it.
        let is_elsewhere = |grant: &Grant| {
            let position = inventory.position(&grant.card);
            position.is_some_and(|position| position != at)
        };
        new.virtual_gpu.is_some()
            && other.claim.tags().virtual_gpu == new.virtual_gpu
            && granted.any(is_elsewhere)
    });
    assert!(!elsewhere, "{new:?} is another card of the node");
}

#[test]
fn s2_friends_share_a_card_and_the_first_has_one_for_itself() {
    check(
        "a: 8/16 0/16
         b: 2/16 0/16
         reserve p a 4:on=aff=x
         -> a/1
         ask q 4:on=aff=x
         -> a/1
         ask r 4:on=aff=y
         -> b/1
         ask s 4
         -> a/0
         reserve t a 12
         -> a/1
         ask u 4:on=aff=x
         -> b/1",
    );
}

#[test]
fn s3_likes_stay_apart_by_anti_affinity_only() {
    check(
        "a: 0/16 0/16
         reserve p a 4:on=anti=x
         -> a/0
         ask q 4:on=anti=x
         -> a/1
         ask r 4:on=anti=y
         -> a/0
         ask s 4*2:on=anti=x
         -> a: GPU 0 has enough room, but a pod on it has the same anti-affinity `x` as the pod",
    );
}

#[test]
fn s4_an_exclusion_keeps_all_others_away() {
    check(
        "a: 0/16
         reserve p a 4:on=only=x
         -> a/0
         ask q 4:on=only=x
         -> a/0
         ask r 4
         -> a: GPU 0 has enough room, but a pod on it has the exclusion `x`, and the pod has none
         ask s 4:on=only=y
         -> a: GPU 0 has enough room, but a pod on it lacks the exclusion `y` that the pod has",
    );
}

#[test]
fn s6_a_name_means_one_card_of_a_node() {
    check(
        "a: 8/16 0/16
         b: 0/16 0/16
         reserve p a 4:on=as=x
         -> a/1
         ask q 4:on=as=x
         -> a/1
         ask r 4:on=as=y
         -> b/0
         ask s 14:on=as=x
         -> b/1
         reserve t a 10
         -> a/1
         reserve u a 4:on=as=x
         -> no: GPU 0 has enough room, but it is not the virtual GPU `x` that the pod wants",
    );
}

#[test]
fn h6_a_card_has_no_more_pods_than_it_is_offered_times() {
    check(
        "a splits=2: 1/16 1/16
         reserve p a 4:cards
         -> a/0
         ask q 4:cards
         -> a/1
         reserve r a 4
         -> a/0
         reserve s a 4:cards
         -> a/1
         ask t 1:cards
         -> a: GPUs have enough room, and 2 pods each already, as many as `--gpu-splits` of the node's agent allows beside a pod of this form
         ask u 16:cards
         -> a: GPU 1 lacks 5 MiB: 16 MiB asked, and the largest hole on this node is 11 MiB
         ask v 1
         -> a/0",
    );
}
