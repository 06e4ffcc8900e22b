//! Devices: finding a card, and its properties. The machine has its name, memory and place;
//! [`attribute`] adds the properties of a product of that name.

use std::ffi::c_char;

use sublet_driver_api::cuda::CUuuid;

use crate::cuda::arguments::Out;
use crate::cuda::device::attribute::attribute_of;
use crate::cuda::functions;
use crate::driver::Session;
use crate::driver::result::{Answer, Code};
use crate::machine::CardInfo;

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

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        let session = Session::open()?;
        let card = session.card_of(device)?;
        let product = session.product(card);
        let card = &session.registration.machine().cards()[card];
        value.put(attribute_of(card, &product, attribute)?)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: i32) {
        // In the form that CUDA writes.
        text.put_text(&card(device)?.pci_address.to_string(), room)
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
}

fn card(device: i32) -> Answer<CardInfo> {
    let session = Session::open()?;
    let card = session.card_of(device)?;
    Ok(session.registration.machine().cards()[card].clone())
}
