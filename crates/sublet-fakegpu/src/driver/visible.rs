//! `CUDA_VISIBLE_DEVICES`: which cards a process sees, and in which order.

use crate::machine::CardInfo;

/// The cards that `wanted` names, by number or by the beginning of their UUID. The list
/// ends at the first name that no card has, as CUDA does it; a card named twice ends it
/// empty.
pub(super) fn cards(wanted: Option<&str>, all: &[CardInfo]) -> Vec<usize> {
    let Some(wanted) = wanted else {
        return all.iter().map(|card| card.index).collect();
    };
    let mut visible = Vec::new();
    for name in wanted.split(',').map(str::trim) {
        let found = match name.parse::<usize>() {
            Ok(number) => all.iter().find(|card| card.index == number),
            Err(_) if name.starts_with("GPU-") => {
                let mut fitting = all
                    .iter()
                    .filter(|card| card.uuid.to_string().starts_with(name));
                // A beginning that several cards have names none of them.
                fitting.next().filter(|_| fitting.next().is_none())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    #[test]
    fn the_list_ends_at_the_first_unknown_name() {
        let spec = Spec::parse("3x1GiB").unwrap();
        let all: Vec<CardInfo> = spec
            .cards()
            .iter()
            .enumerate()
            .map(|(index, card)| CardInfo {
                index,
                uuid: card.uuid,
                name: card.name.clone(),
                memory: card.memory,
                context: card.context,
            })
            .collect();
        let uuid = all[1].uuid.to_string();
        assert_eq!(cards(None, &all), [0, 1, 2]);
        assert_eq!(cards(Some(""), &all), [0; 0]);
        assert_eq!(cards(Some("2,0"), &all), [2, 0]);
        assert_eq!(cards(Some("2,7,0"), &all), [2]);
        assert_eq!(cards(Some("-1"), &all), [0; 0]);
        assert_eq!(cards(Some(&uuid), &all), [1]);
        assert_eq!(cards(Some(&uuid[..12]), &all), [1]);
        assert_eq!(cards(Some("GPU-"), &all), [0; 0]);
        assert_eq!(cards(Some("1,1"), &all), [0; 0]);
    }
}
