//! Memory figures: those of `cuMemGetInfo`, in NVML's structs.
//!
//! The library is asked too and first, because it knows about wrong handles, wrong versions of
//! the struct and lost cards; then the three numbers are the tenant's.

use sublet_driver_api::nvml::*;

use super::seeing_own;
use crate::real::Row;
use crate::report::Memory;

/// A struct that tells a card's memory.
pub trait Tells {
    /// The tenant's numbers in the place of the card's.
    fn tell(&mut self, seen: Memory);
}

impl Tells for nvmlMemory_t {
    fn tell(&mut self, seen: Memory) {
        (self.total, self.used, self.free) = (seen.total, seen.used, seen.free);
    }
}

impl Tells for nvmlMemory_v2_t {
    /// Memory that the driver reserves for itself belongs to the whole card and to no tenant. So it
    /// is reported as 0, and used and free add up to the total.
    fn tell(&mut self, seen: Memory) {
        (self.total, self.used, self.free) = (seen.total, seen.used, seen.free);
        self.reserved = 0;
    }
}

impl Tells for nvmlBAR1Memory_t {
    /// The window through which the processor reaches a card's memory. A tenant can have no more
    /// of it than it may have memory, and uses no more than it uses memory; how much exactly, the
    /// library tells of the card alone.
    fn tell(&mut self, seen: Memory) {
        let total = self.bar1Total.min(seen.total);
        let used = self.bar1Used.min(seen.used).min(total);
        (self.bar1Total, self.bar1Used, self.bar1Free) = (total, used, total - used);
    }
}

/// `nvmlDeviceGetMemoryInfo`, of each version, and `nvmlDeviceGetBAR1MemoryInfo`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn info<T, R>(device: nvmlDevice_t, memory: *mut T) -> nvmlReturn_t
where
    T: Tells,
    R: Row<Arguments = (nvmlDevice_t, *mut T), Result = nvmlReturn_t>,
{
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((device, memory)) };
    seeing_own(device, real, |view, place| {
        let result = real();
        // SAFETY: null, or what the library just wrote to.
        let memory = unsafe { memory.as_mut() };
        if let Some(memory) = memory.filter(|_| result == NVML_SUCCESS) {
            memory.tell(view.memory(place));
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_never_larger_than_the_part() {
        for (card, part, expected) in [
            ((300, 100), (200, 50), (200, 50)),
            ((300, 100), (1000, 500), (300, 100)),
            ((300, 100), (90, 95), (90, 90)),
            ((0, 0), (90, 95), (0, 0)),
        ] {
            let mut bar1 = nvmlBAR1Memory_t {
                bar1Total: card.0,
                bar1Used: card.1,
                bar1Free: card.0 - card.1,
            };
            bar1.tell(Memory {
                total: part.0,
                used: part.1,
                free: 0,
            });
            assert_eq!(
                (bar1.bar1Total, bar1.bar1Used),
                expected,
                "{card:?} {part:?}"
            );
            assert_eq!(bar1.bar1Free, expected.0 - expected.1);
        }
    }
}
