//! The worth of a share of a card. It depends on how the shares that pods ask for tile a card, not
//! on the share's size. 81 hundredths are worth a whole card if nothing is asked for that fits into
//! the other 19; 46 and 47 hundredths are worth half a card.
//!
//! The worths are the dual prices of the fluid cutting-stock problem (Gilmore and Gomory, *A Linear
//! Programming Approach to the Cutting-Stock Problem*, 1961): fill as few cards as possible with
//! the requested shares; cards can be counted in fractions. They are found by multiplicative
//! weights (Young, *Sequential and Parallel Algorithms for Mixed Packing and Covering*, FOCS 2001):
//! again and again fill one card with the shares that are worth most at the present prices, and
//! lower the prices of the used shares. The floating-point code uses only + − × ÷, so every machine
//! finds the same prices.

/// Shares are counted in hundredths of a card.
pub(super) const PARTS: usize = 100;

/// Number of times that a card is filled. Half or double the number changes no result by more than
/// 0.01 points on openb's default list.
const ROUNDS: usize = 1500;

/// The first quarter of the rounds does not count: the prices still depend on the initial ones.
const WARM_UP: usize = ROUNDS / 4;

/// Rate at which the price of a used share falls in a round.
const RATE: f64 = 0.1;

/// The lowest price, relative to the largest.
const FLOOR: f64 = 1e-9;

/// Worths in thousandths of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prices {
    /// By free share of a card: the greatest worth that it can be tiled with.
    pub(super) free: [i64; PARTS + 1],
    /// By share that is asked for.
    pub(super) asked: [i64; PARTS + 1],
}

impl Prices {
    /// Every share is worth its size. This holds before any pod has asked.
    pub(super) fn by_size() -> Prices {
        let sizes = std::array::from_fn(|part| 10 * part as i64);
        Prices {
            free: sizes,
            asked: sizes,
        }
    }

    /// The worths for a demand: by share, how many ask for it (whole cards do not count).
    pub(super) fn of(demand: &[u64; PARTS + 1]) -> Prices {
        let sizes: Vec<usize> = (1..PARTS).filter(|&size| demand[size] > 0).collect();
        if sizes.is_empty() {
            return Prices::by_size();
        }
        let prices = dual(demand, &sizes);
        let mut knapsack = Knapsack::default();
        knapsack.fill(&prices, &sizes);
        let top = knapsack.value[PARTS].max(1.0);
        let milli = |worth: f64| (1000.0 * worth / top) as i64;
        let mut free: [i64; PARTS + 1] = std::array::from_fn(|part| milli(knapsack.value[part]));
        free[PARTS] = 1000;
        let asked = std::array::from_fn(|part| match demand[part] {
            0 => free[part],
            _ if part == PARTS => free[part],
            _ => milli(prices[part]),
        });
        Prices { free, asked }
    }
}

/// The dual prices, in cards.
fn dual(demand: &[u64; PARTS + 1], sizes: &[usize]) -> [f64; PARTS + 1] {
    let mut weights = [0.0; PARTS + 1];
    for &size in sizes {
        weights[size] = size as f64 / PARTS as f64;
    }
    let mut sums = [0.0; PARTS + 1];
    let mut length = 0.0;
    let mut knapsack = Knapsack::default();
    for round in 0..ROUNDS {
        knapsack.fill(&weights, sizes);
        let pattern = knapsack.pattern();
        // The pattern is used until its scarcest share runs out.
        let step = sizes
            .iter()
            .filter(|&&size| pattern[size] > 0)
            .map(|&size| demand[size] as f64 / f64::from(pattern[size]))
            .fold(f64::MAX, f64::min);
        if round >= WARM_UP {
            for &size in sizes {
                sums[size] += step * weights[size] / knapsack.value[PARTS];
            }
            length += step;
        }
        let mut largest = 0.0_f64;
        for &size in sizes {
            if pattern[size] > 0 {
                weights[size] *= 1.0 - RATE * step * f64::from(pattern[size]) / demand[size] as f64;
            }
            largest = largest.max(weights[size]);
        }
        for &size in sizes {
            weights[size] = (weights[size] / largest).max(FLOOR);
        }
    }
    sums.map(|sum| sum / length)
}

/// The greatest worth that each free share can be filled with, with any number of each size.
struct Knapsack {
    value: [f64; PARTS + 1],
    last: [usize; PARTS + 1],
}

impl Default for Knapsack {
    fn default() -> Knapsack {
        Knapsack {
            value: [0.0; PARTS + 1],
            last: [0; PARTS + 1],
        }
    }
}

