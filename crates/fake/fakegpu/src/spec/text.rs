//! Parts of the short text of a machine, their limits and their faults. The text is
//! `COUNTxMEMORY[,name=TEXT][,context=MEMORY][,packing=PACKING][,slice=TIME][,switch=TIME]`, where
//! PACKING is `SMALL:PIECE:KEPT`: the bytes up to which an allocation is small, the bytes taken from
//! a card for small ones, and the number of empty pieces that are kept, or `all`. A TIME has a unit,
//! `us`, `ms` or `s`.

use sublet_model::{Bytes, parse_bytes};

/// The most cards of one machine: the number of devices in the shared pages of a tenant.
pub const CARDS_MAX: usize = 16;

/// The longest name of a card in bytes; NVML's buffers have 96, ours are shared memory.
pub const NAME_MAX: usize = 63;

/// A card's memory in MiB is at most this, the most that a tenant's ledger can count.
pub const MEMORY_MAX_MIB: u64 = 4 << 20;

/// The name of a card that was given none.
pub(super) const NAME: &str = "Sublet Fake GPU";

/// Reason why a text is no machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing was written.
    #[error("the description of the fake machine is empty; write `2x16GiB`")]
    Empty,
    /// The part before the first comma is not cards and memory.
    #[error("`{0}` is neither an inventory file nor GPUs and their memory, such as `2x16GiB`")]
    Shape(String),
    /// Too many cards, or none.
    #[error("`{0}` is not a number of cards between 1 and {CARDS_MAX}; write `2x16GiB`")]
    Count(String),
    /// An amount that is not one.
    #[error("`{0}` is not an amount of memory between 1MiB and {max}GiB; write `16GiB`", max = MEMORY_MAX_MIB >> 10)]
    Memory(String),
    /// An option nobody knows.
    #[error(
        "`{0}` is not an option; there are `name=TEXT`, `context=480MiB`, `packing=512KiB:8MiB:1`, `slice=2ms` and `switch=40us`"
    )]
    Option(String),
    /// A packing that no driver could have.
    #[error(
        "`{0}` is no packing; write `packing=512KiB:8MiB:1`: up to which size an allocation is small, the size of a piece for small ones (a multiple of 2MiB, not less than the first), and how many empty pieces are kept, or `all`"
    )]
    PackingRule(String),
    /// A time that no card could have.
    #[error(
        "`{0}` is no time of a card; write `slice=2ms` (100us to 1s), and `switch=40us` (less than the slice)"
    )]
    Time(String),
    /// A name that cannot be shown.
    #[error("`{0}` is not a name of 1 to {NAME_MAX} printable ASCII characters without a comma")]
    Name(String),
    /// The context would fill the card.
    #[error("a context of {context} MiB does not fit into a card of {memory} MiB")]
    Context {
        /// Size of a context.
        context: u64,
        /// Memory of the card.
        memory: u64,
    },
    /// The file could not be read.
    #[error("inventory file {path}: {problem}")]
    File {
        /// Path of the file.
        path: String,
        /// Its fault.
        problem: String,
    },
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
pub(super) fn mib(text: &str) -> Result<u64, SpecError> {
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

    use super::*;
    use crate::spec::{CardUuid, Spec};

    fn parse(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(text)
    }

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
                    "slice=2ms",
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
            options in "(,(name|context|packing|slice|switch|x)=[ -~]{0,70}){0,3}",
        ) {
            sound(&format!("{count}x{memory}{options}"))?;
        }
    }
}
