//! Devices: what a card is, in the numbers that programs ask for. Where the machine does
//! not say, they are those of an H100.

use std::ffi::c_char;

use sublet_driver_api::cuda::{CUdevprop_v1, CUuuid};

use super::arguments::{Out, Text};
use super::functions;
use crate::driver::Session;
use crate::driver::code::{Answer, Code};
use crate::machine::CardInfo;

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
        card(device)?;
        major.put(9)?;
        minor.put(0)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        let card = card(device)?;
        value.put(attribute_of(&card, attribute)?)
    }

    fn cuDeviceGetProperties(properties: Out<CUdevprop_v1>, device: i32) {
        card(device)?;
        properties.put(CUdevprop_v1 {
            maxThreadsPerBlock: 1024,
            maxThreadsDim: [1024, 1024, 64],
            maxGridSize: [i32::MAX, 65535, 65535],
            sharedMemPerBlock: 49152,
            totalConstantMemory: 65536,
            SIMDWidth: 32,
            memPitch: i32::MAX,
            regsPerBlock: 65536,
            clockRate: 1_980_000,
            textureAlign: 512,
        })
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: i32, device: i32) {
        text.put_text(&pci_address(&card(device)?), room)
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let wanted = text.string()?.to_ascii_lowercase();
        let session = Session::open()?;
        let cards = session.seat.machine().cards();
        for (place, card) in session.visible.iter().enumerate() {
            let address = pci_address(&cards[*card]);
            // With or without the domain, and with or without the function.
            let short = address.trim_end_matches(".0");
            if [&address[..], short, &address[5..], &short[5..]].contains(&wanted.as_str()) {
                return device.put(i32::try_from(place).map_err(|_| Code::UNKNOWN)?);
            }
        }
        Err(Code::INVALID_DEVICE)
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
    Ok(session.seat.machine().cards()[card].clone())
}

/// The PCI address of a card: made of its number, as NVML and CUDA write it.
pub(super) fn pci_address(card: &CardInfo) -> String {
    format!("0000:{:02x}:00.0", bus(card))
}

fn bus(card: &CardInfo) -> usize {
    0x10 + card.index * 8
}

/// An attribute by C's number.
fn attribute_of(card: &CardInfo, attribute: u32) -> Answer<i32> {
    Ok(match attribute {
        33 => i32::try_from(bus(card)).unwrap_or(0),
        34 | 50 => 0,
        1..=16
        | 18..=20
        | 30..=32
        | 36..=41
        | 51
        | 75
        | 76
        | 78..=82
        | 87
        | 97
        | 106
        | 108
        | 109
        | 111 => shape(attribute),
        21..=29 | 42..=49 | 52..=74 | 77 => texture(attribute),
        119 => 1,
        117 => 1,
        118 => 100,
        126 => 4,
        130 | 133 => 0,
        131 | 134 => -1,
        // What the fake can do.
        83 | 86 | 89 | 90 | 91 | 92 | 93 | 94 | 95 | 99 | 102 | 103 | 113 | 115 | 120 | 121
        | 122 | 123 | 141 | 142 | 144 | 145 => 1,
        17
        | 35
        | 84
        | 85
        | 88
        | 96
        | 98
        | 100
        | 101
        | 104
        | 105
        | 107
        | 110
        | 112
        | 114
        | 116
        | 124
        | 125
        | 127..=129
        | 132
        | 135..=140
        | 143
        | 146..=161 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// What a card's multiprocessors are like.
fn shape(attribute: u32) -> i32 {
    match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 49152,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_980_000,
        14 | 30 => 512,
        16 => 132,
        18 | 20 => 0,
        36 => 2_619_000,
        37 => 5120,
        38 => 52_428_800,
        39 => 2048,
        40 => 3,
        51 => 32,
        75 => 9,
        76 => 0,
        81 => 233_472,
        87 => 2,
        97 => 232_448,
        106 => 32,
        108 => 32_768_000,
        109 => 134_213_632,
        111 => 1024,
        _ => 1,
    }
}

/// How large textures and surfaces can be. There are none here, but programs print it.
fn texture(attribute: u32) -> i32 {
    match attribute {
        21 | 22 => 131_072,
        23 => 65536,
        24 | 25 | 26 | 47 | 48 | 49 => 16384,
        29 | 43 | 62 | 65 => 2048,
        44 => 1,
        54 | 68 => 2046,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65000,
        72 => 2_097_120,
        _ => 32768,
    }
}
