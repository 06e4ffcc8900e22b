//! Decides which members of a group must start together, and which may come later.
//!
//! Minima of roles come first, then the gang's own minimum in the order of its roles. Members above
//! the minima are surplus: they start one by one, wherever there is room.

use std::collections::BTreeSet;

use crate::{Gang, GangRole, Group, MatchPolicy, QueueReason};

/// Members of a role that are to be placed.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    pub(crate) role: &'a GangRole,
    pub(crate) indices: Vec<u32>,
}

impl Wanted<'_> {
    pub(crate) fn count(&self) -> u64 {
        self.indices.len() as u64
    }
}

/// Must members of the group start together now? Not if every gang has its minimum.
///
/// # Errors
/// The gang that is not complete.
pub(crate) fn waits(group: &Group) -> Result<bool, QueueReason> {
    group
        .gangs
        .iter()
        .try_fold(false, |waits, gang| Ok(waits | due(group, gang)?.is_some()))
}

/// The members that must start together now: none if every gang has its minimum.
///
/// # Errors
/// The gang that is not complete.
pub(crate) fn together(group: &Group) -> Result<Vec<Wanted<'_>>, QueueReason> {
    let mut all = Vec::new();
    for gang in &group.gangs {
        let Some(due) = due(group, gang)? else {
            continue;
        };
        let counts = fill(gang, due.need, waiting, |role| due.of_role(role));
        for (role, count) in gang.roles.iter().zip(counts) {
            let most = usize::try_from(count).unwrap_or(usize::MAX);
            let indices: Vec<u32> = missing_of(role).take(most).collect();
            if !indices.is_empty() {
                all.push(Wanted { role, indices });
            }
        }
    }
    Ok(all)
}

/// Number of members of each role that the group must have at least, wherever they are now. If all
/// are of one role, members that are not there yet count too: they will be like the others.
pub(crate) fn minimum(group: &Group) -> impl Iterator<Item = (&GangRole, u64)> {
    group.gangs.iter().flat_map(|gang| {
        let awaited = if gang.roles.len() == 1 { gang.min } else { 0 };
        let there = move |role: &GangRole| role.replicas.max(awaited);
        let counts = fill(gang, gang.min, there, |role| role.min);
        gang.roles.iter().zip(counts)
    })
}

/// Number of members of each role that the group cannot do without: its minimum, or its part of the
/// minimum if it runs. The minimum may have been made larger since, and no running group is asked
/// to start anew for that.
pub(crate) fn firm(group: &Group) -> impl Iterator<Item = (&GangRole, u64)> {
    let runs = group.members().next().is_some() && matches!(waits(group), Ok(false));
    minimum(group).map(move |(role, count)| match runs {
        true => (role, count.min(u64::from(placed(role)))),
        false => (role, count),
    })
}

/// Members of a gang that must start together.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// So many of all roles.
    need: u32,
    /// Do those that have a place count to the minima of roles?
    have: bool,
}

impl Due {
    fn of_role(self, role: &GangRole) -> u32 {
        role.min
            .saturating_sub(if self.have { placed(role) } else { 0 })
    }
}

fn placed(role: &GangRole) -> u32 {
    count(role.members.len())
}

fn waiting(role: &GangRole) -> u32 {
    role.replicas.saturating_sub(placed(role))
}

fn due(group: &Group, gang: &Gang) -> Result<Option<Due>, QueueReason> {
    let all_placed = sum(gang.roles.iter().map(placed));
    let all_waiting = sum(gang.roles.iter().map(waiting));
    // Once a plan has the minimum, what is above it may start for itself. So what a group asks is the
    // same before it starts, while it runs, and after it was evicted.
    let has_minimum = all_placed >= gang.min && gang.roles.iter().all(|r| placed(r) >= r.min);
    let (have, counted) = match group.matching {
        MatchPolicy::OnceSatisfied if group.satisfied || has_minimum => return Ok(None),
        MatchPolicy::WaitingAndRunning => (true, all_placed),
        MatchPolicy::OnlyWaiting | MatchPolicy::OnceSatisfied => (false, 0),
    };
    // A gang of which nobody waits needs nothing: all of it has been started.
    if all_waiting == 0 && all_placed >= gang.min {
        return Ok(None);
    }
    let have_all = counted.saturating_add(all_waiting);
    if have_all < gang.min {
        return Err(QueueReason::Incomplete {
            gang: gang.name.clone(),
            have: have_all,
            need: gang.min,
        });
    }
    let due = Due {
        need: gang.min.saturating_sub(counted),
        have,
    };
    let lacks = |role: &&GangRole| waiting(role) < due.of_role(role);
    if let Some(role) = gang.roles.iter().find(lacks) {
        return Err(QueueReason::Incomplete {
            gang: format!("{} (role {})", gang.name, role.name).into(),
            have: role.min - (due.of_role(role) - waiting(role)),
            need: role.min,
        });
    }
    let asks = due.need > 0 || gang.roles.iter().any(|role| due.of_role(role) > 0);
    Ok(asks.then_some(due))
}

/// Number of members of each role that make up `need`, if there are so many of each and each has a
/// minimum.
fn fill<'a>(
    gang: &'a Gang,
    need: u32,
    there: impl Fn(&GangRole) -> u32 + Copy + 'a,
    min: impl Fn(&GangRole) -> u32 + Copy + 'a,
) -> impl Iterator<Item = u64> + 'a {
    let firm = move |role: &GangRole| min(role).min(there(role));
    let mut rest = need.saturating_sub(sum(gang.roles.iter().map(firm)));
    gang.roles.iter().map(move |role| {
        let more = rest.min(there(role) - firm(role));
        rest -= more;
        u64::from(firm(role) + more)
    })
}

/// Indices of the role that have no place, lowest first. The number of replicas may be one for
/// which there is no memory, so no caller collects them all.
pub(crate) fn missing_of(role: &GangRole) -> impl Iterator<Item = u32> + use<> {
    let placed: BTreeSet<u32> = role.members.iter().map(|member| member.index).collect();
    (0..role.replicas).filter(move |index| !placed.contains(index))
}

/// A sum of numbers that somebody wrote.
fn sum(numbers: impl Iterator<Item = u32>) -> u32 {
    numbers.fold(0, u32::saturating_add)
}

pub(crate) fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Number of these members.
pub(crate) fn total(wanted: &[Wanted<'_>]) -> u32 {
    sum(wanted.iter().map(|one| count(one.indices.len())))
}
