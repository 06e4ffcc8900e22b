//! Reads the file of a shared library, or of a program: the name that the loader knows it by, its
//! needs of the system that loads it, and the files that it looks for. The node agent checks the
//! libraries that it hands to containers, and `cargo xtask` checks the files that it has linked. If
//! a container's image lacks a need, it goes on without the library, and so without a limit: that
//! must be known before. The crate reads bytes and opens nothing.
//!
//! # Modules
//! Needs of a shared library and the files that it looks for, read from its file, and the oldest
//! C library that ours must run with. The agent checks the libraries that it hands to containers;
//! `xtask` checks those that it has linked.

use std::ffi::CStr;
use std::fmt;

use object::Endianness;
use object::elf::{DT_NEEDED, DT_SONAME, FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS};
use object::read::elf::{FileHeader, SectionHeader, SectionTable};

type Elf = FileHeader64<Endianness>;
type Sections<'a> = SectionTable<'a, Elf>;

/// A version of the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc(pub u16, pub u16);

/// The oldest C library that must be able to load the libraries in containers: that of RHEL 8,
/// the base of the oldest images that CUDA 12 still comes for.
pub const FLOOR: Glibc = Glibc(2, 28);

/// The files that glibc consists of; since 2.34 the last four are empty and still there.
const PARTS_OF_GLIBC: [&str; 6] = [
    "libc.so.6",
    "ld-linux-x86-64.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
];

