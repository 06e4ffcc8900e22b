//! Reads the code that a program loads. None of it is run: a kernel has a duration and an effect,
//! which comments in its PTX give.
//!
//! ```text
//! // fake NAME: us=150                                 takes 150 µs (or `us=arg0`)
//! // fake NAME: percent=25                             fills a quarter of the card
//! // fake NAME: fill ptr=arg0 count=arg1 value=arg2     writes words at its end
//! // fake NAME: add ptr=arg0 count=arg1 value=7         adds to words at its end
//! // fake NAME: meet                                   ends when its peer has started
//! ```
//! One line can say several of these. A kernel that says nothing else, or that meets a peer, fills the
//! card; kernels of several streams that fill it in part run at the same time. Anything that is not PTX text is taken as code
//! whose kernels have every name and take 20 µs.

use std::collections::BTreeMap;
use std::ffi::CStr;

use crate::driver::result::{Answer, Code};

/// Duration of a kernel without a stated duration, in microseconds.
pub(crate) const MICROS: u64 = 20;

/// Loaded code.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// Kernels by name; `None` where every name is one.
    pub(crate) kernels: Option<BTreeMap<String, Kernel>>,
    /// Sizes of variables by name.
    pub(crate) variables: BTreeMap<String, u64>,
    /// Bytes it takes on a card.
    pub(crate) size: u64,
}

impl Image {
    /// A kernel by its name.
    pub(crate) fn kernel(&self, name: &CStr) -> Answer<Kernel> {
        let name = name.to_str().map_err(|_| Code::NOT_FOUND)?;
        if name.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        match &self.kernels {
            Some(kernels) => kernels.get(name).cloned().ok_or(Code::NOT_FOUND),
            None => Ok(Kernel::default()),
        }
    }
}

/// A kernel as its PTX declares it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Offset and size of each parameter.
    pub(crate) params: Vec<(u64, u64)>,
    /// Its duration, in microseconds; [`MICROS`] if none is given.
    pub(crate) micros: Option<Amount>,
    /// Part of the card that it fills, in percent; all of it if none is given.
    pub(crate) percent: Option<Amount>,
    /// Does it wait for a peer?
    pub(crate) meets: bool,
    /// Its effects.
    pub(crate) effects: Vec<Effect>,
}

/// A number, or the parameter that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// A number.
    Number(u64),
    /// The number of a parameter.
    Argument(usize),
}

/// Effect of a kernel at its end, on words of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Does it add, or write?
    pub(crate) adds: bool,
    /// The first word.
    pub(crate) to: Amount,
    /// Number of words.
    pub(crate) count: Amount,
    /// The value.
    pub(crate) value: Amount,
}

/// Is this the beginning of PTX text? It begins with a directive or a comment.
#[must_use]
pub(crate) fn is_text(start: &[u8]) -> bool {
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'.' | b'/') | None)
}

/// Reads PTX text.
#[must_use]
pub(crate) fn read_text(text: &str) -> Image {
    let mut kernels = BTreeMap::new();
    let mut variables = BTreeMap::new();
    let code = without_comments(text);
    let mut rest = code.as_str();
    while let Some(place) = rest.find(".entry") {
        rest = &rest[place + ".entry".len()..];
        let end = rest.find(['(', '{', ';']).unwrap_or(rest.len());
        let name = rest[..end].trim();
        let params = match rest[end..].strip_prefix('(') {
            Some(list) => list.split(')').next().unwrap_or(""),
            None => "",
        };
        if !name.is_empty() {
            let params = read_params(params);
            kernels.insert(
                name.to_owned(),
                Kernel {
                    params,
                    ..Kernel::default()
                },
            );
        }
        rest = &rest[end..];
    }
    for line in code.split([';', '{', '}']) {
        if let Some((_, declaration)) = line.rsplit_once(".global") {
            let declaration = declaration.split('=').next().unwrap_or("");
            if let Some((name, size, _)) = read_declaration(declaration) {
                variables.insert(name.to_owned(), size);
            }
        }
    }
    for line in text.lines() {
        read_comment(line, &mut kernels);
    }
    Image {
        kernels: Some(kernels),
        variables,
        size: text.len() as u64,
    }
}

/// Code that is not text.
#[must_use]
pub(crate) fn opaque(size: u64) -> Image {
    Image {
        kernels: None,
        variables: BTreeMap::new(),
        size,
    }
}

fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find('/') {
        code.push_str(&rest[..place]);
        rest = &rest[place..];
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            code.push('/');
            1
        };
        rest = &rest[end..];
    }
    code.push_str(rest);
    code
}

fn read_params(list: &str) -> Vec<(u64, u64)> {
    let mut end = 0_u64;
    let mut params = Vec::new();
    for declaration in list.split(',') {
        if let Some((_, size, alignment)) = read_declaration(declaration) {
            let offset = end.next_multiple_of(alignment);
            params.push((offset, size));
            end = offset.saturating_add(size);
        }
    }
    params
}

