//! A pod's request for a node's GPUs, container by container.
//!
//! A claim is already free of dialects and units: memory is in MiB, and the pod's need at its worst
//! moment (its *ask*) is computed once, by the rule Kubernetes itself uses.

use std::sync::Arc;

use crate::peak::{peak, peak_part};
use crate::{
    Advertise, Ask, Bytes, CardWishes, ContainerName, Count, Host, MiB, Milli, Models, OwnParts,
    Part, Parts, StockAsk,
};

/// The name of the dialect that a pod's claim and allocation are written in. Dialects themselves
/// are in `sublet-api`; here their names are only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DialectName(pub &'static str);

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

/// Portion of each of its cards that a container asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Portion {
    /// All of it, shared with nobody.
    Whole,
    /// So much of it.
    Part(Part),
}

/// The request of one container: a number of cards, and a portion of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Number of cards.
    pub gpus: Count,
    /// Portion of each card.
    pub portion: Portion,
    /// The most compute time that it may use of each, in thousandths; its request is never more.
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

    /// The amount of its pod's card at `position` that it takes; nothing if it does not have that
    /// card.
    fn part(&self, position: usize) -> Part {
        match self.portion {
            Portion::Part(part) if position < self.gpus.get() as usize => part,
            _ => Part::ZERO,
        }
    }
}

/// Decides which job gives way if jobs want more compute time of a card than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// It gets the compute time that it asked for.
    #[default]
    Guaranteed,
    /// It gets the time that guaranteed jobs leave, and asks for none.
    Opportunistic,
}

impl Class {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Class::Guaranteed => "guaranteed",
            Class::Opportunistic => "opportunistic",
        }
    }
}

/// The cards that the containers of one pod have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ContainerCards {
    /// They share: each has the first of the pod's cards.
    #[default]
    Shared,
    /// Each has cards of its own choice, which may be those of others.
    Own,
}

/// By which devices kubelet asks a node's agent about the containers of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carrier {
    /// One device per unit of memory; slots on nodes that have more units than kubelet can count.
    Units,
    /// One device per card.
    Cards,
    /// Slots, everywhere.
    Slots,
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
    /// The container's request.
    pub demand: Demand,
}

/// Reason why a list of containers is not a claim that Sublet can serve.
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
        /// Compute time that it asks for.
        asked: Milli,
        /// Compute time that it may use.
        limit: Milli,
    },
    /// Compute time for a pod that gets the time that others leave.
    #[error(
        "container {0} asks for compute time, but its pod is opportunistic and gets what others leave"
    )]
    Opportunistic(ContainerName),
    /// More of one card than there is.
    #[error(
        "the containers of the pod ask for {asked} thousandths of the {what} of one GPU together; there are 1000"
    )]
    TooMuch {
        /// Compute time or memory.
        what: &'static str,
        /// Thousandths.
        asked: u64,
    },
}

