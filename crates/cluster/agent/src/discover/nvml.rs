//! The cards that NVIDIA's driver reports, through NVML. The library is loaded at run
//! time, so one program runs on nodes with and without it. Cards are told once, since a
//! card cannot be added under a running driver; after that only their health is looked
//! at: a card with a critical XID, or one that does not answer any more, is sick until
//! the agent starts again, because the way back is a reset of the card.
//!
//! A fact that NVML does not give about a card is unknown, never an error. The wrapper has no
//! safe call for the place on the board or the NVLink fabric, so both stay unknown here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::{Device, Nvml};
use sublet_model::{Bdf, Bytes, Gpu, GpuIndex, GpuUuid, Health, Inventory, Level, MiB, Pair};
use tracing::{debug, warn};

use super::sysfs::Sysfs;
use super::{DeviceSource, DiscoverError};

/// The name under which the dynamic loader finds NVML where the driver is installed.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// XIDs that an application causes by itself and the card survives. The list is that of
/// NVIDIA's own device plugin (k8s-device-plugin, internal/rm/health.go): 13 graphics
/// engine exception, 31 page fault, 43 stopped processing, 45 preemptive cleanup,
/// 68 video processor exception, 109 context switch timeout.
const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Longest single wait for an event. The driver wakes it at once for an event, so a shorter wait
/// gains nothing. It also bounds how long a watcher outlives its last listener.
const EVENT_WAIT: Duration = Duration::from_secs(5);

/// Interval at which every card is asked for a sign of life although no event came. Not all cards
/// send events, and one that vanished without an XID would never be missed.
const PROBE_EVERY: Duration = Duration::from_secs(60);

/// The most NVLinks of one card (`NVML_NVLINK_MAX_LINKS`, nvml.h).
const LINKS_MAX: u32 = 18;

/// The first byte of the PCI class of display controllers, which all cards have (`PCI_BASE_CLASS_DISPLAY`,
/// pci_ids.h). An NVSwitch is a bridge.
const DISPLAY: u32 = 0x03;

/// The PCI vendor of IBM, whose POWER9 has NVLinks of its own: the far end of such a
/// link is a CPU and joins no GPUs.
const VENDOR_IBM: u32 = 0x1014;

/// The cards of this machine's driver.
pub struct NvmlSource {
    nvml: &'static Nvml,
    library: PathBuf,
    sysfs: Sysfs,
    /// The first reading; what NVML said while every card still answered.
    first: Option<Inventory>,
    sick: BTreeMap<GpuIndex, Arc<str>>,
    events: Option<EventSet<'static>>,
    probed: Instant,
}

