//! The measures of a plan of moves: free GPUs, and the largest pod that finds a place.

use sublet_model::{Ask, Book, Ledger, MiB, NodeIdx};

use crate::Fragmentation;

/// The largest pod that finds a place, if CPU does not count. The derived order compares whole
/// GPUs before the memory of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Largest {
    /// Whole GPUs on one node.
    pub gpus: u32,
    /// Memory of one card.
    pub memory: MiB,
}

/// The state of a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterState {
    /// Healthy GPUs with nothing on them.
    pub free: u32,
    /// The free GPUs that have CPU: their node has as much left for each as running pods have for a
    /// GPU, on average.
    pub fed: u32,
    /// The largest pod that finds a place.
    pub largest: Largest,
    /// Nodes with at least 8, 4, 2 and 1 free GPUs.
    pub nodes: [u32; 4],
    /// Thousandths of cards that typical pods cannot use.
    pub fragmented_milli: f64,
}

/// The contribution of one node to a [`ClusterState`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) free: u32,
    pub(super) fed: u32,
    pub(super) largest: Largest,
    pub(super) fragmented: i64,
}

/// The CPU that a GPU needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Appetite {
    /// Thousandths of a core for a GPU; 0 if no pod asks for CPU.
    cpu: u64,
}

impl Appetite {
    /// The CPU that running pods have for each GPU, on average.
    pub(super) fn of(ledger: &Ledger) -> Appetite {
        let (mut cpu, mut milli) = (0u64, 0u64);
        for entry in ledger.entries() {
            let book = ledger
                .find(entry.node.as_str())
                .map(|node| ledger.book(node));
            let facts = book.and_then(Book::facts);
            let share = match (entry.claim.ask(), &entry.allocation) {
                (Ask::Nothing, _) | (Ask::Parts(_), None) => continue,
                (ask @ Ask::WholeCards(_), _) => ask.milli(MiB::ZERO),
                (ask @ Ask::Parts(_), Some(given)) => {
                    let card = given.grants.first().map(|grant| &grant.card);
                    let of = card.zip(facts).and_then(|(card, facts)| {
                        let at = facts.inventory.position(card)?;
                        Some(facts.inventory.gpus()[at].memory)
                    });
                    of.map_or(0, |of| ask.milli(of))
                }
            };
            cpu = cpu.saturating_add(entry.claim.host().cpu.get());
            milli += share;
        }
        Appetite {
            cpu: (cpu.saturating_mul(1000)).checked_div(milli).unwrap_or(0),
        }
    }

    /// Number of these free GPUs that have CPU, if so much CPU is left.
    pub(super) fn fed(self, free: u32, cpu: u64) -> u32 {
        let fed = cpu.checked_div(self.cpu);
        fed.map_or(free, |fed| free.min(u32::try_from(fed).unwrap_or(u32::MAX)))
    }
}

impl Mark {
    pub(super) fn of(
        ledger: &Ledger,
        node: NodeIdx,
        appetite: Appetite,
        fragmentation: &Fragmentation,
    ) -> Mark {
        let (book, outline) = (ledger.book(node), ledger.outline(node));
        let idle = book.cards().iter().filter(|card| card.is_idle()).count();
        let free = (idle as u32).saturating_sub(book.unplaced().get());
        Mark {
            free,
            fed: appetite.fed(free, book.host_left().cpu.get()),
            largest: Largest {
                gpus: outline.idle().get(),
                memory: outline.hole(),
            },
            fragmented: fragmentation.of(book),
        }
    }
}

impl Largest {
    /// The largest pod that fits on either of two nodes.
    pub(super) fn or(self, other: Largest) -> Largest {
        Largest {
            gpus: self.gpus.max(other.gpus),
            memory: self.memory.max(other.memory),
        }
    }
}

impl ClusterState {
    pub(super) fn of(marks: &[Mark], fragmentation: &Fragmentation) -> ClusterState {
        let mut state = ClusterState {
            free: 0,
            fed: 0,
            largest: Largest::default(),
            nodes: [0; 4],
            fragmented_milli: 0.0,
        };
        let mut fragmented = 0;
        for mark in marks {
            state.free += mark.free;
            state.fed += mark.fed;
            state.largest = state.largest.or(mark.largest);
            fragmented += mark.fragmented;
            for (nodes, least) in state.nodes.iter_mut().zip([8, 4, 2, 1]) {
                *nodes += u32::from(mark.free >= least);
            }
        }
        state.fragmented_milli = fragmentation.milli(fragmented);
        state
    }

    /// True if no measure is worse than before.
    pub(super) fn keeps(&self, before: &ClusterState) -> bool {
        self.free >= before.free && self.largest >= before.largest
    }

    /// True if a measure is better than before.
    pub(super) fn wins_over(&self, before: &ClusterState) -> bool {
        self.free > before.free || self.largest > before.largest
    }
}
