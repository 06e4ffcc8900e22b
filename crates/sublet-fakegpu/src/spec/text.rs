//! The short text of a machine, `COUNTxMEMORY[,name=TEXT][,context=MEMORY]`.

use super::{CARDS_MAX, CONTEXT_MIB, CardSpec, MEMORY_MAX_MIB, NAME_MAX, Spec, SpecError, Uuid};

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
        .ok_or_else(|| SpecError::Shape(cards.to_owned()))?;
    let count = count
        .parse::<usize>()
        .ok()
        .filter(|count| (1..=CARDS_MAX).contains(count))
        .ok_or_else(|| SpecError::Count(count.to_owned()))?;
    let memory = mib(memory)?;
    let (mut name, mut context) = (NAME, None);
    for option in parts {
        match option.split_once('=') {
            Some(("name", value)) => name = value,
            Some(("context", value)) => context = Some(mib(value)?),
            _ => return Err(SpecError::Option(option.to_owned())),
        }
    }
    let card = card(name, memory, context)?;
    Spec::of_cards(vec![(card, None); count])
}

/// One card, still without a UUID. A context that nobody set is smaller on a card that
/// could not hold it: an eighth of the memory.
pub(super) fn card(name: &str, memory: u64, context: Option<u64>) -> Result<CardSpec, SpecError> {
    let printable = name
        .bytes()
        .all(|byte| (b' '..=b'~').contains(&byte) && byte != b',');
    if name.trim().is_empty() || name.len() > NAME_MAX || !printable {
        return Err(SpecError::Name(name.to_owned()));
    }
    if memory == 0 || memory > MEMORY_MAX_MIB {
        return Err(SpecError::Memory(format!("{memory}MiB")));
    }
    let context = context.unwrap_or_else(|| CONTEXT_MIB.min(memory / 8));
    if context >= memory {
        return Err(SpecError::Context { context, memory });
    }
    Ok(CardSpec {
        name: name.to_owned(),
        memory: memory << 20,
        context: context << 20,
        uuid: Uuid([0; 16]),
    })
}

/// A card without its UUID, one line.
pub(super) fn plain(card: &CardSpec) -> String {
    let CardSpec {
        name,
        memory,
        context,
        ..
    } = card;
    format!(
        "1x{}MiB,context={}MiB,name={name}\n",
        memory >> 20,
        context >> 20
    )
}

fn mib(text: &str) -> Result<u64, SpecError> {
    let number = |unit: &str| text.strip_suffix(unit)?.parse::<u64>().ok();
    let amount = match (number("MiB"), number("GiB")) {
        (Some(mib), _) => Some(mib),
        (_, Some(gib)) => gib.checked_mul(1024),
        _ => None,
    };
    amount
        .filter(|mib| *mib <= MEMORY_MAX_MIB)
        .ok_or_else(|| SpecError::Memory(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        assert_eq!(Uuid::parse(&first.uuid.to_string()), Some(first.uuid));
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
        check("2x16GB", "`16GB`");
        check("2x99999999999999999999GiB", "amount of memory");
        check("2x18014398509481984GiB", "amount of memory");
        check("2x16GiB,nam=x", "`nam=x`");
        check("2x16GiB,", "``");
        check("2x16GiB,name=", "name of 1 to");
        check("2x16GiB,name=ü", "name of 1 to");
        check("2x1GiB,context=1GiB", "does not fit");
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

    proptest! {
        #[test]
        fn every_text_is_a_machine_or_an_error(text in any::<String>()) {
            if let Ok(spec) = parse(&text) {
                prop_assert!((1..=CARDS_MAX).contains(&spec.cards().len()));
            }
        }

        #[test]
        fn an_almost_right_text_gives_a_sound_machine(
            count in "-?[0-9]{0,3}", memory in "-?[0-9]{0,21}(MiB|GiB|GB|)",
            options in "(,(name|context|x)=[ -~]{0,70}){0,3}",
        ) {
            if let Ok(spec) = parse(&format!("{count}x{memory}{options}")) {
                for card in spec.cards() {
                    prop_assert!(card.context < card.memory && card.memory <= MEMORY_MAX_MIB << 20);
                    prop_assert!(!card.name.is_empty() && card.name.len() <= NAME_MAX);
                }
                prop_assert_eq!(spec.digest().len(), 16);
            }
        }
    }
}