impl NvmlSource {
    /// Loads NVML from `library`, a name for the dynamic loader ([`LIBRARY`]) or a path.
    /// It stays loaded for the life of the process.
    ///
    /// # Errors
    /// The library is absent or does not start.
    pub fn open(library: &Path) -> Result<NvmlSource, DiscoverError> {
        let nvml = Nvml::builder()
            .lib_path(library.as_os_str())
            .init()
            .map_err(|cause| {
                let library = library.to_owned();
                match cause {
                    NvmlError::LibloadingError(_) => DiscoverError::NoLibrary { library, cause },
                    cause => DiscoverError::Nvml {
                        library,
                        what: "nvmlInit",
                        cause,
                    },
                }
            })?;
        // Events borrow the library; both are wanted until the process ends.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        Ok(NvmlSource {
            nvml,
            library: library.to_owned(),
            sysfs: Sysfs::new(Path::new("/sys")),
            first: None,
            sick: BTreeMap::new(),
            events: None,
            probed: Instant::now(),
        })
    }

    /// Everything about every card.
    fn tell_all(&self) -> Result<Inventory, DiscoverError> {
        let count = self
            .nvml
            .device_count()
            .map_err(|cause| DiscoverError::Nvml {
                library: self.library.clone(),
                what: "nvmlDeviceGetCount",
                cause,
            })?;
        let mut gpus = Vec::new();
        let mut wired = Vec::new();
        for index in (0..count)
            .filter_map(|number| u16::try_from(number).ok())
            .map(GpuIndex)
        {
            let card = self
                .card(index)
                .and_then(|card| Ok((self.gpu(index, &card)?, card)));
            match card {
                Ok((gpu, card)) => {
                    wired.push(Wired {
                        index,
                        bdf: gpu.bdf,
                        links: far_ends(&card),
                    });
                    gpus.push(gpu);
                }
                // Its place is kept, so that the cards after it keep their numbers.
                Err(error) => gpus.push(lost(index, &error)),
            }
        }
        // Of one that does not answer not even its address is known.
        let all_known = wired.iter().filter(|card| card.bdf.is_some()).count() == gpus.len();
        let pairs = self.pairs(&wired, all_known);
        Inventory::new(gpus, pairs, Vec::new(), Vec::new()).map_err(|cause| {
            DiscoverError::Contradiction {
                origin: self.library.clone(),
                cause,
            }
        })
    }

    fn card(&self, index: GpuIndex) -> Result<Device<'static>, NvmlError> {
        self.nvml.device_by_index(index.0.into())
    }

    fn gpu(&self, index: GpuIndex, device: &Device<'_>) -> Result<Gpu, NvmlError> {
        let uuid = device.uuid()?;
        let memory = device.memory_info()?;
        let bdf: Option<Bdf> = device
            .pci_info()
            .ok()
            .and_then(|pci| pci.bus_id.parse().ok());
        Ok(Gpu {
            uuid: GpuUuid::new(&uuid).ok(),
            model: Arc::from(device.name().unwrap_or_default()),
            memory: Bytes::new(memory.total.saturating_sub(memory.reserved)).whole_mib(),
            minor: device
                .minor_number()
                .ok()
                .and_then(|minor| u16::try_from(minor).ok()),
            bdf,
            numa: bdf.and_then(|bdf| self.sysfs.numa(bdf)),
            pci_path: bdf.map(|bdf| self.sysfs.pci_path(bdf)).unwrap_or_default(),
            ..Gpu::plain(index, MiB::ZERO)
        })
    }

    /// The wiring of every two cards, as far as NVML tells their distance. `all_known`: there are
    /// no other cards than these.
    fn pairs(&self, cards: &[Wired], all_known: bool) -> Vec<Pair> {
        let switches = switches(cards, all_known, |far| self.sysfs.class(far));
        let mut pairs = Vec::new();
        for (at, a) in cards.iter().enumerate() {
            for b in &cards[at + 1..] {
                let both = self
                    .card(a.index)
                    .and_then(|one| Ok((one, self.card(b.index)?)));
                let level = both.and_then(|(one, other)| one.topology_common_ancestor(other));
                let Ok(level) = level else { continue };
                let nvlinks = nvlinks(&switches, (a.bdf, &a.links), (b.bdf, &b.links));
                pairs.push(Pair {
                    gpus: (a.index, b.index),
                    level: distance(&level),
                    nvlinks,
                });
            }
        }
        pairs
    }

    /// Asks every card for a sign of life.
    fn probe(&mut self, first: &Inventory) {
        self.probed = Instant::now();
        for gpu in first.gpus() {
            if let Err(error) = self.card(gpu.index).and_then(|card| card.uuid()) {
                self.sick
                    .entry(gpu.index)
                    .or_insert_with(|| Arc::from(error.to_string()));
            }
        }
    }

    /// Waits for one event and notes what it says; true if something may be new.
    fn wait_for_event(&mut self) -> bool {
        let Some(events) = &self.events else {
            thread::sleep(EVENT_WAIT);
            return false;
        };
        let event = match events.wait(EVENT_WAIT.as_millis() as u32) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => return false,
            Err(error) => {
                // Every further wait would fail at once too, and this would become a busy loop.
                warn!(%error, "no more events from NVML, only asking the cards from now on");
                self.events = None;
                return true;
            }
        };
        let Some(reason) = sickness(event.event_type, event.event_data.as_ref()) else {
            debug!(event = ?event.event_data, "event of an application ignored");
            return false;
        };
        // A card that fell off the bus cannot say which it is; then the probe finds it.
        if let Ok(index) = event.device.index()
            && let Ok(index) = u16::try_from(index)
        {
            warn!(gpu = index, reason, "card is sick");
            self.sick
                .entry(GpuIndex(index))
                .or_insert_with(|| Arc::from(reason));
        }
        true
    }
}

