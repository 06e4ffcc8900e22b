//! The cards that a process sees, and their order: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`.

use std::cmp::Reverse;

use crate::machine::CardInfo;
use crate::product::Product;

/// The variable that names cards.
pub(crate) const WANTED: &str = "CUDA_VISIBLE_DEVICES";
/// The variable that says how numbers count.
pub(crate) const ORDER: &str = "CUDA_DEVICE_ORDER";
/// Its value for the order of the bus, which is NVML's. Any other means the fastest first.
const BY_PLACE: &str = "PCI_BUS_ID";

/// The cards that `wanted` names, by number or by the beginning of their UUID. The list
/// ends at the first name that no card has, as CUDA does it; a card named twice ends it
/// empty. Numbers count in the order that `order` says, and so do all cards if none is named.
pub(crate) fn cards(wanted: Option<&str>, order: Option<&str>, all: &[CardInfo]) -> Vec<usize> {
    let mut all: Vec<&CardInfo> = all.iter().collect();
    if order != Some(BY_PLACE) {
        all.sort_by_key(|card| Reverse(speed(card))); // equally fast ones stay as they are
    }
    let Some(wanted) = wanted else {
        return all.iter().map(|card| card.index).collect();
    };
    let mut visible = Vec::new();
    for name in wanted.split(',').map(str::trim) {
        let found = match name.parse::<usize>() {
            Ok(number) => all.get(number).copied(),
            Err(_) if name.starts_with("GPU-") => {
                let mut fitting = all
                    .iter()
                    .filter(|card| card.uuid.to_string().starts_with(name));
                // A beginning that several cards have names none of them.
                let first = fitting.next().copied();
                first.filter(|_| fitting.next().is_none())
            }
            Err(_) => None,
        };
        let Some(card) = found else { break };
        if visible.contains(&card.index) {
            return Vec::new();
        }
        visible.push(card.index);
    }
    visible
}

/// Returns a measure of a card's computing speed, as far as its product tells it.
fn speed(card: &CardInfo) -> u64 {
    let product = Product::of(&card.name);
    let cores = u64::from(product.n_multiprocessors) * u64::from(product.n_cores);
    cores * u64::from(product.graphics_mhz)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    fn machine(spec: &str, names: &[&str]) -> Vec<CardInfo> {
        let spec = Spec::parse(spec).unwrap();
        let mut all: Vec<CardInfo> = spec
            .cards()
            .iter()
            .enumerate()
            .map(|(index, card)| CardInfo {
                index,
                uuid: card.uuid,
                name: card.name.clone(),
                memory: card.memory,
                context: card.context,
                pci_address: card.pci_address,
                minor: card.minor,
            })
            .collect();
        for (card, name) in all.iter_mut().zip(names) {
            card.name = (*name).to_owned();
        }
        all
    }

    #[test]
    fn the_list_ends_at_the_first_unknown_name() {
        let all = machine("3x1GiB", &[]);
        let uuid = all[1].uuid.to_string();
        for (wanted, expected) in [
            (None, &[0, 1, 2][..]),
            (Some(""), &[]),
            (Some("2,0"), &[2, 0]),
            (Some("2,7,0"), &[2]),
            (Some("-1"), &[]),
            (Some(&*uuid), &[1]),
            (Some(&uuid[..12]), &[1]),
            (Some("GPU-"), &[]),
            (Some("1,1"), &[]),
        ] {
            for order in [None, Some("PCI_BUS_ID")] {
                assert_eq!(cards(wanted, order, &all), expected, "{wanted:?} {order:?}");
            }
        }
    }

    #[test]
    fn the_fastest_comes_first_unless_the_bus_is_asked_for() {
        let all = machine("3x1GiB", &["A10", "B200", "A10"]);
        let uuids: Vec<String> = all.iter().map(|card| card.uuid.to_string()).collect();
        let by_name = format!("{},{}", uuids[2], uuids[1]);
        for (wanted, order, expected) in [
            (None, None, &[1, 0, 2][..]),
            (None, Some("FASTEST_FIRST"), &[1, 0, 2]),
            (None, Some("PCI_BUS_ID"), &[0, 1, 2]),
            (Some("0"), None, &[1]),
            (Some("0"), Some("PCI_BUS_ID"), &[0]),
            // Names mean the same in every order.
            (Some(&*by_name), None, &[2, 1]),
            (Some(&*by_name), Some("PCI_BUS_ID"), &[2, 1]),
        ] {
            assert_eq!(cards(wanted, order, &all), expected, "{wanted:?} {order:?}");
        }
    }
}
