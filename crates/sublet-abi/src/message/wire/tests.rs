//! Any bytes are a message or a typed error; any message survives the way.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::{
    ArbiterMessage, DeviceClaim, Hello, MessageError, Mode, ProcessMessage, RefusedCode,
    RefusedHello, SlotClaim, Text, Welcome,
};
use super::{HelloBytes, WelcomeBytes};
use crate::units::SlotIndex;
use crate::{MAX_DEVICES, SLOTS, VERSION};

fn slots() -> impl Strategy<Value = SlotIndex> {
    (1..=SLOTS as u32).prop_map(|index| SlotIndex::of_process(index).expect("in range"))
}

fn claims() -> impl Strategy<Value = [DeviceClaim; MAX_DEVICES]> {
    prop::array::uniform16(
        (any::<[u8; 16]>(), any::<u64>()).prop_map(|(uuid, bytes)| DeviceClaim { uuid, bytes }),
    )
}

fn requests() -> impl Strategy<Value = ProcessMessage> {
    let held = (slots(), any::<u32>(), claims(), any::<u64>());
    let held = held.prop_map(|(slot, generation, claims, host_bytes)| SlotClaim {
        slot,
        generation,
        claims,
        host_bytes,
    });
    let version = || prop_oneof![0..4u16, any::<u16>()];
    let versions = (version(), version());
    let hello = (versions, prop::option::of(held)).prop_map(|((one, other), mut held)| {
        let max_version = one.max(other);
        if let Some(held) = &mut held
            && max_version < 2
        {
            held.host_bytes = 0; // version 1 has no place for it
        }
        ProcessMessage::Hello(Hello {
            min_version: one.min(other),
            max_version,
            held,
        })
    });
    prop_oneof![9 => hello, 1 => Just(ProcessMessage::Bye)]
}

fn replies() -> impl Strategy<Value = ArbiterMessage> {
    let mode = prop_oneof![Just(Mode::Compat), Just(Mode::Strict)];
    let welcome = (mode, slots(), any::<u32>(), any::<u64>());
    let welcome = welcome.prop_map(|(mode, slot, generation, tenant)| {
        ArbiterMessage::Welcome(Welcome {
            version: VERSION,
            mode,
            slot,
            generation,
            tenant,
        })
    });
    let refused = (any::<u16>(), ".{0,300}").prop_map(|(code, text)| {
        ArbiterMessage::Refused(RefusedHello {
            code: RefusedCode::of_number(code),
            text: Text::new(&text),
        })
    });
    prop_oneof![welcome, refused]
}