/// The request of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    dialect: Option<DialectName>,
    class: Class,
    containers: Vec<ContainerClaim>,
    ask: Ask,
    carrier: Carrier,
    has_slot: bool,
    host: Host,
    models: Models,
    wishes: Option<Arc<CardWishes>>,
    stock: Option<Arc<StockAsk>>,
    init_containers: usize,
    pod_containers: usize,
    memory_limits: Vec<Option<Bytes>>,
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
            carrier: Carrier::Units,
            has_slot: false,
            host,
            models: Models::default(),
            wishes: None,
            stock: None,
            init_containers: 0,
            pod_containers: 0,
            memory_limits: Vec::new(),
        }
    }

    /// The same claim, which also asks so much of the machine.
    #[must_use]
    pub fn with_host(self, host: Host) -> Claim {
        Claim { host, ..self }
    }

    /// The same claim, of containers that may use so much of the machine's memory.
    #[must_use]
    pub fn with_memory_limits(self, memory_limits: Vec<Option<Bytes>>) -> Claim {
        Claim {
            memory_limits,
            ..self
        }
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

    /// The same claim, about which kubelet asks by those devices. Else whole cards are asked for by
    /// cards, and parts by units.
    #[must_use]
    pub fn with_carrier(self, carrier: Carrier) -> Claim {
        Claim { carrier, ..self }
    }

    /// The same claim, of a pod with so many init containers and main ones, those counted in that
    /// ask for nothing.
    #[must_use]
    pub fn with_pod_containers(self, init: usize, main: usize) -> Claim {
        Claim {
            init_containers: init,
            pod_containers: init + main,
            ..self
        }
    }

    /// The same claim, on these models only.
    #[must_use]
    pub fn with_models(self, models: Models) -> Claim {
        Claim { models, ..self }
    }

    /// The same claim, on such cards only.
    #[must_use]
    pub fn with_wishes(self, wishes: CardWishes) -> Claim {
        let wishes = (!wishes.are_none()).then(|| Arc::new(wishes));
        Claim { wishes, ..self }
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
        dialect: Option<DialectName>,
        containers: Vec<ContainerClaim>,
        has_slot: bool,
    ) -> Result<Claim, ClaimShapeError> {
        Claim::on(ContainerCards::Shared, dialect, containers, has_slot)
    }

    /// The same, if it is said which cards the containers have. With whole cards, each container
    /// always has its own.
    ///
    /// # Errors
    /// No containers, or a mixture that one allocation cannot serve.
    pub fn on(
        cards: ContainerCards,
        dialect: Option<DialectName>,
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
        let carrier = match whole(first) {
            true => Carrier::Cards,
            false => Carrier::Units,
        };
        let ask = if whole(first) {
            let gpus = containers.iter();
            let gpus = gpus.map(|c| (c.role, u64::from(c.demand.gpus.get())));
            let peak = peak(gpus);
            Ask::WholeCards(Count::new(u32::try_from(peak).unwrap_or(u32::MAX)))
        } else {
            Ask::Parts(match cards {
                ContainerCards::Shared => parts_of(&containers)?,
                ContainerCards::Own => own_parts_of(&containers)?,
            })
        };
        Ok(Claim {
            dialect,
            class: Class::default(),
            containers,
            ask,
            carrier,
            has_slot,
            host: Host::ZERO,
            models: Models::default(),
            wishes: None,
            stock: None,
            init_containers: 0,
            pod_containers: 0,
            memory_limits: Vec::new(),
        })
    }

    /// The dialect it was written in, which its allocation is written back in; a claim of no
    /// GPU has none.
    #[must_use]
    pub fn dialect(&self) -> Option<DialectName> {
        self.dialect
    }

    /// The containers that ask for something, in the order in which they start.
    #[must_use]
    pub fn containers(&self) -> &[ContainerClaim] {
        &self.containers
    }

    /// The pod's need at its worst moment.
    #[must_use]
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    /// The class: it decides which job gives way if compute time is short.
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

    /// The cards that it accepts; `None` if it accepts all.
    #[must_use]
    pub fn wishes(&self) -> Option<&Arc<CardWishes>> {
        self.wishes.as_ref()
    }

    /// The rest of its request to the machine; `None` if the stock scheduler has looked at that.
    #[must_use]
    pub fn stock(&self) -> Option<&Arc<StockAsk>> {
        self.stock.as_ref()
    }

    /// Number of init containers of the pod.
    #[must_use]
    pub fn init_containers(&self) -> usize {
        self.init_containers
    }

    /// Number of containers of the pod, init containers included.
    #[must_use]
    pub fn pod_containers(&self) -> usize {
        self.pod_containers
    }

    /// Does it carry the slot resource?
    #[must_use]
    pub fn has_slot(&self) -> bool {
        self.has_slot
    }

    /// By which devices kubelet asks about it on a node that advertises memory so.
    #[must_use]
    pub fn carrier_on(&self, advertise: Advertise) -> Carrier {
        match (self.carrier, advertise) {
            (Carrier::Units, Advertise::Slots) => Carrier::Slots,
            (carrier, _) => carrier,
        }
    }

    /// Does a container of one ask for as much as a container of the other, as a device plugin sees
    /// it: slots, cards, or memory? The plugin cannot tell such pods apart, whatever else they ask.
    #[must_use]
    pub fn looks_like(&self, other: &Claim, advertise: Advertise) -> bool {
        let carrier = self.carrier_on(advertise);
        let size = |one: &ContainerClaim| match (carrier, one.demand.portion) {
            (Carrier::Slots, _) => None,
            (Carrier::Units, Portion::Part(part)) => Some((one.demand.gpus, part.memory)),
            _ => Some((one.demand.gpus, MiB::ZERO)),
        };
        let same = |a: &ContainerClaim| other.containers.iter().any(|b| size(a) == size(b));
        carrier == other.carrier_on(advertise) && self.containers.iter().any(same)
    }
}

/// The parts of cards that these containers need at their worst moment: each container uses the
/// first cards of its pod.
fn parts_of(containers: &[ContainerClaim]) -> Result<Parts, ClaimShapeError> {
    containers.iter().try_for_each(check_parts)?;
    let cards = containers.iter().map(|c| c.demand.gpus.get() as usize);
    let parts = (0..cards.max().unwrap_or(0)).map(|at| {
        let amounts = containers.iter().map(|c| (c.role, c.demand.part(at)));
        peak_part(&amounts.collect::<Vec<_>>())
    });
    let parts: Result<Vec<Part>, ClaimShapeError> = parts.collect();
    Ok(Parts::new(parts?).expect("one part at least, and no more than a container may ask"))
}

/// The same where each container chooses for itself.
fn own_parts_of(containers: &[ContainerClaim]) -> Result<Parts, ClaimShapeError> {
    containers.iter().try_for_each(check_parts)?;
    let own = containers.iter().map(|c| OwnParts {
        role: c.role,
        gpus: c.demand.gpus,
        part: c.demand.part(0),
    });
    let own: Vec<OwnParts> = own.collect();
    let last = &containers[containers.len() - 1];
    let count = own.iter().map(|own| own.gpus.get()).sum();
    let too_many = ClaimShapeError::TooManyParts(last.name.clone(), Count::new(count));
    Parts::of_containers(&own).ok_or(too_many)
}

/// Can any card serve the container?
fn check_parts(container: &ContainerClaim) -> Result<(), ClaimShapeError> {
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
    Ok(())
}

#[cfg(test)]
mod tests;
