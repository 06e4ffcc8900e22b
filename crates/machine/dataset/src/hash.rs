//! BLAKE3 by pieces of 4 MiB. BLAKE3 is a Merkle tree (its paper, section 2.1), so the hash of a
//! file is that of its pieces: readers hash pieces in any order, and a repair or a peer's bytes are
//! checked a piece at a time.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len};
use blake3::hazmat::{merge_subtrees_non_root, merge_subtrees_root};

/// Bytes of a piece: a power of two, as a subtree has.
pub(crate) const PIECE: u64 = 4 << 20;

/// Number of pieces of so many bytes; one for none.
pub(crate) fn pieces(length: u64) -> usize {
    usize::try_from(length.div_ceil(PIECE))
        .unwrap_or(usize::MAX)
        .max(1)
}

/// Hash of a piece that is not the only one of its file, at an offset that is a multiple of
/// [`PIECE`].
pub(crate) fn piece_hash(offset: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// Hash of a file of more than one piece, of the hashes of its pieces in order. `None` if their
/// number is not the file's.
pub(crate) fn file_hash(pieces_of: &[ChainingValue], length: u64) -> Option<[u8; 32]> {
    if length <= PIECE || pieces_of.len() != pieces(length) {
        return None;
    }
    let (left, right) = halves(pieces_of, length);
    let root = merge_subtrees_root(&left, &right, Mode::Hash);
    Some(root.into())
}

fn subtree(pieces_of: &[ChainingValue], length: u64) -> ChainingValue {
    if let [only] = pieces_of {
        return *only;
    }
    let (left, right) = halves(pieces_of, length);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

/// The two subtrees of more than one piece.
fn halves(pieces_of: &[ChainingValue], length: u64) -> (ChainingValue, ChainingValue) {
    let left = left_subtree_len(length);
    let (before, after) = pieces_of.split_at(pieces(left));
    (subtree(before, left), subtree(after, length - left))
}

/// The hash of a stream, with those of its pieces.
#[derive(Debug, Default)]
pub(crate) struct PieceHasher {
    current: blake3::Hasher,
    /// Bytes in `current`.
    filled: u64,
    done: Vec<ChainingValue>,
}

impl PieceHasher {
    /// Goes on after whole pieces with these hashes; more than one piece must come in all.
    pub(crate) fn after(done: Vec<ChainingValue>) -> PieceHasher {
        let mut hasher = PieceHasher {
            done,
            ..PieceHasher::default()
        };
        hasher.begin_piece();
        hasher
    }

    fn begin_piece(&mut self) {
        self.current = blake3::Hasher::new();
        self.current
            .set_input_offset(self.done.len() as u64 * PIECE);
        self.filled = 0;
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == PIECE {
                self.done.push(self.current.finalize_non_root());
                self.begin_piece();
            }
            let room = usize::try_from(PIECE - self.filled).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.current.update(now);
            self.filled += now.len() as u64;
            bytes = rest;
        }
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> u64 {
        self.done.len() as u64 * PIECE + self.filled
    }

    /// The hashes of the whole pieces so far.
    pub(crate) fn whole_pieces(&self) -> Vec<ChainingValue> {
        let mut whole = self.done.clone();
        if self.filled == PIECE {
            whole.push(self.current.finalize_non_root());
        }
        whole
    }

    /// The hash of all, and of each piece. A stream of one piece at most has that one hash only.
    pub(crate) fn finish(mut self) -> ([u8; 32], Vec<ChainingValue>) {
        if self.done.is_empty() {
            return (self.current.finalize().into(), Vec::new());
        }
        let length = self.length();
        if self.filled > 0 {
            self.done.push(self.current.finalize_non_root());
        }
        let root = file_hash(&self.done, length).unwrap_or_default();
        (root, self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_hash_of_the_whole() {
        let piece = usize::try_from(PIECE).unwrap();
        let bytes: Vec<u8> = (0..5 * piece + 17).map(|n| (n % 251) as u8).collect();
        let lengths = [
            0,
            1,
            piece - 1,
            piece,
            piece + 1,
            2 * piece,
            3 * piece + 5,
            bytes.len(),
        ];
        for length in lengths {
            let bytes = &bytes[..length];
            let whole = *blake3::hash(bytes).as_bytes();
            let mut hasher = PieceHasher::default();
            for part in bytes.chunks(1_000_003) {
                hasher.update(part);
            }
            assert_eq!(hasher.length(), length as u64);
            let (root, parts) = hasher.finish();
            assert_eq!(root, whole, "{length}");
            if length > piece {
                let alone = bytes.chunks(piece).enumerate();
                let alone = alone.map(|(n, part)| piece_hash(n as u64 * PIECE, part));
                assert_eq!(alone.collect::<Vec<_>>(), parts);
                assert_eq!(file_hash(&parts, length as u64), Some(whole));
                assert_eq!(file_hash(&parts[1..], length as u64), None);
            }
        }
    }

    #[test]
    fn a_stream_goes_on_after_whole_pieces() {
        let piece = usize::try_from(PIECE).unwrap();
        let bytes = vec![7; 3 * piece + 9];
        let mut first = PieceHasher::default();
        first.update(&bytes[..2 * piece]);
        let mut second = PieceHasher::after(first.whole_pieces());
        assert_eq!(second.length(), 2 * PIECE);
        second.update(&bytes[2 * piece..]);
        assert_eq!(second.finish().0, *blake3::hash(&bytes).as_bytes());
    }
}
