//! Reads function types and functions out of C headers, with the C compiler's help.
//!
//! The compiler's preprocessor resolves conditions and macros. The result is a list of
//! declarations that end in `;`. Only two shapes matter here: `typedef R (*NAME)(P);` and `R
//! NAME(P);`. Others are passed over. The declarations found are checked afterwards by
//! compiling them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A function's name with its parameters and result, as declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declaration {
    pub(super) name: String,
    pub(super) returns: String,
    /// Joined by `, `; empty for none.
    pub(super) params: String,
}

/// Headers that NVIDIA's include and that a machine without a desktop lacks, as far as these
/// need them. The types are as Khronos and VDPAU publish them.
const STAND_INS: [(&str, &str); 5] = [
    (
        "GL/gl.h",
        "typedef unsigned int GLuint;\ntypedef unsigned int GLenum;\n",
    ),
    (
        "EGL/egl.h",
        "#include <stdint.h>\ntypedef int32_t EGLint;\n",
    ),
    (
        "EGL/eglext.h",
        "typedef void *EGLImageKHR;\ntypedef void *EGLStreamKHR;\ntypedef void *EGLSyncKHR;\n",
    ),
    (
        "vdpau/vdpau.h",
        "#include <stdint.h>\ntypedef uint32_t VdpDevice;\ntypedef uint32_t VdpVideoSurface;\n\
         typedef uint32_t VdpOutputSurface;\n\
         typedef int VdpGetProcAddress(VdpDevice, uint32_t, void **);\n",
    ),
    // It is in a package of its own, for these three functions.
    (
        "cudaProfiler.h",
        "#include <cuda.h>\ntypedef enum CUoutput_mode_enum {\n\
         CU_OUT_KEY_VALUE_PAIR = 0, CU_OUT_CSV = 1 } CUoutput_mode;\n\
         CUresult cuProfilerInitialize(const char *configFile, const char *outputFile,\n\
         CUoutput_mode outputMode);\n\
         CUresult cuProfilerStart(void);\nCUresult cuProfilerStop(void);\n",
    ),
];

/// A package's headers, and which of them to include.
pub(super) struct Headers {
    folder: PathBuf,
    stand_ins: PathBuf,
    includes: String,
}

impl Headers {
    /// Headers in a folder. Stand-ins for missing ones are put beside it.
    pub(super) fn open(folder: &Path, includes: &[&str]) -> Result<Headers> {
        let stand_ins = folder
            .ancestors()
            .nth(3)
            .context("the headers lie in no package")?
            .join("stand-ins");
        for (name, text) in STAND_INS {
            let path = stand_ins.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&stand_ins))?;
            fs::write(&path, text)?;
        }
        let mut text = String::new();
        for name in includes {
            writeln!(text, "#include <{name}>")?;
        }
        Ok(Headers {
            folder: folder.to_owned(),
            stand_ins,
            includes: text,
        })
    }

    /// The folder of the stand-ins.
    pub(super) fn stand_ins(&self) -> &Path {
        &self.stand_ins
    }

    /// Runs the C compiler on a program that includes these headers; gives its output.
    pub(super) fn compile(&self, args: &[&str], defines: &[&str], program: &str) -> Result<String> {
        let mut compiler = Command::new("cc")
            .args(args)
            .args(["-x", "c", "-"])
            .arg("-I")
            .arg(&self.folder)
            .arg("-I")
            .arg(&self.stand_ins)
            .args(defines.iter().map(|name| format!("-D{name}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the C compiler `cc`")?;
        let text = format!("{}{program}", self.includes);
        compiler
            .stdin
            .take()
            .context("the compiler has no input")?
            .write_all(text.as_bytes())?;
        let done = compiler.wait_with_output()?;
        ensure!(done.status.success(), "`cc` refused the headers or a check");
        String::from_utf8(done.stdout).context("the compiler's output is not text")
    }

    /// Compiles a program, runs it and returns its output.
    pub(super) fn run(&self, defines: &[&str], program: &str) -> Result<String> {
        let file = self.stand_ins.join(format!("program-{}", process::id()));
        let path = file
            .to_str()
            .context("the cache folder's name is not text")?;
        self.compile(&["-w", "-o", path], defines, program)?;
        let done = Command::new(&file).output().context("run the C program")?;
        fs::remove_file(&file)?;
        ensure!(done.status.success(), "the C program failed");
        String::from_utf8(done.stdout).context("the C program printed no text")
    }

    /// All function types named `PFN_…`.
    pub(super) fn function_types(&self, defines: &[&str]) -> Result<Vec<Declaration>> {
        let text = self.compile(&["-E", "-P"], defines, "")?;
        let found = statements(&text);
        Ok(found.iter().filter_map(|one| function_type(one)).collect())
    }

    /// All functions with a name that starts with a prefix, by name.
    pub(super) fn functions(
        &self,
        defines: &[&str],
        prefix: &str,
    ) -> Result<BTreeMap<String, Declaration>> {
        let text = self.compile(&["-E", "-P"], defines, "")?;
        Ok(functions_in(&text, prefix))
    }

    /// Has the C compiler check that each symbol is declared with exactly this type.
    pub(super) fn check_pairs<'a>(
        &self,
        defines: &[&str],
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<()> {
        let mut program = String::new();
        for (number, (pointer, symbol)) in pairs.enumerate() {
            writeln!(program, "{pointer} const check_{number} = {symbol};")?;
        }
        self.compile(
            &["-fsyntax-only", "-Werror=incompatible-pointer-types"],
            defines,
            &program,
        )?;
        Ok(())
    }
}

/// All functions that a preprocessed text declares, with names that start with a prefix.
pub(super) fn functions_in(text: &str, prefix: &str) -> BTreeMap<String, Declaration> {
    statements(text)
        .iter()
        .filter_map(|one| function(one))
        .filter(|declared| declared.name.starts_with(prefix))
        .map(|declared| (declared.name.clone(), declared))
        .collect()
}

/// Preprocessed C as statements: without bodies in braces, spaces made single.
fn statements(text: &str) -> Vec<String> {
    let mut depth = 0;
    let mut found = Vec::new();
    let mut current = String::new();
    for symbol in text.chars() {
        match symbol {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                // Ends a function; a type goes on to its `;`, with a name too short to matter.
                current.clear();
            }
            ';' if depth == 0 => found.push(tidy(&std::mem::take(&mut current))),
            _ if depth == 0 => current.push(symbol),
            _ => {}
        }
    }
    found
}

