//! Content of a library's file. Those inside an executable are packed by gzip, and are unpacked only to
//! be written: that a file is whole is seen by the length and the sum at the end of the packed bytes.
//! (RFC 1952, "GZIP file format specification version 4.3", section 2.3.1.)

use std::borrow::Cow;
use std::io::{self, Read};

use flate2::Crc;
use flate2::read::GzDecoder;

/// Bytes of a file, as they are or packed.
#[derive(Debug, Clone)]
pub(super) enum Content<'a> {
    /// As they are.
    Plain(Cow<'a, [u8]>),
    /// Packed, with the length and the sum of what they become.
    Packed(&'a [u8]),
}

impl<'a> Content<'a> {
    /// Content as it is.
    pub(super) const fn plain(bytes: &'a [u8]) -> Content<'a> {
        Content::Plain(Cow::Borrowed(bytes))
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// They were packed, and are damaged.
    pub(super) fn bytes(&self) -> io::Result<Cow<'_, [u8]>> {
        match self {
            Content::Plain(bytes) => Ok(Cow::Borrowed(bytes)),
            Content::Packed(packed) => {
                let mut bytes = Vec::new();
                GzDecoder::new(*packed).read_to_end(&mut bytes)?;
                Ok(bytes.into())
            }
        }
    }

    /// True if a file with these bytes is whole.
    pub(super) fn is(&self, found: &[u8]) -> bool {
        match self {
            Content::Plain(bytes) => found == &bytes[..],
            Content::Packed(packed) => {
                let mut sum = Crc::new();
                sum.update(found);
                // Both as the format has them: of a length its lowest 32 bits.
                let (sum, length) = (sum.sum().to_le_bytes(), (found.len() as u32).to_le_bytes());
                packed.ends_with(&[sum, length].concat())
            }
        }
    }

    /// Bytes that are others whenever the file's are others.
    pub(super) fn mark(&self) -> &[u8] {
        match self {
            Content::Plain(bytes) => bytes,
            Content::Packed(packed) => packed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    proptest! {
        #[test]
        fn a_whole_file_is_known_without_unpacking(
            bytes in prop::collection::vec(any::<u8>(), 0..300), place in any::<usize>(), flip in 1..=255_u8,
        ) {
            let packed = pack(&bytes);
            let content = Content::Packed(&packed);
            prop_assert_eq!(&*content.bytes().unwrap(), &bytes[..]);
            prop_assert!(content.is(&bytes));
            let longer = [&bytes[..], b"x"].concat();
            prop_assert!(!content.is(&longer));
            if let Some(at) = place.checked_rem(bytes.len()) {
                prop_assert!(!content.is(&bytes[..at]));
                let mut other = bytes.clone();
                other[at] ^= flip;
                prop_assert!(!content.is(&other));
            }
        }

        #[test]
        fn no_bytes_in_place_of_packed_ones_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let content = Content::Packed(&bytes);
            let _refused = content.bytes();
            let _other = content.is(b"found");
        }
    }
}