impl DeviceSource for NvmlSource {
    fn read(&mut self) -> Result<Inventory, DiscoverError> {
        let first = match self.first.take() {
            Some(first) => first,
            None => {
                self.events = listen(self.nvml);
                self.tell_all()?
            }
        };
        self.probe(&first);
        let now = self
            .sick
            .iter()
            .fold(first.clone(), |inventory, (index, reason)| {
                inventory.with_sick(&[*index].into(), reason)
            });
        self.first = Some(first);
        Ok(now)
    }

    fn changed(&mut self) -> bool {
        self.wait_for_event() || self.probed.elapsed() >= PROBE_EVERY
    }
}

/// A card that was there when the driver started and does not answer.
fn lost(index: GpuIndex, error: &NvmlError) -> Gpu {
    warn!(gpu = %index, %error, "card does not answer");
    Gpu {
        health: Health::Sick(Arc::from(error.to_string())),
        ..Gpu::plain(index, MiB::ZERO)
    }
}

/// Registers for critical XIDs of every card that reports them; `None` where none does.
/// A failed registration costs the whole set, so it starts again without that card.
fn listen(nvml: &'static Nvml) -> Option<EventSet<'static>> {
    let reports_xids = |device: &Device<'_>| {
        device
            .supported_event_types()
            .is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
    };
    let count = nvml.device_count().ok()?;
    let mut devices: Vec<Device<'static>> = (0..count)
        .filter_map(|number| nvml.device_by_index(number).ok())
        .filter(reports_xids)
        .collect();
    'again: while !devices.is_empty() {
        let mut events = nvml.create_event_set().ok()?;
        for at in 0..devices.len() {
            match devices[at].register_events(EventTypes::CRITICAL_XID_ERROR, events) {
                Ok(same) => events = same,
                Err(error) => {
                    warn!(card = at, %error, "card reports no health events");
                    devices.remove(at);
                    continue 'again;
                }
            }
        }
        return Some(events);
    }
    None
}

/// Returns the fault of the card that an event reports, if any.
fn sickness(kind: EventTypes, xid: Option<&XidError>) -> Option<String> {
    if !kind.contains(EventTypes::CRITICAL_XID_ERROR) {
        return None;
    }
    match xid {
        Some(XidError::Value(xid)) if APPLICATION_XIDS.contains(xid) => None,
        Some(XidError::Value(xid)) => Some(format!("xid {xid}")),
        Some(XidError::Unknown) | None => Some("unknown xid".to_owned()),
    }
}

/// A card with what its active NVLinks lead to.
struct Wired {
    index: GpuIndex,
    bdf: Option<Bdf>,
    links: Vec<Bdf>,
}

/// The PCI addresses at the far ends of a card's active NVLinks, without those to CPUs.
fn far_ends(device: &Device<'_>) -> Vec<Bdf> {
    (0..LINKS_MAX)
        .map(|link| device.link_wrapper_for(link))
        .filter(|link| link.is_active().unwrap_or(false))
        .filter_map(|link| link.remote_pci_info().ok())
        .filter(|remote| remote.pci_device_id & 0xffff != VENDOR_IBM)
        .filter_map(|remote| remote.bus_id.parse().ok())
        .collect()
}

fn distance(level: &TopologyLevel) -> Level {
    match level {
        TopologyLevel::Internal => Level::Board,
        TopologyLevel::Single => Level::Pix,
        TopologyLevel::Multiple => Level::Pxb,
        TopologyLevel::HostBridge => Level::Phb,
        TopologyLevel::Node => Level::Node,
        TopologyLevel::System => Level::Sys,
    }
}

