//! Writes and builds the recorder and the caller for one package of headers.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Headers, Library, Prototype, output};

/// The two programs, in a folder that goes when this is dropped.
#[derive(Debug)]
pub struct Programs {
    folder: tempfile::TempDir,
    library: &'static Library,
    n_functions: usize,
}

/// How a program runs, and what it may expect.
#[derive(Debug, Default)]
pub struct Setting<'a> {
    /// Its environment, beside the place of the driver.
    pub environment: &'a [(&'a str, &'a OsStr)],
    /// Whether the library may look behind pointers before the driver does.
    pub is_readable: bool,
    /// Functions that are not called.
    pub except: &'a [&'a str],
}

impl Programs {
    /// Builds them.
    ///
    /// # Errors
    /// The C compiler is missing, or finds that a prototype is not the header's.
    pub fn build(headers: &Headers, library: &'static Library) -> Result<Programs> {
        let prototypes = headers.prototypes(library)?;
        let programs = Programs {
            folder: tempfile::tempdir()?,
            library,
            n_functions: prototypes.len(),
        };
        let shared = format!("-Wl,-soname,{}", library.soname);
        // A driver calls its own functions directly, whoever exports the same names.
        let shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", &shared];
        let recorder = recorder(library, &prototypes)?;
        programs.compile(headers, &shared, library.soname, &recorder)?;
        let caller = caller(library, &prototypes)?;
        programs.compile(headers, &["-ldl"], "caller", &caller)?;
        Ok(programs)
    }

    /// How many functions the headers declare.
    #[must_use]
    pub fn n_functions(&self) -> usize {
        self.n_functions
    }

    /// The library that stands in for the driver.
    #[must_use]
    pub fn recorder(&self) -> PathBuf {
        self.folder.path().join(self.library.soname)
    }

    /// Calls every function of a library that has this recorder behind it, but those that are
    /// excepted. The environment is what is given and nothing else.
    ///
    /// # Errors
    /// What was changed on its way, by function.
    pub fn call_all(&self, through: &Path, setting: &Setting<'_>) -> Result<()> {
        let mut caller = Command::new(self.folder.path().join("caller"));
        caller.arg(through).arg(self.recorder());
        caller.arg(if setting.is_readable {
            "readable"
        } else {
            "blind"
        });
        caller.args(setting.except);
        caller
            .env_clear()
            .env(self.library.variable, self.recorder());
        caller.envs(setting.environment.iter().copied());
        let printed = output(&mut caller)?;
        let wanted = format!("{} functions\n", self.n_functions - setting.except.len());
        ensure!(printed == wanted, "{printed}, not {wanted}");
        Ok(())
    }

    fn compile(&self, headers: &Headers, how: &[&str], name: &str, text: &str) -> Result<()> {
        let source = self.folder.path().join(format!("{name}.c"));
        fs::write(&source, text)?;
        // Without optimisation: a call's arguments then lie where the ABI wants them and nowhere
        // else. Warnings are about functions that NVIDIA calls deprecated.
        let mut compiler = headers.compiler();
        compiler
            .args(["-O0", "-w", "-o"])
            .arg(self.folder.path().join(name));
        output(compiler.arg(&source).args(how)).with_context(|| format!("build {name}"))?;
        Ok(())
    }
}

/// The stand-in for the driver.
fn recorder(library: &Library, prototypes: &[Prototype]) -> Result<String> {
    let mut text = format!(
        "#include <{}>\n#include <recorder.h>\n",
        library.declarations
    );
    for one in prototypes {
        let Prototype { head, name, params } = one;
        let params = if params.is_empty() {
            "void".to_owned()
        } else {
            params.join(", ")
        };
        writeln!(text, "\n{head} {name}({params}) {{\n    ENTER({name})")?;
        for argument in one.names() {
            writeln!(text, "    ARGUMENT({argument})")?;
        }
        let names: Vec<&str> = one.names().collect();
        writeln!(text, "    ANSWER({name}({}))\n}}", names.join(", "))?;
    }
    Ok(text)
}

/// The program that calls.
fn caller(library: &Library, prototypes: &[Prototype]) -> Result<String> {
    let mut text = format!("#include <{}>\n#include <caller.h>\n", library.declarations);
    let mut all = String::new();
    for one in prototypes {
        let Prototype { name, params, .. } = one;
        let members: String = params.iter().map(|param| format!(" {param};")).collect();
        writeln!(text, "\nCALL({name},{members})")?;
        for argument in one.names() {
            writeln!(text, "    GIVE({argument})")?;
        }
        let given: Vec<String> = one
            .names()
            .map(|argument| format!("given.{argument}"))
            .collect();
        writeln!(text, "    MAKE({name}, ({}))", given.join(", "))?;
        for argument in one.names() {
            writeln!(text, "    CAME({argument})")?;
        }
        writeln!(text, "DONE")?;
        writeln!(all, "    {{\"{name}\", call_{name}}},")?;
    }
    writeln!(
        text,
        "\nstatic const struct call CALLS_OF_ALL[] = {{\n{all}}};\n"
    )?;
    text.push_str(
        "int main(int n, char **arguments) {\n    return n < 4 ? 2 : run(arguments, CALLS_OF_ALL, \
         sizeof CALLS_OF_ALL / sizeof *CALLS_OF_ALL);\n}\n",
    );
    Ok(text)
}
