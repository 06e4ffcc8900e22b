//! Placing, as small pictures: cards, the taken parts, a request, the answer.

use sublet_model::Milli;

use super::*;
use crate::job::ComputeRange;

/// `16 8/3` is a machine with an empty card of 16 GiB and one of 8 with 3 taken.
fn cards(picture: &str, named: &str) -> Cards {
    let sizes = picture.split_whitespace().map(|word| {
        let (size, taken) = word.split_once('/').unwrap_or((word, "0"));
        (gib(size), gib(taken))
    });
    let sizes: Vec<(MiB, MiB)> = sizes.collect();
    let gpus = (0u16..)
        .zip(&sizes)
        .map(|(index, (size, _))| sublet_model::Gpu::plain(GpuIndex(index), *size));
    let inventory = Inventory::new(gpus.collect(), vec![], vec![], vec![]).unwrap();
    let mut cards = Cards::new(Arc::new(inventory), named.parse().unwrap(), MiB::ZERO);
    for (card, (_, taken)) in sizes.iter().enumerate() {
        let part = Part::of_memory(*taken);
        cards.charge(card, JobId(1), part, Class::Guaranteed);
    }
    cards
}

fn gib(text: &str) -> MiB {
    MiB::from(text.parse::<u32>().unwrap() * 1024)
}

fn ask(memory: Amount, gpus: u32) -> JobAsk {
    JobAsk {
        name: Arc::from("job"),
        memory,
        request: memory,
        pinned: None,
        compute: ComputeRange::ANY,
        class: Class::Guaranteed,
        slice: None,
        gpus: Count::new(gpus),
        cards: None,
        user: None,
        priority: 0,
        may_wait: true,
    }
}

fn check(picture: &str, memory: Amount, gpus: u32, want: &str) {
    check_named(picture, memory, gpus, None, want);
}

/// The same for a job that may be on these cards only.
fn check_named(picture: &str, memory: Amount, gpus: u32, named: Option<&[usize]>, want: &str) {
    let cards = cards(picture, "binpack");
    let ask = JobAsk {
        cards: named.map(|named| named.iter().copied().collect()),
        ..ask(memory, gpus)
    };
    let got = match cards.find(&ask) {
        Ok(parts) => parts
            .iter()
            .map(|part| format!("{}:{}", part.card, part.limit.memory.get()))
            .collect::<Vec<_>>()
            .join(" "),
        Err(reason) => reason.to_string(),
    };
    assert_eq!(got, want, "{picture}, {memory} on {gpus} of {named:?}");
    assert!(cards.is_conserved());
}

#[test]
fn one_card_is_the_engines_choice() {
    let memory = Amount::Memory(gib("4"));
    check("16 16/8", memory, 1, "1:4096");
    check("16 16/14", memory, 1, "0:4096");
    let spread = cards("16 16/8", "spread");
    assert_eq!(spread.find(&ask(memory, 1)).unwrap()[0].card, 0);
}

#[test]
fn an_opportunistic_job_goes_where_fewest_jobs_are() {
    let half = Amount::Share(Milli::new(500).unwrap());
    for (picture, memory, guaranteed, opportunistic) in [
        ("16 16/8", Amount::Memory(gib("4")), 1, 0),
        // The same share is asked of cards of other sizes in questions of their own.
        ("16/8 24", half, 0, 1),
    ] {
        let cards = cards(picture, "binpack");
        for (class, wanted) in [
            (Class::Guaranteed, guaranteed),
            (Class::Opportunistic, opportunistic),
        ] {
            let asked = JobAsk {
                class,
                ..ask(memory, 1)
            };
            let found = cards.find(&asked).unwrap();
            assert_eq!(found[0].card, wanted, "{picture} {class:?}");
        }
    }
}

#[test]
fn compute_time_is_promised_once() {
    let asks = |compute: u16, class| JobAsk {
        compute: ComputeRange::new(Milli::new(compute).unwrap(), Milli::WHOLE).unwrap(),
        class,
        ..ask(Amount::Memory(gib("4")), 1)
    };
    let mut cards = cards("16 16/14", "binpack");
    let half = Part {
        memory: gib("4"),
        compute: Milli::new(600).unwrap(),
        ..Part::ZERO
    };
    cards.charge(0, JobId(2), half, Class::Guaranteed);
    let found = |cards: &Cards, compute, class| match cards.find(&asks(compute, class)) {
        Ok(found) => format!("GPU {}", found[0].card),
        Err(reason) => reason.to_string(),
    };
    assert_eq!(found(&cards, 400, Class::Guaranteed), "GPU 0");
    assert_eq!(
        found(&cards, 450, Class::Guaranteed),
        "GPU 0 lacks 5 % of its compute time: 45 % asked, and 40 % is left there"
    );
    cards.charge(
        0,
        JobId(2),
        Part {
            compute: Milli::WHOLE,
            ..half
        },
        Class::Guaranteed,
    );
    assert_eq!(found(&cards, 0, Class::Opportunistic), "GPU 0");
    assert!(found(&cards, 0, Class::Guaranteed).contains("with no other guaranteed job"));
    assert!(cards.is_conserved());
}

#[test]
fn several_cards_are_different_cards() {
    let memory = Amount::Memory(gib("4"));
    check("16 16/8", memory, 2, "0:4096 1:4096");
    check("16 16/14 16", memory, 2, "0:4096 2:4096");
    check(
        "16 16/14",
        memory,
        2,
        "GPU 1 lacks 2048 MiB: 4096 MiB asked of each of 2 GPUs, and 1 GPU would do, and 2048 MiB are free there",
    );
}

