//! Finds the least part of a list that works: no item of the result can be left out.

/// Finds a part of `all` that works and from which nothing can be left out. Earlier items are
/// preferred. `None` if not even all of it works.
///
/// First the shortest beginning is searched by halves, then ever smaller pieces are left out. Each
/// question may be dear (a trial of the engine), and there are about `found * log(all)` of them.
pub(crate) fn least<T: Clone>(all: &[T], mut works: impl FnMut(&[T]) -> bool) -> Option<Vec<T>> {
    if !works(all) {
        return None;
    }
    let (mut too_few, mut enough) = (0, all.len());
    while too_few < enough {
        let middle = usize::midpoint(too_few, enough);
        if works(&all[..middle]) {
            enough = middle;
        } else {
            too_few = middle + 1;
        }
    }
    let mut kept = all[..enough].to_vec();
    let mut piece = kept.len().div_ceil(2).max(1);
    loop {
        let mut left_out = false;
        // From behind: what stands last is the dearest.
        let mut end = kept.len();
        while end > 0 {
            let start = end.saturating_sub(piece);
            let rest: Vec<T> = [&kept[..start], &kept[end..]].concat();
            if works(&rest) {
                kept = rest;
                left_out = true;
            }
            end = start;
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        } else if !left_out {
            return Some(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_of_it_can_be_left_out(worth in prop::collection::vec(0..9u32, 0..20), need in 0..40u32) {
            let works = |some: &[u32]| some.iter().sum::<u32>() >= need;
            match least(&worth, works) {
                None => prop_assert!(!works(&worth)),
                Some(found) => {
                    prop_assert!(works(&found));
                    for at in 0..found.len() {
                        let mut fewer = found.clone();
                        fewer.remove(at);
                        prop_assert!(!works(&fewer));
                    }
                }
            }
        }
    }
}
