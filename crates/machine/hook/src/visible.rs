//! Devices that a program sees: the tenant's, narrowed by the program's own choice.
//!
//! The driver reads `CUDA_VISIBLE_DEVICES` once, in `cuInit`. A program that sets the variable
//! means places in *its own* list: `0` is its first device, whatever number the card has on the
//! machine. So the program's choice is applied to the tenant's list, and the result goes to the
//! driver as UUIDs, which mean the same in every order. NVML shows the tenant's whole list, as it
//! does on a machine with one user.
//!
//! A card that is split by MIG is seen as its instances. A program names these by UUIDs that are
//! not in the tenant's list, and such a name goes to the driver unchanged. Memory of an instance is
//! charged to its card. An instance of a card that is not the tenant's has no memory.

use std::fmt::Write as _;

use sublet_abi::Uuid;

/// The variable that the driver reads.
pub const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// A UUID as the driver's tools write it: `GPU-` and five groups of hex digits.
#[must_use]
pub fn text_of(uuid: &Uuid) -> String {
    let mut text = String::with_capacity(40);
    text.push_str("GPU-");
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the driver's setting, given the tenant's devices and the program's own setting.
///
/// As in the driver, choices are read from the left, by place or by the beginning of a UUID, and
/// the first choice that means nothing ends the list.
#[must_use]
pub fn choose(tenant: &[Uuid], own: Option<&str>) -> String {
    let texts: Vec<String> = tenant.iter().map(text_of).collect();
    let Some(own) = own else {
        return texts.join(",");
    };
    let mut chosen: Vec<&str> = Vec::new();
    for choice in own.split(',') {
        match find(&texts, choice.trim()) {
            Some(device) if !chosen.contains(&device) => chosen.push(device),
            _ => break,
        }
    }
    chosen.join(",")
}

fn find<'a>(texts: &'a [String], choice: &'a str) -> Option<&'a str> {
    if let Ok(place) = choice.parse::<usize>() {
        return texts.get(place).map(String::as_str);
    }
    if let Some(instance) = choice.strip_prefix("MIG-") {
        return is_instance(texts, instance).then_some(choice);
    }
    let choice = choice.to_ascii_lowercase();
    let digits = choice
        .strip_prefix("gpu-")
        .filter(|rest| !rest.is_empty())?;
    let mut matching = texts
        .iter()
        .filter(|text| text["GPU-".len()..].starts_with(digits));
    // A beginning that fits two devices names neither.
    match (matching.next(), matching.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// True for the part behind `MIG-` in the name of an instance that may be the tenant's: a UUID of
/// its own, or, until R470, that of one of the tenant's cards and two numbers.
fn is_instance(texts: &[String], instance: &str) -> bool {
    let Some(rest) = instance.strip_prefix("GPU-") else {
        return is_uuid(instance);
    };
    let mut parts = rest.split('/');
    let card = parts.next().unwrap_or_default().to_ascii_lowercase();
    let is_own = texts.iter().any(|text| text["GPU-".len()..] == *card);
    let numbers: Vec<&str> = parts.collect();
    is_own && numbers.len() == 2 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

/// True for five groups of hex digits, of the usual lengths.
fn is_uuid(text: &str) -> bool {
    let is_hex = |group: &str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths = text
        .split('-')
        .map(|group| is_hex(group).then_some(group.len()));
    lengths.eq([8, 4, 4, 4, 12].map(Some))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = [0xaa; 16];
    const B: Uuid = [0xbb; 16];
    const C: Uuid = [0xaa, 0xaa, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb, 0xc, 0xd];

    #[test]
    fn a_programs_choice_selects_within_the_tenants_list() {
        let list = [A, B, C];
        let names = [text_of(&A), text_of(&B), text_of(&C)];
        assert_eq!(names[2], "GPU-aaaa0001-0203-0405-0607-08090a0b0c0d");
        for (own, expected) in [
            (None, "0 1 2"),
            (Some("0,1,2"), "0 1 2"),
            (Some("2, 0"), "2 0"),
            (Some("1"), "1"),
            (Some(""), ""),
            (Some("-1"), ""),
            (Some("NoDevFiles"), ""),
            (Some("0,3,1"), "0"),
            (Some("0,0,1"), "0"),
            (Some("GPU-bb"), "1"),
            (Some("gpu-BBBB,0"), "1 0"),
            (Some("GPU-aaaa0"), "2"),
            (Some("GPU-aa"), ""),
            (Some("GPU-"), ""),
            (Some("GPU-ff,0"), ""),
            (Some("99999999999999999999"), ""),
        ] {
            let expected: Vec<&str> = expected
                .split_whitespace()
                .map(|place| names[place.parse::<usize>().expect("a place")].as_str())
                .collect();
            assert_eq!(choose(&list, own), expected.join(","), "{own:?}");
        }
        assert_eq!(choose(&[], None), "");
    }

    #[test]
    fn instances_of_split_cards_go_to_the_driver_by_their_own_names() {
        let own = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa";
        let new = "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f";
        let old = format!("MIG-GPU-{own}/7/0");
        for (choice, told) in [
            (new.to_owned(), new.to_owned()),
            (old.clone(), old.clone()),
            (format!("{old}, {new},0"), format!("{old},{new},GPU-{own}")),
            (format!("{new},{new}"), new.to_owned()),
            // Another's card, half a name, and none.
            (old.replace("aaaa-", "bbbb-"), String::new()),
            (format!("MIG-GPU-{own}"), String::new()),
            (format!("MIG-GPU-{own}/7"), String::new()),
            (format!("MIG-GPU-{own}/7/x"), String::new()),
            (new[..20].to_owned(), String::new()),
            (format!("{new}0"), String::new()),
            ("MIG-".to_owned(), String::new()),
        ] {
            assert_eq!(choose(&[A], Some(&choice)), told, "{choice}");
        }
    }
}
