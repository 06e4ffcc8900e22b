//! The libraries inside this executable, and the demonstration's programs, if it was built with the
//! feature `carry`. Then one file is the whole product. `cargo xtask release` builds it so, and names
//! the folder of the packed libraries in `SUBLET_CARRY`. Without the feature they are looked for beside the
//! executable, where `cargo build` leaves them. `sublet_arbiter::libraries` gives them to programs.

use sublet_arbiter::libraries::Carried;

#[cfg(not(feature = "carry"))]
pub(crate) static CARRIED: Option<Carried> = None;

#[cfg(feature = "carry")]
pub(crate) static CARRIED: Option<Carried> = {
    macro_rules! inside {
        ($name:literal) => {
            include_bytes!(concat!(
                env!(
                    "SUBLET_CARRY",
                    "the feature `carry` wants the absolute path of the folder with the \
                     packed libraries in SUBLET_CARRY; `cargo xtask release` does all of it"
                ),
                "/",
                $name,
                ".gz"
            ))
        };
    }
    Some(Carried {
        cuda: inside!("libsublet_cuda.so"),
        nvml: inside!("libsublet_nvml.so"),
        preload: inside!("libsublet_preload.so"),
        fake_cuda: inside!("libsublet_fakecuda.so"),
        fake_nvml: inside!("libsublet_fakenvml.so"),
        workload: inside!("sublet-workload"),
    })
};
