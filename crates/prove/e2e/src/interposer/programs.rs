//! Writes and builds the recorder and the caller for one package of headers.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Headers, Library, Prototype, output};

/// The two programs, in a folder that is deleted when this is dropped.
#[derive(Debug)]
pub struct Programs {
    folder: tempfile::TempDir,
    library: &'static Library,
    names: BTreeSet<String>,
}

/// Behaviour that the caller expects from a library.
#[derive(Debug, Clone, Copy)]
pub enum Expect<'a> {
    /// Every call arrives, and the library must not read what pointers point to.
    Blind,
    /// The library may follow pointers. Every call arrives, except these, which are not made.
    Readable {
        /// The functions' names.
        except: &'a [&'a str],
    },
    /// The library has a tenant: the driver is told to refuse, then to grant, and the library may
    /// make calls of its own.
    Tenant {
        /// Functions that the library answers itself.
        answered: &'a [&'a str],
        /// Functions that never reach the driver, because no tenant may call them.
        denied: &'a [&'a str],
    },
}

impl Programs {
    /// Builds the programs.
    ///
    /// # Errors
    /// The C compiler is missing, or finds that a prototype is not the header's.
    pub fn build(headers: &Headers, library: &'static Library) -> Result<Programs> {
        let prototypes = headers.prototypes(library)?;
        let programs = Programs {
            folder: tempfile::tempdir()?,
            library,
            names: prototypes.iter().map(|one| one.name.clone()).collect(),
        };
        let shared = format!("-Wl,-soname,{}", library.soname);
        // A driver calls its own functions directly, even if another library exports the same name.
        let shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", &shared];
        let recorder = recorder(library, &prototypes)?;
        programs.compile(headers, &shared, library.soname, &recorder)?;
        let caller = caller(library, &prototypes)?;
        programs.compile(headers, &["-ldl"], "caller", &caller)?;
        Ok(programs)
    }

    /// The functions that the headers declare.
    #[must_use]
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// The library that stands in for the driver.
    #[must_use]
    pub fn recorder(&self) -> PathBuf {
        self.folder.path().join(self.library.soname)
    }

    /// The command of the caller: it calls every function of the library `through`. Also the line
    /// that the caller prints on success.
    #[must_use]
    pub fn calls(&self, through: &Path, expect: Expect<'_>) -> (Vec<OsString>, String) {
        let mut command: Vec<OsString> = vec![
            self.folder.path().join("caller").into(),
            through.into(),
            self.recorder().into(),
        ];
        let mut n_functions = self.names.len();
        match expect {
            Expect::Blind => command.push("blind".into()),
            Expect::Readable { except } => {
                command.push("readable".into());
                command.extend(except.iter().map(OsString::from));
                n_functions -= except.len();
            }
            Expect::Tenant { answered, denied } => {
                command.push("tenant".into());
                let marked = |mark, names: &[&str]| {
                    let names = names.iter().map(|name| format!("{mark}{name}").into());
                    names.collect::<Vec<OsString>>()
                };
                command.extend(marked('?', answered));
                command.extend(marked('!', denied));
            }
        }
        (command, format!("{n_functions} functions"))
    }

    /// Runs that command. Its environment is exactly `environment` and the recorder's variable.
    ///
    /// # Errors
    /// Lists the functions whose calls were changed on their way.
    pub fn call_all(
        &self,
        through: &Path,
        environment: &[(&str, &OsStr)],
        expect: Expect<'_>,
    ) -> Result<()> {
        let (words, wanted) = self.calls(through, expect);
        let mut caller = Command::new(&words[0]);
        caller.args(&words[1..]).env_clear();
        caller.env(self.library.variable, self.recorder());
        caller.envs(environment.iter().copied());
        let printed = output(&mut caller)?;
        ensure!(printed.trim_end() == wanted, "{printed}, not {wanted}");
        Ok(())
    }

    fn compile(&self, headers: &Headers, how: &[&str], name: &str, text: &str) -> Result<()> {
        let source = self.folder.path().join(format!("{name}.c"));
        fs::write(&source, text)?;
        // Without optimisation, a call's arguments lie where the ABI wants them and nowhere else.
        // The warnings that `-w` hides are about functions that NVIDIA has deprecated.
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
