//! The driver's own C types, as hooks use them: one import for all of them.

pub use sublet_driver_api::cuda::copy::*;
pub use sublet_driver_api::cuda::graph::*;
pub use sublet_driver_api::cuda::launch::*;
pub use sublet_driver_api::cuda::memory::*;
pub use sublet_driver_api::cuda::*;
