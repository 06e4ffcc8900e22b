//! Makes a node's offer out of its devices and settings: the report on the node object,
//! kubelet's lists of devices, the amounts in the node's status. Pure, and the same for
//! the same input: an agent that restarts offers what it offered before.
//!
//! Memory is offered as one device per unit for as long as kubelet can be told so; above
//! that its gRPC connection breaks (`MESSAGE_LIMIT`), and amounts go into the status
//! while slots carry Allocate.

use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::sync::Arc;

use sublet_api::dialect::{DIALECTS, OfferedCards, OfferedDevice, hami};
use sublet_api::{NodeReport, keys, report_to_json};
use sublet_kubelet::deviceplugin::DeviceList;
use sublet_model::{
    Advertise, Gpu, Identity, Inventory, InventoryError, NodeFacts, NodeName, Sharing, Unit,
};

use crate::kind::{gpu_memory, whole_gpu};

/// The longest annotation. The API server takes 256 KiB for all annotations of an object
/// together (apimachinery, TotalAnnotationSizeLimitB), and the node has others.
const ANNOTATION_MAX: usize = 200 * 1024;

/// Up to so many cards, how each pair is wired is reported: 64 cards are 2,016 pairs.
const CARDS_WITH_PAIRS_MAX: usize = 64;

/// Way to advertise memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AdvertiseWish {
    /// Units while kubelet can count them, else slots.
    Auto,
    /// One device per unit of memory.
    Units,
    /// Amounts in the node's status, and slots.
    Slots,
}

/// [`Sharing`] as it is written in the flag and the node's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SharingWord {
    /// Parts of GPUs, by memory
    Memory,
    /// Whole GPUs
    Whole,
    /// Both
    Both,
}

impl From<SharingWord> for Sharing {
    fn from(word: SharingWord) -> Sharing {
        match word {
            SharingWord::Memory => Sharing::Memory,
            SharingWord::Whole => Sharing::Whole,
            SharingWord::Both => Sharing::Both,
        }
    }
}

/// The operator's settings of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Way to hand out cards.
    pub sharing: Sharing,
    /// The unit of memory.
    pub unit: Unit,
    /// Way to advertise memory.
    pub advertise: AdvertiseWish,
    /// Number of `nvidia.com/gpu` devices of each card, on nodes that hand out parts of cards;
    /// `None` if only whole cards are offered by that name.
    pub gpu_splits: Option<NonZeroU8>,
    /// Is the node to have HAMi's register too?
    pub hami_register: bool,
    /// Is Koordinator's `Device` to be published?
    pub koordinator_device: bool,
    /// Way to recognise containers.
    pub identity: Identity,
}

/// Reason why a node cannot be offered as wanted.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// Units were demanded, but kubelet cannot be told so many.
    #[error(
        "{units} units of {unit} are more than kubelet can count; \
         use --advertise auto or a larger --memory-unit"
    )]
    Units {
        /// Number of units.
        units: u64,
        /// The unit.
        unit: Unit,
    },
    /// More cards than an annotation can name.
    #[error("{gpus} GPUs do not fit into an annotation of {max} bytes", max = ANNOTATION_MAX)]
    Annotation {
        /// Number of cards.
        gpus: usize,
    },
    /// The devices contradict each other.
    #[error("the devices cannot be reported: {0}")]
    Devices(#[from] InventoryError),
}

/// The devices and amounts that a node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Way in which memory is advertised.
    pub advertise: Advertise,
    /// The text of [`keys::INVENTORY`].
    pub annotation: String,
    /// The text of [`keys::HAMI_REGISTER`], where the node is to have one.
    pub hami_register: Option<String>,
    /// Kubelet's devices, by resource. No resource without a device.
    pub lists: BTreeMap<&'static str, DeviceList>,
    /// Amounts in the node's status, by resource; zero where an earlier amount is to go.
    pub status: BTreeMap<&'static str, u64>,
}

