//! Request of a pod, in any dialect.

use sublet_model::{
    Bytes, CardWishes, Claim, ClaimShapeError, Class, ContainerClaim, ContainerName, Count, Host,
    MiB, Milli, NameError, Role, SliceLength, Unit,
};

use super::{DIALECTS, Dialect, kept};
use crate::flavor::must_be_expanded;
use crate::keys;
use crate::machine::host_of;
use crate::models::models_of;
use crate::object::{Container, Pod};
use crate::quantity::{QuantityError, bytes, whole_number};

/// A container as a dialect reads it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Its place in the pod's list of (init) containers, from 0.
    pub position: usize,
    /// When it runs.
    pub role: Role,
    /// Unit of memory, for dialects without units of their own.
    pub unit: Unit,
}

impl<'a> Asked<'a> {
    /// Amount of a resource that the container asks; 0 if it does not name the resource.
    ///
    /// # Errors
    /// An amount that is not a whole number.
    pub fn amount(&self, resource: &'static str) -> Result<u64, ClaimError> {
        Ok(amount(self.container, resource)?.unwrap_or(0))
    }

    /// The amounts of several resources. If the container asks any of them, it must ask the first.
    /// `None` if it asks none.
    ///
    /// # Errors
    /// An amount that is not a whole number, or one without the first.
    pub fn amounts<const N: usize>(
        &self,
        resources: [&'static str; N],
    ) -> Result<Option<[u64; N]>, ClaimError> {
        let mut amounts = [0; N];
        for (amount, resource) in amounts.iter_mut().zip(resources) {
            *amount = self.amount(resource)?;
        }
        if amounts[0] > 0 {
            return Ok(Some(amounts));
        }
        match resources
            .iter()
            .zip(amounts)
            .find(|(_, amount)| *amount > 0)
        {
            None => Ok(None),
            Some((&resource, _)) => Err(ClaimError::Lacks {
                container: self.container.name.clone(),
                resource,
                first: resources[0],
            }),
        }
    }

    /// A percentage of a card's compute time or memory, from 0 to 100.
    ///
    /// # Errors
    /// More than 100, or no whole number.
    pub fn percent(&self, resource: &'static str) -> Result<Milli, ClaimError> {
        let percent = u16::try_from(self.amount(resource)?).ok();
        let milli = percent.and_then(|percent| Milli::new(percent.checked_mul(10)?));
        milli.ok_or_else(|| self.too_large(resource))
    }

    /// A number of cards.
    ///
    /// # Errors
    /// More than 32 bits hold, or no whole number.
    pub fn cards(&self, resource: &'static str) -> Result<Count, ClaimError> {
        let cards = u32::try_from(self.amount(resource)?);
        Ok(Count::new(cards.map_err(|_| self.too_large(resource))?))
    }

    /// Amount that is written in bytes (`4Gi`); 0 if the container does not name the resource.
    ///
    /// # Errors
    /// No quantity, or more than 64 bits hold.
    pub fn bytes(&self, resource: &'static str) -> Result<u64, ClaimError> {
        let text = self.container.resources.asked(resource).unwrap_or("0");
        bytes(text).map_err(|cause| self.wrong(resource, cause))
    }

    /// The same amount as memory of a card.
    ///
    /// # Errors
    /// No quantity, or more than [`MiB::MAX`].
    pub fn memory(&self, resource: &'static str) -> Result<MiB, ClaimError> {
        mib_of(self.bytes(resource)?).ok_or_else(|| self.too_large(resource))
    }

    /// The error for resources that do not go together.
    #[must_use]
    pub fn together(&self, why: String) -> ClaimError {
        ClaimError::Together {
            container: self.container.name.clone(),
            why,
        }
    }

    /// The error for an amount that is larger than it can be.
    #[must_use]
    pub fn too_large(&self, resource: &'static str) -> ClaimError {
        self.wrong(resource, QuantityError::TooLarge)
    }

    fn wrong(&self, resource: &'static str, cause: QuantityError) -> ClaimError {
        let text = self.container.resources.asked(resource);
        ClaimError::Amount {
            container: self.container.name.clone(),
            resource: resource.to_owned(),
            value: text.unwrap_or_default().to_owned(),
            cause,
        }
    }
}

/// So many bytes in MiB, a part of one as a whole one; `None` above [`MiB::MAX`].
pub(super) fn mib_of(bytes: u64) -> Option<MiB> {
    MiB::new(bytes.div_ceil(1 << 20))
}

/// Reason why a pod's request cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A wrong amount.
    #[error("container {container}: `{resource}` is `{value}`: {cause}")]
    Amount {
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// As written.
        value: String,
        /// The fault.
        cause: QuantityError,
    },
    /// Two dialects in one pod: a field of each.
    #[error("the pod asks for `{0}` and for `{1}`; a pod can use one way of asking for GPUs")]
    Dialects(&'static str, &'static str),
    /// A flavor that was not replaced by amounts.
    #[error(
        "`{key}` is `{0}`, and nobody has turned this flavor into amounts: the webhook of `sublet \
         controller` does that when a pod is created. Let it run (71-webhook.yaml) and create the \
         pod again, or ask by `{way}`",
        key = keys::FLAVOR, way = keys::GPU_MEMORY_PERCENT
    )]
    Flavor(String),
    /// An annotation or label of the pod that cannot be read.
    #[error("`{field}` is `{value}`: write {wanted}")]
    Field {
        /// Its key.
        field: &'static str,
        /// As written.
        value: String,
        /// Values that would be valid.
        wanted: &'static str,
    },
    /// Resources of a container that do not go together.
    #[error("container {container}: {why}")]
    Together {
        /// The container.
        container: String,
        /// The conflicting fields, and a valid alternative.
        why: String,
    },
    /// It asks for the slot resource, and for no GPU that the slot would carry.
    #[error(
        "the pod asks for `{slot}` but for no GPU: add {ways}",
        slot = keys::GPU_SLOT, ways = ways_to_ask()
    )]
    SlotAlone,
    /// An amount of something that it does not ask for.
    #[error("container {container} asks for `{resource}` but for no `{first}`: add it")]
    Lacks {
        /// The container.
        container: String,
        /// The resource that the container asks.
        resource: &'static str,
        /// The resource that it must ask too.
        first: &'static str,
    },
    /// An unknown class.
    #[error(
        "label `{key}` is `{0}`; write `{guaranteed}` or `{opportunistic}`",
        key = keys::CLASS_LABEL,
        guaranteed = Class::Guaranteed.word(), opportunistic = Class::Opportunistic.word()
    )]
    Class(String),
    /// A container has no valid name.
    #[error("wrong container name: {0}")]
    Name(#[from] NameError),
    /// A mixture that no allocation can serve.
    #[error(transparent)]
    Shape(#[from] ClaimShapeError),
}

impl ClaimError {
    /// The field of the pod that cannot be read.
    #[must_use]
    pub fn field(&self, pod: &Pod) -> String {
        let container = match self {
            ClaimError::Amount { container, .. } | ClaimError::Together { container, .. } => {
                container
            }
            ClaimError::Field { field, .. } => {
                let is_label = pod.metadata.labels.contains_key(*field);
                let list = if is_label { "labels" } else { "annotations" };
                return format!("metadata.{list}.{field}");
            }
            _ => return "spec.containers".to_owned(),
        };
        let lists = [
            ("containers", &pod.spec.containers),
            ("initContainers", &pod.spec.init_containers),
        ];
        let field = lists.iter().find_map(|(name, list)| {
            let at = list.iter().position(|c| c.name == *container)?;
            Some(format!("spec.{name}[{at}].resources"))
        });
        let whole = match container.as_str() {
            "(overhead)" => "spec.overhead",
            _ => "spec.resources",
        };
        field.unwrap_or_else(|| whole.to_owned())
    }
}

/// Claim of a pod; `None` if it asks for no GPU. `unit`: the unit of [`keys::ALIYUN_GPU_MEM`].
///
/// # Errors
/// A wrong amount, two dialects, or a mixture that cannot be served.
pub fn claim_of(pod: &Pod, unit: Unit) -> Result<Option<Claim>, ClaimError> {
    let mut has_slot = false;
    for (_, _, container) in containers(pod) {
        has_slot |= amount(container, keys::GPU_SLOT)?.is_some();
    }
    // A label can be changed at any time. What a pod has already counts all the same.
    let is_bound = !pod.spec.node_name.is_empty();
    let kept = is_bound.then(|| kept::read(pod)).flatten();
    let tags = kept.as_ref().map(|kept| kept.tags.clone());
    let (dialect, claim) = match kept {
        Some(kept) => {
            let claim = shaped(kept.dialect, kept.containers, has_slot)?;
            (kept.dialect, claim.with_class(kept.class)?)
        }
        None => {
            let dialect = dialect_that_reads(pod)?;
            if !is_bound {
                let field = dialect.and_then(|dialect| first_mark(pod, dialect));
                must_be_expanded(pod, field)?;
            }
            let Some(dialect) = dialect else {
                return match has_slot {
                    true => Err(ClaimError::SlotAlone),
                    false => Ok(None),
                };
            };
            let claims = claims_of(pod, dialect, unit)?;
            if claims.is_empty() && !has_slot {
                return Ok(None);
            }
            if !is_bound {
                slice_of(pod)?;
            }
            let claim = shaped(dialect, claims, has_slot)?;
            let class = class_of(pod, dialect);
            let classed = class.and_then(|class| Ok(claim.clone().with_class(class)?));
            let claim = match classed {
                Err(_) if is_bound => claim,
                classed => classed?,
            };
            (dialect, claim)
        }
    };
    let wishes = match dialect.wishes(pod) {
        Err(_) if is_bound => CardWishes::default(),
        wishes => wishes?,
    };
    let tags = tags.unwrap_or_else(|| wishes.tags.clone());
    let wishes = CardWishes { tags, ..wishes };
    // CPU and memory are for the stock scheduler to check. A pod does not lose its GPU
    // because we cannot read its CPU.
    let host = host_of(pod).unwrap_or(Host::ZERO);
    let claim = claim.with_host(host).with_models(models_of(pod));
    let (init, main) = (pod.spec.init_containers.len(), pod.spec.containers.len());
    let limits = memory_limits(pod, &claim);
    let claim = claim.with_wishes(wishes).with_pod_containers(init, main);
    Ok(Some(claim.with_memory_limits(limits)))
}

/// The first field by which a pod asks for amounts of GPUs; a slot alone and a flavor are none.
///
/// # Errors
/// It is written in several dialects.
pub fn asked_by(pod: &Pod) -> Result<Option<&'static str>, ClaimError> {
    let dialect = dialect_that_reads(pod)?;
    Ok(dialect.and_then(|dialect| first_mark(pod, dialect)))
}

