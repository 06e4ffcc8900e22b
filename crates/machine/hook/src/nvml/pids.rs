//! Numbers of processes in this PID namespace.
//!
//! The arbiter uses the machine's numbers, a program in a container uses its container's, and NVML
//! answers with either, depending on driver and function (HAMi-core#112). The kernel translates
//! between a namespace and those above it, but `/proc` shows only the numbers below the namespace
//! for which that `/proc` was mounted. So a container can usually not translate the machine's
//! numbers. A process without a translation is not shown: a wrong number would name a stranger's
//! process.

use std::collections::BTreeMap;
use std::fs;

/// Ways to translate the arbiter's numbers to ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Numbering {
    /// The arbiter is in our PID namespace.
    Same,
    /// Our `/proc` shows the arbiter's numbers, and ours as the number at `depth` of `NSpid`.
    Listed {
        /// The place of our namespace's number in the list.
        depth: usize,
    },
    /// Nothing but one process: this one.
    OneKnown {
        /// As the arbiter calls it.
        told: u32,
        /// As it calls itself.
        own: u32,
    },
}

impl Numbering {
    /// Decides it, from the arbiter's number of this process.
    #[must_use]
    pub fn of_this_process(told: u32) -> Self {
        Self::of(told, std::process::id(), &levels("self"))
    }

    /// Decides. Two equal numbers mean the same namespace. Should they be equal by chance, the
    /// processes shown have wrong numbers, and are the tenant's all the same.
    fn of(told: u32, own: u32, levels: &[u32]) -> Self {
        if told == own {
            return Self::Same;
        }
        match levels {
            [first, .., last] if *first == told && *last == own => Self::Listed {
                depth: levels.len() - 1,
            },
            _ => Self::OneKnown { told, own },
        }
    }

    /// True if the kernel translates every number: a process without a number is in no namespace of
    /// ours.
    #[must_use]
    pub fn knows_all(&self) -> bool {
        !matches!(self, Self::OneKnown { .. })
    }

    /// Translates the arbiter's number `told` to this namespace's.
    #[must_use]
    pub fn here(&self, told: u32) -> Option<u32> {
        match self {
            Self::Same => Some(told),
            Self::Listed { depth } => levels(&told.to_string()).get(*depth).copied(),
            Self::OneKnown { told: one, own } => (*one == told).then_some(*own),
        }
    }
}

/// The numbers of a process, from the namespace of `/proc` down to its own.
fn levels(process: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    parse_levels(&status)
}

fn parse_levels(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers = line.unwrap_or_default().split_whitespace();
    numbers.map_while(|number| number.parse().ok()).collect()
}

/// A process that has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// As the arbiter calls it.
    pub told: u32,
    /// As this namespace calls it, if that is known.
    pub here: Option<u32>,
    /// Bytes that it uses on the device of the call.
    pub bytes: u64,
}

/// Takes a number from processes that only claim it. Two containers of one tenant have the same
/// numbers. If several processes claim the same number, only the one whose number the kernel
/// confirms is in this namespace.
pub fn tell_apart(processes: &mut [Process], numbering: &Numbering) {
    let mut claims: BTreeMap<u32, usize> = BTreeMap::new();
    for here in processes.iter().filter_map(|process| process.here) {
        *claims.entry(here).or_default() += 1;
    }
    for process in processes {
        let is_claimed_twice = process.here.is_some_and(|here| claims[&here] > 1);
        if is_claimed_twice && numbering.here(process.told) != process.here {
            process.here = None;
        }
    }
}

/// Owner of the numbers in a driver's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// This namespace.
    Ours,
    /// The arbiter: numbers of the machine.
    Arbiters,
}

impl Whose {
    /// Decides for one answer as a whole: a single number can mean one process here and another one
    /// on the machine. Without evidence for either, this namespace's numbers are assumed, as new
    /// drivers use them. With equal evidence for both, strangers in the answer decide for the
    /// machine's numbers, since this namespace has few strangers.
    #[must_use]
    pub fn of(answer: &[u32], processes: &[Process]) -> Self {
        let count = |is: fn(&Process, u32) -> bool| {
            let known = |number: &&u32| processes.iter().any(|process| is(process, **number));
            answer.iter().filter(known).count()
        };
        let ours = count(|process, number| process.here == Some(number));
        let arbiters = count(|process, number| process.told == number);
        let has_strangers = ours < answer.len();
        if arbiters > ours || arbiters == ours && ours > 0 && has_strangers {
            Self::Arbiters
        } else {
            Self::Ours
        }
    }