impl Offer {
    /// The offer for these devices.
    ///
    /// # Errors
    /// Too much for kubelet, where units were demanded, or for an annotation.
    pub fn of(inventory: &Inventory, settings: Settings) -> Result<Offer, OfferError> {
        let mut lists = BTreeMap::new();
        let mut status = BTreeMap::new();
        let mut advertise = Advertise::Units;
        let unit = settings.unit;
        let cards = OfferedCards {
            count: inventory.gpus().len() as u64,
            memory: inventory.memory(),
            sharing: settings.sharing,
            containers: gpu_memory::slots_per_card(inventory) as u64,
        };
        status.extend(DIALECTS.iter().flat_map(|dialect| dialect.amounts(&cards)));
        lists.insert(keys::GPU_SLOT, gpu_memory::slots(inventory));
        for offering in DIALECTS.iter().filter_map(|dialect| dialect.offering()) {
            let resource = offering.resource;
            match offering.device {
                OfferedDevice::Unit if settings.sharing == Sharing::Whole => {
                    status.insert(resource, 0);
                }
                OfferedDevice::Unit => {
                    let wishes_units = settings.advertise != AdvertiseWish::Slots;
                    let list = wishes_units.then(|| gpu_memory::units(inventory, unit));
                    if let Some(list) = list.flatten() {
                        lists.insert(resource, list);
                        continue;
                    }
                    let units = gpu_memory::amount(inventory, unit);
                    if settings.advertise == AdvertiseWish::Units {
                        return Err(OfferError::Units { units, unit });
                    }
                    advertise = Advertise::Slots;
                    status.insert(resource, units);
                }
                OfferedDevice::Card => {
                    let (sharing, splits) = (settings.sharing, settings.gpu_splits);
                    let list = whole_gpu::devices(inventory, sharing, splits);
                    lists.extend(Some(resource).zip(list));
                }
            }
        }
        lists.retain(|_, list| !list.is_empty());
        Ok(Offer {
            advertise,
            annotation: annotation(&NodeReport {
                inventory: inventory.clone(),
                sharing: settings.sharing,
                identity: settings.identity,
                advertise,
                unit: settings.unit,
                splits: settings.gpu_splits,
            })?,
            hami_register: settings
                .hami_register
                .then(|| {
                    let count = settings.gpu_splits.map_or(1, NonZeroU8::get);
                    hami::register::write(inventory, count)
                })
                .flatten(),
            lists,
            status,
        })
    }

    /// The node as the engine is to see it.
    #[must_use]
    pub fn facts(&self, node: &NodeName, inventory: &Arc<Inventory>, asked: Settings) -> NodeFacts {
        NodeFacts {
            sharing: asked.sharing,
            identity: asked.identity,
            advertise: self.advertise,
            unit: asked.unit,
            splits: asked.gpu_splits,
            ..NodeFacts::plain(node.clone(), Arc::clone(inventory))
        }
    }
}

/// The text of the report. If it is too long, wiring goes first, then everything that placement by
/// memory can do without.
fn annotation(report: &NodeReport) -> Result<String, OfferError> {
    let whole = &report.inventory;
    let with = |inventory| {
        let text = report_to_json(&NodeReport {
            inventory,
            ..report.clone()
        });
        (text.len() <= ANNOTATION_MAX).then_some(text)
    };
    let pairs = if whole.gpus().len() <= CARDS_WITH_PAIRS_MAX {
        whole.pairs().to_vec()
    } else {
        Vec::new()
    };
    let gpus = whole.gpus().to_vec();
    let (nics, partitions) = (whole.nics().to_vec(), whole.partitions().to_vec());
    if let Some(text) = with(Inventory::new(gpus, pairs, nics, partitions)?) {
        return Ok(text);
    }
    let bare = |gpu: &Gpu| Gpu {
        uuid: gpu.uuid.clone(),
        health: gpu.health.clone(),
        ..Gpu::plain(gpu.index, gpu.memory)
    };
    let gpus = whole.gpus().iter().map(bare).collect();
    with(Inventory::new(gpus, Vec::new(), Vec::new(), Vec::new())?).ok_or(OfferError::Annotation {
        gpus: whole.gpus().len(),
    })
}

#[cfg(test)]
mod tests {
    use sublet_api::report_from_json;
    use sublet_kubelet::deviceplugin::{Device, HEALTHY, UNHEALTHY};
    use sublet_model::{GpuIndex, GpuUuid, Health, Level, MiB, Pair};

    use super::*;
    use crate::kind::gpu_memory::LIST_MAX;

