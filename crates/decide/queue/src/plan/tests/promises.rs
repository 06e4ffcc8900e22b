//! Promises of the fair and the strict profile, from states at random: they become quiet, a minimum
//! is there in time, and nobody waits who could start.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sublet_model::Class;

use super::properties::{any_world, entitlements, fits, in_quota, reasons, used};
use crate::test_cluster::{GPU, TestCluster, asked};
use crate::{Group, QueueDecision, QueueReason, QueueVictim};

const HOUR: u64 = 60 * 60 * 1000;

fn any_world_with_terms() -> impl Strategy<Value = TestCluster> {
    let profile = prop::sample::select(vec!["fair", "strict"]);
    (any_world(), profile).prop_map(|(mut cluster, profile)| {
        cluster.rules.profile = profile.parse().unwrap();
        cluster
    })
}

/// Cards of the group's least members that start together.
fn least(group: &Group) -> u64 {
    let role = &group.gangs[0].roles[0];
    u64::from(role.min) * role.pod.amounts[GPU]
}

/// No node of a test has more than four cards.
fn is_wide(group: &Group) -> bool {
    least(group) > 4
}

fn waits(group: &Group) -> bool {
    group.members().next().is_none()
}

/// Plans at ever longer intervals until nothing has happened for long, and tells each plan.
fn play(
    cluster: &mut TestCluster,
    mut tell: impl FnMut(&mut TestCluster, &[QueueDecision]) -> Result<(), TestCaseError>,
) -> Result<u64, TestCaseError> {
    let (mut now, mut quiet) = (10, 0);
    for _ in 0..150 {
        let decisions = cluster.plan(now);
        tell(cluster, &decisions)?;
        cluster.apply(&decisions, now);
        prop_assert!(cluster.engine.ledger().is_conserved());
        let acts = |one: &QueueDecision| {
            matches!(
                one,
                QueueDecision::Admit { .. } | QueueDecision::Evict { .. }
            )
        };
        quiet = if decisions.iter().any(acts) {
            0
        } else {
            quiet + 1
        };
        if quiet == 12 {
            return Ok(now);
        }
        now += (HOUR / 4).max(now / 4);
    }
    Err(TestCaseError::fail("it goes on and on"))
}

/// Could legal victims on one node leave a place for a group of one member?
fn has_victims(cluster: &TestCluster, name: &str, entitlements: &BTreeMap<String, u64>) -> bool {
    let number = |name: &str| cluster.tree.path(name).map(|quota| quota.name.to_string());
    let mut own = cluster.again();
    let group = own.group(name).clone();
    let above: Vec<String> = number(&group.quota).collect();
    cluster.nodes.iter().any(|(_, node)| {
        let mut other = cluster.again();
        for at in 0..other.groups.len() {
            let of = other.groups[at].clone();
            let is_there = of
                .members()
                .any(|(_, one)| one.node.as_str() == &*node.name);
            let used = used(&other);
            let mut branch = number(&of.quota).take_while(|quota| !above.contains(quota));
            let is_over = branch
                .all(|quota| used.get(&quota).map_or(0, |used| used.0) > entitlements[&quota]);
            let goes = of.class == Class::Opportunistic || of.quota != group.quota && is_over;
            if !is_there || !goes || of.past.reclaims > 0 {
                continue;
            }
            for (_, member) in of.members() {
                other.evict(&QueueVictim {
                    group: of.id.clone(),
                    uid: member.uid.clone(),
                });
            }
            if in_quota(&other, &group, entitlements) && fits(&mut other, name) {
                return true;
            }
        }
        false
    })
}

