//! Worlds at random, which often begin in a state that the rules forbid.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sublet_model::{Class, Entry, PodUid, Standing, Time};
use sublet_plan::Candidacy;

use crate::test_cluster::{GPU, TestCluster};
use crate::{GROUP_SCORES, GangRole, Group, MinScaling, QueueDecision, QueueReason};

#[derive(Debug, Clone)]
struct Job {
    quota: usize,
    priority: i32,
    since: u64,
    min: u32,
    more: u32,
    cards: u32,
    low: bool,
    /// It runs from the start, whatever its quota says.
    runs: bool,
}

fn any_job() -> impl Strategy<Value = Job> {
    let head = (0..6usize, 0..3i32, 0..9u64, any::<bool>());
    let rest = (1..4u32, 0..2u32, 1..4u32, prop::bool::weighted(0.2));
    (head, rest).prop_map(
        |((quota, priority, since, runs), (min, more, cards, low))| Job {
            quota,
            priority,
            since,
            min,
            more,
            cards,
            low,
            runs,
        },
    )
}

pub(super) fn any_world() -> impl Strategy<Value = TestCluster> {
    let quota = (0..3usize, 0..6u64, 0..12u64);
    let quotas = prop::collection::vec(quota, 6);
    // The third branch may be a tree of its own, which has so many cards.
    let other = prop::option::of(0..12u64);
    let jobs = prop::collection::vec(any_job(), 1..14);
    let score = prop::sample::select(GROUP_SCORES);
    (1..5usize, quotas, jobs, other, score).prop_map(|(nodes, quotas, jobs, other, score)| {
        let tree = |top: usize| {
            if top == 2 && other.is_some() {
                "@x"
            } else {
                ""
            }
        };
        let top = |top: usize| format!("t{top}{} - 6 99", tree(top));
        let mut lines: Vec<String> = (0..3).map(top).collect();
        for (at, (parent, min, more)) in quotas.iter().enumerate() {
            // Two of them stand at the top.
            let (tree, parent) = match at {
                0 | 1 => ("", "-".to_owned()),
                _ => (tree(*parent), format!("t{parent}")),
            };
            lines.push(format!("q{at}{tree} {parent} {min} {}", min + more));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut cluster = TestCluster::new(nodes, 4, &lines);
        cluster.there_is("x", other.unwrap_or(0));
        cluster.rules.score = score;
        for (at, job) in jobs.iter().enumerate() {
            let Job {
                quota,
                priority,
                since,
                min,
                more,
                cards,
                low,
                runs,
            } = job;
            let (low, ask) = match low {
                true => ("low", "1000".to_owned()),
                false => ("", format!("{cards}x")),
            };
            let replicas = min + more;
            let line =
                format!("g{at:02} q{quota} p{priority} t{since} {low} | w {min} {replicas} {ask}");
            cluster.add(&[&line]);
            if *runs {
                cluster.force(&format!("g{at:02}"));
            }
        }
        cluster
    })
}

/// Use of guaranteed groups, by quota and all above it; and use of all groups.
pub(super) fn used(cluster: &TestCluster) -> BTreeMap<String, (u64, u64)> {
    let mut used: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for group in &cluster.groups {
        let amount: u64 = group.members().map(|(role, _)| role.pod.amounts[GPU]).sum();
        for quota in cluster.tree.path(&group.quota) {
            let account = used.entry(quota.name.to_string()).or_default();
            account.0 += if group.class == Class::Guaranteed {
                amount
            } else {
                0
            };
            account.1 += amount;
        }
    }
    used
}

/// Entitlement of each quota, by those groups that are counted.
pub(super) fn entitlements(
    cluster: &TestCluster,
    reasons: &BTreeMap<String, QueueReason>,
) -> BTreeMap<String, u64> {
    let asks = |group: &Group| -> u64 {
        let count = |role: &GangRole| match reasons.get(group.id.object()) {
            Some(QueueReason::Infeasible(_) | QueueReason::ExceedsEntitlement(_)) => 0,
            Some(QueueReason::Incomplete { .. }) => role.members.len() as u64,
            _ => u64::from(role.replicas),
        };
        let each = group
            .roles()
            .map(|role| count(role) * role.pod.amounts[GPU]);
        each.sum()
    };
    let asked = |name: &str| -> u64 {
        let of = cluster.groups.iter();
        let of = of.filter(|group| *group.quota == *name && group.class == Class::Guaranteed);
        of.map(asks).sum()
    };
    let all = cluster
        .tree
        .entitlements(GPU, &cluster.totals, asked, MinScaling::On);
    let all = all.into_iter();
    all.map(|(name, has)| (name.to_string(), has.amount))
        .collect()
}

pub(super) fn reasons(decisions: &[QueueDecision]) -> BTreeMap<String, QueueReason> {
    let reasons = decisions.iter().filter_map(|decision| match decision {
        QueueDecision::Explain { group, reason, .. } => {
            Some((group.object().to_owned(), reason.clone()))
        }
        _ => None,
    });
    reasons.collect()
}

/// The decisions that act, without those that only explain.
fn acts(decisions: &[QueueDecision]) -> Vec<&QueueDecision> {
    let says = |one: &&QueueDecision| matches!(one, QueueDecision::Explain { .. });
    decisions.iter().filter(|one| !says(one)).collect()
}

/// Is there a place for the least that the group needs, on the nodes as they are?
pub(super) fn fits(cluster: &mut TestCluster, name: &str) -> bool {
    let group = cluster.group(name).clone();
    let role = &group.gangs[0].roles[0];
    let nodes: Vec<_> = cluster.nodes.iter().map(|(node, _)| *node).collect();
    let pods = (0..role.min).map(|index| Candidacy {
        entry: Entry {
            pod: sublet_model::PodKey::new("t", "p").unwrap(),
            uid: PodUid::new(&format!("try-{index}")).unwrap(),
            node: cluster.engine.ledger().book(nodes[0]).name().clone(),
            claim: role.pod.claim.clone(),
            allocation: None,
            standing: Standing::Reserved,
            assigned: true,
            priority: 0,
        },
        nodes: &nodes,
    });
    let pods: Vec<_> = pods.collect();
    let mut trial = cluster.engine.trial(Time::from_ms(0));
    trial.place(&pods).is_ok()
}

/// May the group start, as far as quotas say?
pub(super) fn in_quota(
    cluster: &TestCluster,
    group: &Group,
    entitlements: &BTreeMap<String, u64>,
) -> bool {
    let role = &group.gangs[0].roles[0];
    let asks = u64::from(role.min) * role.pod.amounts[GPU];
    let used = used(cluster);
    cluster.tree.path(&group.quota).all(|quota| {
        let (guaranteed, all) = used.get(&*quota.name).copied().unwrap_or_default();
        let owes = group.class == Class::Guaranteed;
        all + asks <= quota.max[GPU] && (!owes || guaranteed + asks <= entitlements[&*quota.name])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the state in the beginning: after a few ticks nothing is decided any more, no
    /// member is reclaimed twice, and no group waits that could start.
    #[test]
    fn chaos_becomes_quiet_and_nobody_is_reclaimed_twice(mut cluster in any_world()) {
        let mut reclaimed: BTreeSet<PodUid> = BTreeSet::new();
        let mut quiet = false;
        for now in 10..60 {
            let decisions = cluster.plan(now);
            let mut starts = 0;
            for decision in &decisions {
                let (group, victims) = match decision {
                    QueueDecision::Admit { group, .. } => (group, &[][..]),
                    QueueDecision::Evict { group, victims, .. } => (group, &victims[..]),
                    _ => continue,
                };
                starts += 1;
                let quota = cluster.group(group.object()).quota.clone();
                for victim in victims {
                    let of = cluster.group(victim.group.object());
                    if of.quota != quota {
                        prop_assert!(reclaimed.insert(victim.uid.clone()), "{victim:?} again");
                    }
                }
            }
            cluster.apply(&decisions, now);
            prop_assert!(cluster.engine.ledger().is_conserved());
            if starts == 0 {
                quiet = true;
                break;
            }
        }
        prop_assert!(quiet, "it goes on and on");
        let decisions = cluster.plan(99);
        let reasons = reasons(&decisions);
        let entitlements = entitlements(&cluster, &reasons);
        for (name, reason) in &reasons {
            let group = cluster.group(name).clone();
            let waits = group.members().next().is_none();
            let can_never = matches!(reason, QueueReason::Infeasible(_) | QueueReason::ExceedsEntitlement(_));
            if waits && !can_never && in_quota(&cluster, &group, &entitlements) {
                prop_assert!(!fits(&mut cluster, name), "{name} could start: {reason}");
            }
        }
    }

    /// A group that starts is within its quotas then; no quota is ever beyond a max; a gang has its
    /// minimum or nothing.
    #[test]
    fn no_quota_is_passed_and_no_gang_is_started_in_part(mut cluster in any_world()) {
        for now in 10..20 {
            let before = used(&cluster);
            let decisions = cluster.plan(now);
            let entitlements = entitlements(&cluster, &reasons(&decisions));
            cluster.apply(&decisions, now);
            let after = used(&cluster);
            for (quota, _) in cluster.tree.quotas() {
                let account = |used: &BTreeMap<String, (u64, u64)>| used.get(&*quota.name).copied().unwrap_or_default();
                let (then, now) = (account(&before), account(&after));
                if now.0 > then.0 {
                    prop_assert!(now.0 <= entitlements[&*quota.name], "{} is beyond", quota.name);
                }
                if now.1 > then.1 {
                    prop_assert!(now.1 <= quota.max[GPU], "{} is beyond its max", quota.name);
                }
            }
            for group in &cluster.groups {
                let role = &group.gangs[0].roles[0];
                let has = role.members.len() as u32;
                prop_assert!(has == 0 || has >= role.min, "{} has {has}", group.id);
            }
        }
    }

    /// Had one of the victims stayed, the group would have no place or would be beyond its quotas.
    #[test]
    fn every_victim_is_needed(mut cluster in any_world()) {
        let decisions = cluster.plan(10);
        let entitlements = entitlements(&cluster, &reasons(&decisions));
        let Some((id, victims)) = decisions.iter().find_map(|decision| match decision {
            QueueDecision::Evict { group, victims, .. } => Some((group, victims)),
            _ => None,
        }) else {
            return Ok(());
        };
        // Alone in its tick, so that nobody else takes what comes free.
        prop_assume!(acts(&decisions).len() == 1);
        let groups: BTreeSet<&str> = victims.iter().map(|one| one.group.object()).collect();
        for spared in groups {
            let mut other = cluster.again();
            for victim in victims.iter().filter(|one| one.group.object() != spared) {
                other.evict(victim);
            }
            let group = other.group(id.object()).clone();
            let starts = in_quota(&other, &group, &entitlements) && fits(&mut other, id.object());
            prop_assert!(!starts, "{spared} was evicted for nothing");
        }
    }

    /// Only some of the groups that look alike are tried. Each fares as it would if no group looked
    /// like it.
    #[test]
    fn who_looks_alike_fares_as_if_it_did_not(mut cluster in any_world()) {
        for now in 10..14 {
            let decisions = cluster.plan(now);
            let mut other = cluster.again();
            other.memo.tells_apart = true;
            let others = other.plan(now);
            prop_assert_eq!(acts(&others), acts(&decisions));
            cluster.apply(&decisions, now);
        }
    }

    /// The memo saves time and changes nothing.
    #[test]
    fn a_memo_changes_no_decision(mut cluster in any_world()) {
        for now in 10..14 {
            let decisions = cluster.plan(now);
            let memo = std::mem::take(&mut cluster.memo);
            prop_assert_eq!(&cluster.plan(now), &decisions);
            cluster.memo = memo;
            cluster.apply(&decisions, now);
        }
    }
}
