//! The fake machine's `libnvidia-ml.so.1`. Every function that NVIDIA's header declares is
//! exported and jumps to `sublet_fakegpu::nvml`, where all of them are written; so a
//! program that looks for any of them finds it, as in the real library.
#![expect(
    unsafe_code,
    reason = "exports C functions, whose arguments only pass through"
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the fake driver is for Linux on x86-64 only");

/// One export for each name. It touches no register, so it needs no signature.
macro_rules! exports {
    ($($symbol:ident)*) => {$(
        const _: () = {
            static TARGET: sublet_fakegpu::FunctionPointer =
                sublet_fakegpu::nvml::entry(stringify!($symbol));

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $symbol() {
                std::arch::naked_asm!("jmp qword ptr [rip + {target}]", target = sym TARGET)
            }
        };
    )*};
}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