/// Worlds of each property; `cargo xtask soak plans` says how many plans all of them make together.
fn cases() -> u32 {
    // A world is quiet after some thirty plans, and there are three properties.
    let many = |steps: u64| u32::try_from(steps / 90).unwrap_or(u32::MAX);
    asked("SUBLET_STEPS").map_or(150, many)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// After a while nothing is decided any more. Until then no guaranteed group goes twice for
    /// another quota but a gang that no node could hold, and that one not for ever.
    #[test]
    fn chaos_becomes_quiet_and_only_a_wide_gang_goes_twice(mut cluster in any_world_with_terms()) {
        let mut gone: BTreeMap<String, u32> = BTreeMap::new();
        play(&mut cluster, |cluster, decisions| {
            for decision in decisions {
                let QueueDecision::Evict { group, victims, .. } = decision else {
                    continue;
                };
                let quota = cluster.group(group.object()).quota.clone();
                let mut groups: Vec<_> = victims.iter().map(|victim| &victim.group).collect();
                groups.dedup();
                for id in groups {
                    let of = cluster.group(id.object());
                    let members = victims.iter().filter(|victim| victim.group == *id).count();
                    let is_guaranteed = of.class == Class::Guaranteed;
                    if of.quota == quota || !is_guaranteed || members < of.members().count() {
                        continue;
                    }
                    let most = if is_wide(of) { 50 } else { 1 };
                    let times = gone.entry(id.object().to_owned()).or_default();
                    *times += 1;
                    prop_assert!(*times <= most, "{id} again");
                }
            }
            Ok(())
        })?;
    }

    /// A quota passes its entitlement only by groups that can be asked to leave and may borrow; its
    /// max, and what its tree has, by none. A gang has its minimum or nothing.
    #[test]
    fn nobody_passes_a_max_and_only_borrowers_an_entitlement(mut cluster in any_world_with_terms()) {
        let lends = cluster.rules.profile.name() == "fair";
        let before = std::cell::RefCell::new(used(&cluster));
        play(&mut cluster, |cluster, decisions| {
            let mut next = cluster.again();
            next.apply(decisions, 0);
            let reasons = reasons(&next.plan(0));
            let entitlements = entitlements(&next, &reasons);
            let (then, now) = (before.borrow().clone(), used(&next));
            for (quota, _) in next.tree.quotas() {
                let account = |used: &BTreeMap<String, (u64, u64)>| used.get(&*quota.name).copied().unwrap_or_default();
                let (then, now) = (account(&then), account(&now));
                let most = if lends { quota.max[GPU] } else { entitlements[&*quota.name] };
                prop_assert!(now.0 <= then.0.max(most), "{} is beyond", quota.name);
                prop_assert!(now.1 <= then.1.max(quota.max[GPU]), "{} is beyond its max", quota.name);
            }
            for group in &next.groups {
                let role = &group.gangs[0].roles[0];
                let has = role.members.len() as u32;
                prop_assert!(has == 0 || has >= role.min, "{} has {has}", group.id);
            }
            *before.borrow_mut() = now;
            Ok(())
        })?;
    }

    /// When it is quiet, nobody waits who could start within its quotas; and no single member within
    /// its quota's minimum waits that legal victims would leave a place for.
    #[test]
    fn who_is_within_a_minimum_has_its_place_in_time(mut cluster in any_world_with_terms()) {
        let now = play(&mut cluster, |_, _| Ok(()))?;
        let decisions = cluster.plan(now + 1);
        let reasons = reasons(&decisions);
        let entitlements = entitlements(&cluster, &reasons);
        for (name, reason) in &reasons {
            let group = cluster.group(name).clone();
            let can_never = matches!(reason, QueueReason::Infeasible(_) | QueueReason::ExceedsEntitlement(_));
            let held = matches!(reason, QueueReason::HeldFor { .. });
            if !waits(&group) || can_never || held {
                continue;
            }
            if in_quota(&cluster, &group, &entitlements) {
                let is_held = cluster.hold.as_ref().is_some_and(|hold| hold.group != group.id);
                prop_assert!(is_held || !fits(&mut cluster, name), "{name} could start: {reason}");
            }
            let quota = cluster.tree.path(&group.quota).next().unwrap();
            let has = used(&cluster).get(&*quota.name).map_or(0, |used| used.0);
            let in_min = has + least(&group) <= quota.min[GPU];
            if in_min && group.class == Class::Guaranteed && group.gangs[0].roles[0].min == 1 {
                prop_assert!(
                    !has_victims(&cluster, name, &entitlements),
                    "{name} has waited beyond its time: {reason}"
                );
            }
        }
    }
}
