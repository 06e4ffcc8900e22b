//! A function of libcuda as C calls it: its body answers, and a code or a fault goes to C.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::FunctionPointer;
use crate::driver::result::{Answer, Code};
use crate::driver::{Session, faults};
use crate::trace;

/// Handles are numbers here, as wide as C's pointers.
pub(super) type Handle = u64;

/// A function and its per-thread twin.
pub(super) struct Entry {
    pub(super) symbol: &'static str,
    pub(super) plain: FunctionPointer,
    pub(super) twin: Option<FunctionPointer>,
    #[cfg(test)]
    pub(super) n_params: usize,
}

/// Functions of libcuda with bodies that give an [`Answer`]. A `stream fn` has a twin for
/// per-thread default streams, and its body sees which of them was called as `PER_THREAD`.
macro_rules! functions {
    ($($tokens:tt)*) => {
        $crate::cuda::entry::functions_of! { [] $($tokens)* }
    };
}

macro_rules! functions_of {
    ([$($done:tt)*]) => {
        pub(crate) const ENTRIES: &[$crate::cuda::entry::Entry] = &[$($done)*];
    };
    ([$($done:tt)*] fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        pub(crate) extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::cuda::entry::guard(stringify!($name), move || $body)
        }
        $crate::cuda::entry::functions_of! {
            [$($done)* $crate::cuda::entry::Entry {
                symbol: stringify!($name),
                plain: $crate::FunctionPointer($name as *const ()),
                twin: None,
                #[cfg(test)]
                n_params: <[&str]>::len(&[$(stringify!($argument)),*]),
            },]
            $($rest)*
        }
    };
    ([$($done:tt)*] stream fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        pub(crate) extern "C" fn $name<const PER_THREAD: bool>($($argument: $type),*) -> u32 {
            $crate::cuda::entry::guard(stringify!($name), move || $body)
        }
        $crate::cuda::entry::functions_of! {
            [$($done)* $crate::cuda::entry::Entry {
                symbol: stringify!($name),
                plain: $crate::FunctionPointer($name::<false> as *const ()),
                twin: Some($crate::FunctionPointer($name::<true> as *const ())),
                #[cfg(test)]
                n_params: <[&str]>::len(&[$(stringify!($argument)),*]),
            },]
            $($rest)*
        }
    };
}

pub(crate) use {functions, functions_of};

/// Runs the body of a function: makes the fault that was asked for, and lets no panic
/// into the program.
pub(super) fn guard(name: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    let code = match faults().strike(name) {
        Some(code) => code,
        None => match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => 0,
            Ok(Err(code)) => code.0,
            Err(_) => Code::UNKNOWN.0,
        },
    };
    trace::call(name, code);
    code
}

/// The driver's state, for a call that nobody may make during a capture.
pub(super) fn outside_capture() -> Answer<Session> {
    let mut session = Session::open()?;
    session.forbid_in_capture()?;
    Ok(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guard("cuTest", || Err(Code::NOT_READY)), 600);
        assert_eq!(guard("cuTest", || Ok(())), 0);
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let code = guard("cuTest", || panic!("on purpose"));
        std::panic::set_hook(loud);
        assert_eq!(code, 999);
    }
}
