//! Rust declarations of C's structs, enums and handles.
//!
//! Three macros, so that a type is declared in as few words as in C, can be all zeros without
//! `unsafe`, and can be compared with the layout that a C compiler measured. A union is written as
//! the one member that covers it; to use another member, cast a pointer to it.

/// A type that is valid when all of its bytes are zero, which is how C programs begin with a
/// struct.
pub trait Zeroed: Sized {
    /// All zeros: numbers are 0, pointers and handles null.
    const ZERO: Self;
}

macro_rules! zero_numbers {
    ($($number:ty)*) => {
        $(impl Zeroed for $number {
            const ZERO: Self = 0 as $number;
        })*
    };
}
zero_numbers!(u8 u16 u32 u64 usize i8 i16 i32 i64 f32 f64);

impl<T> Zeroed for *const T {
    const ZERO: Self = std::ptr::null();
}

impl<T> Zeroed for *mut T {
    const ZERO: Self = std::ptr::null_mut();
}

impl<T: Zeroed, const N: usize> Zeroed for [T; N] {
    const ZERO: Self = [T::ZERO; N];
}

/// A type as a test compares it: C's name of it, where its members lie, and how large they are.
#[cfg(test)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) align: usize,
    /// Name, offset, size.
    pub(crate) members: &'static [(&'static str, usize, usize)],
}

/// Structs with C's layout. `= "…"` is C's name where Rust needs another: a record inside
/// another one has a path there, and a name here.
macro_rules! structs {
    ($(
        $(#[$doc:meta])*
        $name:ident $(= $path:literal)? {
            $($(#[$about:meta])* $member:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub struct $name { $($(#[$about])* pub $member: $type,)* }

            impl $crate::as_in_c::Zeroed for $name {
                const ZERO: Self = Self { $($member: <$type as $crate::as_in_c::Zeroed>::ZERO,)* };
            }

            impl Default for $name {
                fn default() -> Self {
                    <Self as $crate::as_in_c::Zeroed>::ZERO
                }
            }
        )*

        /// Every struct of this list, for the test of layouts.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[$crate::as_in_c::Layout] = &[$(
            $crate::as_in_c::Layout {
                name: {
                    let name = stringify!($name);
                    $(let name = { let _ = name; $path };)?
                    name
                },
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                members: &[$((
                    stringify!($member),
                    std::mem::offset_of!($name, $member),
                    size_of::<$type>(),
                ),)*],
            },
        )*];
    };
}

/// Handles: values that only the driver can follow. C declares each as a pointer to a struct
/// that it does not define; here it is the pointer's number, so that it can go to other threads
/// and be a key.
macro_rules! handles {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("C's `", stringify!($name), "`.")]
            #[repr(transparent)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
            pub struct $name(pub usize);

            impl $name {
                /// Whether it is C's null.
                #[must_use]
                pub const fn is_null(self) -> bool {
                    self.0 == 0
                }
            }

            impl $crate::as_in_c::Zeroed for $name {
                const ZERO: Self = Self(0);
            }
        )*
    };
}

/// Enums as C has them: a number that usually, but not surely, has a name.
macro_rules! enums {
    ($($name:ident { $($constant:ident = $value:literal,)* })*) => {
        $(
            #[doc = concat!("C's `", stringify!($name), "`.")]
            #[repr(transparent)]
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
            pub struct $name(pub u32);

            $(
                #[doc = concat!("A value of [`", stringify!($name), "`].")]
                pub const $constant: $name = $name($value);
            )*

            impl $name {
                /// The first name that C has for this value.
                #[must_use]
                pub fn name(self) -> Option<&'static str> {
                    const NAMES: &[(u32, &str)] = &[$(($value, stringify!($constant)),)*];
                    let found = NAMES.iter().find(|(value, _)| *value == self.0);
                    found.map(|(_, name)| *name)
                }
            }

            impl std::fmt::Debug for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    match self.name() {
                        Some(name) => f.write_str(name),
                        None => write!(f, "{}({})", stringify!($name), self.0),
                    }
                }
            }

            impl $crate::as_in_c::Zeroed for $name {
                const ZERO: Self = Self(0);
            }
        )*
    };
}

pub(crate) use {enums, handles, structs};