fn tidy(text: &str) -> String {
    let single = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let single = single.replace("__attribute__((deprecated))", "");
    let single = single.strip_prefix("extern ").unwrap_or(&single);
    single.trim().to_owned()
}

/// Parameters as a list: `(void)` is none.
fn params(text: &str) -> String {
    let list: Vec<String> = text.split(',').map(one_spacing).collect();
    match list.join(", ").as_str() {
        "void" => String::new(),
        list => list.to_owned(),
    }
}

/// A type, or a parameter with its type, in one spacing: stars stand at the next word.
fn one_spacing(text: &str) -> String {
    let words = text.replace('*', " * ");
    let words: Vec<&str> = words.split_whitespace().collect();
    words.join(" ").replace("* ", "*")
}

/// `typedef R (*PFN_name)(P)`.
fn function_type(text: &str) -> Option<Declaration> {
    let rest = text.strip_prefix("typedef ")?;
    let (returns, rest) = rest.split_once('(')?;
    let (name, list) = rest.trim_start().strip_prefix('*')?.split_once(")(")?;
    name.starts_with("PFN_").then(|| Declaration {
        name: name.to_owned(),
        returns: one_spacing(returns),
        params: params(list.strip_suffix(')').unwrap_or(list)),
    })
}

/// `R name(P)`.
fn function(text: &str) -> Option<Declaration> {
    if text.starts_with("typedef") {
        return None;
    }
    let (head, list) = text.split_once('(')?;
    let (returns, name) = head.trim_end().rsplit_once([' ', '*'])?;
    Some(Declaration {
        name: name.to_owned(),
        returns: one_spacing(&head[..=returns.len()]),
        params: params(list.strip_suffix(')')?),
    })
}

#[cfg(test)]
mod tests {
    use super::{function_type, functions_in, statements};

    #[test]
    fn functions_are_found_among_other_things() {
        let text = "typedef struct { int a; } S;
            CUresult __attribute__((deprecated)) cuInit(unsigned int   Flags);
            static inline int other(int a) { return a; }
            const char* cuName(const void * const*p, size_t n,
                void **q);
            extern int cuNothing(void);";
        let found = functions_in(text, "cu");
        let shown: Vec<String> = found
            .values()
            .map(|one| format!("{}|{}|{}", one.returns, one.name, one.params))
            .collect();
        assert_eq!(
            shown,
            [
                "CUresult|cuInit|unsigned int Flags",
                "const char *|cuName|const void *const *p, size_t n, void **q",
                "int|cuNothing|",
            ]
        );
    }

    #[test]
    fn a_function_type_is_found() {
        let text = "typedef int other; typedef CUresult( *PFN_cuInit_v2000)(unsigned int Flags);";
        let found: Vec<_> = statements(text)
            .iter()
            .filter_map(|one| function_type(one))
            .collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "PFN_cuInit_v2000");
        assert_eq!(found[0].params, "unsigned int Flags");
    }
}
