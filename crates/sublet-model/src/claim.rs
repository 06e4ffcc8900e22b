//! What one pod asks of a node's GPUs, container by container.
//!
//! A claim is already free of dialects and units: memory is in MiB, and what the pod needs
//! at its worst moment (its *ask*) is computed once, by the rule Kubernetes itself uses.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use crate::{ContainerName, Count, Host, MiB, Milli, Part, StockAsk};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Portion {
    /// All of it, shared with nobody.
    Whole,
    /// So much of it.
    Part(Part),
}

/// What one container asks: a number of cards, and a portion of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// How many cards.
    pub gpus: Count,
    /// How much of each.
    pub portion: Portion,
    /// The most compute time that it may use of each, in thousandths; what it asks is never
    /// more.
    pub compute_limit: Milli,
}

impl Demand {
    /// So much memory of one card, and compute time as others leave it.
    #[must_use]
    pub fn of_memory(memory: MiB) -> Demand {
        Demand {
            gpus: Count::new(1),
            portion: Portion::Part(Part::of_memory(memory)),
            compute_limit: Milli::WHOLE,
        }
    }

    /// So many cards, each for this container alone.
    #[must_use]
    pub fn of_cards(gpus: Count) -> Demand {
        Demand {
            gpus,
            portion: Portion::Whole,
            compute_limit: Milli::WHOLE,
        }
    }

    /// What it takes of its card at `position` among those of its pod; nothing beyond them.
    fn part(&self, position: usize) -> Part {
        match self.portion {
            Portion::Part(part) if position < self.gpus.get() as usize => part,
            _ => Part::ZERO,
        }
    }
}

/// Who has to give way where two jobs want the compute time of a card (R5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// It gets the compute time that it asked for.
    #[default]
    Guaranteed,
    /// It gets what guaranteed jobs leave, and asks for none.
    Opportunistic,
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

/// Parts of cards, each of another card: one at least, the largest amounts of memory first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parts(Arc<[Part]>);

/// Any order, for maps: it says nothing of which is larger.
impl Ord for Parts {
    fn cmp(&self, other: &Parts) -> Ordering {
        self.iter().map(by_memory).cmp(other.iter().map(by_memory))
    }
}

impl PartialOrd for Parts {
    fn partial_cmp(&self, other: &Parts) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn by_memory(part: Part) -> (MiB, Milli) {
    (part.memory, part.compute)
}

impl Parts {
    /// The most parts that one pod can ask: four times the cards of the largest machines sold.
    pub const MAX: usize = 64;

    /// A part of one card.
    #[must_use]
    pub fn one(part: Part) -> Parts {
        Parts(Arc::from([part]))
    }

    /// These parts; `None` for none, and for more than [`Parts::MAX`].
    #[must_use]
    pub fn new(mut parts: Vec<Part>) -> Option<Parts> {
        parts.sort_unstable_by_key(|part| Reverse(by_memory(*part)));
        (1..=Parts::MAX)
            .contains(&parts.len())
            .then(|| Parts(Arc::from(parts)))
    }

    /// The one with most memory.
    #[must_use]
    pub fn first(&self) -> Part {
        self.0[0]
    }

    /// As much of everything as any of them asks.
    #[must_use]
    pub fn largest(&self) -> Part {
        self.iter().fold(Part::ZERO, Part::or)
    }

    /// Memory of all of them together.
    #[must_use]
    pub fn memory(&self) -> MiB {
        self.iter().map(|part| part.memory).sum()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> Count {
        Count::new(self.0.len() as u32)
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Part> + Clone {
        self.0.iter().copied()
    }
}

/// What a pod needs of GPUs at its worst moment, and so what is taken from the ledger for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// No card: the pod asks CPU and memory of the machine only.
    Nothing,
    /// Parts of cards: all containers share them.
    Parts(Parts),
    /// So many cards, each for this pod alone.
    WholeCards(Count),
}

impl Ask {
    /// So much memory of one card.
    #[must_use]
    pub fn of_memory(memory: MiB) -> Ask {
        Ask::Parts(Parts::one(Part::of_memory(memory)))
    }

    /// Thousandths of cards that are asked, of cards of that size.
    #[must_use]
    pub fn milli(&self, card: MiB) -> u64 {
        match self {
            Ask::Nothing => 0,
            Ask::Parts(parts) => parts
                .iter()
                .map(|p| u64::from(p.share_of(card).get()))
                .sum(),
            Ask::WholeCards(count) => 1000 * u64::from(count.get()),
        }
    }