/// Name, size and alignment of `.align 8 .b8 name[16]`.
fn read_declaration(text: &str) -> Option<(&str, u64, u64)> {
    let mut words = text.split_whitespace().peekable();
    let (mut size, mut alignment, mut name) = (None, None, None);
    while let Some(word) = words.next() {
        if word == ".align" {
            alignment = words.next()?.parse::<u64>().ok();
        } else if let Some(class) = word.strip_prefix('.') {
            let bits = class.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
            if let Ok(bits) = bits.parse::<u64>() {
                size = Some((bits / 8).clamp(1, 16));
            }
        } else {
            name = Some(word);
            break;
        }
    }
    let (size, name) = (size?, name?);
    let (name, size_of_array) = match name.split_once('[') {
        None => (name, size),
        Some((name, count)) => {
            let count = count.trim_end_matches(']').parse::<u64>().unwrap_or(1);
            (name, size.checked_mul(count)?.min(1 << 40))
        }
    };
    let alignment = alignment.unwrap_or(size).clamp(1, 1 << 20);
    let sound = !name.is_empty() && alignment.is_power_of_two();
    sound.then_some((name, size_of_array, alignment))
}

fn read_comment(line: &str, kernels: &mut BTreeMap<String, Kernel>) {
    let Some(rest) = line.trim().strip_prefix("//") else {
        return;
    };
    let Some(rest) = rest.trim().strip_prefix("fake ") else {
        return;
    };
    let Some((name, orders)) = rest.split_once(':') else {
        return;
    };
    let Some(kernel) = kernels.get_mut(name.trim()) else {
        return;
    };
    let mut words = orders.split_whitespace().peekable();
    while let Some(word) = words.next() {
        match word {
            "meet" => kernel.meets = true,
            "fill" | "add" => {
                let mut values = BTreeMap::new();
                while let Some((key, value)) = words.peek().and_then(|word| word.split_once('=')) {
                    if !matches!(key, "ptr" | "count" | "value") {
                        break;
                    }
                    words.next();
                    if let Some(amount) = amount(value) {
                        values.insert(key, amount);
                    }
                }
                kernel.effects.extend(read_effect(word, &values));
            }
            _ => {
                if let Some(value) = word.strip_prefix("us=") {
                    kernel.micros = amount(value).or(kernel.micros);
                } else if let Some(value) = word.strip_prefix("percent=") {
                    kernel.percent = amount(value).or(kernel.percent);
                }
            }
        }
    }
}

fn read_effect(word: &str, values: &BTreeMap<&str, Amount>) -> Option<Effect> {
    let given = |key| values.get(key).copied();
    Some(Effect {
        adds: word == "add",
        to: given("ptr")?,
        count: given("count")?,
        value: given("value")?,
    })
}

fn amount(text: &str) -> Option<Amount> {
    match text.strip_prefix("arg") {
        Some(number) => Some(Amount::Argument(number.parse().ok()?)),
        None => Some(Amount::Number(text.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "
// fake spin: us=arg0
// fake paint: us=5 percent=25 fill ptr=arg1 count=arg2 value=9
// fake all_reduce: meet add ptr=arg0 count=3 value=arg1
// fake plain: fill ptr=arg0 count=1
// fake nobody: us=1
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .b8 table[16] = {1, 2};
.global .u64 counter;
/* .entry not_this( */
.visible .entry spin(
    .param .u64 spin_param_0 // .entry nor_this(
)
{ ret; }
.entry paint (.param .u8 flag, .param .align 8 .b8 box[24], .param .u32 n) { ret; }
.entry all_reduce(.param .u64 p, .param .u32 v){ret;}
.entry plain() { ret; }
";

    #[test]
    fn kernels_and_what_they_do() {
        let image = read_text(TEXT);
        let kernels = image.kernels.unwrap();
        let names: Vec<&str> = kernels.keys().map(String::as_str).collect();
        assert_eq!(names, ["all_reduce", "paint", "plain", "spin"]);
        assert_eq!(kernels["spin"].micros, Some(Amount::Argument(0)));
        assert_eq!(kernels["paint"].percent, Some(Amount::Number(25)));
        assert_eq!(kernels["spin"].percent, None);
        assert_eq!(kernels["paint"].params, [(0, 1), (8, 24), (32, 4)]);
        assert_eq!(kernels["paint"].micros, Some(Amount::Number(5)));
        assert!(kernels["all_reduce"].meets);
        let words = Effect {
            adds: true,
            to: Amount::Argument(0),
            count: Amount::Number(3),
            value: Amount::Argument(1),
        };
        assert_eq!(kernels["all_reduce"].effects, [words]);
        assert!(kernels["plain"].effects.is_empty(), "it has no value");
        assert_eq!(image.variables["table"], 16);
        assert_eq!(image.variables["counter"], 8);
        assert!(is_text(TEXT.as_bytes()) && !is_text(b"\x7fELF"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "(\\.entry|\\.param|\\.u64|\\.align|\\.global|[a-z(){}\\[\\],;/* 0-9\n]|// fake a: (us|percent|fill|meet)=?){0,40}") {
            for text in [text, near] {
                let image = read_text(&text);
                prop_assert!(image.kernels.is_some());
            }
        }
    }
}
