//! The engine's options: the policy, the answer to a filter call, and the owner of each rule.

use sublet_model::Unit;

use crate::policy::{Policy, Ties};

/// The engine's options.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The rule that chooses among places that fit.
    pub policy: Policy,
    /// Number of nodes that a filter call returns; 0 for all. The default is 16: the stock
    /// scheduler's cost grows with the nodes that it must score, and 16 nodes still leave it a
    /// choice.
    pub few: usize,
    /// Lifetime of a soft hold, in milliseconds. The default is two seconds: longer than a bind
    /// takes, and so short that an unused hold does no harm.
    pub hold_ms: u64,
    /// Memory that one unit of `aliyun.com/gpu-mem` stands for.
    pub unit: Unit,
    /// The program that applies the stock scheduler's rules.
    pub stock: StockRules,
    /// The order of nodes that cost the same.
    pub ties: Ties,
    /// Are costs kept until a node or a learnt table changes? Switched off only for comparisons.
    pub cache_costs: bool,
}

impl EngineOptions {
    /// The usual options for a policy.
    #[must_use]
    pub fn of(policy: Policy) -> EngineOptions {
        EngineOptions {
            ties: policy.ties(),
            policy,
            few: 16,
            hold_ms: 2_000,
            unit: Unit::MiB,
            stock: StockRules::Elsewhere,
            cache_costs: true,
        }
    }
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions::of(Policy::default())
    }
}

/// The program that applies those stock scheduler rules that count something (CPU, memory and all
/// else that a pod takes from the machine), and that checks the GPU models that a pod accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockRules {
    /// The engine, because nobody else does.
    Here,
    /// The stock scheduler, which knows of pods that the engine has not seen yet.
    Elsewhere,
}
