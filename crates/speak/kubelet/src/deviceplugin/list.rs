//! The answer of `ListAndWatch`, held as the bytes that go over the wire. A node that
//! advertises its memory has one device per MiB: fifty thousand `Device` values would
//! cost 150 bytes and three heap blocks each and be copied for every kubelet that
//! connects, while their encoding is 3 MiB that all streams share. So this type stands
//! in for the generated `ListAndWatchResponse` (the wire form is the same); it never
//! holds decoded devices.

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use super::Device;

/// The number of the field `devices` in kubelet's `ListAndWatchResponse`.
const DEVICES_FIELD: u32 = 1;

/// All devices of one resource, in kubelet's wire form. Clones share the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceList {
    encoded: Bytes,
    n_devices: usize,
}

impl DeviceList {
    /// Encodes `devices` unless that takes more than `limit` bytes; then the answer is
    /// `None`, and no more of the devices was looked at than showed it. The iterator is
    /// never collected, so asking about a million devices costs `limit` bytes at most.
    pub fn within(limit: usize, devices: impl IntoIterator<Item = Device>) -> Option<DeviceList> {
        let mut encoded = Vec::new();
        let mut n_devices = 0;
        for device in devices {
            encoding::message::encode(DEVICES_FIELD, &device, &mut encoded);
            n_devices += 1;
            if encoded.len() > limit {
                return None;
            }
        }
        // Growing by doubling leaves up to half of the buffer unused.
        encoded.shrink_to_fit();
        Some(DeviceList {
            encoded: encoded.into(),
            n_devices,
        })
    }

    /// Number of devices in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.n_devices
    }

    /// Whether the list holds no device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_devices == 0
    }

    /// The size of the list as one message, in bytes; to be held against
    /// [`super::MESSAGE_LIMIT`].
    #[must_use]
    pub fn encoded_size(&self) -> usize {
        self.encoded.len()
    }

    /// The devices, decoded one at a time.
    #[must_use]
    pub fn iter(&self) -> DeviceIter {
        DeviceIter {
            rest: self.encoded.clone(),
        }
    }
}

impl FromIterator<Device> for DeviceList {
    fn from_iter<I: IntoIterator<Item = Device>>(devices: I) -> DeviceList {
        DeviceList::within(usize::MAX, devices).unwrap_or_default()
    }
}

impl IntoIterator for &DeviceList {
    type Item = Device;
    type IntoIter = DeviceIter;

    fn into_iter(self) -> DeviceIter {
        self.iter()
    }
}

/// Iterator over the devices of a [`DeviceList`].
#[derive(Clone, Debug)]
pub struct DeviceIter {
    rest: Bytes,
}

impl Iterator for DeviceIter {
    type Item = Device;

    fn next(&mut self) -> Option<Device> {
        if self.rest.is_empty() {
            return None;
        }
        // Only this file writes the bytes, each device after decoding or encoding it
        // whole, so none of the three steps can fail.
        encoding::decode_key(&mut self.rest).ok()?;
        Device::decode_length_delimited(&mut self.rest).ok()
    }
}

/// prost hides three of these methods from its documentation because they are usually
/// derived; their signatures are fixed within prost 0.14, which the workspace pins.
impl Message for DeviceList {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.encoded);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != DEVICES_FIELD {
            return encoding::skip_field(wire_type, tag, buf, ctx);
        }
        let mut device = Device::default();
        encoding::message::merge(wire_type, &mut device, buf, ctx)?;
        let mut encoded = Vec::from(std::mem::take(&mut self.encoded));
        encoding::message::encode(DEVICES_FIELD, &device, &mut encoded);
        self.encoded = encoded.into();
        self.n_devices += 1;
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.encoded.len()
    }

    fn clear(&mut self) {
        *self = DeviceList::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn devices(n: usize) -> impl Iterator<Item = Device> {
        (0..n).map(|i| {
            Device::new(
                format!("GPU-0-_-{i}"),
                i % 2 == 0,
                (i % 3 == 0).then_some(1),
            )
        })
    }

    /// Kubelet's message as prost itself would derive it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Reference {
        #[prost(message, repeated, tag = "1")]
        devices: Vec<Device>,
    }

    #[test]
    fn wire_form_is_kubelets() {
        let reference = Reference {
            devices: devices(100).collect(),
        };
        let list: DeviceList = devices(100).collect();
        assert_eq!(list.encode_to_vec(), reference.encode_to_vec());
        assert_eq!(list.encoded_size(), reference.encoded_len());
        assert_eq!(list.len(), 100);

        let back = DeviceList::decode(reference.encode_to_vec().as_slice()).unwrap();
        assert_eq!(back, list);
        assert!(back.iter().eq(devices(100)));
    }

    #[test]
    fn a_list_stops_at_its_limit() {
        let size = devices(10).collect::<DeviceList>().encoded_size();
        assert_eq!(
            DeviceList::within(size, devices(10)).map(|list| list.len()),
            Some(10)
        );
        assert_eq!(DeviceList::within(size - 1, devices(10)), None);
        // An endless node is refused too, and costs no more than the limit.
        assert_eq!(DeviceList::within(1 << 16, devices(usize::MAX)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(list) = DeviceList::decode(bytes.as_slice()) {
                prop_assert_eq!(list.iter().count(), list.len());
            }
        }
    }
}
