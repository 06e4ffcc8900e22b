//! References, one kind after the other, and all of them in any order.

use super::*;
use crate::cuda::physical::tiles::TilePart;
use proptest::prelude::*;
use sublet_abi::Units;

fn charge(units: u64) -> MemoryCharge {
    let device = DeviceIndex::new(0).expect("a device");
    MemoryCharge {
        budget: Budget::Device(device),
        amount: Units::new(units).expect("few units"),
    }
}

fn own(units: u64) -> Holding {
    Holding::Own {
        charge: charge(units),
        holders: Vec::new(),
    }
}

fn paid(gone: &[Holding]) -> u64 {
    let amount = |holding: &Holding| match holding {
        Holding::Own { charge, .. } => charge.amount.count(),
        Holding::Borrowed(_) | Holding::Object => 0,
    };
    gone.iter().map(amount).sum()
}

impl Physical {
    fn release(&mut self, handle: u64) -> Vec<Holding> {
        let mut gone = Vec::new();
        if let Some(id) = self.take_handle(handle) {
            self.drop_reference(id, &mut gone);
        }
        gone
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> Vec<Holding> {
        let mut gone = Vec::new();
        for (_, mapping) in self.take_mappings(address, bytes) {
            self.drop_reference(mapping.memory, &mut gone);
        }
        gone
    }

    /// As a driver does it: memory to an object, and nothing else.
    fn bind(&mut self, object: u64, from: u64, bytes: u64, memory: u64) {
        let known = |handle| {
            let id = self.behind(handle)?;
            let is_object = self.memories[&id].holding == Holding::Object;
            Some((id, is_object))
        };
        if let (Some((object, true)), Some((memory, false))) = (known(object), known(memory)) {
            self.bound(Object::Multicast(object), from, bytes, memory);
        }
    }

    fn unbind(&mut self, object: u64, from: u64, bytes: u64) -> Vec<Holding> {
        let mut gone = Vec::new();
        if let Some(id) = self.behind(object) {
            let device = DeviceIndex::new(0);
            self.unbound(Object::Multicast(id), device, from, bytes, &mut gone);
        }
        gone
    }

    fn tile(&mut self, array: u64, from: u64, memory: Option<u64>) -> Vec<Holding> {
        let mut gone = Vec::new();
        let part = TilePart::Tail { layer: 0 };
        let region = Region::new([from, 0, 0], [2, 1, 1]);
        let memory = memory.and_then(|handle| self.behind(handle));
        self.set_tiles(Tile { array, part }, region, memory, &mut gone);
        gone
    }

    fn destroy(&mut self, array: u64) -> Vec<Holding> {
        let mut gone = Vec::new();
        let mapped = self.take_array(array);
        self.drop_array(mapped, &mut gone);
        gone
    }
}

#[test]
fn a_handles_number_may_come_again_while_its_old_memory_is_mapped() {
    let mut physical = Physical::default();
    physical.made(7, own(1));
    physical.mapped(0x1000, 0x1000, 7);
    physical.release(7);
    physical.made(7, own(2));
    assert_eq!(physical.unmap(0x1000, 0x1000), [own(1)]);
    assert_eq!(physical.release(7), [own(2)]);
}

#[test]
fn memory_that_comes_back_to_its_maker_counts_once_more() {
    let (key, other) = (Key::of_handle(b"key"), Key::of_handle(b"other"));
    let mut physical = Physical::default();
    let id = physical.made(7, own(1));
    assert!(!physical.imported(7, None), "the same handle");
    physical.add_holder(id, Holder::Mark(key), |_| true);
    assert!(!physical.imported(8, Some(key)), "another, by its name");
    assert!(physical.imported(9, Some(other)), "another's");
    assert_eq!(physical.release(7), []);
    assert_eq!(physical.release(7), []);
    assert_eq!(physical.release(9), [Holding::Borrowed(Some(other))]);
    let holders = vec![Holder::Mark(key)];
    let charge = charge(1);
    assert_eq!(physical.release(8), [Holding::Own { charge, holders }]);
}

#[test]
fn what_was_lent_is_remembered_while_others_have_it() {
    let [a, b, c] = [b"a", b"b", b"c"].map(|text| Holder::Mark(Key::of_handle(text)));
    let mut physical = Physical::default();
    let id = physical.made(7, own(1));
    physical.add_holder(id, a.clone(), |_| true);
    physical.add_holder(id, a.clone(), |_| true);
    physical.add_holder(id, b.clone(), |_| true);
    physical.add_holder(id, c.clone(), |holder| *holder == b);
    let charge = charge(1);
    let holders = vec![b, c];
    assert_eq!(physical.release(7), [Holding::Own { charge, holders }]);
}

#[test]
fn each_device_of_an_object_is_unbound_alone() {
    let mut physical = Physical::default();
    let second = DeviceIndex::new(1).expect("a device");
    let elsewhere = MemoryCharge {
        budget: Budget::Device(second),
        ..charge(2)
    };
    let holders = Vec::new();
    let other = Holding::Own {
        charge: elsewhere,
        holders,
    };
    physical.made(7, own(1));
    physical.made(8, other);
    let endpoint = Object::Endpoint(3);
    for handle in [7, 8] {
        let id = physical.behind(handle).expect("just made");
        physical.bound(endpoint, 0, 10, id);
        physical.release(handle);
    }
    let mut gone = Vec::new();
    physical.unbound(endpoint, None, 0, 10, &mut gone);
    assert_eq!(gone, [], "a device that is not the tenant's");
    physical.unbound(endpoint, Some(second), 0, 10, &mut gone);
    assert_eq!(paid(&gone), 2);
    physical.forget_object(endpoint, &mut gone);
    assert_eq!(paid(&gone), 3);
}

#[test]
fn what_is_not_known_is_left_alone() {
    let mut physical = Physical::default();
    assert!(physical.imported(5, None), "from another process");
    physical.mapped(0x1000, 0x1000, 5);
    physical.retained(6, 0x1000);
    assert_eq!(physical.release(5), []);
    assert_eq!(physical.release(6), []);
    assert_eq!(physical.release(6), []);
    assert_eq!(physical.unmap(0, u64::MAX), [Holding::Borrowed(None)]);
    assert_eq!(physical.tile(1, 0, Some(99)), []);
    assert_eq!(physical.unbind(99, 0, 1), []);
    assert_eq!(physical.mapped_within(0, u64::MAX), []);
}

proptest! {
    /// After any calls in any order, each charge is paid back exactly once.
    #[test]
    fn every_charge_is_paid_back_once(
        steps in proptest::collection::vec((0_u8..9, 0_u64..6, 0_u64..6), 0..120)
    ) {
        let mut physical = Physical::default();
        let (mut charged, mut back) = (0_u64, 0_u64);
        for (verb, a, b) in steps {
            match verb {
                0 if physical.behind(a).is_none() => {
                    let holding = if b == 0 { Holding::Object } else { own(b) };
                    physical.made(a, holding);
                    charged += b;
                }
                1 if !physical.mappings.contains_key(&(b << 12)) => {
                    physical.mapped(b << 12, 1 << 12, a);
                }
                2 => {
                    // The driver may give a known handle of the same memory, or a new one.
                    let same = physical.mapped_at(b << 12);
                    let known = physical.behind(a + 10);
                    if known.is_none() || known == same {
                        physical.retained(a + 10, b << 12);
                    }
                }
                3 => back += paid(&physical.release(a)),
                4 => back += paid(&physical.unmap(a << 12, b << 12)),
                5 => physical.bind(a, b, 1, (a + b) % 6),
                6 => back += paid(&physical.unbind(a, b, 2)),
                7 => back += paid(&physical.tile(a % 2, b, (b != 3).then_some(a))),
                _ => back += paid(&physical.destroy(a % 2)),
            }
            let held: Vec<_> = physical.memories.values().map(|one| &one.holding).collect();
            let held: u64 = held.into_iter().map(|one| paid(std::slice::from_ref(one))).sum();
            prop_assert_eq!(charged, back + held);
        }
        back += paid(&physical.unmap(0, u64::MAX));
        back += (0..2).map(|array| paid(&physical.destroy(array))).sum::<u64>();
        for handle in physical.handles.keys().copied().collect::<Vec<_>>() {
            while physical.behind(handle).is_some() {
                back += paid(&physical.release(handle));
            }
        }
        prop_assert_eq!(charged, back);
        prop_assert!(physical.memories.is_empty() && physical.bound.is_empty());
    }
}
