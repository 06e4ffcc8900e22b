//! Any bytes are a message or a typed error; any message survives the way.

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::{
    ArbiterMessage, DeviceClaim, Hello, MessageError, Mode, ProcessMessage, RefusedCode,
    RefusedHello, SlotClaim, Text, Welcome,
};
use super::{HelloStart, WelcomeBytes};
use crate::units::SlotIndex;
use crate::{MAX_DEVICES, OLDEST, SLOTS, VERSION};

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
    let newest = prop_oneof![Just(VERSION), OLDEST..=u16::MAX];
    let hello = (0..=VERSION, newest, prop::option::of(held));
    let hello = hello.prop_map(|(min_version, max_version, held)| {
        ProcessMessage::Hello(Hello {
            min_version,
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

/// Every parsed message is written as the same bytes, so nothing went unread. A hello of another
/// version too is the exception: that version's additions are left alone.
fn check_any_bytes(bytes: &[u8]) -> Result<(), TestCaseError> {
    match ProcessMessage::parse(bytes) {
        Ok(ProcessMessage::Hello(hello)) if hello.max_version != VERSION => {
            prop_assert!(bytes.len() >= size_of::<HelloStart>());
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

/// An arbiter of another version must find the versions at these places, whatever else it expects.
#[test]
fn of_a_process_without_a_version_of_ours_nothing_but_its_versions_is_read() {
    let (before, after) = (OLDEST - 1, VERSION + 1);
    for (min_version, max_version) in [(0, before), (before, before), (after, after), (after, 99)] {
        for len in [12, 408, 600] {
            let mut bytes = lengthened(hello()[..8].to_vec(), len - 8);
            bytes[8..10].copy_from_slice(&min_version.to_ne_bytes());
            bytes[10..12].copy_from_slice(&max_version.to_ne_bytes());
            let hello = Hello {
                min_version,
                max_version,
                held: None,
            };
            let read = ProcessMessage::parse(&bytes);
            assert_eq!(read, Ok(ProcessMessage::Hello(hello)), "{len} bytes");
        }
    }
}

/// One that speaks an earlier version too.
fn hello() -> Vec<u8> {
    let hello = Hello {
        min_version: 1,
        max_version: VERSION,
        held: None,
    };
    ProcessMessage::Hello(hello).encode().to_vec()
}

/// One that speaks a later version too.
fn later_hello() -> Vec<u8> {
    changed(hello(), 10, &(VERSION + 1).to_ne_bytes())
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
    for (bytes, error) in [
        (vec![], MessageError::Short { len: 0 }),
        (hello()[..7].to_vec(), MessageError::Short { len: 7 }),
        (changed(hello(), 0, b"x"), MessageError::Magic),
        (changed(hello(), 4, &[9, 0]), MessageError::Kind(9)),
        (changed(hello(), 4, &[2, 0]), MessageError::Kind(2)),
        (
            hello()[..400].to_vec(),
            MessageError::Size {
                len: 400,
                stated: 416,
                needed: 8,
            },
        ),
        (
            changed(hello()[..408].to_vec(), 6, &408_u16.to_ne_bytes()),
            MessageError::Size {
                len: 408,
                stated: 408,
                needed: 416,
            },
        ),
        (
            lengthened(hello(), 8),
            MessageError::Size {
                len: 424,
                stated: 424,
                needed: 416,
            },
        ),
        (changed(hello(), 408, &[5]), field("claim", 5)),
        (changed(hello(), 8, &[9, 0]), field("oldest version", 9)),
        (changed(hello(), 12, &[2]), field("flags", 2)),
        (changed(hello(), 12, &[1]), field("slot", 0)),
        (changed(hello(), 16, &[5]), field("slot", 5)),
        (changed(hello(), 20, &[5]), field("generation", 5)),
        (changed(hello(), 24 + 16, &[5]), field("claim", 5)),
        (
            changed(changed(hello(), 12, &[1]), 16, &[1, 4]),
            field("slot", 1025),
        ),
        (changed(later_hello(), 16, &[5]), field("slot", 5)),
    ] {
        assert_eq!(ProcessMessage::parse(&bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn a_hello_of_a_later_version_is_understood() {
    let bytes = lengthened(changed(later_hello(), 12, &[0xfe]), 100);
    let Ok(ProcessMessage::Hello(hello)) = ProcessMessage::parse(&bytes) else {
        panic!("not understood");
    };
    assert_eq!((hello.min_version, hello.max_version), (1, VERSION + 1));
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
        (hello(), MessageError::Kind(1)),
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
