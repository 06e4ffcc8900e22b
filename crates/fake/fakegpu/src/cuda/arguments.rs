//! Pointers that C passes, as types that name their purpose. Reading and writing through them is
//! checked for null and is otherwise the program's promise, as in C.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::driver::result::{Answer, Code};

/// Destination of a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes the result.
    pub(crate) fn put(self, value: T) -> Answer {
        self.check()?;
        self.put_if(value);
        Ok(())
    }

    /// Writes the result if it is wanted.
    pub(crate) fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the program gave the address for a result of this type.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Refuses null before anything is done.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() {
            Err(Code::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    /// A place of ours.
    pub(crate) fn of(place: &mut T) -> Out<T> {
        Out(place)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes several results one after the other.
    pub(crate) fn put_all(self, values: impl IntoIterator<Item = T>) -> Answer {
        self.check()?;
        for (place, value) in values.into_iter().enumerate() {
            // SAFETY: the program gave the address for as many results as it was told or
            // had said.
            unsafe { self.0.add(place).write_unaligned(value) };
        }
        Ok(())
    }

    /// Returns the value that is there already: some functions read and write the same place.
    pub(crate) fn get(self) -> Answer<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The same place for a result of another type, as unions have them.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl Out<c_char> {
    /// Writes as much of a text as fits into `room` bytes, with a zero at its end.
    pub(crate) fn put_text(self, text: &str, room: i32) -> Answer {
        let room = usize::try_from(room).unwrap_or(0);
        if room == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let bytes = text.bytes().take(room - 1).chain([0]);
        self.put_all(bytes.map(u8::cast_signed))
    }
}

/// A value that the program passes by its address.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// Returns the value at an address that the program passed inside another value.
    pub(crate) fn at(address: u64) -> In<T> {
        In(address as *const T)
    }

    /// Nothing was passed.
    pub(crate) fn null() -> In<T> {
        In(std::ptr::null())
    }
}

impl<T: Copy> In<T> {
    /// A value of ours, to be read as another type.
    pub(crate) fn of(value: &T) -> In<T> {
        In(value)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the program passes a value of this type.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// `count` values; none need an address.
    pub(crate) fn list(self, count: usize) -> Answer<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() || count > 1 << 24 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the program passes as many values as it says.
        let value = |place| unsafe { self.0.add(place).read_unaligned() };
        Ok((0..count).map(value).collect())
    }

    /// As a value of another type, as unions have them.
    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

/// A text of C.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Answer<CString> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the program passes a text that ends with a zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_owned())
    }

    pub(crate) fn string(self) -> Answer<String> {
        let text = self.get()?;
        text.into_string().map_err(|_| Code::INVALID_VALUE)
    }
}

/// The arguments of a kernel: an array of addresses, or a buffer described by `extra`.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) each: In<In<c_void>>,
    pub(crate) extra: In<u64>,
}

impl Arguments {
    /// The value of parameter `number`, which is at `offset` in a buffer and `size` bytes
    /// long: at most its first eight bytes.
    pub(crate) fn value(self, number: usize, offset: u64, size: u64) -> Option<u64> {
        let address = if self.each.is_null() {
            let buffer = self.buffer()?;
            buffer.checked_add(offset)?
        } else {
            // SAFETY: the array has an address for each parameter, as the code declares.
            let argument = unsafe { self.each.0.add(number).read_unaligned() };
            argument.0 as u64
        };
        if address == 0 {
            return None;
        }
        let mut bytes = [0; 8];
        let length = usize::try_from(size.min(8)).ok()?;
        // SAFETY: the argument is as long as the code declares it.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length);
        }
        Some(u64::from_ne_bytes(bytes))
    }

    /// `extra` is pairs of a number and a value, and ends with 0; 1 is the buffer.
    fn buffer(self) -> Option<u64> {
        let mut place = 0;
        loop {
            if self.extra.is_null() || place > 16 {
                return None;
            }
            // SAFETY: the list goes on until there was a 0.
            let key = unsafe { self.extra.0.add(place).read_unaligned() };
            // SAFETY: a number that is not 0 has a value.
            let value = || unsafe { self.extra.0.add(place + 1).read_unaligned() };
            match key {
                0 => return None,
                1 => return Some(value()),
                _ => place += 2,
            }
        }
    }
}
