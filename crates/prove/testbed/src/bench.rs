//! The benchmarks that store a page in `docs/benchmarks`, each with the crates that it measures.
//!
//! `sublet-bench` prints them on the page, and `cargo xtask bench --stale` counts their changes since.
//! Neither of the two programs can link the other, so the list stands here. It measures nothing.

/// A stored page of figures.
#[derive(Debug, PartialEq, Eq)]
pub struct Bench {
    /// The page's name in `docs/benchmarks`, without its ending.
    pub page: &'static str,
    /// Words after `cargo xtask bench` that make it, without `--write`.
    pub command: &'static str,
    /// The crates that are measured: those of the product that the benchmark links, and those that
    /// stand for a card. Code that only measures is not among them. `sublet-cli` stands for itself
    /// alone, because it links every command.
    pub crates: &'static [&'static str],
}

impl Bench {
    /// The page's file, from the repository's root.
    #[must_use]
    pub fn file(&self) -> String {
        format!("docs/benchmarks/{}.md", self.page)
    }
}

/// All pages.
pub const BENCHES: [&Bench; 11] = [
    &AGENT,
    &GPU,
    &GPU_SHARING,
    &ISOLATION,
    &PLAN,
    &QUEUE,
    &REPLAY,
    &SCHEDULER,
    &SHARES,
    &SIMULATE,
    &SIMULATE_CLUSTER,
];

/// A real node, and the extenders that its pods go through.
pub const AGENT: Bench = Bench {
    page: "agent",
    command: "agent",
    crates: &[
        "sublet-abi",
        "sublet-agent",
        "sublet-api",
        "sublet-arbiter",
        "sublet-client",
        "sublet-driver-api",
        "sublet-fakegpu",
        "sublet-fakeview",
        "sublet-kubelet",
        "sublet-library",
        "sublet-listener",
        "sublet-model",
        "sublet-nri",
        "sublet-plan",
        "sublet-queue",
        "sublet-replicas",
        "sublet-scheduler",
        "sublet-share",
        "sublet-tasks",
        "sublet-telemetry",
    ],
};

/// Programs as jobs of `sublet run` on a real card.
const ON_A_CARD: &[&str] = &[
    "sublet-abi",
    "sublet-arbiter",
    "sublet-cli",
    "sublet-driver-api",
    "sublet-hook",
    "sublet-libcuda",
    "sublet-libnvml",
    "sublet-model",
    "sublet-plan",
    "sublet-preload",
    "sublet-share",
    "sublet-workload",
];

/// The same on a fake card.
const ON_A_FAKE_CARD: &[&str] = &[
    "sublet-abi",
    "sublet-api",
    "sublet-arbiter",
    "sublet-cli",
    "sublet-driver-api",
    "sublet-fakecuda",
    "sublet-fakegpu",
    "sublet-fakenvml",
    "sublet-hook",
    "sublet-libcuda",
    "sublet-libnvml",
    "sublet-model",
    "sublet-plan",
    "sublet-preload",
    "sublet-queue",
    "sublet-share",
    "sublet-workload",
];

/// Isolation on a real card.
pub const GPU: Bench = Bench {
    page: "gpu",
    command: "gpu --only isolation",
    crates: ON_A_CARD,
};

/// Programs that share a real card.
pub const GPU_SHARING: Bench = Bench {
    page: "gpu-sharing",
    command: "gpu --only sharing",
    crates: ON_A_CARD,
};

/// Isolation on the fake driver.
pub const ISOLATION: Bench = Bench {
    page: "isolation",
    command: "isolation",
    crates: ON_A_FAKE_CARD,
};

/// `sublet plan` of a large cluster, beside `sublet simulate`.
pub const PLAN: Bench = Bench {
    page: "plan",
    command: "plan",
    crates: &[
        "sublet-api",
        "sublet-cli",
        "sublet-model",
        "sublet-plan",
        "sublet-queue",
        "sublet-sim",
    ],
};

/// The job queue, alone and in the controller.
pub const QUEUE: Bench = Bench {
    page: "queue",
    command: "queue",
    crates: &[
        "sublet-api",
        "sublet-client",
        "sublet-controller",
        "sublet-listener",
        "sublet-model",
        "sublet-plan",
        "sublet-queue",
        "sublet-replicas",
        "sublet-scheduler",
        "sublet-tasks",
        "sublet-telemetry",
    ],
};

/// A trace of jobs through the queue.
pub const REPLAY: Bench = Bench {
    page: "replay",
    command: "replay",
    crates: OFFLINE,
};

/// The extender, and the controller's webhook.
pub const SCHEDULER: Bench = Bench {
    page: "scheduler",
    command: "scheduler",
    crates: QUEUE.crates,
};

/// Shares of compute time on the fake driver.
pub const SHARES: Bench = Bench {
    page: "shares",
    command: "shares",
    crates: ON_A_FAKE_CARD,
};

/// `sublet simulate`.
const OFFLINE: &[&str] = &[
    "sublet-cli",
    "sublet-model",
    "sublet-plan",
    "sublet-queue",
    "sublet-sim",
];

/// Placement on traces.
pub const SIMULATE: Bench = Bench {
    page: "simulate",
    command: "simulate",
    crates: OFFLINE,
};

/// The same policy in the extender and in the simulator.
pub const SIMULATE_CLUSTER: Bench = Bench {
    page: "simulate-cluster",
    command: "simulate --cluster",
    crates: &[
        "sublet-api",
        "sublet-client",
        "sublet-listener",
        "sublet-model",
        "sublet-plan",
        "sublet-queue",
        "sublet-replicas",
        "sublet-scheduler",
        "sublet-sim",
        "sublet-tasks",
        "sublet-telemetry",
    ],
};
