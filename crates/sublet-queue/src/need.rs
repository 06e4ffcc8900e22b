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

/// The members that must start together now: none if every gang has its minimum.
///
/// # Errors
/// Which gang is not complete.
pub(crate) fn together(group: &Group) -> Result<Vec<Wanted<'_>>, QueueReason> {
    let gangs = group.gangs.iter().map(|gang| of_gang(group, gang));
    let all: Result<Vec<_>, _> = gangs.collect();
    let all = all?.into_iter().flatten();
    Ok(all.filter(|wanted| !wanted.indices.is_empty()).collect())
}

/// Every member that has no place, in the order in which they start if each is for itself.
pub(crate) fn missing(group: &Group) -> Vec<Wanted<'_>> {
    let all = group.roles().map(|role| Wanted {
        role,
        indices: missing_of(role),
    });
    all.filter(|wanted| !wanted.indices.is_empty()).collect()
}

/// So many members of each role the group must have at least, wherever they are now.
pub(crate) fn minimum(group: &Group) -> impl Iterator<Item = (&GangRole, u64)> {
    group.gangs.iter().flat_map(|gang| {
        let counts = fill(gang, gang.min, |role| role.replicas, |role| role.min);
        gang.roles.iter().zip(counts)
    })
}

fn of_gang<'a>(group: &Group, gang: &'a Gang) -> Result<Vec<Wanted<'a>>, QueueReason> {
    let placed = |role: &GangRole| count(role.members.len());
    let waiting = |role: &GangRole| role.replicas.saturating_sub(placed(role));
    let (have, counted) = match group.matching {
        MatchPolicy::OnceSatisfied if group.satisfied => return Ok(Vec::new()),
        MatchPolicy::WaitingAndRunning => (true, gang.roles.iter().map(placed).sum::<u32>()),
        MatchPolicy::OnlyWaiting | MatchPolicy::OnceSatisfied => (false, 0),
    };
    // A gang of which nobody waits needs nothing: all of it has been started.
    let all_waiting: u32 = gang.roles.iter().map(waiting).sum();
    let all_placed: u32 = gang.roles.iter().map(placed).sum();
    if all_waiting == 0 && all_placed >= gang.min {
        return Ok(Vec::new());
    }
    if counted + all_waiting < gang.min {
        return Err(QueueReason::Incomplete {
            gang: gang.name.clone(),
            have: counted + all_waiting,
            need: gang.min,
        });
    }
    let of_role = |role: &GangRole| role.min.saturating_sub(if have { placed(role) } else { 0 });
    for role in &gang.roles {
        if waiting(role) < of_role(role) {
            return Err(QueueReason::Incomplete {
                gang: format!("{} (role {})", gang.name, role.name).into(),
                have: role.min - (of_role(role) - waiting(role)),
                need: role.min,
            });
        }
    }
    let need = gang.min.saturating_sub(counted);
    let counts = fill(gang, need, waiting, of_role);
    let wanted = gang.roles.iter().zip(counts).map(|(role, count)| {
        let mut indices = missing_of(role);
        indices.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        Wanted { role, indices }
    });
    Ok(wanted.collect())
}

/// How many of each role make up `need`, if there are so many of each and each has a minimum.
fn fill(
    gang: &Gang,
    need: u32,
    there: impl Fn(&GangRole) -> u32,
    min: impl Fn(&GangRole) -> u32,
) -> Vec<u64> {
    let firm = |role: &GangRole| min(role).min(there(role));
    let mut rest = need.saturating_sub(gang.roles.iter().map(firm).sum());
    let of = gang.roles.iter().map(|role| {
        let more = rest.min(there(role) - firm(role));
        rest -= more;
        u64::from(firm(role) + more)
    });
    of.collect()
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
