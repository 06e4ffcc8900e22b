//! Every function of the driver is reached through the interposer with its arguments and its
//! result unchanged, and none is missing.
//!
//! What a function is, NVIDIA's headers say, in C. `cargo xtask test` fetches them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sublet_e2e::interposer::{CUDA, Headers, Library, NVML, Programs, Setting, built, exports};

/// Calls arrive as they were made wherever the interposer has no business with them: when it was
/// told of no arbiter, and when it was told of one that is not there.
///
/// `refused` are those that a strict tenant without an arbiter does not get through; where that
/// is nearly all, there is nothing to see.
fn arrives_unchanged(library: &'static Library, refused: Option<&[&str]>) -> Result<()> {
    let nobody = tempfile::tempdir()?;
    let told = ("SUBLET_DIR", nobody.path().as_os_str());
    let compat = [told, ("SUBLET_MODE", OsStr::new("compat"))];
    let strict = [told, ("SUBLET_MODE", OsStr::new("strict"))];
    for headers in Headers::of(library) {
        let programs = Programs::build(&headers, library)?;
        let call = |through: &Path, what, environment, except| {
            let setting = Setting {
                environment,
                is_readable: !environment.is_empty(),
                except,
            };
            let done = programs.call_all(through, &setting);
            done.with_context(|| format!("{what}, by {headers}"))
        };
        // That the two programs understand each other.
        call(&programs.recorder(), "without the interposer", &[], &[])?;
        let interposer = built(library.interposer)?;
        call(&interposer, "told of no arbiter", &[], &[])?;
        call(&interposer, "arbiter missing, compat", &compat, &[])?;
        if let Some(refused) = refused {
            call(&interposer, "arbiter missing, strict", &strict, refused)?;
        }
        println!("{}: {} functions", library.soname, programs.n_functions());
    }
    Ok(())
}

#[test]
fn every_function_of_libcuda_arrives_unchanged() -> Result<()> {
    arrives_unchanged(&CUDA, Some(&["cuInit"]))
}

#[test]
fn every_function_of_libnvidia_ml_arrives_unchanged() -> Result<()> {
    arrives_unchanged(&NVML, None)
}

/// What headers of all pinned packages declare is there; the interposer, which claims to be the
/// driver, exports nothing else under its prefix.
#[test]
fn interposer_and_fake_machine_export_what_the_headers_declare() -> Result<()> {
    for library in [&CUDA, &NVML] {
        let mut declared = BTreeSet::new();
        for headers in Headers::of(library) {
            let found = headers.prototypes(library)?;
            declared.extend(found.into_iter().map(|one| one.name));
        }
        if declared.is_empty() {
            continue;
        }
        for name in [library.interposer, library.fake] {
            let exported = exports(&built(name)?, library)?;
            let missing: Vec<_> = declared.difference(&exported).collect();
            ensure!(missing.is_empty(), "{name} does not export {missing:?}");
            let invented: Vec<_> = exported.difference(&declared).collect();
            ensure!(
                invented.is_empty(),
                "no header declares what {name} exports: {invented:?}"
            );
        }
    }
    Ok(())
}
