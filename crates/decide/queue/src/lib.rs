//! Decisions of the job queue: the entitlement of each quota, the group that starts next and its
//! places, and the groups that give way.
//!
//! Quotas form a tree. Others may borrow the part that a quota does not use, and its owner gets it
//! back by asking. The rule is Koordinator's, so that its manifests mean here what they mean there.
//! A group of gangs starts only if the engine has proven a place for every member that must start
//! together, and no member is evicted without such a proof.
//!
//! Suggested reading order: divide, tree (amounts that a quota may use); group, need, history (groups
//! that wait); decision, slot, reason, rules, profile (results and settings); accounts, line, order, place,
//! least, loss, reclaim, empty, memo (the parts of a tick); plan (the tick) with asks, count, start,
//! by_node, lend and keep; protocol (the way a decision is carried out).
//!
//! # Modules
//! - `divide`: one amount among siblings with minima, limits and weights. `tree`: quotas in
//!   trees, and what each is entitled to.
//! - `group`: a waiting group. `need`: its members that start together, and those that may come
//!   later. `history`: how long others ran that a group is like.
//! - `plan`: one tick: a snapshot in, decisions out (`decision`, `slot`, `reason`). `plan/asks` works
//!   out what each group asks, `plan/count` counts what is used and asked, `plan/start` starts groups that can, `plan/keep` keeps room for
//!   a group that has waited long, `plan/by_node` chooses victims node by node, `plan/lend` lends
//!   beyond entitlements. `rules`: settings of a site (`site_rule`: rules with names).
//! - `profile`: the points at which profiles differ, and each profile in a file of its own.
//! - `accounts`: the use and the entitlement of quotas. `line`: the order of a quota's groups, and
//!   who fares like whom. `order`: the quota whose turn it is. `place`: a place for all members, or
//!   for none. `reclaim`: the possible victims, and the rule for each;
//!   `loss`: the work that an eviction costs; `least`: the victims that cannot be spared. `empty`:
//!   groups that could not start on empty nodes either. `memo`: results that the next tick can use again.
//!
//! `protocol` says which writes are due between a plan and members that run;
//! `protocol/simulation` plays it against an API server that loses and repeats them, with two
//! leaders (`cargo xtask soak plans`).

mod accounts;
mod decision;
mod divide;
mod empty;
mod group;
mod history;
mod least;
mod line;
mod loss;
mod memo;
mod need;
mod order;
mod place;
mod plan;
mod profile;
pub mod protocol;
mod reason;
mod reclaim;
mod rules;
mod site_rule;
mod slot;
#[cfg(test)]
mod test_cluster;
mod tree;

pub use decision::{QueueDecision, QueueHold, QueueVictim};
pub use divide::{Wish, divide};
pub use group::{
    Gang, GangMode, GangRole, Group, GroupId, GroupPast, MOST_MEMBERS, MatchPolicy, Member,
    MemberShape, Saves,
};
pub use history::RunHistory;
pub use memo::QueueMemo;
pub use plan::{QueueSnapshot, plan};
pub use profile::{ProfileTerms, QUEUE_PROFILES, QueueProfile};
pub use reason::{Infeasible, QueueReason, QuotaLimit, Shortage, quantity};
pub use rules::{GROUP_FILTERS, GROUP_SCORES, GroupFilter, GroupScore, QueueRules};
pub use site_rule::{SiteRule, SiteRuleError};
pub use slot::{Slot, SlotKey, SlotMark};
pub use tree::{
    Amounts, Entitlement, MinScaling, Quota, QuotaProblem, QuotaTree, TreeError, TreeTotals,
};
