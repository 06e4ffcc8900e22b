//! Columns of the live view's tables: the ones that are shown in so much room, and their widths. A
//! figure is shown whole or not at all; a text that lacks room ends with `…`. Pure.

use ratatui::text::Span;

/// Blanks between two columns.
pub(super) const GAP: u16 = 2;

/// A column that a table may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    /// Its place in the table.
    pub(super) at: usize,
    /// The least width that is of use; that of its widest cell, where no cell may be cut.
    pub(super) least: usize,
    /// The width of its widest cell.
    pub(super) most: usize,
}

impl Column {
    /// A column of figures, or of words that no cut would leave clear.
    pub(super) fn whole(at: usize, width: usize) -> Column {
        Column {
            at,
            least: width,
            most: width,
        }
    }
}

/// Chooses columns and their widths, with [`GAP`] between two. `columns`: the most important first;
/// one that lacks room is left out, and the next one is tried. The answer is in the table's order.
pub(super) fn fit(columns: &[Column], room: usize) -> Vec<(usize, usize)> {
    let mut left = room;
    let mut shown = Vec::new();
    for column in columns {
        let gap = if shown.is_empty() {
            0
        } else {
            usize::from(GAP)
        };
        let width = column.most.min(left.saturating_sub(gap));
        if width >= column.least.max(1) {
            left -= gap + width;
            shown.push((column.at, width));
        }
    }
    shown.sort_unstable();
    shown
}

/// Cells of the screen that a text takes.
pub(super) fn display_width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in so many cells of the screen. A text that is cut ends with `…`, and never within a
/// number: the part of a number would be another number.
pub(super) fn shortened(text: &str, room: usize) -> String {
    if display_width(text) <= room {
        return text.to_owned();
    }
    let Some(room) = room.checked_sub(1) else {
        return String::new();
    };
    let ends = text.char_indices().map(|(at, _)| at);
    let last = ends
        .take_while(|&end| display_width(&text[..end]) <= room)
        .last();
    let (mut kept, rest) = text.split_at(last.unwrap_or_default());
    let of_number = |c: char| c.is_ascii_digit() || c == '.';
    if rest.starts_with(of_number) {
        kept = kept.trim_end_matches(of_number);
    }
    kept.trim_end().to_owned() + "…"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_column_that_lacks_room_makes_way_for_the_next() {
        let text = Column {
            at: 2,
            least: 4,
            most: 20,
        };
        let columns = [Column::whole(1, 5), text, Column::whole(0, 3)];
        let check = |room| fit(&columns, room);
        assert_eq!(check(40), [(0, 3), (1, 5), (2, 20)]);
        assert_eq!(check(32), [(0, 3), (1, 5), (2, 20)]);
        assert_eq!(check(31), [(1, 5), (2, 20)]);
        assert_eq!(check(12), [(1, 5), (2, 5)]);
        assert_eq!(check(10), [(0, 3), (1, 5)]);
        assert_eq!(check(9), [(1, 5)]);
        assert_eq!(check(4), [(2, 4)]);
        assert_eq!(check(3), [(0, 3)]);
        assert_eq!(check(2), []);
    }

    #[test]
    fn a_cut_text_says_so_and_ends_with_no_part_of_a_number() {
        for (text, room, wanted) in [
            ("train", 5, "train"),
            ("train", 4, "tra…"),
            ("uses 176 MiB more", 17, "uses 176 MiB more"),
            ("uses 176 MiB more", 16, "uses 176 MiB mo…"),
            ("uses 176 MiB more", 9, "uses 176…"),
            ("uses 176 MiB more", 8, "uses…"),
            ("uses 17.5 MiB", 8, "uses…"),
            ("0123456789", 5, "…"),
            ("größe", 4, "grö…"),
            ("大きな仕事", 6, "大き…"),
            ("e\u{301}e\u{301}e\u{301}", 2, "e\u{301}…"),
            ("x", 0, ""),
        ] {
            assert_eq!(shortened(text, room), wanted, "{text} in {room}");
        }
    }

    proptest! {
        #[test]
        fn columns_stay_within_their_room(
            widths in prop::collection::vec((0_usize..40, 0_usize..40), 0..12),
            room in 0_usize..200,
        ) {
            let columns: Vec<Column> = (0..).zip(&widths).map(|(at, (least, more))| Column {
                at,
                least: *least,
                most: least + more,
            }).collect();
            let shown = fit(&columns, room);
            let gaps = usize::from(GAP) * shown.len().saturating_sub(1);
            let taken: usize = shown.iter().map(|(_, width)| width).sum();
            prop_assert!(taken + gaps <= room);
            for (at, width) in shown {
                prop_assert!((columns[at].least..=columns[at].most).contains(&width));
            }
        }

        #[test]
        fn a_text_stays_within_its_room(text in "[0-9. a-zé大]{0,60}|.{0,40}", room in 0_usize..60) {
            let shown = shortened(&text, room);
            prop_assert!(display_width(&shown) <= room);
            if shown != text && !shown.is_empty() {
                let kept = shown.strip_suffix('…').unwrap();
                let rest = text.strip_prefix(kept).unwrap();
                let is_digit = |c: char| c.is_ascii_digit();
                prop_assert!(!(kept.ends_with(is_digit) && rest.starts_with(is_digit)));
            }
        }
    }
}