#[test]
fn a_job_is_on_the_cards_that_it_names_and_on_no_other() {
    let four = Amount::Memory(gib("4"));
    let check = |picture, memory, gpus, named: &[usize], want| {
        check_named(picture, memory, gpus, Some(named), want);
    };
    check("16 16", four, 1, &[1], "1:4096");
    check("16/8 16 16", four, 1, &[1, 2], "1:4096");
    check("16 16/8 16", four, 1, &[0, 1], "1:4096");
    check("16 16 16", four, 2, &[0, 2], "0:4096 2:4096");
    check("16 16 16", four, 3, &[0, 1, 2], "0:4096 1:4096 2:4096");
    // Room elsewhere does not help.
    check(
        "16 16/14 16",
        four,
        1,
        &[1],
        "GPU 1 lacks 2048 MiB: 4096 MiB asked, and 2048 MiB are free there",
    );
    check(
        "16 16/14 16",
        four,
        2,
        &[0, 1],
        "GPU 1 lacks 2048 MiB: 4096 MiB asked of each of 2 GPUs, and 1 GPU would do, and 2048 MiB are free there",
    );
    check(
        "16 8",
        Amount::Memory(gib("9")),
        1,
        &[1],
        "9216 MiB asked, but GPU 1 has 8192 MiB in all (1024 MiB too few)",
    );
    let whole = Amount::Whole;
    check("16 16", whole, 1, &[1], "1:16384");
    check(
        "16 16/1",
        whole,
        1,
        &[1],
        "1 GPU asked without company, but GPU 1 is not idle",
    );
    check(
        "16/1 16/1 16",
        whole,
        1,
        &[0, 1],
        "1 GPU asked without company, but of GPUs 0, 1 only 0 idle",
    );
    check("16 16", four, 1, &[], "1 GPU asked, but no GPU is named");
    check(
        "16 16",
        four,
        2,
        &[1],
        "2 GPUs asked, but only GPU 1 is named",
    );
    check(
        "16 16 16",
        four,
        3,
        &[0, 2],
        "3 GPUs asked, but only GPUs 0, 2 are named",
    );
    check(
        "16 16",
        four,
        3,
        &[1],
        "3 GPUs asked, but this machine has 2 GPUs",
    );
    // Positions that the machine has not are nobody's.
    check("16 16", four, 1, &[7], "1 GPU asked, but no GPU is named");
}

#[test]
fn a_share_is_of_each_cards_own_size() {
    let half = Amount::Share(Milli::new(500).unwrap());
    check("16 8", half, 2, "0:8192 1:4096");
    check("16/9 8/1", half, 1, "1:4096");
    check(
        "16/9 8/5",
        half,
        1,
        "GPU 0 lacks 1024 MiB: 8192 MiB asked, and 7168 MiB are free there",
    );
}

#[test]
fn a_whole_card_is_one_that_nobody_is_on() {
    check("16/1 8", Amount::Whole, 1, "1:8192");
    check(
        "16/1 8",
        Amount::Whole,
        2,
        "2 GPUs asked without company, but only 1 of 2 GPUs idle",
    );
    let mut cards = cards("16", "binpack");
    cards.keep(0, gib("2"));
    let parts = cards.find(&ask(Amount::Whole, 1)).unwrap();
    assert_eq!(
        parts[0].limit.memory,
        gib("14"),
        "what others use is not granted"
    );
    let part = Part::of_memory(gib("10"));
    cards.charge(0, JobId(7), part, Class::Guaranteed);
    cards.set_whole(0, JobId(7), true);
    let one = ask(Amount::Memory(gib("1")), 1);
    assert!(cards.find(&one).is_err(), "it is alone there");
    cards.set_whole(0, JobId(7), false);
    assert!(cards.find(&one).is_ok());
}

#[test]
fn what_can_never_be_is_refused_with_its_numbers() {
    let large = Amount::Memory(gib("17"));
    check(
        "16 8",
        large,
        1,
        "17408 MiB asked, but GPU 0 has 16384 MiB in all (1024 MiB too few)",
    );
    check(
        "16 8",
        Amount::Memory(gib("9")),
        2,
        "9216 MiB asked of each of 2 GPUs, and 1 GPU would do, but GPU 1 has 8192 MiB in all (1024 MiB too few)",
    );
    check("16", large, 2, "2 GPUs asked, but this machine has 1 GPU");
    let nothing = "no memory or no GPU was asked; ask for some";
    check("16", Amount::Memory(MiB::ZERO), 1, nothing);
    check("16", large, 0, nothing);
    check("", large, 1, "1 GPU asked, but this machine has 0 GPUs");
}

#[test]
fn what_is_kept_and_what_is_sick_is_said() {
    let mut cards = cards("16 16", "binpack");
    cards.keep(0, gib("10"));
    let sick = cards
        .inventory()
        .with_sick(&BTreeSet::from([GpuIndex(1)]), "xid 79");
    cards.set_inventory(Arc::new(sick));
    let error = cards.find(&ask(Amount::Memory(gib("8")), 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "GPU 0 lacks 2048 MiB: 8192 MiB asked, and 6144 MiB are free there; 10240 MiB of it are kept from jobs; 1 GPU is unhealthy"
    );
    assert!(!error.is_final());
    assert!(cards.is_conserved());
}
