//! One amount, divided among siblings that have minima, limits and weights.
//!
//! The rule of Koordinator's elastic quota (`RuntimeQuotaCalculator`), in whole numbers: every
//! sibling has its minimum first, and the rest goes to those that want more, by weight. A part that
//! one sibling cannot use goes round again. The units that no division gives out go to the largest
//! remainders (Hamilton's method), and ties to the sibling that stands first.

/// Wish of one of the siblings for one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// Amount that is asked, and no more than its limit.
    pub request: u64,
    /// Amount that it gets before anything is divided, if it asks for so much.
    pub min: u64,
    /// It never has less than this of its minimum, even where the minima do not fit.
    pub guarantee: u64,
    /// Its part of the rest. With none it has its minimum and no more.
    pub weight: u64,
    /// The part that it does not ask for may go to others.
    pub lends: bool,
    /// Its minimum shrinks where all minima together are too much.
    pub shrinks: bool,
}

/// Divides `total`, and returns the parts in the order of the wishes.
///
/// The sum is no more than `total`, unless the minima of those that do not shrink, or guarantees,
/// already are.
#[must_use]
pub fn divide(total: u64, wishes: &[Wish]) -> Vec<u64> {
    let minima = minima(total, wishes);
    let first = |(wish, min): (&Wish, &u64)| match wish.request > *min || !wish.lends {
        true => *min,
        false => wish.request,
    };
    let mut given: Vec<u64> = wishes.iter().zip(&minima).map(first).collect();
    let taken = given
        .iter()
        .fold(0, |sum: u64, has| sum.saturating_add(*has));
    let mut left = total.saturating_sub(taken);
    let mut hungry: Vec<usize> = (0..wishes.len())
        .filter(|&at| wishes[at].request > minima[at] && wishes[at].weight > 0)
        .collect();
    while left > 0 && !hungry.is_empty() {
        let weights: Vec<u64> = hungry.iter().map(|&at| wishes[at].weight).collect();
        let parts = by_weight(left, &weights);
        left = 0;
        for (&at, part) in hungry.iter().zip(parts) {
            // `part` may be more than what is missing: that much is left over.
            let missing = wishes[at].request - given[at];
            given[at] += part.min(missing);
            left += part.saturating_sub(missing);
        }
        hungry.retain(|&at| given[at] < wishes[at].request);
    }
    given
}

/// Everybody's minimum, made smaller in proportion where they are more than there is.
fn minima(total: u64, wishes: &[Wish]) -> Vec<u64> {
    let sum = |shrinks: bool| {
        let those = wishes.iter().filter(|wish| wish.shrinks == shrinks);
        those.map(|wish| u128::from(wish.min)).sum::<u128>()
    };
    let (firm, shrinking) = (sum(false), sum(true));
    let there_is = u128::from(total);
    let is_too_much = firm + shrinking > there_is;
    let for_shrinking = there_is.saturating_sub(firm);
    let of = |wish: &Wish| {
        let min = match is_too_much && wish.shrinks {
            // Below `min`, for what there is for all is below their sum.
            true => u64::try_from(product_over(wish.min, for_shrinking, shrinking)).unwrap_or(0),
            false => wish.min,
        };
        min.max(wish.guarantee)
    };
    wishes.iter().map(of).collect()
}

/// `a * b / c`, rounded down. `b` has at most 64 bits, as a total has.
fn product_over(a: u64, b: u128, c: u128) -> u128 {
    u128::from(a) * b / c.max(1)
}