/// Memory limit of each container of a claim. The limit on its pinned memory depends on it.
fn memory_limits(pod: &Pod, claim: &Claim) -> Vec<Option<Bytes>> {
    let limit = |part: &ContainerClaim| {
        let list = match part.role {
            Role::Main => &pod.spec.containers,
            Role::Init | Role::Sidecar => &pod.spec.init_containers,
        };
        let limits = &list.get(part.position)?.resources.limits;
        // The API server has read it before; what is no number of bytes to us is no limit.
        Some(Bytes::new(whole_number(&limits.get("memory")?.0).ok()?))
    };
    claim.containers().iter().map(limit).collect()
}

/// A claim of these containers, as the dialect has them share cards and ask kubelet.
fn shaped(
    dialect: &dyn Dialect,
    containers: Vec<ContainerClaim>,
    has_slot: bool,
) -> Result<Claim, ClaimShapeError> {
    let (name, cards) = (dialect.name(), dialect.container_cards());
    let claim = Claim::on(cards, Some(name), containers, has_slot)?;
    Ok(claim.with_carrier(dialect.carrier().1))
}

/// Claims of the containers that ask for anything.
fn claims_of(
    pod: &Pod,
    dialect: &dyn Dialect,
    unit: Unit,
) -> Result<Vec<ContainerClaim>, ClaimError> {
    let mut claims = Vec::new();
    for (position, role, container) in containers(pod) {
        let asked = Asked {
            pod,
            container,
            position,
            role,
            unit,
        };
        if let Some(demand) = dialect.demand(&asked)? {
            claims.push(ContainerClaim {
                name: ContainerName::new(&container.name)?,
                position,
                role,
                demand,
            });
        }
    }
    Ok(claims)
}

