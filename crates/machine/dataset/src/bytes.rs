//! Little-endian numbers and counted texts out of bytes that anybody may have written.

/// A text that ends too soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it ends too soon")]
pub(crate) struct Short;

/// The bytes that are left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text after its length in two bytes.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u16()?;
        let (text, rest) = self.0.split_at_checked(length.into()).ok_or(Short)?;
        self.0 = rest;
        Ok(text)
    }
}