/// `left`, divided by weight to the last unit.
fn by_weight(left: u64, weights: &[u64]) -> Vec<u64> {
    let all: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let exact = weights.iter().map(|&weight| {
        let product = u128::from(weight) * u128::from(left);
        (product / all, product % all)
    });
    let exact: Vec<(u128, u128)> = exact.collect();
    let mut parts: Vec<u64> = exact
        .iter()
        .map(|(part, _)| u64::try_from(*part).unwrap_or(left))
        .collect();
    let rest = left - parts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    // Stable: among equal remainders whoever stands first.
    order.sort_by(|&a, &b| exact[b].1.cmp(&exact[a].1));
    for &at in order
        .iter()
        .take(usize::try_from(rest).unwrap_or(usize::MAX))
    {
        parts[at] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `(weight, request, min)`, which lends and shrinks.
    fn wish((weight, request, min): (u64, u64, u64)) -> Wish {
        Wish {
            request,
            min,
            weight,
            lends: true,
            shrinks: true,
            guarantee: 0,
        }
    }

    fn firm(of: (u64, u64, u64)) -> Wish {
        Wish {
            shrinks: false,
            ..wish(of)
        }
    }

    /// Koordinator's own cases, by their number in the list of acceptance cases.
    #[test]
    fn what_is_left_goes_round_by_weight() {
        let four = [(40, 5, 10), (60, 20, 15), (50, 40, 20), (80, 70, 15)].map(wish);
        let mut weightless = four;
        weightless[3].weight = 0;
        let mut guaranteed = weightless;
        guaranteed[3].guarantee = 45;
        let mut idle = wish((1, 40, 40));
        idle.lends = false;
        for (case, total, wishes, expected) in [
            ("Q1", 100, &four[..], &[5, 20, 35, 40][..]),
            ("Q1, no weight", 100, &weightless, &[5, 20, 40, 15]),
            ("Q1, guaranteed", 100, &guaranteed, &[5, 20, 30, 45]),
            (
                "Q3, idle",
                100,
                &[(1, 0, 60), (1, 90, 50)].map(firm),
                &[0, 90],
            ),
            ("Q3", 100, &[(1, 30, 60), (1, 90, 50)].map(firm), &[30, 70]),
            (
                "Q3, minima as they are",
                100,
                &[(1, 60, 60), (1, 90, 50)].map(firm),
                &[60, 50],
            ),
            (
                "Q3, minima made to fit",
                100,
                &[(1, 60, 60), (1, 90, 50)].map(wish),
                &[55, 45],
            ),
            ("Q3, alone", 100, &[wish((1, 90, 50))], &[90]),
            ("Q4, alone", 120, &[wish((1, 80, 50))], &[80]),
            ("Q4", 120, &[(1, 80, 50), (1, 100, 50)].map(wish), &[60, 60]),
            (
                "Q4, by limit",
                120,
                &[(80, 80, 50), (100, 100, 50)].map(wish),
                &[59, 61],
            ),
            ("Q5", 96, &[(96, 96, 50), (96, 96, 40)].map(wish), &[53, 43]),
            ("Q6", 100, &[wish((1, 120, 60)), idle], &[60, 40]),
            ("Q9", 50, &[(40, 30, 10), (40, 30, 0)].map(wish), &[30, 20]),
            (
                "Q13",
                100,
                &[firm((1, 50, 50)), wish((0, 50, 50)), wish((0, 50, 50))],
                &[50, 25, 25],
            ),
            (
                "Q13, nothing left",
                50,
                &[firm((1, 50, 50)), wish((0, 50, 50)), wish((0, 50, 50))],
                &[50, 0, 0],
            ),
            ("nobody", 50, &[], &[]),
            ("nothing", 0, &[(1, 9, 3), (1, 9, 3)].map(wish), &[0, 0]),
        ] {
            assert_eq!(divide(total, wishes), expected, "{case}");
        }
    }

    fn any_wishes() -> impl Strategy<Value = (u64, Vec<Wish>)> {
        let amount = || prop_oneof![0..20u64, 0..1000u64, Just(u64::MAX), Just(1 << 40)];
        let one = (amount(), amount(), amount(), any::<bool>());
        let one = one.prop_map(|(weight, request, min, lends)| Wish {
            // As the tree says it: who does not lend asks for its minimum at least.
            request: if lends { request } else { request.max(min) },
            lends,
            ..wish((weight, 0, min))
        });
        (amount(), prop::collection::vec(one, 0..9))
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_there_is_and_nobody_gets_more_than_it_asked(
            (total, wishes) in any_wishes(),
        ) {
            let given = divide(total, &wishes);
            let sum: u128 = given.iter().map(|&has| u128::from(has)).sum();
            prop_assert!(sum <= u128::from(total));
            for (has, wish) in given.iter().zip(&wishes) {
                prop_assert!(*has <= wish.request);
            }
        }

        #[test]
        fn where_the_minima_fit_nobody_has_less_than_it_asked_of_its_own(
            (total, wishes) in any_wishes(),
        ) {
            let minima: u128 = wishes.iter().map(|wish| u128::from(wish.min)).sum();
            prop_assume!(minima <= u128::from(total));
            for (has, wish) in divide(total, &wishes).iter().zip(&wishes) {
                prop_assert!(*has >= wish.min.min(wish.request));
            }
        }

        #[test]
        fn nothing_is_left_while_somebody_with_a_weight_wants_it((total, wishes) in any_wishes()) {
            let given = divide(total, &wishes);
            let sum: u128 = given.iter().map(|&has| u128::from(has)).sum();
            let is_hungry = |(has, wish): (&u64, &Wish)| wish.weight > 0 && *has < wish.request;
            if given.iter().zip(&wishes).any(is_hungry) {
                // What shrinks is rounded down, and what it lost is given out again by weight.
                prop_assert_eq!(sum, u128::from(total));
            }
        }

        #[test]
        fn who_asks_for_more_never_gets_less(
            (total, mut wishes) in any_wishes(),
            at in any::<prop::sample::Index>(),
            more in 0..1000u64,
        ) {
            prop_assume!(!wishes.is_empty());
            let at = at.index(wishes.len());
            let before = divide(total, &wishes)[at];
            wishes[at].request = wishes[at].request.saturating_add(more);
            prop_assert!(divide(total, &wishes)[at] >= before);
        }
    }
}
