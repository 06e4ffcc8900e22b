//! C's arguments as values. A pointer is null or good: `nvml.h` asks that of the caller,
//! and there is no way to check it. The unsafe part of the twin is here and nowhere else.

use std::ffi::{CStr, c_char};

use sublet_driver_api::nvml::{NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT};

use super::exported::Answer;

/// `T *`: one value or the first of an array, to write and sometimes to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Out<T>(*mut T);

/// `const T *`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct In<T>(*const T);

/// `char *`, with its length in another argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text(*mut c_char);

/// `const char *`, which ends with a zero.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Name(*const c_char);

impl<T: Copy> Out<T> {
    /// A pointer that was a member of a struct.
    pub(super) fn of_member(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    /// Refuses null, for functions that look at one argument before another.
    pub(super) fn check(self) -> Answer<Out<T>> {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        Ok(self)
    }

    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(super) fn write(self, value: T) -> Answer {
        let pointer = self.check()?.0;
        // SAFETY: not null, so the caller of the C function says it is good. C structs
        // of clients may lie at odd addresses.
        unsafe { pointer.write_unaligned(value) };
        Ok(())
    }

    pub(super) fn read(self) -> Answer<T> {
        let pointer = self.check()?.0.cast_const();
        // SAFETY: as in `write`; all types used are numbers and pointers.
        Ok(unsafe { pointer.read_unaligned() })
    }

    /// The address of an element of an array that is at least `index + 1` long.
    pub(super) fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    /// Fills an array of at most `room` values.
    pub(super) fn fill(self, room: usize, values: &[T]) -> Answer {
        for (index, value) in values.iter().take(room).enumerate() {
            self.check()?.at(index).write(*value)?;
        }
        Ok(())
    }
}

impl<T: Copy> In<T> {
    pub(super) fn read(self) -> Answer<T> {
        Out(self.0.cast_mut()).read()
    }
}

impl Text {
    /// Writes a text and its zero, if they fit.
    pub(super) fn write(self, length: u32, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        if text.len() >= length as usize {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        self.write_start(length, text)
    }

    /// Writes as much of a text as fits, and a zero.
    pub(super) fn write_start(self, length: u32, text: &str) -> Answer {
        let room = (length as usize).checked_sub(1);
        let room = room.ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        let start = &text.as_bytes()[..text.len().min(room)];
        let to = Out(self.0.cast::<u8>());
        to.check()?.fill(start.len(), start)?;
        to.at(start.len()).write(0)
    }
}

impl Name {
    pub(super) fn read(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not null, so the caller of the C function says it ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// NVML's way to give a list: `count` says how much room there is and then how many there
/// are. An array that is too small stays as it was.
pub(super) fn list<T: Copy>(count: Out<u32>, array: Out<T>, values: &[T]) -> Answer {
    let room = count.read()? as usize;
    if room > 0 && array.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    count.write(u32::try_from(values.len()).unwrap_or(u32::MAX))?;
    if values.len() > room {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    array.fill(room, values)
}

/// A fixed array of characters with `text` in it, cut if it must be.
pub(super) fn characters<const N: usize>(text: &str) -> [u8; N] {
    let mut characters = [0; N];
    let room = N.saturating_sub(1);
    for (to, from) in characters[..room].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    characters
}