/// The switches among the far ends of all links: no known card, and by `class` (its PCI class, if
/// Linux tells it) no lost one. A far end without a known class is a switch only if `all_known`, as
/// in a guest: otherwise it may be the card that does not answer, and two cards with links to that
/// are not joined.
fn switches(cards: &[Wired], all_known: bool, class: impl Fn(Bdf) -> Option<u32>) -> BTreeSet<Bdf> {
    let is_known = |far: &Bdf| cards.iter().any(|card| card.bdf == Some(*far));
    let is_switch = |far: &Bdf| class(*far).map_or(all_known, |class| class >> 16 != DISPLAY);
    let ends = cards.iter().flat_map(|card| card.links.iter().copied());
    ends.filter(|far| !is_known(far) && is_switch(far))
        .collect()
}

/// The NVLinks between two cards: the direct ones, and as many through switches as both have. The
/// smaller of the two ends' counts holds, as a link that one end calls dead carries nothing.
fn nvlinks(switches: &BTreeSet<Bdf>, a: (Option<Bdf>, &[Bdf]), b: (Option<Bdf>, &[Bdf])) -> u8 {
    let to =
        |links: &[Bdf], end: Option<Bdf>| links.iter().filter(|&&link| Some(link) == end).count();
    let switched = |links: &[Bdf]| links.iter().filter(|link| switches.contains(link)).count();
    let direct = to(a.1, b.0).min(to(b.1, a.0));
    let through = switched(a.1).min(switched(b.1));
    u8::try_from(direct + through).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_xids_of_the_card_make_it_sick() {
        let check = |kind, xid| sickness(kind, Some(&XidError::Value(xid)));
        let critical = EventTypes::CRITICAL_XID_ERROR;
        assert_eq!(check(critical, 79).as_deref(), Some("xid 79"));
        assert_eq!(check(critical, 31), None);
        assert_eq!(check(EventTypes::CLOCK_CHANGE, 79), None);
        assert_eq!(
            sickness(critical, Some(&XidError::Unknown)).as_deref(),
            Some("unknown xid")
        );
    }

    #[test]
    fn links_are_counted_at_their_weaker_end() {
        let bdf = |bus| Bdf {
            domain: 0,
            bus,
            device: 0,
            function: 0,
        };
        let switches = [bdf(8), bdf(9)].into();
        let check = |a: &[u8], b: &[u8]| {
            let ends = |buses: &[u8]| buses.iter().map(|&bus| bdf(bus)).collect::<Vec<_>>();
            nvlinks(
                &switches,
                (Some(bdf(1)), &ends(a)),
                (Some(bdf(2)), &ends(b)),
            )
        };
        assert_eq!(check(&[2, 2, 3], &[1, 1]), 2);
        assert_eq!(check(&[2, 2], &[1]), 1, "one end calls a link dead");
        assert_eq!(check(&[3], &[3]), 0, "both lead to a third card");
        assert_eq!(check(&[9, 9, 9], &[9, 9, 8]), 3, "through switches");
        assert_eq!(check(&[], &[]), 0);
    }

    #[test]
    fn two_cards_with_links_to_a_lost_one_are_not_joined() {
        let far: Bdf = "0000:09:00.0".parse().unwrap();
        let card = |index: u16| Wired {
            index: GpuIndex(index),
            bdf: format!("0000:0{}:00.0", index + 1).parse().ok(),
            links: vec![far; 2],
        };
        let (display, bridge) = (Some(0x03_0200), Some(0x06_8000));
        for (class, all_known, expected) in [
            (bridge, true, 2),
            (bridge, false, 2),
            // The kernel still knows the lost card.
            (display, false, 0),
            (display, true, 0),
            // A guest may not see its switches.
            (None, true, 2),
            (None, false, 0),
        ] {
            let cards = [card(0), card(1)];
            let switches = switches(&cards, all_known, |_| class);
            let [a, b] = &cards;
            let joined = nvlinks(&switches, (a.bdf, &a.links), (b.bdf, &b.links));
            assert_eq!(joined, expected, "{class:?} {all_known}");
        }
    }
}
