//! Which members of a group must start together, and which may come later.
//!
//! Minima of roles come first, then the gang's own minimum in the order of its roles. What is above
//! the minima is surplus: it starts one by one, wherever there is room.

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
/// Which gang is not complete.
pub(crate) fn waits(group: &Group) -> Result<bool, QueueReason> {
    group
        .gangs
        .iter()
        .try_fold(false, |waits, gang| Ok(waits | due(group, gang)?.is_some()))
}

/// The members that must start together now: none if every gang has its minimum.
///
/// # Errors
/// Which gang is not complete.
pub(crate) fn together(group: &Group) -> Result<Vec<Wanted<'_>>, QueueReason> {
    let mut all = Vec::new();
    for gang in &group.gangs {
        let Some(due) = due(group, gang)? else {
            continue;
        };
        let counts = fill(gang, due.need, waiting, |role| due.of_role(role));
        for (role, count) in gang.roles.iter().zip(counts) {
            let mut indices = missing_of(role);
            indices.truncate(usize::try_from(count).unwrap_or(usize::MAX));
            if !indices.is_empty() {
                all.push(Wanted { role, indices });
            }
        }
    }
    Ok(all)
}

/// Every member that has no place, in the order in which they start if each is for itself.
pub(crate) fn missing(group: &Group) -> Vec<Wanted<'_>> {
    let all = group.roles().map(|role| Wanted {
        role,
        indices: missing_of(role),
    });
    all.filter(|wanted| !wanted.indices.is_empty()).collect()
}

/// So many members of each role the group must have at least, wherever they are now. Where all are of
/// one role, those that are not there yet count too: they will be like the others.
pub(crate) fn minimum(group: &Group) -> impl Iterator<Item = (&GangRole, u64)> {
    group.gangs.iter().flat_map(|gang| {
        let awaited = if gang.roles.len() == 1 { gang.min } else { 0 };
        let there = move |role: &GangRole| role.replicas.max(awaited);
        let counts = fill(gang, gang.min, there, |role| role.min);
        gang.roles.iter().zip(counts)
    })
}

/// What a gang must start together.
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
    let all_placed: u32 = gang.roles.iter().map(placed).sum();
    let all_waiting: u32 = gang.roles.iter().map(waiting).sum();
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
    if counted + all_waiting < gang.min {
        return Err(QueueReason::Incomplete {
            gang: gang.name.clone(),
            have: counted + all_waiting,
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

/// How many of each role make up `need`, if there are so many of each and each has a minimum.
fn fill<'a>(
    gang: &'a Gang,
    need: u32,
    there: impl Fn(&GangRole) -> u32 + Copy + 'a,
    min: impl Fn(&GangRole) -> u32 + Copy + 'a,
) -> impl Iterator<Item = u64> + 'a {
    let firm = move |role: &GangRole| min(role).min(there(role));
    let mut rest = need.saturating_sub(gang.roles.iter().map(firm).sum());
    gang.roles.iter().map(move |role| {
        let more = rest.min(there(role) - firm(role));
        rest -= more;
        u64::from(firm(role) + more)
    })
}

fn missing_of(role: &GangRole) -> Vec<u32> {
    if role.members.is_empty() {
        return (0..role.replicas).collect();
    }
    let placed: BTreeSet<u32> = role.members.iter().map(|member| member.index).collect();
    let open = (0..role.replicas).filter(|index| !placed.contains(index));
    open.collect()
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// How many they are.
pub(crate) fn total(wanted: &[Wanted<'_>]) -> u32 {
    wanted.iter().map(|one| count(one.indices.len())).sum()
}
