//! Finding a card, and its properties: name, numbers, place on the bus.

use sublet_driver_api::nvml::{
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND,
    NVML_UUID_TYPE_ASCII, NVML_UUID_TYPE_BINARY, nvmlDevice_t, nvmlPciInfo_t, nvmlUUID_v1,
    nvmlUUID_v1_t,
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

    /// The maker of the product is NVIDIA itself, so product and chip have one number.
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) {
        let card = card(device)?;
        let Bdf { domain, bus, device, .. } = card.info().pci_address;
        let product = card.product().pci_id();
        pci.write(nvmlPciInfo_t {
            busIdLegacy: characters(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus: bus.into(),
            device: device.into(),
            pciDeviceId: product,
            pciSubSystemId: product,
            busId: characters(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
        })
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