impl Glibc {
    /// From the name of a symbol version. `GLIBC_PRIVATE` is no version.
    fn of(version: &str) -> Option<Glibc> {
        let number = version.strip_prefix("GLIBC_")?;
        // A format of relocations, which glibc announces like a symbol, and reads since 2.36.
        if number == "ABI_DT_RELR" {
            return Some(Glibc(2, 36));
        }
        let mut parts = number.split('.').map(str::parse);
        Some(Glibc(parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The bytes are no shared library and no program that we understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no 64-bit ELF file: {0}")]
pub struct NotElf(String);

/// A file's own statements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The name that it gives itself.
    pub soname: Option<String>,
    /// The files that are loaded with it.
    pub libraries: Vec<String>,
    /// The newest glibc that it uses a function of, if it uses any.
    pub glibc: Option<Glibc>,
}

impl Needs {
    /// Reads a file's contents.
    ///
    /// # Errors
    /// They are no ELF file of 64 bits, or a damaged one.
    pub fn read(contents: &[u8]) -> Result<Needs, NotElf> {
        read(contents).map_err(|error| NotElf(error.to_string()))
    }

    /// Needs that a system with only the C library [`FLOOR`] lacks, as words for people:
    /// `glibc 2.34`, `libgcc_s.so.1`. Empty if it can be loaded there.
    #[must_use]
    pub fn beyond_floor(&self) -> Vec<String> {
        let newer = self.glibc.filter(|glibc| *glibc > FLOOR);
        let newer = newer.map(|glibc| format!("glibc {glibc}"));
        let others = self.libraries.iter();
        let others = others.filter(|name| !PARTS_OF_GLIBC.contains(&name.as_str()));
        newer.into_iter().chain(others.cloned()).collect()
    }
}

/// Has this library or program that path among its constants, as a text that ends there?
///
/// # Errors
/// The contents are no ELF file of 64 bits, or a damaged one.
pub fn names(contents: &[u8], path: &CStr) -> Result<bool, NotElf> {
    has_constant(contents, path.to_bytes()).map_err(|error| NotElf(error.to_string()))
}

/// Texts end with a zero byte, and may follow each other without one.
fn has_constant(contents: &[u8], text: &[u8]) -> object::Result<bool> {
    let header = Elf::parse(contents)?;
    let endian = header.endian()?;
    for section in header.sections(endian, contents)?.iter() {
        let flags = section.sh_flags(endian);
        let is_loaded = flags & u64::from(SHF_ALLOC) != 0;
        let is_code = flags & u64::from(SHF_EXECINSTR) != 0;
        if section.sh_type(endian) != SHT_PROGBITS || !is_loaded || is_code {
            continue;
        }
        let mut texts = section.data(endian, contents)?.split(|byte| *byte == 0);
        if texts.any(|one| one.ends_with(text)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn read(contents: &[u8]) -> object::Result<Needs> {
    let header = Elf::parse(contents)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, contents)?;
    let mut needs = Needs {
        glibc: newest_glibc(&sections, endian, contents)?,
        ..Needs::default()
    };
    let table = sections.dynamic_table(endian, contents)?;
    for entry in &table {
        match entry.tag {
            DT_NEEDED => needs.libraries.push(text(table.string(entry)?)),
            DT_SONAME => needs.soname = Some(text(table.string(entry)?)),
            _ => {}
        }
    }
    Ok(needs)
}

/// The newest version among all that the symbols ask for.
fn newest_glibc(
    sections: &Sections<'_>,
    endian: Endianness,
    contents: &[u8],
) -> object::Result<Option<Glibc>> {
    let Some((mut files, strings)) = sections.gnu_verneed(endian, contents)? else {
        return Ok(None);
    };
    let strings = sections.strings(endian, contents, strings)?;
    let mut newest = None;
    while let Some((_file, mut versions)) = files.next()? {
        while let Some(version) = versions.next()? {
            let version = text(version.name(endian, strings)?);
            newest = newest.max(Glibc::of(&version));
        }
    }
    Ok(newest)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    /// A library with these functions, linked in this way.
    fn linked(source: &str, options: &[&str]) -> Vec<u8> {
        let base = tempfile::tempdir().unwrap();
        let (from, to) = (base.path().join("a.c"), base.path().join("a.so"));
        std::fs::write(&from, source).unwrap();
        // The C compiler is there: building this workspace needs one.
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .args([&to, &from])
            .args(options)
            .status();
        assert!(made.unwrap().success());
        std::fs::read(to).unwrap()
    }

    /// Needs of a library that uses `memcpy` and the mathematics; both are old.
    static OLD: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let source = "void *memcpy(void*, const void*, unsigned long); double sin(double);\n\
                      void *f(void *a, void *b, double n) { return memcpy(a, b, sin(n)); }";
        linked(source, &["-Wl,-soname,libold.so.3", "-lm", "-lc"])
    });

    #[test]
    fn a_library_says_its_name_and_its_needs() {
        let old = Needs::read(&OLD).unwrap();
        assert_eq!(old.soname.as_deref(), Some("libold.so.3"));
        assert_eq!(old.libraries, ["libm.so.6", "libc.so.6"]);
        assert!(old.glibc.is_some_and(|glibc| glibc <= FLOOR), "{old:?}");
        assert_eq!(old.beyond_floor(), [""; 0]);
        let nothing = Needs::read(&linked("int f(void) { return 1; }", &[])).unwrap();
        assert_eq!(nothing, Needs::default());
    }

    #[test]
    fn what_an_old_image_lacks_is_named() {
        let needs = Needs {
            soname: None,
            libraries: ["libc.so.6", "libgcc_s.so.1", "libstdc++.so.6"]
                .map(str::to_owned)
                .into(),
            glibc: Some(Glibc(2, 34)),
        };
        let lacking = ["glibc 2.34", "libgcc_s.so.1", "libstdc++.so.6"];
        assert_eq!(needs.beyond_floor(), lacking);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let of = |name: &str| Glibc::of(name);
        assert_eq!(of("GLIBC_2.2.5"), Some(Glibc(2, 2)));
        assert!(of("GLIBC_2.4") < of("GLIBC_2.28"));
        assert!(of("GLIBC_ABI_DT_RELR") > Some(FLOOR));
        for none in ["GLIBC_PRIVATE", "GLIBC_", "GLIBC_2", "GCC_3.0", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    /// This test's own program, on which the C compiler's tools agree.
    #[test]
    fn the_tools_of_the_compiler_agree() {
        let own = std::env::current_exe().unwrap();
        let needs = Needs::read(&std::fs::read(&own).unwrap()).unwrap();
        let said = |tool: &str, option: &str, file: &Path| {
            let output = Command::new(tool).arg(option).arg(file).output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        };
        let dynamic = said("readelf", "-d", &own);
        let lines = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
        let names = lines.map(|line| line.split(['[', ']']).nth(1).unwrap());
        assert_eq!(needs.libraries, names.collect::<Vec<_>>());
        let symbols = said("objdump", "-T", &own);
        let versions = symbols
            .split(|c: char| !c.is_ascii_alphanumeric() && !"._".contains(c))
            .filter_map(Glibc::of);
        assert_eq!(needs.glibc, versions.max());
        assert!(needs.glibc.is_some());
    }

    #[test]
    fn what_is_no_library_is_refused() {
        for bytes in [&b""[..], b"cuda", b"\x7fELF\x01", &OLD[..100]] {
            let error = Needs::read(bytes).unwrap_err().to_string();
            assert!(error.starts_with("it is no 64-bit ELF file: "), "{error}");
        }
    }

    #[test]
    fn a_library_names_the_files_that_it_looks_for() {
        let source = r#"const char *f(void) { return "x/usr/lib/settings"; }
                        const char g[] = "/usr/lib/other";"#;
        let library = linked(source, &[]);
        let check = |path: &CStr| names(&library, path).unwrap();
        assert!(check(c"/usr/lib/settings") && check(c"/usr/lib/other"));
        assert!(!check(c"/usr/lib/setting") && !check(c"/usr/lib"));
        // The name of a function is no constant of it.
        assert!(!check(c"f"));
        assert!(names(b"/usr/lib/settings", c"/usr/lib/settings").is_err());
    }

    proptest! {
        /// Any bytes get an answer.
        #[test]
        fn damage_is_no_crash(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
            length in any::<prop::sample::Index>(),
        ) {
            let mut bytes = OLD.clone();
            for (place, value) in damage {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            let _whole = (Needs::read(&bytes), names(&bytes, c"/x"));
            bytes.truncate(length.index(bytes.len()));
            let _part = (Needs::read(&bytes), names(&bytes, c"/x"));
        }
    }
}