    /// `2x16276` → two cards of 16,276 MiB, with UUIDs of the usual length.
    fn cards(picture: &str, sick: &[u16]) -> Inventory {
        let (count, memory) = picture.split_once('x').unwrap();
        let memory = MiB::from(memory.parse::<u32>().unwrap());
        let gpu = |index: u16| Gpu {
            uuid: GpuUuid::new(&format!("GPU-fef8089b-4820-abfc-e83e-9431819{index:05}")).ok(),
            numa: Some(index % 2),
            health: match sick.contains(&index) {
                true => Health::Sick("xid 79".into()),
                false => Health::Healthy,
            },
            ..Gpu::plain(GpuIndex(index), memory)
        };
        let gpus = (0..count.parse().unwrap()).map(gpu).collect();
        Inventory::new(gpus, vec![], vec![], vec![]).unwrap()
    }

    fn settings(text: &str) -> Settings {
        let mut settings = Settings {
            sharing: Sharing::Memory,
            unit: Unit::MiB,
            advertise: AdvertiseWish::Auto,
            gpu_splits: None,
            hami_register: false,
            koordinator_device: false,
            identity: Identity::SizeAndOrder,
        };
        for word in text.split_whitespace() {
            match word {
                "whole" => settings.sharing = Sharing::Whole,
                "both" => settings.sharing = Sharing::Both,
                "splits" => settings.gpu_splits = NonZeroU8::new(10),
                "GiB" => settings.unit = Unit::GiB,
                "units" => settings.advertise = AdvertiseWish::Units,
                "slots" => settings.advertise = AdvertiseWish::Slots,
                _ => panic!("{word}"),
            }
        }
        settings
    }

    fn check(cards: &Inventory, wish: &str) -> String {
        let offer = match Offer::of(cards, settings(wish)) {
            Ok(offer) => offer,
            Err(error) => return error.to_string(),
        };
        // What other dialects offer beside these is theirs to test.
        let about = |name: &str| {
            name.starts_with("aliyun.com/") || [keys::NVIDIA_GPU, keys::GPU_SLOT].contains(&name)
        };
        let lists = offer.lists.iter().filter(|(name, _)| about(name));
        let status = offer.status.iter().filter(|(name, _)| about(name));
        lists
            .map(|(name, list)| format!("{name}={} ", list.len()))
            .chain(status.map(|(name, amount)| format!("status:{name}={amount} ")))
            .collect::<String>()
            .trim_end()
            .to_owned()
    }

    #[test]
    fn memory_is_offered_by_units_until_kubelet_cannot_take_them() {
        let small = cards("2x16276", &[]);
        assert_eq!(
            check(&small, ""),
            "aliyun.com/gpu-mem=32552 sublet.dev/gpu-slot=128 status:aliyun.com/gpu-core.percentage=200 \
             status:aliyun.com/gpu-count=2"
        );
        assert_eq!(
            check(&small, "slots"),
            "sublet.dev/gpu-slot=128 status:aliyun.com/gpu-core.percentage=200 \
             status:aliyun.com/gpu-count=2 status:aliyun.com/gpu-mem=32552"
        );
        let large = cards("8x143771", &[]);
        assert_eq!(
            check(&large, ""),
            "sublet.dev/gpu-slot=512 status:aliyun.com/gpu-core.percentage=800 \
             status:aliyun.com/gpu-count=8 status:aliyun.com/gpu-mem=1150168"
        );
        assert_eq!(
            check(&large, "units"),
            "1150168 units of MiB are more than kubelet can count; \
             use --advertise auto or a larger --memory-unit"
        );
        assert_eq!(
            check(&large, "GiB"),
            "aliyun.com/gpu-mem=1120 sublet.dev/gpu-slot=512 status:aliyun.com/gpu-core.percentage=800 \
             status:aliyun.com/gpu-count=8"
        );
    }

