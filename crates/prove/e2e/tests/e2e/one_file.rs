//! The one file that is handed out, alone in an empty folder: it runs programs within their
//! limits by the libraries inside it, mends what became of its copies of them, and says why
//! where it can put them nowhere.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sublet_e2e::one_machine::{Machine, Running, mib};

/// The machine of the README's first example, with contexts that cost nothing.
const EXACT: &str = "2x16GiB,context=0MiB";

/// Takes all that the limit lets it have.
const ALL: &str = "alloc --until-oom";

/// The names in a folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The folder of copies whose name begins so.
fn copies(machine: &Machine, start: &str) -> Result<PathBuf> {
    let folder = machine.path().join("run/libraries");
    let name = names(&folder)?
        .into_iter()
        .find(|name| name.starts_with(start));
    let name = name.with_context(|| format!("no {start}* in {}", folder.display()))?;
    Ok(folder.join(name))
}

#[test]
fn it_runs_alone_and_keeps_a_program_within_its_limit() -> Result<()> {
    let Some(machine) = Machine::of_one_file(EXACT)? else {
        return Ok(());
    };
    assert_eq!(names(&machine.path().join("alone"))?, ["sublet"]);
    let report = machine.report("--memory 1GiB", ALL)?;
    assert_eq!(report["bytes"], mib(1024), "{report}");
    assert_eq!(report["totalMem"], mib(1024), "{report}");
    // By an absolute path and from a folder of its own, as `sublet top` is called later.
    assert_eq!(machine.top()?["gpus"][0]["memoryMiB"], 16_384);
    assert_eq!(names(&machine.path().join("alone"))?, ["sublet"]);
    let ours = copies(&machine, "sublet-")?;
    let expected = ["libcuda.so.1", "libnvidia-ml.so.1", "libsublet_preload.so"];
    assert_eq!(names(&ours)?, expected);
    assert_eq!(names(&copies(&machine, "fake-")?)?, expected[..2]);
    Ok(())
}

/// As after a loss of power, or a cleaner of old files.
#[test]
fn copies_that_are_damaged_or_missing_are_made_again() -> Result<()> {
    let Some(machine) = Machine::of_one_file(EXACT)? else {
        return Ok(());
    };
    machine.report("--memory 1GiB", ALL)?;
    let (ours, fake) = (copies(&machine, "sublet-")?, copies(&machine, "fake-")?);
    let cuda = ours.join("libcuda.so.1");
    let whole = fs::read(&cuda)?;
    fs::set_permissions(&cuda, fs::Permissions::from_mode(0o755))?;
    fs::write(&cuda, &whole[..whole.len() / 2])?;
    fs::remove_file(ours.join("libnvidia-ml.so.1"))?;
    // Not the fake driver's other library, which the arbiter has mapped.
    fs::remove_file(fake.join("libcuda.so.1"))?;
    let report = machine.report("--memory 2GiB", ALL)?;
    assert_eq!(report["bytes"], mib(2048), "{report}");
    ensure!(fs::read(&cuda)? == whole, "it is another library now");
    assert_eq!(names(&ours)?.len(), 3);
    assert_eq!(names(&fake)?.len(), 2);
    Ok(())
}

#[test]
fn a_folder_that_cannot_be_written_is_told() -> Result<()> {
    let Some(machine) = Machine::of_one_file(EXACT)? else {
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can mount a folder that nobody can write");
        return Ok(());
    }
    let libraries = machine.path().join("run/libraries");
    let script = format!(
        "umask 077 && mkdir -p {0} && for folder in {0} /var/cache; do \
         mount -t tmpfs -o ro,mode=700 tmpfs $folder || exit 9; done; exec \"$@\"",
        libraries.display()
    );
    let job = machine.job("--memory 1GiB", ALL);
    let mut command = machine.command("unshare");
    command
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(job.get_program())
        .args(job.get_args());
    let ended = Running::start(&mut command)?.end()?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let told = format!(
        "error: there is no folder for our libraries: {}: cannot write there: Read-only file \
         system (os error 30); /var/cache/sublet/libraries: Read-only file system (os error 30)\n\
         hint: SUBLET_RUNTIME_DIR",
        libraries.display()
    );
    ensure!(ended.errors.starts_with(&told), "{}", ended.errors);
    Ok(())
}
