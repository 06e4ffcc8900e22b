//! The signature of a function, as Rust writes it.
//!
//! For a `build.rs` that declares functions of the tables. Numbers of C become Rust's; every other
//! type keeps C's name, and the code that uses the text has that name in scope.

use crate::table::Function;

/// Rust's names of the types that C has built in. A size is a `usize`, not `c_ulong`.
const BUILT_IN: [(&str, &str); 14] = [
    ("void", "::std::ffi::c_void"),
    ("char", "::std::ffi::c_char"),
    ("unsigned char", "::std::ffi::c_uchar"),
    ("unsigned short", "::std::ffi::c_ushort"),
    ("unsigned", "::std::ffi::c_uint"),
    ("unsigned long", "::std::ffi::c_ulong"),
    ("float", "::std::ffi::c_float"),
    ("int", "::std::ffi::c_int"),
    ("unsigned int", "::std::ffi::c_uint"),
    ("long long", "::std::ffi::c_longlong"),
    ("unsigned long long", "::std::ffi::c_ulonglong"),
    ("size_t", "usize"),
    ("cuuint32_t", "u32"),
    ("cuuint64_t", "u64"),
];

impl Function {
    /// Name, parameters and result: `cuMemFree_v2(r#dptr: CUdeviceptr_v2) -> CUresult`.
    #[must_use]
    pub fn prototype(&self) -> String {
        let parameters: Vec<String> = self.params.iter().map(|one| parameter(one)).collect();
        let result = type_of(self.returns);
        format!("{}({}) -> {result}", self.symbol, parameters.join(", "))
    }
}

/// `const char *symbol` becomes `r#symbol: *const ::std::ffi::c_char`. The prefix is for names
/// that are words of Rust.
fn parameter(declared: &str) -> String {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let start = declared.trim_end_matches(is_name).len();
    let (declared_type, name) = declared.split_at(start);
    format!("r#{name}: {}", type_of(declared_type))
}

/// `void **` becomes `*mut *mut ::std::ffi::c_void`: each star points to what is before it, which
/// may be `const`.
fn type_of(declared: &str) -> String {
    let mut parts = declared.split('*').map(|part| {
        let words: Vec<&str> = part.split_whitespace().collect();
        let plain: Vec<&str> = words
            .iter()
            .copied()
            .filter(|word| *word != "const")
            .collect();
        (plain.join(" "), plain.len() < words.len())
    });
    let (base, mut is_const) = parts.next().unwrap_or_default();
    let known = BUILT_IN.iter().find(|(c, _)| *c == base);
    let mut rust = known.map_or(base, |(_, rust)| (*rust).to_owned());
    for (_, is_next_const) in parts {
        rust = format!("*{} {rust}", if is_const { "const" } else { "mut" });
        is_const = is_next_const;
    }
    rust
}

#[cfg(test)]
mod tests {
    use super::type_of;
    use crate::{CUDA, NVML};

    #[test]
    fn types_are_written_as_rust_has_them() {
        for (c, rust) in [
            ("CUcontext ", "CUcontext"),
            ("const CUuuid *", "*const CUuuid"),
            ("void **", "*mut *mut ::std::ffi::c_void"),
            ("const void **", "*mut *const ::std::ffi::c_void"),
            ("const char * const *", "*const *const ::std::ffi::c_char"),
            ("char *const ", "*mut ::std::ffi::c_char"),
            ("unsigned long long *", "*mut ::std::ffi::c_ulonglong"),
            ("const unsigned int ", "::std::ffi::c_uint"),
        ] {
            assert_eq!(type_of(c), rust, "{c}");
        }
    }

    #[test]
    fn prototypes_have_name_parameters_and_result() {
        for (table, symbol, expected) in [
            (&CUDA, "cuCtxSynchronize", "cuCtxSynchronize() -> CUresult"),
            (
                &CUDA,
                "cuMemAlloc",
                "cuMemAlloc(r#dptr: *mut CUdeviceptr_v1, r#bytesize: ::std::ffi::c_uint) \
                 -> CUresult",
            ),
            (
                &NVML,
                "nvmlErrorString",
                "nvmlErrorString(r#result: nvmlReturn_t) -> *const ::std::ffi::c_char",
            ),
        ] {
            let function = table.by_symbol(symbol).expect("a row");
            assert_eq!(function.prototype(), expected);
        }
    }

    #[test]
    fn every_type_is_one_word_behind_its_pointers() {
        for function in CUDA.iter().chain(NVML.iter()) {
            for declared in function.params {
                let text = super::parameter(declared);
                let (_, kind) = text.split_once(": ").expect("a name and a type");
                let word = kind
                    .trim_start_matches("*mut ")
                    .trim_start_matches("*const ");
                let word = word
                    .trim_start_matches("*mut ")
                    .trim_start_matches("*const ");
                let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                assert!(
                    !word.is_empty() && word.chars().all(is_path),
                    "{declared}: {text}"
                );
            }
        }
    }
}
