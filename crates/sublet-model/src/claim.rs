//! What one pod asks of a node's GPUs, container by container.
//!
//! A claim is already free of dialects and units: memory is in MiB, and what the pod needs
//! at its worst moment (its *ask*) is computed once, by the rule Kubernetes itself uses.

use std::sync::Arc;

use crate::{ContainerName, Count, Host, MiB, Milli, StockAsk};

/// The way of writing claims and allocations that a pod uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// `aliyun.com/gpu-mem`, the GPUShare extender's.
    Aliyun,
    /// `nvidia.com/gpu`, whole cards.
    Nvidia,
}

/// When a container runs, compared with the others of its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Runs alone, before the main containers, and ends.
    Init,
    /// An init container with `restartPolicy: Always`: runs beside all later ones.
    Sidecar,
    /// Runs with the other main containers.
    Main,
}

/// How much of each of its cards a container asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Portion {
    /// All of it, shared with nobody.
    Whole,
    /// So much of its memory.
    Memory(MiB),
}

/// What one container asks: a number of cards, and a portion of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Demand {
    /// How many cards.
    pub gpus: Count,
    /// How much of each.
    pub portion: Portion,
}

/// One container of a claim. Containers that ask nothing are not in a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerClaim {
    /// The container's name.
    pub name: ContainerName,
    /// Its place in the pod's list of (init) containers, from 0.
    pub position: usize,
    /// When it runs.
    pub role: Role,
    /// What it asks.
    pub demand: Demand,
}

/// What a pod needs of GPUs at its worst moment, and so what is taken from the ledger for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// No card: the pod asks CPU and memory of the machine only.
    Nothing,
    /// One card with so much memory: all containers share it.
    OneCard(MiB),
    /// So many cards, each for this pod alone.
    WholeCards(Count),
}

impl Ask {
    /// Thousandths of cards that are asked, of cards of that size.
    #[must_use]
    pub fn milli(self, card: MiB) -> u64 {
        match self {
            Ask::Nothing => 0,
            Ask::OneCard(memory) => u64::from(Milli::share_up(memory, card).get()),
            Ask::WholeCards(count) => 1000 * u64::from(count.get()),
        }
    }
}

/// Why a list of containers is not a claim that Sublet can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimShapeError {
    /// No container asks for anything.
    #[error("no container asks for a GPU")]
    Empty,
    /// Whole cards and parts of cards in one pod.
    #[error(
        "containers {0} and {1} ask for whole GPUs and for parts of GPUs; a pod can have one or the other"
    )]
    Mixed(ContainerName, ContainerName),
    /// A part of several cards for one container.
    #[error("container {0} asks for parts of {1}; all containers of a pod share one GPU")]
    SeveralParts(ContainerName, Count),
}

/// The GPU models that a pod accepts; none named means any. Kept as they were given: two
/// lists in another order are two wishes of one meaning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Models(Vec<Arc<str>>);

impl Models {
    /// These models; any, if there are none.
    #[must_use]
    pub fn new(models: impl IntoIterator<Item = Arc<str>>) -> Models {
        Models(models.into_iter().collect())
    }

    /// Does the pod name any model?
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }

    /// May the pod go on that model?
    #[must_use]
    pub fn accept(&self, model: &str) -> bool {
        self.0.is_empty() || self.iter().any(|known| **known == *model)
    }

    /// The models by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter()
    }
}

/// What one pod asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    dialect: Option<Dialect>,
    containers: Vec<ContainerClaim>,
    ask: Ask,
    has_slot: bool,
    host: Host,
    models: Models,
    stock: Option<Arc<StockAsk>>,
}

impl Claim {
    /// A claim of CPU and memory of the machine, and no GPU.
    #[must_use]
    pub fn host_only(host: Host) -> Claim {
        Claim {
            dialect: None,
            containers: Vec::new(),
            ask: Ask::Nothing,
            has_slot: false,
            host,
            models: Models::default(),
            stock: None,
        }
    }

    /// The same claim, which also asks so much of the machine.
    #[must_use]
    pub fn with_host(self, host: Host) -> Claim {
        Claim { host, ..self }
    }

    /// The same claim, on these models only.
    #[must_use]
    pub fn with_models(self, models: Models) -> Claim {
        Claim { models, ..self }
    }

    /// The same claim, which also asks that of the machine.
    #[must_use]
    pub fn with_stock(self, stock: Arc<StockAsk>) -> Claim {
        Claim {
            stock: Some(stock),
            ..self
        }
    }

