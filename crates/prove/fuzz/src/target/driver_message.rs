//! Messages on a tenant's socket, which any process of a container may send, and the arbiter's
//! answers.

use sublet_abi::{ArbiterMessage, ProcessMessage, VERSION};

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "driver_message",
    run,
};

/// A message that was read is written as the same bytes again: nothing in it goes unread. A speaker
/// of another version may have said more, which is left alone.
fn run(bytes: &[u8]) {
    match ProcessMessage::parse(bytes) {
        Ok(ProcessMessage::Hello(hello)) if hello.max_version != VERSION => {
            assert!(hello.min_version <= hello.max_version);
        }
        Ok(message) => assert_eq!(message.encode()[..], *bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(message) = ArbiterMessage::parse(bytes) {
        assert_eq!(message.encode()[..], *bytes);
    }
}
