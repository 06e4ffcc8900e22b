//! The short text of a machine: `COUNTxMEMORY[,name=TEXT][,context=MEMORY][,packing=PACKING]`,
//! where PACKING is `SMALL:PIECE:KEPT`: the bytes up to which an allocation is small, the bytes
//! taken from a card for small ones, and the number of empty pieces that are kept, or `all`.

use sublet_model::{Bytes, parse_bytes};

use super::{CARDS_MAX, Draft, MEMORY_MAX_MIB, PackingRule, Spec, SpecError};

/// The name of a card that was given none.
pub(super) const NAME: &str = "Sublet Fake GPU";

/// The machine that `text` describes.
pub(super) fn parse(text: &str) -> Result<Spec, SpecError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SpecError::Empty);
    }
    let mut parts = text.split(',');
    let cards = parts.next().unwrap_or_default();
    let (count, memory) = cards
        .split_once('x')
        .ok_or_else(|| SpecError::Shape(shown(cards)))?;
    let count = number(count)
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| (1..=CARDS_MAX).contains(count))
        .ok_or_else(|| SpecError::Count(shown(count)))?;
    let memory = mib(memory)?;
    let (mut name, mut context, mut packing) = (NAME, None, PackingRule::default());
    for option in parts {
        match option.split_once('=') {
            Some(("name", value)) => name = value,
            Some(("context", value)) => context = Some(mib(value)?),
            Some(("packing", value)) => packing = PackingRule::parse(value)?,
            _ => return Err(SpecError::Option(shown(option))),
        }
    }
    Spec::of_drafts(vec![Draft::new(name, memory, context)?; count], packing)
}

/// A card without the values that tell it from its equals, one line.
pub(super) fn plain(name: &str, memory_mib: u64, context_mib: u64) -> String {
    format!("1x{memory_mib}MiB,context={context_mib}MiB,name={name}\n")
}

/// Returns a part of a text for an error message: characters that a terminal would act on are
/// written out, and a part that fills screens is cut.
pub(super) fn shown(part: &str) -> String {
    const MOST: usize = 64;
    let mut characters = part.chars();
    let start: String = characters.by_ref().take(MOST).collect();
    let more = if characters.next().is_some() {
        "…"
    } else {
        ""
    };
    format!("{}{more}", start.escape_debug())
}