    /// The process that the driver calls so.
    #[must_use]
    pub fn find(self, number: u32, processes: &[Process]) -> Option<&Process> {
        processes
            .iter()
            .find(|process| self.number(process) == Some(number))
    }

    /// Returns the driver's number of the process.
    #[must_use]
    pub fn number(self, process: &Process) -> Option<u32> {
        match self {
            Self::Ours => process.here,
            Self::Arbiters => Some(process.told),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_from_the_arbiters_numbers_is_found() {
        let one_known = Numbering::OneKnown { told: 900, own: 7 };
        for (told, own, levels, expected) in [
            (900, 900, &[900][..], Numbering::Same),
            (900, 900, &[33, 900], Numbering::Same),
            (900, 7, &[900, 7], Numbering::Listed { depth: 1 }),
            (900, 7, &[900, 55, 7], Numbering::Listed { depth: 2 }),
            (900, 7, &[7], one_known.clone()),
            (900, 7, &[55, 7], one_known.clone()),
            (900, 7, &[], one_known.clone()),
        ] {
            let found = Numbering::of(told, own, levels);
            assert_eq!(found, expected, "{told} {own} {levels:?}");
        }
        assert_eq!(Numbering::Same.here(12), Some(12));
        assert_eq!(one_known.here(900), Some(7));
        assert_eq!(one_known.here(901), None, "what cannot be translated");
    }

    #[test]
    fn this_process_is_found_by_its_own_number() {
        let own = std::process::id();
        assert_eq!(Numbering::of_this_process(own).here(own), Some(own));
        assert!(levels("self").contains(&own), "NSpid of a kernel since 4.1");
        let listed = Numbering::Listed { depth: 0 };
        assert_eq!(listed.here(own), levels("self").first().copied());
        assert_eq!(listed.here(u32::MAX), None, "no such process");
    }

    #[test]
    fn the_list_of_numbers_is_read() {
        let status = "Name:\tx y\nNSpid:\t4711\t33\t1\nVmPeak:\t1 kB\n";
        assert_eq!(parse_levels(status), [4711, 33, 1]);
        assert_eq!(parse_levels("Name:\tNSpid: 5\n"), []);
        assert_eq!(parse_levels("NSpid:\t7\tx\t8\n"), [7]);
    }

    #[test]
    fn an_answer_is_read_in_one_numbering_as_a_whole() {
        let process = |told, here| Process {
            told,
            here,
            bytes: 0,
        };
        // 300 is our first process, and somebody else's on the machine.
        let processes = [
            process(900, Some(300)),
            process(901, Some(301)),
            process(300, None),
        ];
        let ours = [300, 301];
        assert_eq!(Whose::of(&ours, &processes), Whose::Ours);
        let machines = [900, 901, 17];
        let whose = Whose::of(&machines, &processes);
        assert_eq!(whose, Whose::Arbiters);
        assert_eq!(whose.find(901, &processes), Some(&processes[1]));
        assert_eq!(whose.find(301, &processes), None);
        assert_eq!(whose.find(17, &processes), None);
        assert_eq!(Whose::of(&[], &processes), Whose::Ours);
        // Number 1 of the machine is not the program that is number 1 here.
        let first = [process(900, Some(1))];
        assert_eq!(Whose::of(&[1, 900], &first), Whose::Arbiters);
        assert_eq!(Whose::of(&[1], &first), Whose::Ours);
        assert_eq!(Whose::of(&[1, 55], &first), Whose::Ours);
        assert_eq!(Whose::Ours.find(300, &processes), Some(&processes[0]));
    }

    #[test]
    fn of_those_who_call_themselves_alike_the_kernel_knows_which_is_here() {
        let check = |told: &[(u32, Option<u32>)], expected: &[Option<u32>]| {
            let process = |&(told, here): &(u32, Option<u32>)| Process {
                told,
                here,
                bytes: 0,
            };
            let mut processes: Vec<Process> = told.iter().map(process).collect();
            tell_apart(&mut processes, &Numbering::OneKnown { told: 900, own: 1 });
            let here: Vec<_> = processes.iter().map(|process| process.here).collect();
            assert_eq!(here, expected, "{told:?}");
        };
        check(&[(900, Some(1)), (901, Some(2))], &[Some(1), Some(2)]);
        check(&[(800, Some(1)), (900, Some(1))], &[None, Some(1)]);
        check(&[(800, Some(3)), (801, Some(3)), (802, None)], &[None; 3]);
    }
}