    /// Checks and keeps the containers, in the order in which they start. `has_slot`: the pod
    /// also asks for the slot resource that carries Allocate on nodes with much memory.
    ///
    /// # Errors
    /// No containers, or a mixture that one allocation cannot serve.
    pub fn new(
        dialect: Dialect,
        containers: Vec<ContainerClaim>,
        has_slot: bool,
    ) -> Result<Claim, ClaimShapeError> {
        let first = containers.first().ok_or(ClaimShapeError::Empty)?;
        let whole = |c: &ContainerClaim| c.demand.portion == Portion::Whole;
        if let Some(other) = containers.iter().find(|c| whole(c) != whole(first)) {
            return Err(ClaimShapeError::Mixed(
                first.name.clone(),
                other.name.clone(),
            ));
        }
        let several = |c: &&ContainerClaim| !whole(c) && c.demand.gpus != Count::new(1);
        if let Some(c) = containers.iter().find(several) {
            return Err(ClaimShapeError::SeveralParts(c.name.clone(), c.demand.gpus));
        }
        let ask = if whole(first) {
            let gpus = containers.iter();
            let gpus = gpus.map(|c| (c.role, u64::from(c.demand.gpus.get())));
            let peak = peak(gpus);
            Ask::WholeCards(Count::new(u32::try_from(peak).unwrap_or(u32::MAX)))
        } else {
            let memory = containers.iter().map(|c| match c.demand.portion {
                Portion::Memory(memory) => (c.role, memory.get()),
                Portion::Whole => (c.role, 0),
            });
            Ask::OneCard(MiB::new(peak(memory)).unwrap_or(MiB::MAX))
        };
        Ok(Claim {
            dialect: Some(dialect),
            containers,
            ask,
            has_slot,
            host: Host::ZERO,
            models: Models::default(),
            stock: None,
        })
    }

    /// The dialect it was written in, which its allocation is written back in; a claim of no
    /// GPU has none.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// The containers that ask for something, in the order in which they start.
    #[must_use]
    pub fn containers(&self) -> &[ContainerClaim] {
        &self.containers
    }

    /// What the pod needs at its worst moment.
    #[must_use]
    pub fn ask(&self) -> Ask {
        self.ask
    }

    /// CPU and memory that it asks of the machine.
    #[must_use]
    pub fn host(&self) -> Host {
        self.host
    }

    /// The GPU models that it accepts.
    #[must_use]
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// What else it asks of the machine; `None` where the stock scheduler has looked at that.
    #[must_use]
    pub fn stock(&self) -> Option<&Arc<StockAsk>> {
        self.stock.as_ref()
    }

    /// Does it carry the slot resource?
    #[must_use]
    pub fn has_slot(&self) -> bool {
        self.has_slot
    }

    /// Could a device plugin that sees only sizes take a container of one for one of the other?
    #[must_use]
    pub fn looks_like(&self, other: &Claim) -> bool {
        let same = |a: &ContainerClaim| other.containers.iter().any(|b| a.demand == b.demand);
        self.containers.iter().any(same)
    }
}

/// The most that is in use at once, as Kubernetes counts it: the main containers together,
/// or any init container while it runs, and with either the sidecars started before
/// (KEP-753, "Resources calculation for scheduling and pod admission"). The amounts of one
/// pod's containers, in the order in which they start, in any one unit.
#[must_use]
pub fn peak(amounts: impl IntoIterator<Item = (Role, u64)>) -> u64 {
    let mut sidecars = 0u64;
    let mut main = 0u64;
    let mut peak = 0u64;
    for (role, amount) in amounts {
        match role {
            Role::Init => peak = peak.max(sidecars.saturating_add(amount)),
            Role::Sidecar => sidecars = sidecars.saturating_add(amount),
            Role::Main => main = main.saturating_add(amount),
        }
    }
    peak.max(sidecars.saturating_add(main))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `i8 s2 m3` → an init container of 8, a sidecar of 2, a main container of 3 (MiB).
    fn claim(picture: &str, whole: bool) -> Result<Claim, ClaimShapeError> {
        let containers = picture
            .split_whitespace()
            .enumerate()
            .map(|(position, word)| {
                let (role, amount) = word.split_at(1);
                let amount: u32 = amount.parse().unwrap();
                let demand = if whole {
                    Demand {
                        gpus: Count::new(amount),
                        portion: Portion::Whole,
                    }
                } else {
                    Demand {
                        gpus: Count::new(1),
                        portion: Portion::Memory(MiB::from(amount)),
                    }
                };
                let role = match role {
                    "i" => Role::Init,
                    "s" => Role::Sidecar,
                    _ => Role::Main,
                };
                ContainerClaim {
                    name: ContainerName::new(word).unwrap(),
                    position,
                    role,
                    demand,
                }
            });
        Claim::new(Dialect::Aliyun, containers.collect(), false)
    }

    #[test]
    fn the_ask_is_what_kubernetes_counts() {
        let mib = |picture| claim(picture, false).unwrap().ask();
        assert_eq!(mib("m1 m2"), Ask::OneCard(MiB::from(3)));
        assert_eq!(mib("i8 m1 m2"), Ask::OneCard(MiB::from(8)));
        assert_eq!(mib("i1 m1 m2"), Ask::OneCard(MiB::from(3)));
        assert_eq!(mib("s2 i8 m1"), Ask::OneCard(MiB::from(10)));
        assert_eq!(mib("i8 s2 m7"), Ask::OneCard(MiB::from(9)));
        assert_eq!(
            claim("i2 m1 m2", true).unwrap().ask(),
            Ask::WholeCards(Count::new(3))
        );
    }

    #[test]
    fn a_claim_that_one_allocation_cannot_serve_is_refused() {
        assert_eq!(claim("", false), Err(ClaimShapeError::Empty));
        let mut mixed = claim("m1 m2", false).unwrap().containers;
        mixed[1].demand.portion = Portion::Whole;
        let error = Claim::new(Dialect::Aliyun, mixed, false)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("containers m1 and m2 ask for whole GPUs and for parts"));
        let mut several = claim("m1", false).unwrap().containers;
        several[0].demand.gpus = Count::new(2);
        let error = Claim::new(Dialect::Aliyun, several, false)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("container m1 asks for parts of 2 GPUs"));
    }
}