/// A number as people write one: digits, and nothing else.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// An amount of memory in whole MiB.
fn mib(text: &str) -> Result<u64, SpecError> {
    let bytes = parse_bytes(text).ok().map(Bytes::get);
    bytes
        .filter(|bytes| bytes.is_multiple_of(1 << 20))
        .map(|bytes| bytes >> 20)
        .filter(|mib| *mib <= MEMORY_MAX_MIB)
        .ok_or_else(|| SpecError::Memory(shown(text)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sublet_model::Bdf;

    use super::super::{CardUuid, NAME_MAX};
    use super::*;

    #[test]
    fn a_short_text_is_a_machine() {
        let spec = parse("2x16GiB").unwrap();
        let [first, second] = spec.cards() else {
            panic!("two cards")
        };
        assert_eq!((first.memory, first.context), (16 << 30, 480 << 20));
        assert_eq!(first.name, NAME);
        assert_ne!(first.uuid, second.uuid);
        assert_eq!(CardUuid::parse(&first.uuid.to_string()), Some(first.uuid));
        let spec = parse(" 1x80GiB,name=H100,context=300MiB ").unwrap();
        assert_eq!(spec.cards()[0].name, "H100");
        assert_eq!(spec.cards()[0].context, 300 << 20);
        assert_eq!(parse("1x16MiB").unwrap().cards()[0].context, 2 << 20);
    }

    #[test]
    fn two_texts_for_one_machine_are_one_machine() {
        let digest = |text| parse(text).unwrap().digest();
        assert_eq!(digest("2x16GiB"), digest("2x16384MiB,context=480MiB"));
        assert_ne!(digest("2x16GiB"), digest("1x16GiB"));
        assert_ne!(digest("2x16GiB"), digest("2x16GiB,name=other"));
        assert_eq!(digest("2x16GiB"), digest("2x16GiB,packing=1MiB:2MiB:0"));
        assert_ne!(digest("2x16GiB"), digest("2x16GiB,packing=1MiB:2MiB:1"));
    }

    #[test]
    fn bad_texts_name_the_part() {
        let check = |text: &str, part: &str| {
            let error = parse(text).expect_err(text).to_string();
            assert!(
                error.contains(part),
                "{text:?} gives {error:?} without {part:?}"
            );
        };
        check("", "empty");
        check("16GiB", "`16GiB`");
        check("0x16GiB", "`0`");
        check("17x16GiB", "`17`");
        check("-1x16GiB", "`-1`");
        check("2x-1GiB", "`-1GiB`");
        check("2x0GiB", "`0MiB`");
        check("2x16GX", "`16GX`");
        check("2x99999999999999999999GiB", "amount of memory");
        check("2x18014398509481984GiB", "amount of memory");
        check("2x16GiB,nam=x", "`nam=x`");
        check("2x16GiB,", "``");
        check("2x16GiB,name=", "name of 1 to");
        check("2x16GiB,name=ü", "name of 1 to");
        check("2x1GiB,context=1GiB", "does not fit");
        check("2x1GiB,context=1KiB", "`1KiB` is not an amount");
        check("2x1GiB,packing=1MiB", "`1MiB` is no packing");
        check("1000000000x16GiB", "`1000000000` is not a number of cards");
        check("x", "`` is not a number of cards");
        check("+2x16GiB", "`+2`");
        check("2 x 16GiB", "`2 `");
        check("２x１６GiB", "`２` is not a number of cards");
        check("2x１６GiB", "`１６GiB` is not an amount");
        check("2×16GiB", "`2×16GiB` is neither");
        check("2x0x10GiB", "`0x10GiB` is not an amount");
        check("\u{1b}[2Jx1GiB", "`\\u{1b}[2J`");
        check(&"9".repeat(100_000), "999…` is neither");
    }

    #[test]
    fn a_file_says_where_its_cards_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "gpus:\n- {memory: 1GiB, bdf: '0001:3b:02.0', minor: 7}\n- {memory: 1GiB}\n";
        std::fs::write(file.path(), text).unwrap();
        let spec = Spec::read(file.path().to_str().unwrap()).unwrap();
        let [first, second] = spec.cards() else {
            panic!("two cards")
        };
        let pci_address: Bdf = "0001:3b:02.0".parse().unwrap();
        assert_eq!((first.pci_address, first.minor), (pci_address, 7));
        assert_eq!((second.pci_address.bus, second.minor), (0x18, 1));
        std::fs::write(file.path(), text.replace("3b", "3c")).unwrap();
        let other = Spec::read(file.path().to_str().unwrap()).unwrap();
        assert_ne!(other.digest(), spec.digest(), "another machine");
    }

    #[test]
    fn an_inventory_file_is_a_machine() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "gpus:\n- {memory: 1GiB, uuid: GPU-00000000-0000-0000-0000-00000000000a}\n- {memory: 2GiB, model: T4, uuid: b}\n";
        std::fs::write(file.path(), text).unwrap();
        let spec = Spec::read(file.path().to_str().unwrap()).unwrap();
        assert_eq!(spec.cards()[0].uuid.0[15], 10);
        assert_eq!(
            (spec.cards()[1].name.as_str(), spec.cards()[1].memory),
            ("T4", 2 << 30)
        );
        std::fs::write(file.path(), "gpus: []").unwrap();
        let error = Spec::read(file.path().to_str().unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("`0` is not a number of cards"),
            "{error}"
        );
        let error = Spec::read("/nowhere/at/all.yaml").unwrap_err();
        assert!(
            error.to_string().contains("/nowhere/at/all.yaml"),
            "{error}"
        );
    }

    /// A machine is one that the rest can trust; an error is one short line without anything that a
    /// terminal would act on, and tells the right form or the choices.
    fn sound(text: &str) -> Result<(), TestCaseError> {
        match parse(text) {
            Ok(spec) => {
                prop_assert!((1..=CARDS_MAX).contains(&spec.cards().len()));
                for card in spec.cards() {
                    prop_assert!(card.context < card.memory && card.memory <= MEMORY_MAX_MIB << 20);
                    prop_assert!(!card.name.is_empty() && card.name.len() <= NAME_MAX);
                }
                prop_assert_eq!(spec.digest().len(), 16);
            }
            Err(error) => {
                let said = error.to_string();
                prop_assert!(!said.chars().any(char::is_control), "{:?}", said);
                prop_assert!(said.chars().count() < 900, "{}", said);
                let tells = [
                    "2x16GiB",
                    "16GiB",
                    "name=TEXT",
                    "ASCII",
                    "does not fit",
                    "512KiB:8MiB:1",
                ];
                prop_assert!(tells.iter().any(|hint| said.contains(hint)), "{}", said);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_text_is_a_machine_or_an_error(text in any::<String>(), more in "\\PC{0,200}") {
            sound(&text)?;
            sound(&format!("2x1GiB,{text}"))?;
            sound(&format!("{more}x{text}"))?;
            sound(&more)?;
        }

        #[test]
        fn an_almost_right_text_gives_a_sound_machine(
            count in "-?[0-9]{0,3}", memory in "-?[0-9]{0,21}(MiB|GiB|GB|)",
            options in "(,(name|context|packing|x)=[ -~]{0,70}){0,3}",
        ) {
            sound(&format!("{count}x{memory}{options}"))?;
        }
    }
}
