//! Finding a card, and its properties: name, numbers, place on the bus.

use sublet_driver_api::nvml::{
    NVML_BRAND_GEFORCE, NVML_BRAND_GEFORCE_RTX, NVML_BRAND_NVIDIA, NVML_BRAND_QUADRO,
    NVML_BRAND_TESLA, NVML_BRAND_TITAN, NVML_BUS_TYPE_PCIE, NVML_DEVICE_ARCH_ADA,
    NVML_DEVICE_ARCH_AMPERE, NVML_DEVICE_ARCH_BLACKWELL, NVML_DEVICE_ARCH_HOPPER,
    NVML_DEVICE_ARCH_TURING, NVML_DEVICE_ARCH_UNKNOWN, NVML_DEVICE_ARCH_VOLTA,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND,
    NVML_UUID_TYPE_ASCII, NVML_UUID_TYPE_BINARY, nvmlBrandType_t, nvmlDevice_t, nvmlPciInfo_t,
    nvmlPciInfoExt_v1, nvmlPciInfoExt_v1_t, nvmlUUID_v1, nvmlUUID_v1_t,
};
use sublet_model::Bdf;

use super::exported::{Answer, functions};
use super::library::{Card, card, handle, machine};
use super::pointer::{In, Name, Out, Text, characters};
use crate::machine::CardInfo;
use crate::product::parse_pci_address;
use crate::spec::CardUuid;

functions! {
    fn nvmlDeviceGetCount(count: Out<u32>) {
        count_cards(count)
    }

    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        count_cards(count)
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<nvmlDevice_t>) {
        by_index(index, device)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<nvmlDevice_t>) {
        by_index(index, device)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Name, device: Out<nvmlDevice_t>) {
        machine()?;
        let uuid = uuid.read()?;
        find(device, |card| card.uuid.to_string().eq_ignore_ascii_case(&uuid))
    }

    fn nvmlDeviceGetHandleByUUIDV(uuid: In<nvmlUUID_v1_t>, device: Out<nvmlDevice_t>) {
        machine()?;
        let uuid = uuid.read()?;
        if uuid.version != nvmlUUID_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let value = uuid.value.str;
        let wanted = match uuid.r#type {
            kind if kind == NVML_UUID_TYPE_ASCII.0 => {
                let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
                CardUuid::parse(&String::from_utf8_lossy(text))
            }
            kind if kind == NVML_UUID_TYPE_BINARY.0 => value.first_chunk().copied().map(CardUuid),
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        find(device, |card| Some(card.uuid) == wanted)
    }

    fn nvmlDeviceGetHandleBySerial(serial: Name, device: Out<nvmlDevice_t>) {
        machine()?;
        let wanted = serial.read()?;
        find(device, |card| serial_of(card) == wanted)
    }

    fn nvmlDeviceGetHandleByPciBusId(address: Name, device: Out<nvmlDevice_t>) {
        by_pci_address(address, device)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(address: Name, device: Out<nvmlDevice_t>) {
        by_pci_address(address, device)
    }

    fn nvmlDeviceGetName(device: nvmlDevice_t, name: Text, length: u32) {
        name.write(length, &card(device)?.info().name)
    }

    fn nvmlDeviceGetBrand(device: nvmlDevice_t, brand: Out<nvmlBrandType_t>) {
        brand.write(brand_of(&card(device)?.info().name))
    }

    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: Text, length: u32) {
        uuid.write(length, &card(device)?.info().uuid.to_string())
    }

    fn nvmlDeviceGetSerial(device: nvmlDevice_t, serial: Text, length: u32) {
        serial.write(length, &serial_of(card(device)?.info()))
    }

    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<u32>) {
        index.write(number(&card(device)?))
    }

    /// The number in `/dev/nvidiaN`, if there were such a file.
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: Out<u32>) {
        minor.write(card(device)?.info().minor)
    }

    fn nvmlDeviceGetBoardId(device: nvmlDevice_t, number: Out<u32>) {
        let address = card(device)?.info().pci_address;
        number.write(u32::from(address.bus) << 8 | u32::from(address.device))
    }

    fn nvmlDeviceGetMultiGpuBoard(device: nvmlDevice_t, is_multi: Out<u32>) {
        card(device)?;
        is_multi.write(0)
    }

    fn nvmlDeviceOnSameBoard(one: nvmlDevice_t, other: nvmlDevice_t, is_same: Out<i32>) {
        let (one, other) = (card(one)?, card(other)?);
        is_same.write(i32::from(one.info().index == other.info().index))
    }

    fn nvmlDeviceGetVbiosVersion(device: nvmlDevice_t, version: Text, length: u32) {
        card(device)?;
        version.write(length, "96.00.FA.4E.01")
    }

    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, architecture: Out<u32>) {
        architecture.write(match card(device)?.product().capability {
            (7, 0) => NVML_DEVICE_ARCH_VOLTA,
            (7, _) => NVML_DEVICE_ARCH_TURING,
            (8, 9) => NVML_DEVICE_ARCH_ADA,
            (8, _) => NVML_DEVICE_ARCH_AMPERE,
            (9, _) => NVML_DEVICE_ARCH_HOPPER,
            (10 | 12, _) => NVML_DEVICE_ARCH_BLACKWELL,
            _ => NVML_DEVICE_ARCH_UNKNOWN,
        })
    }

    fn nvmlDeviceGetCudaComputeCapability(
        device: nvmlDevice_t,
        major: Out<i32>,
        minor: Out<i32>,
    ) {
        let capability = card(device)?.product().capability;
        minor.check()?;
        major.write(capability.0)?;
        minor.write(capability.1)
    }

    fn nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, cores: Out<u32>) {
        let product = card(device)?.product();
        cores.write(product.n_multiprocessors * product.n_cores)
    }

    /// The first version of the struct ends before the number of the subsystem.
    fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) {
        let address = PciAddress::of(&card(device)?);
        pci.check()?.beginning::<PciAddress>().write(address)
    }

    /// The second one before the long form of the address.
    fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) {
        let card = card(device)?;
        pci.check()?.beginning::<PciAddress>().write(PciAddress::of(&card))?;
        let behind = pci.beginning::<PciAddress>().at(1);
        behind.beginning::<u32>().write(subsystem(&card))
    }

    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) {
        let card = card(device)?;
        let address = PciAddress::of(&card);
        pci.write(nvmlPciInfo_t {
            busIdLegacy: address.legacy,
            domain: address.domain,
            bus: address.bus,
            device: address.device,
            pciDeviceId: address.product,
            pciSubSystemId: subsystem(&card),
            busId: characters(&address.long()),
        })
    }

    fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, pci: Out<nvmlPciInfoExt_v1_t>) {
        let card = card(device)?;
        let asked = pci.read()?;
        if asked.version != nvmlPciInfoExt_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let address = PciAddress::of(&card);
        pci.write(nvmlPciInfoExt_v1_t {
            version: asked.version,
            domain: address.domain,
            bus: address.bus,
            device: address.device,
            pciDeviceId: address.product,
            pciSubSystemId: subsystem(&card),
            // A 3D controller, as cards without a display are.
            baseClass: 3,
            subClass: 2,
            busId: characters(&address.long()),
        })
    }

    fn nvmlDeviceGetBusType(device: nvmlDevice_t, kind: Out<u32>) {
        card(device)?;
        kind.write(NVML_BUS_TYPE_PCIE)
    }
}

