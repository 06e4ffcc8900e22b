//! The Debian package, by `dpkg-deb`. It has the two programs, their man pages and completions, and nothing
//! that starts by itself. The same files make the same bytes. (Debian Policy 4.6, chapters 3, 5, 6, 12.)

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_library::FLOOR;

use crate::screen::heading;
use crate::setup::{list, run as run_command};
use crate::wheel::{Effort, Installed};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Removes root's own files when the package is purged.
const PURGE: &str = include_str!("debian/postrm");

/// The folder of Debian's packages for completions of zsh: its own `site-functions` is the
/// administrator's.
const ZSH: (&str, &str) = ("share/zsh/site-functions", "share/zsh/vendor-completions");

/// Name of the package's file.
pub(crate) fn file_name() -> String {
    format!("sublet_{VERSION}_amd64.deb")
}

/// True where a package can be made.
pub(crate) fn is_possible() -> bool {
    let told = Command::new("dpkg-deb").arg("--version").output();
    told.is_ok_and(|output| output.status.success())
}

/// Makes the package of the programs, of other files of an installation, and of documents about it.
/// `moment`: seconds since 1970 that its files and its entry of the changelog are of.
pub(crate) fn pack(
    programs: &[PathBuf],
    others: &[Installed],
    documents: &[PathBuf],
    moment: i64,
    (package, effort): (&Path, Effort),
) -> Result<()> {
    let work = tempfile::tempdir().context("make a folder for the package")?;
    let usr = work.path().join("usr");
    for program in programs {
        let name = program.file_name().context("a program without a name")?;
        put(program, &usr.join("bin").join(name))?;
    }
    for Installed { place, file } in others {
        let to = usr.join(place.replace(ZSH.0, ZSH.1));
        put(file, &to)?;
        if place.contains("/man/") {
            compress(&to)?;
        }
    }
    let about = usr.join("share/doc/sublet");
    for document in documents {
        let name = document.file_name().context("a document without a name")?;
        let to = about.join(name);
        put(document, &to)?;
        compress(&to)?;
    }
    write(&about.join("copyright"), COPYRIGHT, 0o644)?;
    write(&about.join("changelog"), &changelog(moment)?, 0o644)?;
    compress(&about.join("changelog"))?;
    let control = work.path().join("DEBIAN");
    let (sums, kibibytes) = sums(work.path())?;
    write(&control.join("control"), &fields(kibibytes), 0o644)?;
    write(&control.join("md5sums"), &sums, 0o644)?;
    write(&control.join("postrm"), PURGE, 0o755)?;
    rights(work.path())?;
    let mut build = Command::new("dpkg-deb");
    build
        .arg("--root-owner-group")
        .args(match effort {
            Effort::Little => ["-Zgzip", "-z1"],
            Effort::Best => ["-Zxz", "-z9"],
        })
        .arg("--build")
        .arg(work.path())
        .arg(package)
        .env("SOURCE_DATE_EPOCH", moment.to_string())
        .stdout(std::process::Stdio::null());
    run_command(&mut build)
}

/// Has `lintian` read the package, if this machine has it: no error may be found, but that a quick
/// one has symbols.
pub(crate) fn judge(package: &Path, effort: Effort) -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error"]).arg(package);
    if let Effort::Little = effort {
        lintian.args(["--suppress-tags", "unstripped-binary-or-object"]);
    }
    match lintian.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            heading("lintian did not read the package: it is not installed");
            Ok(())
        }
        output => {
            let output = output.context("run lintian")?;
            let said = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "lintian: {said}");
            Ok(())
        }
    }
}

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Sublet
Comment: THIRD-PARTY-LICENSES.gz has the licences of the packages compiled into the program.

Files: *
Copyright: 2026 the contributors of Sublet
License: Apache-2.0
 On Debian systems, the text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
";

fn fields(kibibytes: u64) -> String {
    format!(
        "Package: sublet\nVersion: {VERSION}\nArchitecture: amd64\nSection: admin\nPriority: optional\n\
         Maintainer: The maintainers of Sublet <noreply@sublet.dev>\nInstalled-Size: {kibibytes}\n\
         Depends: libc6 (>= {}.{}), libgcc-s1 | libgcc1\n\
         Description: share GPUs between programs, and hold each to its part\n \
         Sublet lets several programs share one NVIDIA GPU and holds each of them to its\n \
         part of the memory and of the compute time. Programs stay as they are.\n \
         .\n \
         The program also has the scheduler extender, the controller and the node agent\n \
         for Kubernetes in it. \"sublet demo\" shows it without a GPU.\n",
        FLOOR.0, FLOOR.1
    )
}

/// One entry: what changed is in the changelog of the repository.
fn changelog(moment: i64) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date", &format!("@{moment}")]);
    let output = date.env("LC_ALL", "C").output().context("run date")?;
    let date = String::from_utf8(output.stdout).context("the date is no text")?;
    Ok(format!(
        "sublet ({VERSION}) unstable; urgency=medium\n\n  * Release {VERSION}.\n\n \
         -- The maintainers of Sublet <noreply@sublet.dev>  {}\n",
        date.trim()
    ))
}

/// Sums of all files for `dpkg --verify`, and their size in KiB.
fn sums(root: &Path) -> Result<(String, u64)> {
    let mut files = Vec::new();
    list(&root.join("usr"), &mut files)?;
    files.sort();
    let mut kibibytes = 0;
    for file in &files {
        kibibytes += fs::metadata(file)?.len().div_ceil(1024);
    }
    let mut md5sum = Command::new("md5sum");
    let below = files.iter().map(|file| file.strip_prefix(root));
    md5sum.args(below.collect::<Result<Vec<_>, _>>()?);
    let output = md5sum.current_dir(root).output().context("run md5sum")?;
    ensure!(output.status.success(), "md5sum failed");
    Ok((String::from_utf8(output.stdout)?, kibibytes))
}

fn put(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("no folder")?)?;
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    Ok(())
}

fn write(to: &Path, text: &str, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("no folder")?)?;
    fs::write(to, text).with_context(|| format!("write {}", to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Puts a compressed file in the place of this one.
fn compress(file: &Path) -> Result<()> {
    run_command(Command::new("gzip").args(["-9", "--no-name"]).arg(file))
}

/// Gives everything the rights that it has for everybody, whatever the mask of new files is here.
fn rights(root: &Path) -> Result<()> {
    let mut chmod = Command::new("chmod");
    run_command(chmod.args(["--recursive", "u=rwX,go=rX"]).arg(root))
}