    /// On how many cards it is.
    #[must_use]
    pub fn gpus(&self) -> Count {
        match self {
            Ask::Nothing => Count::ZERO,
            Ask::Parts(parts) => parts.count(),
            Ask::WholeCards(count) => *count,
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
    /// Parts of no card, or of more cards than [`Parts::MAX`].
    #[error("container {0} asks for parts of {1}; a pod can have parts of 1 to {max} GPUs", max = Parts::MAX)]
    TooManyParts(ContainerName, Count),
    /// More compute time than it may use.
    #[error(
        "container {container} asks for {asked} of a GPU's compute time, and may use {limit} at most"
    )]
    AboveLimit {
        /// The container.
        container: ContainerName,
        /// What it asks.
        asked: Milli,
        /// What it may use.
        limit: Milli,
    },
    /// Compute time for a pod that gets what others leave.
    #[error(
        "container {0} asks for compute time, but its pod is opportunistic and gets what others leave"
    )]
    Opportunistic(ContainerName),
    /// More compute time of one card than there is.
    #[error(
        "the containers of the pod ask for {0} thousandths of the compute time of one GPU together; there are 1000"
    )]
    TooMuchCompute(u64),
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
    class: Class,
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
            class: Class::default(),
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

    /// The same claim, of that class.
    ///
    /// # Errors
    /// An opportunistic claim that asks for compute time.
    pub fn with_class(self, class: Class) -> Result<Claim, ClaimShapeError> {
        let asks = |c: &&ContainerClaim| c.demand.part(0).compute > Milli::ZERO;
        match self.containers.iter().find(asks) {
            Some(container) if class == Class::Opportunistic => {
                Err(ClaimShapeError::Opportunistic(container.name.clone()))
            }
            _ => Ok(Claim { class, ..self }),
        }
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

    /// Checks and keeps the containers, in the order in which they start. `dialect`: how the
    /// pod is written; `None` for a job of one machine. `has_slot`: the pod also asks for the
    /// slot resource that carries Allocate on nodes with much memory.
    ///
    /// # Errors
    /// No containers, or a mixture that one allocation cannot serve.
    pub fn new(
        dialect: impl Into<Option<Dialect>>,
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
        let ask = if whole(first) {
            let gpus = containers.iter();
            let gpus = gpus.map(|c| (c.role, u64::from(c.demand.gpus.get())));
            let peak = peak(gpus);
            Ask::WholeCards(Count::new(u32::try_from(peak).unwrap_or(u32::MAX)))
        } else {
            Ask::Parts(parts_of(&containers)?)
        };
        Ok(Claim {
            dialect: dialect.into(),
            class: Class::default(),
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
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Who has to give way where compute time is short.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// Does the pod ask for any card?
    #[must_use]
    pub fn has_gpu(&self) -> bool {
        self.ask != Ask::Nothing
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

/// The parts of cards that these containers need at their worst moment: each container uses the
/// first cards of its pod.
fn parts_of(containers: &[ContainerClaim]) -> Result<Parts, ClaimShapeError> {
    for container in containers {
        let demand = &container.demand;
        if !(1..=Parts::MAX).contains(&(demand.gpus.get() as usize)) {
            let name = container.name.clone();
            return Err(ClaimShapeError::TooManyParts(name, demand.gpus));
        }
        let asked = demand.part(0).compute;
        if asked > demand.compute_limit {
            return Err(ClaimShapeError::AboveLimit {
                container: container.name.clone(),
                asked,
                limit: demand.compute_limit,
            });
        }
    }
    let cards = containers.iter().map(|c| c.demand.gpus.get() as usize);
    let parts = (0..cards.max().unwrap_or(0)).map(|at| {
        let amounts = containers.iter().map(|c| (c.role, c.demand.part(at)));
        peak_part(amounts).map_err(ClaimShapeError::TooMuchCompute)
    });
    let parts: Result<Vec<Part>, ClaimShapeError> = parts.collect();
    Ok(Parts::new(parts?).expect("one part at least, and no more than a container may ask"))
}

/// What such amounts of one card are at their worst moment.
///
/// # Errors
/// Thousandths of its compute time, if they are more than there are.
pub(crate) fn peak_part(amounts: impl Iterator<Item = (Role, Part)> + Clone) -> Result<Part, u64> {
    let memory = amounts
        .clone()
        .map(|(role, part)| (role, part.memory.get()));
    let compute = peak(amounts.map(|(role, part)| (role, u64::from(part.compute.get()))));
    let milli = u16::try_from(compute).ok().and_then(Milli::new);
    Ok(Part {
        memory: MiB::new(peak(memory)).unwrap_or(MiB::MAX),
        compute: milli.ok_or(compute)?,
    })
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
                    Demand::of_cards(Count::new(amount))
                } else {
                    Demand::of_memory(MiB::from(amount))
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
        let mib = |picture| claim(picture, false).unwrap().ask().clone();
        assert_eq!(mib("m1 m2"), Ask::of_memory(MiB::from(3)));
        assert_eq!(mib("i8 m1 m2"), Ask::of_memory(MiB::from(8)));
        assert_eq!(mib("i1 m1 m2"), Ask::of_memory(MiB::from(3)));
        assert_eq!(mib("s2 i8 m1"), Ask::of_memory(MiB::from(10)));
        assert_eq!(mib("i8 s2 m7"), Ask::of_memory(MiB::from(9)));
        assert_eq!(
            claim("i2 m1 m2", true).unwrap().ask(),
            &Ask::WholeCards(Count::new(3))
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
        let mut none = claim("m1", false).unwrap().containers;
        none[0].demand.gpus = Count::ZERO;
        let error = Claim::new(Dialect::Aliyun, none, false)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("container m1 asks for parts of 0 GPUs"));
    }

    fn milli(thousandths: u16) -> Milli {
        Milli::new(thousandths).unwrap()
    }

    /// `i8x2@500` → an init container of 8 MiB and 500 thousandths of each of two cards.
    fn parts(picture: &str) -> Result<Claim, ClaimShapeError> {
        let containers = picture.split_whitespace().map(|word| {
            let (amount, compute) = word.split_once('@').unwrap_or((word, "0"));
            let (amount, gpus) = amount.split_once('x').unwrap_or((amount, "1"));
            let mut container = claim(amount, false).unwrap().containers.remove(0);
            container.name = ContainerName::new(word).unwrap();
            container.demand.gpus = Count::new(gpus.parse().unwrap());
            container.demand.portion = Portion::Part(Part {
                compute: milli(compute.parse().unwrap()),
                memory: MiB::from(amount[1..].parse::<u32>().unwrap()),
            });
            container
        });
        Claim::new(None, containers.collect(), false)
    }

    #[test]
    fn each_card_serves_the_worst_moment_of_the_containers_on_it() {
        let ask = |picture| match parts(picture).unwrap().ask() {
            Ask::Parts(parts) => parts
                .iter()
                .map(|part| format!("{}@{} ", part.memory.get(), part.compute.get()))
                .collect::<String>(),
            other => format!("{other:?}"),
        };
        assert_eq!(ask("m4@300 m3@200"), "7@500 ");
        assert_eq!(ask("i8@100 m3@200 s1@300"), "8@500 ");
        assert_eq!(ask("m4x2@300 m3@200"), "7@500 4@300 ");
        assert_eq!(ask("m4x3"), "4@0 4@0 4@0 ");
        assert_eq!(ask("i9x2 m4x3@10"), "9@10 9@10 4@10 ");
    }

    #[test]
    fn compute_that_cannot_be_had_is_refused() {
        let error = |picture| parts(picture).unwrap_err().to_string();
        assert!(error("m4@600 m3@500").starts_with("the containers of the pod ask for 1100"));
        assert!(error("m4x65").starts_with("container m4x65 asks for parts of 65 GPUs"));
        let mut containers = parts("m4@300").unwrap().containers;
        containers[0].demand.compute_limit = milli(250);
        let error = Claim::new(None, containers, false).unwrap_err().to_string();
        assert!(error.contains("asks for 30 % of a GPU's compute time, and may use 25 %"));
        let class = |picture| parts(picture).unwrap().with_class(Class::Opportunistic);
        assert_eq!(class("m4").unwrap().class(), Class::Opportunistic);
        let error = class("m4@1").unwrap_err().to_string();
        assert!(error.contains("gets what others leave"));
    }
}
