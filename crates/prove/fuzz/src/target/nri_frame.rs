//! Frames on NRI's socket, as the container runtime writes them, and the messages in them.

use prost::Message as _;
use sublet_nri::frame::Decoder;
use sublet_nri::{CreateContainerRequest, Request, Response, SynchronizeRequest};

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "nri_frame",
    run,
};

/// The first byte says where the rest is cut: a connection may bring it in any parts.
fn run(bytes: &[u8]) {
    let Some((&at, bytes)) = bytes.split_first() else {
        return;
    };
    let whole = Decoder::default().push(bytes);
    let (first, second) = bytes.split_at(usize::from(at).min(bytes.len()));
    let mut decoder = Decoder::default();
    let parts = decoder.push(first).and_then(|mut messages| {
        messages.extend(decoder.push(second)?);
        Ok(messages)
    });
    assert_eq!(parts, whole);
    for message in whole.unwrap_or_default() {
        let payload = &message.payload[..];
        let (_, _) = (Request::decode(payload), Response::decode(payload));
        let _ = CreateContainerRequest::decode(payload);
        let _ = SynchronizeRequest::decode(payload);
        let again = Decoder::default().push(&message.encode()).unwrap();
        assert_eq!(again, [message]);
    }
}