/// The dialect in which a pod asks for GPUs; `None` if it asks for none.
///
/// # Errors
/// It is written in several.
fn dialect_that_reads(pod: &Pod) -> Result<Option<&'static dyn Dialect>, ClaimError> {
    let used = DIALECTS.iter().copied();
    let used = used.filter_map(|dialect| Some((dialect, first_mark(pod, dialect)?)));
    let used: Vec<(&'static dyn Dialect, &str)> = used.collect();
    let is_extended = |name| used.iter().any(|(other, _)| other.extends() == Some(name));
    let mut readers = used.clone();
    readers.retain(|(one, _)| !is_extended(one.name()));
    // A mark can be added at any time, and must hide nothing of what a pod has already. Its
    // resources are as it was bound.
    let by_resource = |(one, by): &(&'static dyn Dialect, &str)| one.resources().contains(by);
    if !pod.spec.node_name.is_empty() {
        match readers.iter().any(by_resource) {
            true => readers.retain(by_resource),
            false => readers.truncate(1),
        }
    }
    match readers[..] {
        [] => Ok(None),
        [(reader, _)] => Ok(Some(reader)),
        [(_, one), (_, other), ..] => Err(ClaimError::Dialects(one, other)),
    }
}

/// The first resource, annotation or label by which a pod asks in that dialect.
fn first_mark(pod: &Pod, dialect: &dyn Dialect) -> Option<&'static str> {
    let is_asked = |resource: &str| {
        let amounts = containers(pod).filter_map(|(.., one)| one.resources.asked(resource));
        // What cannot be read is asked for too: the dialect says what is wrong with it.
        let mut amounts = amounts.map(|text| whole_number(text).unwrap_or(1));
        amounts.any(|amount| amount > 0)
    };
    let metadata = &pod.metadata;
    let is_there =
        |key: &str| metadata.annotations.contains_key(key) || metadata.labels.contains_key(key);
    let resources = dialect.resources().iter().filter(|one| is_asked(one));
    let marks = dialect.marks().iter().filter(|one| is_there(one));
    resources.chain(marks).next().copied()
}