impl Knapsack {
    fn fill(&mut self, prices: &[f64; PARTS + 1], sizes: &[usize]) {
        // Sizes rise. One that is worth no more than a smaller one never fills better.
        let (mut worth, mut count, mut most) = ([(0, 0.0); PARTS], 0, 0.0);
        for &size in sizes {
            if prices[size] > most {
                most = prices[size];
                worth[count] = (size, most);
                count += 1;
            }
        }
        let (worth, mut fitting) = (&worth[..count], 0);
        for free in 1..=PARTS {
            let next = worth.get(fitting);
            fitting += usize::from(next.is_some_and(|(size, _)| *size == free));
            let (mut best, mut last) = (self.value[free - 1], 0);
            for &(size, price) in &worth[..fitting] {
                let value = self.value[free - size] + price;
                if value > best {
                    (best, last) = (value, size);
                }
            }
            self.value[free] = best;
            self.last[free] = last;
        }
    }

    /// The number of each size that fills a whole card best.
    fn pattern(&self) -> [u32; PARTS + 1] {
        let mut pattern = [0; PARTS + 1];
        let mut free = PARTS;
        while free > 0 {
            match self.last[free] {
                0 => free -= 1,
                size => {
                    pattern[size] += 1;
                    free -= size;
                }
            }
        }
        pattern
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prices(asked: &[(usize, u64)]) -> Prices {
        let mut demand = [0; PARTS + 1];
        for &(size, count) in asked {
            demand[size] = count;
        }
        Prices::of(&demand)
    }

    /// Equal within three percent, since the method is an approximation.
    #[track_caller]
    fn near(worth: i64, expected: i64) {
        assert!((worth - expected).abs() <= 30, "{worth}, not {expected}");
    }

    #[test]
    fn a_share_is_worth_its_place_in_the_tiling() {
        // Nothing fits beside 81; two of 46 or 47 fill a card, and so do three of 32.
        near(prices(&[(81, 10)]).asked[81], 1000);
        let halves = prices(&[(46, 10), (47, 10)]);
        near(halves.asked[46], 500);
        near(halves.asked[47], 500);
        near(prices(&[(32, 7)]).asked[32], 333);
        // If 81 and 19 are asked for equally often, they make a card together.
        let both = prices(&[(81, 10), (19, 10)]);
        near(both.asked[81] + both.asked[19], 1000);
        // Five of 19 also make a card. If there are many of them, 81 is worth only the rest of a
        // card.
        near(prices(&[(81, 10), (19, 1000)]).asked[19], 200);
    }

    #[test]
    fn what_is_free_is_worth_what_fits_in() {
        let prices = prices(&[(30, 5)]);
        near(prices.free[29], 0);
        near(prices.free[30], 333);
        near(prices.free[59], 333);
        near(prices.free[60], 667);
        assert_eq!((prices.free[0], prices.free[PARTS]), (0, 1000));
        // A share that nobody has asked for yet is worth what it covers.
        assert_eq!(prices.asked[45], prices.free[45]);
    }

    #[test]
    fn before_anything_is_asked_a_share_is_worth_its_size() {
        assert_eq!(prices(&[]), Prices::by_size());
        assert_eq!(prices(&[(PARTS, 9)]), Prices::by_size());
        assert_eq!(Prices::by_size().asked[81], 810);
    }

    /// Tries every size everywhere.
    fn filled_plainly(prices: &[f64; PARTS + 1], sizes: &[usize]) -> Knapsack {
        let mut filled = Knapsack::default();
        for free in 1..=PARTS {
            let (mut best, mut last) = (filled.value[free - 1], 0);
            for &size in sizes.iter().filter(|size| **size <= free) {
                let value = filled.value[free - size] + prices[size];
                if value > best {
                    (best, last) = (value, size);
                }
            }
            (filled.value[free], filled.last[free]) = (best, last);
        }
        filled
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        #[test]
        fn sizes_that_are_worth_too_little_are_never_used(
            worths in prop::collection::btree_map(1..PARTS, 0..50u32, 0..30),
        ) {
            let mut prices = [0.0; PARTS + 1];
            for (size, worth) in &worths {
                prices[*size] = f64::from(*worth) / 7.0;
            }
            let sizes: Vec<usize> = worths.into_keys().collect();
            let mut filled = Knapsack::default();
            filled.fill(&prices, &sizes);
            let plainly = filled_plainly(&prices, &sizes);
            prop_assert_eq!((filled.value, filled.last), (plainly.value, plainly.last));
        }

        #[test]
        fn worths_rise_with_what_is_free(asked in prop::collection::vec((1..100usize, 1..500u64), 1..30)) {
            let prices = prices(&asked);
            prop_assert!(prices.free.windows(2).all(|two| two[0] <= two[1]), "{:?}", prices.free);
            for (size, _) in asked {
                prop_assert!((0..=1000).contains(&prices.asked[size]));
            }
        }
    }
}
