//! A machine's CPU and memory: the requests of pods beside GPUs.
//!
//! The stock scheduler decides whether they fit. Sublet counts them because a GPU without
//! CPU to feed it is as good as taken, so that a placement must look at both.

use crate::{Bytes, MilliCpu, Role, peak};

/// CPU and memory, of a machine or of a pod on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Host {
    /// Thousandths of a core.
    pub cpu: MilliCpu,
    /// Memory of the machine, not of its GPUs.
    pub memory: Bytes,
}

impl Host {
    /// Nothing of either.
    pub const ZERO: Host = Host {
        cpu: MilliCpu::ZERO,
        memory: Bytes::ZERO,
    };

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Host) -> Host {
        Host {
            cpu: self.cpu.plus(other.cpu),
            memory: self.memory.plus(other.memory),
        }
    }

    /// The amount left after taking `other`; nothing if there is less than that.
    #[must_use]
    pub const fn saturating_sub(self, other: Host) -> Host {
        Host {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
        }
    }

    /// The need of a pod at its worst moment, each amount by itself ([`peak`]). Containers come in
    /// the order in which they start.
    #[must_use]
    pub fn peak(containers: &[(Role, Host)]) -> Host {
        let of = |amount: fn(&Host) -> u64| {
            peak(
                containers
                    .iter()
                    .map(|(role, asked)| (*role, amount(asked))),
            )
        };
        Host {
            cpu: MilliCpu::new(of(|asked| asked.cpu.get())),
            memory: Bytes::new(of(|asked| asked.memory.get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(cpu: u64, memory: u64) -> Host {
        Host {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::new(memory),
        }
    }

    #[test]
    fn each_amount_stands_for_itself() {
        assert_eq!(host(3, 9).saturating_sub(host(5, 4)), host(0, 5));
        assert_eq!(host(3, 9).plus(host(u64::MAX, 1)), host(u64::MAX, 10));
        let asked = [
            (Role::Sidecar, host(1, 1)),
            (Role::Init, host(9, 2)),
            (Role::Main, host(3, 4)),
            (Role::Main, host(2, 5)),
        ];
        // CPU is short while the init container runs, memory afterwards.
        assert_eq!(Host::peak(&asked), host(10, 10));
    }
}
