//! The share of a card that is due to each of the jobs that want it now.
//!
//! A guaranteed job gets its request. The guaranteed jobs that may have more share the rest
//! equally, up to their limits, whatever they request; the opportunistic ones share the rest of
//! that. So a job of request 0 lives beside one of request 30, and two jobs of request 0 have a
//! half each. (Elastic shares as in Gemini, TCC'21: minimum, maximum, and a residual for the
//! jobs that can use it.)

use sublet_model::{Class, Milli};

use super::TimeShare;

/// A whole card, in the unit of these rates.
pub(super) const WHOLE: u64 = 1_000_000;

/// The least that anybody counts as due, so that its time can be divided by it.
const LEAST: u64 = WHOLE / 200;

/// Each job's due share, in millionths of the card's time. The sum is at most a whole card,
/// beyond [`LEAST`] for jobs to which nothing is left.
pub(super) fn due(wanting: &[(Class, TimeShare)]) -> Vec<u64> {
    let in_millionths = |milli: Milli| u64::from(milli.get()) * (WHOLE / 1000);
    let of = |class: Class| {
        let with_place = wanting.iter().enumerate();
        with_place.filter(move |(_, (other, _))| *other == class)
    };
    let mut rates = vec![0; wanting.len()];
    let mut left = WHOLE;
    for (place, (_, share)) in of(Class::Guaranteed) {
        rates[place] = in_millionths(share.request.min(share.limit)).min(left);
        left -= rates[place];
    }
    for class in [Class::Guaranteed, Class::Opportunistic] {
        let rooms = of(class).map(|(place, (_, share))| {
            let limit = in_millionths(share.limit);
            (limit.saturating_sub(rates[place]), place)
        });
        let mut rooms: Vec<(u64, usize)> = rooms.collect();
        // Who can take least goes first, so that what it leaves is shared by the rest.
        rooms.sort_unstable();
        let n_rooms = rooms.len() as u64;
        for (n_before, (room, place)) in (0..).zip(rooms) {
            let given = room.min(left / (n_rooms - n_before));
            rates[place] += given;
            left -= given;
        }
    }
    rates.into_iter().map(|rate| rate.max(LEAST)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Class::{Guaranteed, Opportunistic};

    fn wants(class: Class, request: u16, limit: u16) -> (Class, TimeShare) {
        let milli = |value| Milli::new(value).expect("at most a whole");
        let share = TimeShare {
            card: 0,
            request: milli(request),
            limit: milli(limit),
        };
        (class, share)
    }

    #[test]
    fn requests_come_first_and_the_rest_is_shared() {
        let of = |wanting: &[(Class, TimeShare)]| {
            let rates = due(wanting).into_iter();
            rates.map(|rate| rate * 1000 / WHOLE).collect::<Vec<_>>()
        };
        for (wanting, expected) in [
            (vec![wants(Guaranteed, 300, 1000)], vec![1000]),
            (vec![wants(Guaranteed, 300, 400)], vec![400]),
            (
                vec![wants(Guaranteed, 250, 1000), wants(Guaranteed, 750, 1000)],
                vec![250, 750],
            ),
            // 600 are left: 300 for each of the two.
            (
                vec![wants(Guaranteed, 300, 1000), wants(Guaranteed, 100, 1000)],
                vec![600, 400],
            ),
            // The first can have 100 of them only.
            (
                vec![wants(Guaranteed, 300, 400), wants(Guaranteed, 100, 1000)],
                vec![400, 600],
            ),
            (
                vec![wants(Guaranteed, 0, 1000), wants(Guaranteed, 0, 1000)],
                vec![500, 500],
            ),
            // Nothing is left for who asks for nothing, but for the least.
            (
                vec![wants(Guaranteed, 1000, 1000), wants(Guaranteed, 0, 1000)],
                vec![1000, 5],
            ),
            (
                vec![wants(Guaranteed, 100, 600), wants(Opportunistic, 0, 1000)],
                vec![600, 400],
            ),
            (
                vec![
                    wants(Guaranteed, 100, 600),
                    wants(Opportunistic, 0, 100),
                    wants(Opportunistic, 0, 1000),
                ],
                vec![600, 100, 300],
            ),
        ] {
            assert_eq!(of(&wanting), expected, "{wanting:?}");
        }
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_its_limit_and_nothing_is_left_that_somebody_could_have(
            wanting in proptest::collection::vec(
                (prop_oneof![Just(Guaranteed), Just(Opportunistic)], 0..=1000_u16, 1..=1000_u16),
                1..64,
            ),
        ) {
            let wanting: Vec<_> = wanting
                .into_iter()
                .map(|(class, request, limit)| wants(class, request, limit))
                .collect();
            let rates = due(&wanting);
            let mut given = 0;
            for ((_, share), rate) in wanting.iter().zip(&rates) {
                let limit = u64::from(share.limit.get()) * 1000;
                prop_assert!(*rate <= limit.max(LEAST));
                given += if *rate == LEAST { 0 } else { *rate };
            }
            prop_assert!(given <= WHOLE);
            let limits = wanting.iter().map(|(_, share)| u64::from(share.limit.get()) * 1000);
            let could = limits.sum::<u64>().min(WHOLE);
            // Each may lose less than one in a division, and who counts as having the least.
            let lost = 64 + LEAST * rates.len() as u64;
            prop_assert!(given + lost >= could, "{given} of {could}");
        }
    }
}
