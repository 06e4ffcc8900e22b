//! Decisions of the job queue: what each quota is entitled to, who starts next and where, and who
//! gives way.
//!
//! Quotas form a tree. What one does not use others may borrow, and its owner gets it back by
//! asking. The rule is Koordinator's, so that its manifests mean here what they mean there. A group
//! of gangs starts only where the engine has proven a place for every member that must start
//! together, and nobody is evicted without such a proof.
//!
//! Suggested reading order: divide, tree (what a quota may use); group, need (what waits);
//! decision, reason, rules (what comes out, what can be set); accounts, order, place,
//! least, reclaim, empty, memo (the parts of a tick); plan (the tick) with count, start and keep; protocol (how it is carried out).

mod accounts;
mod decision;
mod divide;
mod empty;
mod group;
mod least;
mod memo;
mod need;
mod order;
mod place;
mod plan;
pub mod protocol;
mod reason;
mod reclaim;
mod rules;
#[cfg(test)]
mod scene;
mod tree;

pub use decision::{QueueDecision, QueueHold, QueueVictim, Slot};
pub use divide::{Wish, divide};
pub use group::{
    Gang, GangMode, GangRole, Group, GroupId, MOST_MEMBERS, MatchPolicy, Member, MemberShape,
};
pub use memo::QueueMemo;
pub use plan::{QueueSnapshot, plan};
pub use reason::{Infeasible, QueueReason, QuotaLimit, Shortage, quantity};
pub use rules::{BackOff, ByPriority, GroupFilter, GroupScore, QueueRules};
pub use tree::{
    Amounts, Entitlement, MinScaling, Quota, QuotaProblem, QuotaTree, TreeError, TreeTotals,
};
