//! Devices: finding a card, and its properties. The machine has its name, memory and place;
//! [`Product`] has the properties of a product of that name.

use std::ffi::c_char;

use sublet_driver_api::cuda::{CUdevprop_v1, CUuuid};

use crate::cuda::arguments::{Out, Text};
use crate::cuda::device::attribute::attribute_of;
use crate::cuda::functions;
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::machine::CardInfo;
use crate::product::{Product, parse_pci_address};

pub(crate) mod attribute;

functions! {
    fn cuDeviceGetCount(count: Out<i32>) {
        let n_devices = Session::open()?.visible.len();
        count.put(i32::try_from(n_devices).map_err(|_| Code::UNKNOWN)?)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        Session::open()?.card_of(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: i32, device: i32) {
        name.put_text(&card(device)?.name, room)
    }

    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: i32) {
        uuid.put(CUuuid { bytes: card(device)?.uuid.0 })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: i32) {
        uuid.put(CUuuid { bytes: card(device)?.uuid.0 })
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.put(card(device)?.memory as usize)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let capability = Product::of(&card(device)?.name).capability;
        minor.check()?;
        major.put(capability.0)?;
        minor.put(capability.1)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        let card = card(device)?;
        value.put(attribute_of(&card, attribute)?)
    }

    fn cuDeviceGetProperties(properties: Out<CUdevprop_v1>, device: i32) {
        let product = Product::of(&card(device)?.name);
        properties.put(CUdevprop_v1 {
            maxThreadsPerBlock: 1024,
            maxThreadsDim: [1024, 1024, 64],
            maxGridSize: [i32::MAX, 65535, 65535],
            sharedMemPerBlock: 49152,
            totalConstantMemory: 65536,
            SIMDWidth: 32,
            memPitch: i32::MAX,
            regsPerBlock: 65536,
            clockRate: int(product.graphics_mhz * 1000),
            textureAlign: 512,
        })
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: i32) {
        text.put_text(&pci_address(&card(device)?), room)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let wanted = parse_pci_address(&text.string()?).ok_or(Code::INVALID_VALUE)?;
        let session = Session::open()?;
        let cards = session.registration.machine().cards();
        let found = session.visible.iter().find(|card| cards[**card].pci_address == wanted);
        let card = found.copied().ok_or(Code::INVALID_DEVICE)?;
        device.put(session.device_of(card))
    }

    fn cuDeviceGetLuid(_luid: Out<c_char>, _mask: Out<u32>, device: i32) {
        card(device)?;
        Err(Code::NOT_SUPPORTED)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, _format: u32, _channels: u32, device: i32) {
        card(device)?;
        width.put(1 << 28)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        card(device)?;
        card(peer)?;
        can.put(i32::from(device != peer))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, device: i32, peer: i32) {
        card(device)?;
        card(peer)?;
        if device == peer {
            return Err(Code::INVALID_DEVICE);
        }
        match attribute {
            1 => value.put(0),
            2..=4 => value.put(1),
            5 => value.put(0),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuDeviceGetExecAffinitySupport(value: Out<i32>, kind: u32, device: i32) {
        card(device)?;
        if kind != 0 {
            return Err(Code::INVALID_VALUE);
        }
        value.put(0)
    }

    fn cuFlushGPUDirectRDMAWrites(_target: u32, _scope: u32) {
        Session::open()?.current().map(drop)
    }
}

fn card(device: i32) -> Answer<CardInfo> {
    let session = Session::open()?;
    let card = session.card_of(device)?;
    Ok(session.registration.machine().cards()[card].clone())
}

/// The PCI address of a card, in the form that CUDA writes.
pub(crate) fn pci_address(card: &CardInfo) -> String {
    card.pci_address.to_string()
}

/// A figure of a card in C's `int`.
fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