/// Every parsed message is written as the same bytes, so nothing went unread. A hello of a later
/// version is the exception: that version's additions are left alone.
fn check_any_bytes(bytes: &[u8]) -> Result<(), TestCaseError> {
    match ProcessMessage::parse(bytes) {
        Ok(ProcessMessage::Hello(hello)) if hello.max_version > VERSION => {
            prop_assert!(bytes.len() >= size_of::<HelloBytes>());
        }
        Ok(request) => prop_assert_eq!(&*request.encode(), bytes),
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    match ArbiterMessage::parse(bytes) {
        Ok(reply) => prop_assert_eq!(&*reply.encode(), bytes),
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_survive_the_way(request in requests(), reply in replies()) {
        prop_assert_eq!(ProcessMessage::parse(&request.encode()), Ok(request));
        prop_assert_eq!(ArbiterMessage::parse(&reply.encode()), Ok(reply));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..1100),
    ) {
        check_any_bytes(&bytes)?;
    }

    #[test]
    fn almost_messages_are_a_message_or_an_error(
        request in requests(),
        reply in replies(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        tail in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        for message in [request.encode(), reply.encode()] {
            let mut bytes = message.to_vec();
            if let Some(cut) = &cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes.extend(&tail);
            // The stated size is right as often as not, to come to what is behind that check.
            if bytes.len() >= 8 && tail.len() % 2 == 0 {
                let size = bytes.len() as u16;
                bytes[6..8].copy_from_slice(&size.to_ne_bytes());
            }
            for (place, value) in &changes {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = *value;
                }
            }
            check_any_bytes(&bytes)?;
        }
    }
}

/// Fields of version 1 stay at their places when a later version is spoken too: an arbiter of
/// version 1 reads them there.
#[test]
fn a_hello_of_version_2_begins_as_one_of_version_1() {
    let held = SlotClaim {
        slot: SlotIndex::of_process(9).expect("in range"),
        generation: 3,
        claims: [DeviceClaim::default(); MAX_DEVICES],
        host_bytes: 0x0102_0304,
    };
    let hello = |max_version| {
        let held = Some(held.clone());
        let min_version = 1;
        ProcessMessage::Hello(Hello {
            min_version,
            max_version,
            held,
        })
        .encode()
    };
    let (first, second) = (hello(1), hello(2));
    assert_eq!((first.len(), second.len()), (408, 416));
    let differ: Vec<usize> = (0..408).filter(|at| first[*at] != second[*at]).collect();
    assert_eq!(differ, [6, 10], "its size and the newest version");
    assert_eq!(second[408..], 0x0102_0304_u64.to_ne_bytes());
}

fn hello(max_version: u16) -> Vec<u8> {
    let hello = Hello {
        min_version: 1,
        max_version,
        held: None,
    };
    ProcessMessage::Hello(hello).encode().to_vec()
}

fn changed(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

fn lengthened(mut bytes: Vec<u8>, by: usize) -> Vec<u8> {
    bytes.resize(bytes.len() + by, 7);
    let size = bytes.len() as u16;
    changed(bytes, 6, &size.to_ne_bytes())
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let field = |name, value| MessageError::Field { name, value };
    let later = VERSION + 1;
    for (bytes, error) in [
        (vec![], MessageError::Short { len: 0 }),
        (hello(1)[..7].to_vec(), MessageError::Short { len: 7 }),
        (changed(hello(1), 0, b"x"), MessageError::Magic),
        (changed(hello(1), 4, &[9, 0]), MessageError::Kind(9)),
        (changed(hello(1), 4, &[2, 0]), MessageError::Kind(2)),
        (
            hello(1)[..400].to_vec(),
            MessageError::Size {
                len: 400,
                stated: 408,
                needed: 8,
            },
        ),
        (
            lengthened(hello(1), 8),
            MessageError::Size {
                len: 416,
                stated: 416,
                needed: 408,
            },
        ),
        (
            changed(hello(1), 10, &[2]),
            MessageError::Size {
                len: 408,
                stated: 408,
                needed: 416,
            },
        ),
        (
            lengthened(hello(VERSION), 8),
            MessageError::Size {
                len: 424,
                stated: 424,
                needed: 416,
            },
        ),
        (changed(hello(2), 408, &[5]), field("claim", 5)),
        (changed(hello(1), 8, &[2, 0]), field("oldest version", 2)),
        (changed(hello(1), 12, &[2]), field("flags", 2)),
        (changed(hello(1), 12, &[1]), field("slot", 0)),
        (changed(hello(1), 16, &[5]), field("slot", 5)),
        (changed(hello(1), 20, &[5]), field("generation", 5)),
        (changed(hello(1), 24 + 16, &[5]), field("claim", 5)),
        (
            changed(changed(hello(1), 12, &[1]), 16, &[1, 4]),
            field("slot", 1025),
        ),
        (changed(hello(later), 16, &[5]), field("slot", 5)),
    ] {
        assert_eq!(ProcessMessage::parse(&bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn a_hello_of_a_later_version_is_understood() {
    let later = VERSION + 1;
    let bytes = lengthened(changed(hello(later), 12, &[0xfe]), 100);
    let Ok(ProcessMessage::Hello(hello)) = ProcessMessage::parse(&bytes) else {
        panic!("not understood");
    };
    assert_eq!((hello.min_version, hello.max_version), (1, later));
    assert_eq!(hello.held, None);
}

#[test]
fn what_is_wrong_with_a_reply_is_said() {
    let welcome = ArbiterMessage::Welcome(Welcome {
        version: VERSION,
        mode: Mode::Strict,
        slot: SlotIndex::of_process(3).expect("in range"),
        generation: 1,
        tenant: 9,
    });
    let refused = ArbiterMessage::Refused(RefusedHello {
        code: RefusedCode::Full,
        text: Text::new("full"),
    });
    let (welcome, refused) = (welcome.encode().to_vec(), refused.encode().to_vec());
    let field = |name, value| MessageError::Field { name, value };
    for (bytes, error) in [
        (hello(1), MessageError::Kind(1)),
        (changed(welcome.clone(), 8, &[0]), field("version", 0)),
        (
            changed(welcome.clone(), 10, &[1]),
            field("reserved field", 1),
        ),
        (changed(welcome.clone(), 12, &[2]), field("mode", 2)),
        (changed(welcome.clone(), 16, &[0]), field("slot", 0)),
        (
            lengthened(welcome, 4),
            MessageError::Size {
                len: 36,
                stated: 36,
                needed: size_of::<WelcomeBytes>(),
            },
        ),
        (
            changed(refused.clone(), 10, &[1, 1]),
            field("length of the text", 257),
        ),
        (changed(refused.clone(), 10, &[3]), MessageError::Text),
        (changed(refused, 12, &[0xff]), MessageError::Text),
    ] {
        assert_eq!(ArbiterMessage::parse(&bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn a_long_text_is_cut_between_letters() {
    let long = "é".repeat(200);
    assert_eq!(Text::new(&long).as_str(), "é".repeat(128));
    let odd = std::format!("a{long}");
    assert_eq!(Text::new(&odd).as_str().len(), 255);
    assert_eq!(Text::new("").as_str(), "");
}