    #[test]
    fn the_boundary_is_the_encoded_size_whatever_the_cards_health() {
        let at = |n: u32, sick: &[u16]| Offer::of(&cards(&format!("1x{n}"), sick), settings(""));
        let (mut n_max, mut too_many) = (1, 60_000);
        while n_max + 1 < too_many {
            let n = u32::midpoint(n_max, too_many);
            match at(n, &[]).unwrap().advertise {
                Advertise::Units => n_max = n,
                Advertise::Slots => too_many = n,
            }
        }
        let healthy = at(n_max, &[]).unwrap();
        assert!(healthy.lists[keys::ALIYUN_GPU_MEM].encoded_size() <= LIST_MAX);
        let sick = at(n_max, &[0]).unwrap();
        assert_eq!(sick.advertise, Advertise::Units);
        let size = sick.lists[keys::ALIYUN_GPU_MEM].encoded_size();
        assert!(size <= LIST_MAX && size > LIST_MAX - 100, "{size}");
        assert_eq!(at(n_max + 1, &[]).unwrap().advertise, Advertise::Slots);
    }

    #[test]
    fn whole_cards_are_offered_by_their_uuids() {
        let inventory = cards("4x16276", &[2]);
        assert_eq!(
            check(&inventory, "whole"),
            "nvidia.com/gpu=4 sublet.dev/gpu-slot=256 status:aliyun.com/gpu-core.percentage=0 \
             status:aliyun.com/gpu-count=0 status:aliyun.com/gpu-mem=0"
        );
        assert!(
            check(&inventory, "both")
                .starts_with("nvidia.com/gpu=4 sublet.dev/gpu-slot=256 status:"),
        );
        assert!(check(&inventory, "splits").starts_with("nvidia.com/gpu=40 "));
        assert!(check(&inventory, "both splits").starts_with("nvidia.com/gpu=40 "));
        assert!(check(&inventory, "whole splits").starts_with("nvidia.com/gpu=4 "));
        let offer = Offer::of(&inventory, settings("whole")).unwrap();
        let list: Vec<Device> = offer.lists[keys::NVIDIA_GPU].iter().collect();
        assert_eq!(list[1].id, "GPU-fef8089b-4820-abfc-e83e-943181900001");
        let health: Vec<&str> = list.iter().map(|device| device.health.as_str()).collect();
        assert_eq!(health, [HEALTHY, HEALTHY, UNHEALTHY, HEALTHY]);
        assert_eq!(list[1].topology.as_ref().unwrap().nodes[0].id, 1);
    }

    #[test]
    fn a_node_without_cards_offers_nothing_and_says_so() {
        let none = Inventory::default();
        assert_eq!(
            check(&none, "both"),
            "status:aliyun.com/gpu-core.percentage=0 status:aliyun.com/gpu-count=0"
        );
        let offer = Offer::of(&none, settings("")).unwrap();
        let report = report_from_json(&offer.annotation).unwrap();
        assert_eq!(report.inventory, none);
    }

    #[test]
    fn a_long_report_loses_its_wiring_and_never_a_card() {
        let wired = |count: u16| {
            let bare = cards(&format!("{count}x16276"), &[1]);
            let pair = |to| Pair {
                gpus: (GpuIndex(0), GpuIndex(to)),
                level: Level::Pix,
                nvlinks: 1,
            };
            let mut gpus = bare.gpus().to_vec();
            for gpu in &mut gpus {
                gpu.model = "a card with a long name ".repeat(8).into();
            }
            Inventory::new(gpus, (1..count).map(pair).collect(), vec![], vec![]).unwrap()
        };
        let reported = |count| {
            let offer = Offer::of(&wired(count), settings("GiB slots")).unwrap();
            assert!(offer.annotation.len() <= ANNOTATION_MAX);
            report_from_json(&offer.annotation).unwrap().inventory
        };
        assert_eq!(reported(64), wired(64));
        let more = reported(65);
        assert_eq!((more.pairs().len(), more.gpus()), (0, wired(65).gpus()));
        let many = reported(1000);
        assert_eq!(many.gpus().len(), 1000);
        assert!(many.gpus()[0].model.is_empty() && !many.gpus()[1].health.is_healthy());
        assert_eq!(
            check(&wired(4096), "GiB"),
            "4096 GPUs do not fit into an annotation of 204800 bytes"
        );
        let slots = &Offer::of(&wired(1000), settings("slots")).unwrap().lists[keys::GPU_SLOT];
        assert!(slots.encoded_size() < LIST_MAX && slots.len() >= 16_000);
    }
}
