//! Framing of messages on the connection. It has two layers, both with a header and a payload.
//! NRI's multiplexer gives the service and the length. Its payloads, which may be cut anywhere,
//! hold ttrpc's messages with their length, the call, and whether it is a request or a response.
//! Pure: bytes in, messages out.

use std::collections::BTreeMap;

/// The service of the plugin: the runtime calls.
pub const PLUGIN_SERVICE: u32 = 1;

/// The service of the runtime: the plugin calls.
pub const RUNTIME_SERVICE: u32 = 2;

/// ttrpc's limit of one message.
const MESSAGE_MAX: usize = 4 << 20;

/// The longest payload that we put into one frame. The runtime reads through a buffer of 4 KiB, and
/// breaks the connection at a frame that does not fit.
const CHUNK: usize = 4096;

const OUTER: usize = 8;
const INNER: usize = 10;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A call.
    Request,
    /// Its answer.
    Response,
}

/// One message of ttrpc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// [`PLUGIN_SERVICE`] or [`RUNTIME_SERVICE`].
    pub service: u32,
    /// The number of the call, which its answer repeats.
    pub call: u32,
    /// Kind of the message.
    pub kind: MessageKind,
    /// A `Request` or a `Response`, encoded.
    pub payload: Vec<u8>,
}

/// Reason why bytes cannot be NRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message that is too long.
    #[error("a message of {0} bytes, where ttrpc allows {MESSAGE_MAX}")]
    Long(usize),
    /// A message that is neither a request nor a response.
    #[error("a message of the type {0}; requests are 1 and responses 2")]
    Type(u8),
}

impl Message {
    /// The bytes on the connection.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            MessageKind::Request => 1,
            MessageKind::Response => 2,
        };
        let mut inner = Vec::with_capacity(INNER + self.payload.len());
        inner.extend(length(self.payload.len()));
        inner.extend(self.call.to_be_bytes());
        inner.extend([kind, 0]);
        inner.extend(&self.payload);
        let mut outer = Vec::with_capacity(inner.len() + OUTER);
        for chunk in inner.chunks(CHUNK) {
            outer.extend(self.service.to_be_bytes());
            outer.extend(length(chunk.len()));
            outer.extend(chunk);
        }
        outer
    }
}

/// Longer than four bytes can say is longer than any receiver takes.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// Puts messages together from the bytes as they arrive.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Bytes of an incomplete frame.
    outer: Vec<u8>,
    /// For each service, the bytes of an incomplete message.
    inner: BTreeMap<u32, Vec<u8>>,
}

impl Decoder {
    /// Takes bytes, and returns the messages that they complete.
    ///
    /// # Errors
    /// These bytes are not NRI, and the bytes after them cannot be understood.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Message>, FrameError> {
        self.outer.extend_from_slice(bytes);
        let mut messages = Vec::new();
        let mut rest = &self.outer[..];
        while let Some((header, after)) = rest.split_first_chunk::<OUTER>() {
            let [service, size] = words(header);
            let size = size as usize;
            if size > MESSAGE_MAX + INNER {
                return Err(FrameError::Long(size));
            }
            let Some((chunk, after)) = after.split_at_checked(size) else {
                break;
            };
            rest = after;
            // The runtime opens no other connection, and ignores bytes of one that is not open.
            if service == PLUGIN_SERVICE || service == RUNTIME_SERVICE {
                let inner = self.inner.entry(service).or_default();
                inner.extend_from_slice(chunk);
                take(service, inner, &mut messages)?;
            }
        }
        let used = self.outer.len() - rest.len();
        self.outer.drain(..used);
        Ok(messages)
    }
}

/// Takes the complete messages off the front.
fn take(service: u32, inner: &mut Vec<u8>, messages: &mut Vec<Message>) -> Result<(), FrameError> {
    let mut rest = &inner[..];
    while let Some((header, after)) = rest.split_first_chunk::<INNER>() {
        let [size, call, _] = words(header);
        let size = size as usize;
        if size > MESSAGE_MAX {
            return Err(FrameError::Long(size));
        }
        let kind = match header[8] {
            1 => MessageKind::Request,
            2 => MessageKind::Response,
            other => return Err(FrameError::Type(other)),
        };
        let Some((payload, after)) = after.split_at_checked(size) else {
            break;
        };
        rest = after;
        messages.push(Message {
            service,
            call,
            kind,
            payload: payload.to_vec(),
        });
    }
    let used = inner.len() - rest.len();
    inner.drain(..used);
    Ok(())
}

/// The first numbers of a header.
fn words<const N: usize>(header: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let payload = prop::collection::vec(any::<u8>(), 0..10_000);
        (1..3_u32, any::<u32>(), any::<bool>(), payload).prop_map(
            |(service, call, is_request, payload)| Message {
                service,
                call,
                kind: if is_request {
                    MessageKind::Request
                } else {
                    MessageKind::Response
                },
                payload,
            },
        )
    }

    /// The bytes, cut into pieces of these lengths in turns.
    fn decode(bytes: &[u8], pieces: &[usize]) -> Result<Vec<Message>, FrameError> {
        let mut decoder = Decoder::default();
        let (mut all, mut rest) = (Vec::new(), bytes);
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            all.extend(decoder.push(now)?);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        Ok(all)
    }

    proptest! {
        #[test]
        fn messages_arrive_whole_however_they_are_cut(
            messages in prop::collection::vec(message(), 1..5),
            pieces in prop::collection::vec(1..3_000_usize, 1..5),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
            prop_assert_eq!(decode(&bytes, &pieces).unwrap(), messages);
        }

        #[test]
        fn noise_is_refused_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..5_000)) {
            if let Ok(messages) = decode(&bytes, &[7]) {
                let taken: usize = messages.iter().map(|one| one.payload.len() + INNER).sum();
                prop_assert!(taken <= bytes.len());
            }
        }
    }

    #[test]
    fn a_small_request_lies_on_the_connection_as_containerd_writes_it() {
        let message = Message {
            service: RUNTIME_SERVICE,
            call: 1,
            kind: MessageKind::Request,
            payload: vec![7],
        };
        let expected = [0, 0, 0, 2, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 7];
        assert_eq!(message.encode(), expected);
    }

    #[test]
    fn no_frame_is_longer_than_the_runtime_reads() {
        let message = Message {
            service: PLUGIN_SERVICE,
            call: 3,
            kind: MessageKind::Response,
            payload: vec![0; 10_000],
        };
        let bytes = message.encode();
        let mut rest = &bytes[..];
        let mut sizes = Vec::new();
        while let Some((header, after)) = rest.split_first_chunk::<OUTER>() {
            let [_, size] = words(header);
            sizes.push(size);
            rest = &after[size as usize..];
        }
        assert_eq!(sizes, [4096, 4096, 1818]);
    }

    #[test]
    fn what_cannot_be_nri_is_refused() {
        let long = [0, 0, 0, 1, 255, 0, 0, 0];
        assert_eq!(decode(&long, &[8]), Err(FrameError::Long(0xff00_0000)));
        let inner_long = [0, 0, 0, 1, 0, 0, 0, 10, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0];
        assert_eq!(decode(&inner_long, &[18]), Err(FrameError::Long(1 << 24)));
        let data = [0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0];
        assert_eq!(decode(&data, &[18]), Err(FrameError::Type(3)));
    }
}