/// Length of the pod's turns while others wait; `None` if it says none.
///
/// # Errors
/// The annotation is no such length.
pub fn slice_of(pod: &Pod) -> Result<Option<SliceLength>, ClaimError> {
    let text = pod.metadata.annotations.get(keys::SLICE);
    let length = |text: &String| {
        text.parse().map_err(|_| ClaimError::Field {
            field: keys::SLICE,
            value: text.clone(),
            wanted: "a length of turns in whole milliseconds, from `1ms` to `20ms`",
        })
    };
    text.map(length).transpose()
}

/// Class of the pod from its label, or else from its dialect.
fn class_of(pod: &Pod, dialect: &dyn Dialect) -> Result<Class, ClaimError> {
    let Some(text) = pod.metadata.labels.get(keys::CLASS_LABEL) else {
        return dialect.class(pod);
    };
    let mut classes = [Class::Guaranteed, Class::Opportunistic].into_iter();
    let class = classes.find(|class| class.word() == text);
    class.ok_or_else(|| ClaimError::Class(text.clone()))
}

/// The resources by which a pod can ask for GPUs, for people.
fn ways_to_ask() -> String {
    let ways = |dialect: &'static &dyn Dialect| {
        let resources = dialect.resources().iter();
        resources.chain(dialect.marks()).next()
    };
    let first = DIALECTS.iter().filter_map(ways);
    let quoted: Vec<String> = first.map(|resource| format!("`{resource}`")).collect();
    quoted.join(" or ")
}

/// All containers in the order in which they start.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (usize, Role, &Container)> {
    let init = pod
        .spec
        .init_containers
        .iter()
        .enumerate()
        .map(|(position, container)| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            (
                position,
                if sidecar { Role::Sidecar } else { Role::Init },
                container,
            )
        });
    let main = pod.spec.containers.iter().enumerate();
    init.chain(main.map(|(position, container)| (position, Role::Main, container)))
}

/// Amount of a resource that a container asks; `None` and zero mean the same.
fn amount(container: &Container, resource: &'static str) -> Result<Option<u64>, ClaimError> {
    let Some(text) = container.resources.asked(resource) else {
        return Ok(None);
    };
    match whole_number(text) {
        Ok(0) => Ok(None),
        Ok(count) => Ok(Some(count)),
        Err(cause) => Err(ClaimError::Amount {
            container: container.name.clone(),
            resource: resource.to_owned(),
            value: text.to_owned(),
            cause,
        }),
    }
}
