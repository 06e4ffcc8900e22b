//! Every constant of the headers, with its value: enums and the macros that are plain numbers.
//!
//! All of them, so there is no list to maintain. A constant costs a line in a file that people
//! never read, and nothing in a program that does not use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use super::declarations::Headers;
use super::definitions::{Kind, definitions};

/// A constant's enum (`-` for a macro) and name, to its value.
pub(super) type Constants = BTreeMap<(String, String), i128>;

/// Parts of the names of constants that say how many there are, which header this is, or which
/// set of bits is meant by default.
const MAY_CHANGE: [&str; 4] = [
    "_MAX ",
    "_NUM_OPTIONS ",
    "CUDA_VERSION ",
    "_LIGHTWEIGHT_FLAGS ",
];

/// All constants with a type or name that starts with one of these.
pub(super) fn read(headers: &Headers, defines: &[&str], prefixes: &[&str]) -> Result<Constants> {
    let ours = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let text = headers.compile(&["-E", "-P"], defines, "")?;
    let mut wanted: Vec<(String, String)> = Vec::new();
    for found in definitions(&text) {
        if found.kind == Kind::Enum && ours(&found.name) {
            let names = found.members.into_iter().map(|member| member.name);
            wanted.extend(names.map(|name| (found.name.clone(), name)));
        }
    }
    let macros = headers.compile(&["-E", "-dM"], defines, "")?;
    let numbers = number_macros(&macros, &ours);
    wanted.extend(numbers.into_iter().map(|name| ("-".to_owned(), name)));
    values(headers, defines, wanted)
}

/// The names of macros with a text of numbers only, or of such macros.
fn number_macros(text: &str, ours: &dyn Fn(&str) -> bool) -> BTreeSet<String> {
    let mut open: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_once(' '))
        .filter(|(name, body)| ours(name) && !name.contains('(') && !body.is_empty())
        .collect();
    let mut found = BTreeSet::new();
    loop {
        let plain: Vec<&str> = open
            .iter()
            .filter(|(_, body)| is_number(body, &found))
            .map(|(name, _)| *name)
            .collect();
        if plain.is_empty() {
            return found;
        }
        for name in plain {
            open.remove(name);
            found.insert(name.to_owned());
        }
    }
}

fn is_number(body: &str, known: &BTreeSet<String>) -> bool {
    // NVML's struct versions: a macro of a size, which the compiler works out.
    if body.starts_with("NVML_STRUCT_VERSION(") {
        return true;
    }
    let word = |c: char| c.is_alphanumeric() || c == '_';
    body.chars().all(|c| word(c) || " ()<|~-+\\".contains(c))
        && body
            .split(|c| !word(c))
            .filter(|word| !word.is_empty())
            .all(|word| word.starts_with(|c: char| c.is_ascii_digit()) || known.contains(word))
}

/// Has the compiler work out the values: it writes them into its output as data.
fn values(headers: &Headers, defines: &[&str], wanted: Vec<(String, String)>) -> Result<Constants> {
    let mut program = "#include <stdio.h>\nint main(void) {\n".to_owned();
    for (_, name) in &wanted {
        // By a wide type of the constant's own sign, so that no bit is lost.
        writeln!(
            program,
            "if (({name}) < 0) printf(\"%lld\\n\", (long long)({name})); \
             else printf(\"%llu\\n\", (unsigned long long)({name}));"
        )?;
    }
    program.push_str("return 0; }\n");
    let output = headers.run(defines, &program)?;
    let values: Vec<&str> = output.lines().collect();
    ensure!(
        values.len() == wanted.len(),
        "the C program printed too little"
    );
    wanted
        .into_iter()
        .zip(values)
        .map(|(key, value)| {
            let value = value
                .parse()
                .with_context(|| format!("value of {}", key.1))?;
            Ok((key, value))
        })
        .collect()
}

/// The newer constants. One that changed must be known to be allowed to.
pub(super) fn join(old: &Constants, new: Constants) -> Result<Constants> {
    // By name alone: an enum may be called otherwise.
    let now: BTreeMap<&str, i128> = new
        .iter()
        .map(|(key, now)| (key.1.as_str(), *now))
        .collect();
    let changed: Vec<String> = old
        .iter()
        .map(|((_, name), value)| (name, *value, now.get(name.as_str()).copied()))
        .filter(|(_, value, now)| *now != Some(*value))
        .map(|(name, value, now)| format!("{name} from {value} to {now:?}"))
        .filter(|text| !MAY_CHANGE.iter().any(|part| text.contains(part)))
        .collect();
    ensure!(
        changed.is_empty(),
        "constants changed between the packages: {changed:#?}"
    );
    Ok(new)
}

/// As the lines of a table.
pub(super) fn lines(constants: &Constants) -> Vec<String> {
    let line = |((kind, name), value): (&(String, String), &i128)| {
        // An enum is 32 bits wide; -1 is written as those bits are.
        let value = if kind != "-" && *value < 0 {
            value & 0xffff_ffff
        } else {
            *value
        };
        format!("{kind}\t{name}\t{value}")
    };
    constants.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::number_macros;

    #[test]
    fn macros_are_numbers_or_are_left_out() {
        let text = "#define CU_A 0x10\n#define CU_B (CU_A | (1u << 2))\n#define CU_C\n\
            #define CU_D ((CUstream)0x1)\n#define CU_E CU_F\n#define CU_G(x) 1\n\
            #define OTHER 1\n#define CU_H \"text\"\n#define CU_I -1\n";
        let found = number_macros(text, &|name| name.starts_with("CU_"));
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["CU_A", "CU_B", "CU_I"]
        );
    }
}