fn count_cards(count: Out<u32>) -> Answer {
    let n_cards = machine()?.cards().len();
    count.write(u32::try_from(n_cards).unwrap_or(u32::MAX))
}

fn by_index(index: u32, device: Out<nvmlDevice_t>) -> Answer {
    if index as usize >= machine()?.cards().len() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    device.write(handle(index as usize))
}

fn by_pci_address(address: Name, device: Out<nvmlDevice_t>) -> Answer {
    machine()?;
    let wanted = parse_pci_address(&address.read()?).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    find(device, |card| wanted == card.pci_address)
}

/// Gives the handle of the first card that is meant.
fn find(device: Out<nvmlDevice_t>, is_meant: impl Fn(&CardInfo) -> bool) -> Answer {
    let machine = machine()?;
    let found = machine.cards().iter().find(|card| is_meant(card));
    let found = found.ok_or(NVML_ERROR_NOT_FOUND)?;
    device.write(handle(found.index))
}

fn number(card: &Card) -> u32 {
    u32::try_from(card.info().index).unwrap_or(u32::MAX)
}

/// Serial numbers of data-centre cards have thirteen digits. Ours is made of the UUID.
fn serial_of(card: &CardInfo) -> String {
    let (first, _) = card.uuid.0.split_at(8);
    let number = first
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{:013}", number % 10_000_000_000_000)
}

fn brand_of(name: &str) -> nvmlBrandType_t {
    let brands = [
        ("Tesla", NVML_BRAND_TESLA),
        ("GeForce RTX", NVML_BRAND_GEFORCE_RTX),
        ("GeForce", NVML_BRAND_GEFORCE),
        ("Quadro", NVML_BRAND_QUADRO),
        ("TITAN", NVML_BRAND_TITAN),
    ];
    let known = brands.iter().find(|(part, _)| name.contains(part));
    known.map_or(NVML_BRAND_NVIDIA, |(_, brand)| *brand)
}

/// The maker of the product is NVIDIA itself, so product and chip have one number.
fn subsystem(card: &Card) -> u32 {
    card.product().pci_id()
}

/// Place of a card on the bus: the beginning of the old and the new `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PciAddress {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    product: u32,
}

impl PciAddress {
    fn of(card: &Card) -> PciAddress {
        let Bdf {
            domain,
            bus,
            device,
            ..
        } = card.info().pci_address;
        PciAddress {
            legacy: characters(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus: bus.into(),
            device: device.into(),
            product: card.product().pci_id(),
        }
    }

    fn long(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}
