//! Tests of the request that containers make together, as pictures, and of lists that are no claim.

use super::*;

/// `i8 s2 m3` → an init container of 8, a sidecar of 2, a main container of 3 (MiB).
fn claim(picture: &str, whole: bool) -> Result<Claim, ClaimShapeError> {
    let containers = picture
        .split_whitespace()
        .enumerate()
        .map(|(position, word)| {
            let (role, amount) = word.split_at(1);
            let amount: u32 = amount.parse().unwrap();
            let demand = if whole {
                Demand::of_cards(Count::new(amount))
            } else {
                Demand::of_memory(MiB::from(amount))
            };
            let role = match role {
                "i" => Role::Init,
                "s" => Role::Sidecar,
                _ => Role::Main,
            };
            ContainerClaim {
                name: ContainerName::new(word).unwrap(),
                position,
                role,
                demand,
            }
        });
    Claim::new(None, containers.collect(), false)
}

#[test]
fn the_ask_is_what_kubernetes_counts() {
    let mib = |picture| claim(picture, false).unwrap().ask().clone();
    assert_eq!(mib("m1 m2"), Ask::of_memory(MiB::from(3)));
    assert_eq!(mib("i8 m1 m2"), Ask::of_memory(MiB::from(8)));
    assert_eq!(mib("i1 m1 m2"), Ask::of_memory(MiB::from(3)));
    assert_eq!(mib("s2 i8 m1"), Ask::of_memory(MiB::from(10)));
    assert_eq!(mib("i8 s2 m7"), Ask::of_memory(MiB::from(9)));
    assert_eq!(
        claim("i2 m1 m2", true).unwrap().ask(),
        &Ask::WholeCards(Count::new(3))
    );
}

#[test]
fn a_claim_that_one_allocation_cannot_serve_is_refused() {
    assert_eq!(claim("", false), Err(ClaimShapeError::Empty));
    let mut mixed = claim("m1 m2", false).unwrap().containers;
    mixed[1].demand.portion = Portion::Whole;
    let error = Claim::new(None, mixed, false).unwrap_err().to_string();
    assert!(error.starts_with("containers m1 and m2 ask for whole GPUs and for parts"));
    let mut none = claim("m1", false).unwrap().containers;
    none[0].demand.gpus = Count::ZERO;
    let error = Claim::new(None, none, false).unwrap_err().to_string();
    assert!(error.starts_with("container m1 asks for parts of 0 GPUs"));
}

#[test]
fn compute_time_tells_nobody_apart_who_sees_sizes_only() {
    let like = |one: &str, other: &str, whole| {
        let mut other = claim(other, whole).unwrap();
        for container in &mut other.containers {
            if let Portion::Part(part) = &mut container.demand.portion {
                part.compute = milli(300);
            }
        }
        claim(one, whole)
            .unwrap()
            .looks_like(&other, Advertise::Units)
    };
    assert!(like("m3", "m3", false) && like("m1 m3", "i3 m5", false));
    assert!(!like("m3", "m4", false));
    assert!(like("m2", "m2", true) && !like("m2", "m1", true));
}

fn milli(thousandths: u16) -> Milli {
    Milli::new(thousandths).unwrap()
}

/// `i8x2@500` → an init container of 8 MiB and 500 thousandths of each of two cards.
fn parts(picture: &str) -> Result<Claim, ClaimShapeError> {
    let containers = picture.split_whitespace().map(|word| {
        let (amount, compute) = word.split_once('@').unwrap_or((word, "0"));
        let (amount, gpus) = amount.split_once('x').unwrap_or((amount, "1"));
        let mut container = claim(amount, false).unwrap().containers.remove(0);
        container.name = ContainerName::new(word).unwrap();
        container.demand.gpus = Count::new(gpus.parse().unwrap());
        container.demand.portion = Portion::Part(Part {
            compute: milli(compute.parse().unwrap()),
            ..Part::of_memory(MiB::from(amount[1..].parse::<u32>().unwrap()))
        });
        container
    });
    Claim::new(None, containers.collect(), false)
}

#[test]
fn each_card_serves_the_worst_moment_of_the_containers_on_it() {
    let ask = |picture| match parts(picture).unwrap().ask() {
        Ask::Parts(parts) => parts
            .iter()
            .map(|part| format!("{}@{} ", part.memory.get(), part.compute.get()))
            .collect::<String>(),
        other => format!("{other:?}"),
    };
    assert_eq!(ask("m4@300 m3@200"), "7@500 ");
    assert_eq!(ask("i8@100 m3@200 s1@300"), "8@500 ");
    assert_eq!(ask("m4x2@300 m3@200"), "7@500 4@300 ");
    assert_eq!(ask("m4x3"), "4@0 4@0 4@0 ");
    assert_eq!(ask("i9x2 m4x3@10"), "9@10 9@10 4@10 ");
}

#[test]
fn compute_that_cannot_be_had_is_refused() {
    let error = |picture| parts(picture).unwrap_err().to_string();
    assert!(error("m4@600 m3@500").starts_with("the containers of the pod ask for 1100"));
    assert!(error("m4x65").starts_with("container m4x65 asks for parts of 65 GPUs"));
    let mut containers = parts("m4@300").unwrap().containers;
    containers[0].demand.compute_limit = milli(250);
    let error = Claim::new(None, containers, false).unwrap_err().to_string();
    assert!(error.contains("asks for 30 % of a GPU's compute time, and may use 25 %"));
    let class = |picture| parts(picture).unwrap().with_class(Class::Opportunistic);
    assert_eq!(class("m4").unwrap().class(), Class::Opportunistic);
    let error = class("m4@1").unwrap_err().to_string();
    assert!(error.contains("gets what others leave"));
}
