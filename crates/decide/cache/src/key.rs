//! Names and numbers of data sets: owners, versions, packs and requests. No logic but their text.

use std::fmt;

/// Owner of a data set. A request joins only sets of its own owner: a name gives nobody else a
/// right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DatasetOwner {
    /// A user of this machine, by number.
    User(u32),
    /// A namespace of the cluster.
    Namespace(String),
}

impl fmt::Display for DatasetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetOwner::User(uid) => write!(f, "user {uid}"),
            DatasetOwner::Namespace(name) => write!(f, "namespace {name}"),
        }
    }
}

/// A data set of an owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatasetKey {
    /// Its owner.
    pub owner: DatasetOwner,
    /// Its name among those of the owner.
    pub name: String,
}

impl fmt::Display for DatasetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.owner)
    }
}

/// One use of a data set: a job's, a pod's volume, a command's. The same request again is the same
/// record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub String);

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// Reads 64 hexadecimal digits in small letters; `None` for any other text.
            #[must_use]
            pub fn read(text: &str) -> Option<$name> {
                let digit = |byte: u8| match byte {
                    b'0'..=b'9' => Some(byte - b'0'),
                    b'a'..=b'f' => Some(byte - b'a' + 10),
                    _ => None,
                };
                let text: &[u8; 64] = text.as_bytes().try_into().ok()?;
                let mut bytes = [0; 32];
                for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
                    *byte = digit(pair[0])? << 4 | digit(pair[1])?;
                }
                Some($name(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}

hash!(
    /// Content of a data set: BLAKE3 of its sorted manifest (path, type, mode, size, digest of each
    /// file).
    VersionDigest
);
hash!(
    /// State of a source: BLAKE3 of its name and of path, type, size and time of each entry.
    SourceFingerprint
);
hash!(
    /// A pack, the file with the bytes of many files: BLAKE3 of those bytes.
    PackId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let mut bytes = [0; 32];
        bytes[0] = 0xab;
        bytes[31] = 0x07;
        let digest = VersionDigest(bytes);
        assert_eq!(VersionDigest::read(&digest.to_string()), Some(digest));
        let text = digest.to_string();
        assert!(text.starts_with("ab00") && text.ends_with("07"), "{text}");
        for bad in [
            "",
            "ab",
            &text.to_uppercase(),
            &format!("{text}0"),
            &"é".repeat(32),
        ] {
            assert_eq!(VersionDigest::read(bad), None, "{bad}");
        }
    }
}
