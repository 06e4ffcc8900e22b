//! How the engine is set up: the policy, what a filter call gives back, and who looks at what.

use sublet_model::Unit;

use crate::Policy;

/// How the engine is set up.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// How to choose among places that fit.
    pub policy: Policy,
    /// How many nodes a filter call gives back; 0 for all. The default is 16. The stock
    /// scheduler's cost grows with the nodes that it must score, and 16 leave it a choice.
    pub few: usize,
    /// How long a soft hold lasts, in milliseconds. The default is two seconds: longer than a bind
    /// takes, and short enough that no pod waits for it in vain.
    pub hold_ms: u64,
    /// What one `aliyun.com/gpu-mem` is.
    pub unit: Unit,
    /// Who applies the stock scheduler's rules.
    pub stock: StockRules,
    /// Which of two nodes that cost the same comes first.
    pub ties: Ties,
    /// Are costs kept until a node or a learnt table changes? Off for comparisons only.
    pub cache_costs: bool,
}

impl EngineOptions {
    /// The usual set-up for a policy.
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

/// Who applies the stock scheduler's own rules that count something (CPU, memory and all else
/// that a pod takes of the machine), and looks at the GPU models that a pod accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StockRules {
    /// The engine: nobody else looks.
    Here,
    /// The stock scheduler, which knows of pods that the engine has not seen yet.
    Elsewhere,
}

/// Which of two nodes that cost the same comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ties {
    /// The one whose name does.
    ByName,
    /// The first in a fixed scattered order of the names. Names often follow racks and kinds of
    /// machines, and a policy with coarse steps would fill one kind after the other.
    Scattered,
}
