//! Amounts of pods and nodes beyond CPU and memory that the stock scheduler counts: every other
//! resource, the number of pods, and the machine's ports.
//!
//! The extender knows nothing of it, since the stock scheduler has looked before it asks. A program
//! without a stock scheduler (`sublet plan`, the simulator) fills it in, and the ledger counts it
//! like all else that a pod takes.

use std::fmt;
use std::sync::Arc;

use crate::{Claim, Host};

/// Amounts of resources by name, such as `ephemeral-storage`, `hugepages-2Mi` and
/// `example.com/nic`. An amount of 0 is not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resources(Vec<(Arc<str>, u64)>);

impl Resources {
    /// The amount of that resource; 0 if it is not here.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        // There are few of them, and few names of one length: comparing each is faster than a
        // binary search. Every node is asked for every pod.
        let mut known = self.0.iter();
        known
            .find(|(known, _)| **known == *name)
            .map_or(0, |(_, amount)| *amount)
    }

    /// Adds to the amount of that resource.
    pub fn add(&mut self, name: &Arc<str>, amount: u64) {
        match self.0.binary_search_by(|(known, _)| known.cmp(name)) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(amount),
            Err(at) if amount > 0 => self.0.insert(at, (Arc::clone(name), amount)),
            Err(_) => {}
        }
    }

    /// In the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        self.0.iter().map(|(name, amount)| (name, *amount))
    }

    /// True if there is no resource.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(Arc<str>, u64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, u64)>>(amounts: I) -> Resources {
        let mut resources = Resources::default();
        for (name, amount) in amounts {
            resources.add(&name, amount);
        }
        resources
    }
}

/// A port of the machine that a pod wants for itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Its number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Arc<str>,
    /// On that address of the machine; `None` for all.
    pub address: Option<Arc<str>>,
}

impl HostPort {
    /// True if two pods on one machine cannot have both.
    #[must_use]
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let everywhere = self.address.is_none() || other.address.is_none();
        (self.port, &self.protocol) == (other.port, &other.protocol)
            && (everywhere || self.address == other.address)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.port, self.protocol)?;
        match &self.address {
            Some(address) => write!(f, " of {address}"),
            None => Ok(()),
        }
    }
}

/// The part of a pod's request that only the stock scheduler counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StockAsk {
    /// The resources that cards are asked by. A node has as much of them as its device plugin
    /// reports, and none without a plugin.
    pub devices: Resources,
    /// All other resources, CPU and memory aside.
    pub resources: Resources,
    /// Ports of the machine.
    pub ports: Vec<HostPort>,
    /// CPU and memory as scores count them of a pod that has a node: containers that ask none are
    /// taken to ask a little.
    pub nonzero: Host,
    /// The same of a pod that waits for a node. Only the requests of its containers count, not the
    /// request of the pod as a whole in `spec.resources`.
    pub scored: Host,
}

/// The part of a node's allocatable amounts that only the stock scheduler counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StockAllocatable {
    /// Resources, CPU and memory aside.
    pub resources: Resources,
    /// Number of pods.
    pub pods: u64,
}

/// The requests of a node's pods to the machine, beside cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineUse {
    /// CPU and memory.
    pub host: Host,
    /// The same as scores count it ([`StockAsk::nonzero`]).
    pub nonzero: Host,
    /// Number of pods.
    pub pods: u64,
    /// Other resources, including those by which cards are asked for.
    pub resources: Resources,
    /// Ports, in order.
    pub ports: Vec<HostPort>,
}

impl MachineUse {
    /// One pod more.
    pub(crate) fn charge(&mut self, claim: &Claim) {
        self.host = self.host.plus(claim.host());
        self.pods += 1;
        let Some(ask) = claim.stock() else {
            self.nonzero = self.nonzero.plus(claim.host());
            return;
        };
        self.nonzero = self.nonzero.plus(ask.nonzero);
        for (name, amount) in ask.devices.iter().chain(ask.resources.iter()) {
            self.resources.add(name, amount);
        }
        for port in &ask.ports {
            // In order, so that a recount gives the same list.
            let at = self.ports.partition_point(|other| other < port);
            self.ports.insert(at, port.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, MilliCpu};

    fn resources(amounts: &[(&str, u64)]) -> Resources {
        let named = |(name, amount): &(&str, u64)| (Arc::from(*name), *amount);
        amounts.iter().map(named).collect()
    }

    #[test]
    fn amounts_of_one_name_are_added_and_none_is_not_kept() {
        let some = resources(&[("b", 2), ("a", 1), ("b", 3), ("c", 0)]);
        assert_eq!(some, resources(&[("a", 1), ("b", 5)]));
        assert_eq!((some.get("b"), some.get("c")), (5, 0));
        assert!(resources(&[("c", 0)]).is_empty());
    }

    #[test]
    fn ports_conflict_as_in_kubernetes() {
        let port = |port, protocol: &str, address: Option<&str>| HostPort {
            port,
            protocol: Arc::from(protocol),
            address: address.map(Arc::from),
        };
        let any = port(80, "TCP", None);
        let cases = [
            (port(80, "TCP", None), true),
            (port(80, "TCP", Some("10.0.0.1")), true),
            (port(80, "UDP", None), false),
            (port(81, "TCP", None), false),
        ];
        for (other, conflict) in cases {
            assert_eq!(any.conflicts(&other), conflict, "{other}");
            assert_eq!(other.conflicts(&any), conflict, "{other}");
        }
        let one = port(80, "TCP", Some("10.0.0.1"));
        assert!(one.conflicts(&one));
        assert!(!one.conflicts(&port(80, "TCP", Some("10.0.0.2"))));
        assert_eq!(one.to_string(), "80/TCP of 10.0.0.1");
    }

    #[test]
    fn a_machine_counts_what_its_pods_ask_in_any_order() {
        let host = |cores: u64| Host {
            cpu: MilliCpu::new(1000 * cores),
            memory: Bytes::ZERO,
        };
        let port = |port| HostPort {
            port,
            protocol: Arc::from("TCP"),
            address: None,
        };
        let asks = |number: u16| {
            let ask = StockAsk {
                devices: resources(&[("gpu", u64::from(number))]),
                resources: resources(&[("disk", 10)]),
                ports: vec![port(90 - number)],
                nonzero: host(2),
                scored: Host::ZERO,
            };
            Claim::host_only(host(1)).with_stock(Arc::new(ask))
        };
        let counted = |claims: &[Claim]| {
            let mut machine = MachineUse::default();
            claims.iter().for_each(|claim| machine.charge(claim));
            machine
        };
        let (one, two) = (asks(1), asks(2));
        let plain = Claim::host_only(host(1));
        let machine = counted(&[one.clone(), two.clone(), plain.clone()]);
        assert_eq!(machine, counted(&[plain, two, one]));
        assert_eq!(
            (machine.host, machine.nonzero, machine.pods),
            (host(3), host(5), 3)
        );
        assert_eq!(machine.resources, resources(&[("gpu", 3), ("disk", 20)]));
        assert_eq!(machine.ports, [port(88), port(89)]);
    }
}
