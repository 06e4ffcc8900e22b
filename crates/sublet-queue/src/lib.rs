//! Decisions of the job queue: what each quota is entitled to now.
//!
//! Quotas form a tree. What one does not use others may borrow, and its owner gets it back by
//! asking. The rule is Koordinator's, so that its manifests mean here what they mean there.
//!
//! Suggested reading order: divide, tree, group, protocol.

mod divide;
mod group;
pub mod protocol;
mod tree;

pub use divide::{Wish, divide};
pub use group::{Gang, GangMode, GangRole, Group, GroupId, MatchPolicy, Member, MemberShape};
pub use tree::{Amounts, Entitlement, MinScaling, Quota, QuotaProblem, QuotaTree, TreeError};
