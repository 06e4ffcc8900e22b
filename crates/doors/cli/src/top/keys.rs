//! Keys, from the bytes that a terminal in raw mode sends. Pure.
//!
//! We read them ourselves, because the library that we had used all of a core once the terminal
//! was gone.

/// Meaning of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    End,
    Suspend,
    Scroll(isize),
}

const ESCAPE: u8 = 0x1b;

/// The longest sequence that a key sends; a longer one is not ours.
const SEQUENCE_MAX: usize = 16;

/// Bytes that have not become keys yet.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pending: Vec<u8>,
}

/// Start of a row of bytes.
#[derive(Debug, PartialEq, Eq)]
enum First {
    /// A key of so many bytes, and its meaning here; most have none.
    Key(usize, Option<Wish>),
    /// With a key that is not whole.
    Part,
}

impl Keys {
    /// Meanings of the keys in these bytes, in order.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Wish> {
        self.pending.extend_from_slice(bytes);
        let mut wishes = Vec::new();
        while let First::Key(length, wish) = first(&self.pending) {
            wishes.extend(wish);
            self.pending.drain(..length);
        }
        wishes
    }

    /// True while a key may be incomplete: the Escape key sends the byte that all others begin
    /// with.
    pub(super) fn are_open(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The rest does not come.
    pub(super) fn close(&mut self) -> Option<Wish> {
        let alone = self.pending == [ESCAPE];
        self.pending.clear();
        alone.then_some(Wish::End)
    }
}

fn first(bytes: &[u8]) -> First {
    match bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => First::Part,
        [ESCAPE, ESCAPE, ..] => First::Key(1, Some(Wish::End)),
        // As terminals send arrows where a program asked for the keypad's other mode.
        [ESCAPE, b'O', last, ..] => First::Key(3, of_sequence(&[], *last)),
        [ESCAPE, b'[', rest @ ..] => {
            let parameters = rest.iter().take_while(|byte| matches!(byte, 0x20..=0x3f));
            let length = parameters.count();
            match rest.get(length) {
                Some(last) => First::Key(length + 3, of_sequence(&rest[..length], *last)),
                None if length < SEQUENCE_MAX => First::Part,
                None => First::Key(bytes.len(), None),
            }
        }
        // A letter with Alt.
        [ESCAPE, _, ..] => First::Key(2, None),
        [key, ..] => First::Key(1, of_byte(*key)),
    }
}

fn of_byte(key: u8) -> Option<Wish> {
    const CONTROL_C: u8 = 3;
    const CONTROL_Z: u8 = 26;
    match key {
        CONTROL_C | b'q' => Some(Wish::End),
        CONTROL_Z => Some(Wish::Suspend),
        b'k' => Some(Wish::Scroll(-1)),
        b'j' => Some(Wish::Scroll(1)),
        _ => None,
    }
}

/// A sequence by its last byte, or by its first number if the last byte is a tilde (xterm's and the
/// Linux console's; with a modifier, a second number follows).
fn of_sequence(parameters: &[u8], last: u8) -> Option<Wish> {
    let number = parameters.split(|byte| *byte == b';').next();
    match (last, number.unwrap_or_default()) {
        (b'A', _) => Some(Wish::Scroll(-1)),
        (b'B', _) => Some(Wish::Scroll(1)),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Wish::Scroll(isize::MIN)),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Wish::Scroll(isize::MAX)),
        (b'~', b"5") => Some(Wish::Scroll(-10)),
        (b'~', b"6") => Some(Wish::Scroll(10)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_have_meanings() {
        let (first, last) = (Wish::Scroll(isize::MIN), Wish::Scroll(isize::MAX));
        let (up, down) = (Wish::Scroll(-1), Wish::Scroll(1));
        for (bytes, expected) in [
            ("q", &[Wish::End][..]),
            ("\x03", &[Wish::End]),
            ("\x1a", &[Wish::Suspend]),
            ("cQ\r\u{e9}", &[]),
            ("kj", &[up, down]),
            ("\x1b[A\x1b[B", &[up, down]),
            ("\x1bOA\x1bOB", &[up, down]),
            ("\x1b[1;5A", &[up]),
            ("\x1b[5~\x1b[6~", &[Wish::Scroll(-10), Wish::Scroll(10)]),
            ("\x1b[H\x1b[1~\x1bOH", &[first; 3]),
            ("\x1b[F\x1b[4~\x1b[8~", &[last; 3]),
            // A function key, a letter with Alt, and what a mouse would send.
            ("\x1b[15~\x1bq\x1b[<0;1;1M", &[]),
            ("\x1b\x1b[A", &[Wish::End, up]),
        ] {
            let mut keys = Keys::default();
            assert_eq!(keys.take(bytes.as_bytes()), expected, "{bytes:?}");
            assert!(!keys.are_open(), "{bytes:?}");
        }
    }

    #[test]
    fn escape_alone_is_a_key_when_nothing_follows() {
        let mut keys = Keys::default();
        assert_eq!(keys.take(b"\x1b"), []);
        assert!(keys.are_open());
        assert_eq!(keys.close(), Some(Wish::End));
        assert!(!keys.are_open());
        // The rest of an arrow that came in two pieces, and one that never came.
        assert_eq!(keys.take(b"\x1b"), []);
        assert_eq!(keys.take(b"[A"), [Wish::Scroll(-1)]);
        assert_eq!(keys.take(b"\x1b["), []);
        assert_eq!(keys.close(), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_kept_for_ever(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut keys = Keys::default();
            let _ = keys.take(&bytes);
            prop_assert!(keys.pending.len() <= SEQUENCE_MAX + 2);
        }
    }
}
