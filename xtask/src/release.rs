//! `cargo xtask release`: the one file that is handed out, and a second one for those who want data
//! sets. The one file is `sublet` with its libraries inside, linked for the same old glibc as they
//! are. So it runs on every machine that can load them: any machine of the last years, with any
//! image. Nothing is published here.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use sublet_library::FLOOR;

use crate::pip;
use crate::screen::{heading, time};
use crate::setup::{cargo, list, product, program, repository, run as run_command};
use crate::step::Step;
use crate::wheel::{self, Effort, Installed};
use crate::{chart, contents, debian, image, libraries, linker};

/// The licence, the word of whose the parts are, and the licences of the packages of others.
const LICENSE: &str = "LICENSE";
const NOTICE: &str = "NOTICE";
const OTHERS: &str = "THIRD-PARTY-LICENSES";

/// Sums of what is handed out, and their signature.
const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";

/// The name of the file, built and handed out.
const SUBLET: &str = "sublet";

/// The file beside it that serves data sets, and its package.
const DATASET: (&str, &str) = ("sublet-dataset", "sublet-dataset-server");

/// The most that each of the two has.
const BYTES_MAX: [(&str, u64); 2] = [(SUBLET, 30_000_000), (DATASET.0, 6_000_000)];

/// Variable that names the folder of the packed libraries to the product's build:
/// crates/doors/sublet/src/carried.rs, which has their names too.
const CARRY: &str = "SUBLET_CARRY";
const CARRIED: [&str; 6] = [
    "libsublet_cuda.so",
    "libsublet_nvml.so",
    "libsublet_preload.so",
    "libsublet_fakecuda.so",
    "libsublet_fakenvml.so",
    "sublet-workload",
];

/// Variable with the version that it says, with commit and date: crates/doors/sublet/src/main.rs.
const BUILD: &str = "SUBLET_BUILD";

/// Build the one file that is handed out: `sublet` with its libraries inside.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask release                 into target/release-bundle; 8 to 12 minutes cold on two cores
  cargo xtask release --out ~/sublet  elsewhere
  cargo xtask release --quick         the same file for this machine alone, in seconds
  cargo xtask release --sign ~/.ssh/id_ed25519
  cargo xtask release --check --signers signers.txt    what lies there is what was signed

It writes
  sublet                          runs on x86-64 Linux with glibc 2.28 or newer; needs no other file
  sublet-dataset                  beside it, for `sublet dataset`; in each of the below but the image
  sublet-VERSION-….whl            the same as a Python wheel, for pip and uv
  sublet_VERSION_amd64.deb        the same as a package of Debian and Ubuntu
  sublet-VERSION-x86_64.tar.gz    the same with licence, man pages and completions, for sending
  sublet-VERSION-x86_64.oci.tar   the same as an image, for a registry (an OCI archive)
  sublet-VERSION.tgz              the Helm chart, which names this image by its digest
  THIRD-PARTY-LICENSES            of the packages that are compiled into it; in each of the above
  sublet-VERSION.cdx.json         the same packages for programs (CycloneDX); in each of the above
  SHA256SUMS, SHA256SUMS.sig      of all, for `sha256sum --check`, and their signature (ssh-keygen -Y)
The image has this machine's C library. deploy/Dockerfile makes one on another base.

To put the image into a registry or a node:
  skopeo copy oci-archive:sublet-VERSION-x86_64.oci.tar docker://REGISTRY/sublet:VERSION
  ctr --namespace k8s.io images import sublet-VERSION-x86_64.oci.tar")]
pub(crate) struct Arguments {
    /// The folder to write to [default: target/release-bundle]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Without optimisation and for this machine's glibc: for trying out, and for the tests
    #[arg(long)]
    quick: bool,
    /// Sign SHA256SUMS with this key of ssh
    #[arg(long, value_name = "KEY")]
    sign: Option<PathBuf>,
    /// Verify the signature by this list of signers, each `sublet` and a public key
    #[arg(long, value_name = "FILE")]
    signers: Option<PathBuf>,
    /// Build nothing: check what lies in the folder
    #[arg(long, conflicts_with_all = ["quick", "sign"])]
    check: bool,
}

/// Builds, checks and packs it.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let started = Instant::now();
    let out = match &arguments.out {
        // Cargo runs us where the user is; what we start runs at the root of the repository.
        Some(folder) => std::path::absolute(folder)?,
        None => repository()?.join("target/release-bundle"),
    };
    if arguments.check {
        check(&out, arguments.signers.as_deref())?;
        println!("everything in {} is as it was packed", out.display());
        return Ok(());
    }
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    match arguments.quick {
        true => quick(&out)?,
        false => portable(&out)?,
    }
    heading("3/3 packing (10 s)");
    let files = pack_all(&out, arguments.quick)?;
    sums(&out, &files)?;
    if let Some(key) = &arguments.sign {
        sign(&out, key)?;
    }
    check(&out, arguments.signers.as_deref())?;
    heading(&format!("done in {}", time(started.elapsed())));
    println!("{}", out.join(SUBLET).display());
    Ok(())
}

/// Packs the programs in all their forms, and returns the names of what is handed out.
fn pack_all(out: &Path, quick: bool) -> Result<Vec<String>> {
    let place = &out.join(SUBLET);
    let programs = [place.clone(), out.join(DATASET.0)];
    let packages = contents::packages()?;
    let (license, notice) = (repository()?.join(LICENSE), repository()?.join(NOTICE));
    let others = out.join(OTHERS);
    let bill = out.join(bill_name());
    put_text(&others, &contents::licenses(&packages))?;
    put_text(&bill, &contents::bill_of_materials(&packages))?;
    let documents = [license, notice, others, bill];
    let digest = image::pack(place, &documents, &out.join(image_name()))?;
    chart::pack(&digest, &out.join(chart::file_name()))?;
    // Not in `out`: that may be a folder with a `share` of the user's own.
    let work = tempfile::tempdir().context("make a folder for the man pages")?;
    let installed = describe(place, work.path())?;
    let mut files = vec![
        SUBLET.to_owned(),
        DATASET.0.to_owned(),
        OTHERS.to_owned(),
        bill_name(),
        image_name(),
        chart::file_name(),
    ];
    let [license, notice, others, bill] = documents;
    let effort = match quick {
        true => Effort::Little,
        false => Effort::Best,
    };
    match debian::is_possible() {
        true => {
            let package = out.join(debian::file_name());
            let documents = [notice.clone(), others.clone(), bill.clone()];
            let to = (&*package, effort);
            debian::pack(&programs, &installed, &documents, moment()?, to)?;
            debian::judge(&package, effort)?;
            files.push(debian::file_name());
        }
        false => heading("no package of Debian: there is no dpkg-deb"),
    }
    let wheel = out.join(wheel::file_name());
    let texts = (&[license, notice, others][..], &*bill);
    match (quick, pip::check()) {
        // The linker has asked for it.
        (false, _) => {
            wheel::pack(&programs, texts, &installed, &wheel, effort)?;
            files.extend([wheel::file_name(), pack(out, work.path())?]);
        }
        (true, Ok(())) => {
            wheel::pack(&programs, texts, &installed, &wheel, effort)?;
            files.push(wheel::file_name());
        }
        (true, Err(reason)) => heading(&format!("no wheel: {reason:#}")),
    }
    Ok(files)
}

/// Building one for this machine, as a step of the tests.
pub(crate) fn step() -> Result<Step> {
    let mut command = Command::new(env::current_exe().context("find the running program")?);
    command.args(["release", "--quick", "--out"]);
    command.arg(quick_place()?.parent().context("it lies in no folder")?);
    Ok(Step {
        what: "one file with the libraries inside",
        usual: "1 min cold",
        command,
    })
}

/// The result of that step.
pub(crate) fn quick_place() -> Result<PathBuf> {
    program("debug/one-file", SUBLET)
}

/// For every machine of the floor.
fn portable(out: &Path) -> Result<()> {
    pip::check().context(
        "no linker; `cargo xtask release --quick` needs none, and serves this machine alone",
    )?;
    heading(&format!(
        "1/3 the libraries, for glibc {FLOOR} (1 min cold; 100 MB once)"
    ));
    let folder = libraries::build()?;
    heading(&format!(
        "2/3 sublet around them, for glibc {FLOOR}, optimised (8 to 14 min cold)"
    ));
    let carried = carried(&folder, Effort::Best)?;
    let mut build = linker::build()?;
    build.args(["--package", SUBLET, "--package", DATASET.1]);
    build.args(["--features", "sublet/carry"]);
    run_command(build.env(CARRY, carried).env(BUILD, version()?))?;
    for (name, most) in BYTES_MAX {
        let built = folder.join(name);
        libraries::check(&built)?;
        let bytes = fs::metadata(&built).with_context(|| format!("look at {name}"))?;
        let bytes = bytes.len();
        ensure!(
            bytes <= most,
            "{name} has {bytes} bytes, and its bound is {most}"
        );
        put(&built, &out.join(name))?;
    }
    Ok(())
}

/// For this machine.
fn quick(out: &Path) -> Result<()> {
    heading("1/3 the libraries, for this machine (1 min cold)");
    run_command(&mut cargo(&[&["build"], product().as_slice()].concat())?)?;
    let built = program("debug", SUBLET)?;
    let folder = built.parent().context("it lies in no folder")?;
    heading("2/3 sublet around them (15 s)");
    // The same packages as before, so that none of them is compiled with other features.
    let carry = [
        &["build", "--features", "sublet/carry"],
        product().as_slice(),
    ]
    .concat();
    let carried = carried(folder, Effort::Little)?;
    let mut around = cargo(&carry)?;
    run_command(around.env(CARRY, carried).env(BUILD, version()?))?;
    put(&built, &out.join(SUBLET))?;
    put(&folder.join(DATASET.0), &out.join(DATASET.0))?;
    // The next `cargo build` puts the plain one there again, whose libraries are those beside
    // it, as people who change them expect.
    fs::remove_file(&built).with_context(|| format!("remove {}", built.display()))
}

/// Packs the libraries of a folder into one below it, as the one file carries them, and returns that.
/// A file whose packed bytes stay the same is left alone, so that cargo does not build again.
fn carried(folder: &Path, effort: Effort) -> Result<PathBuf> {
    let packed = folder.join("carried");
    fs::create_dir_all(&packed).with_context(|| format!("make {}", packed.display()))?;
    for name in CARRIED {
        let from = folder.join(name);
        let bytes = match effort {
            Effort::Little => gzip(&from)?,
            Effort::Best => zopfli(&from)?,
        };
        let to = packed.join(format!("{name}.gz"));
        if fs::read(&to).is_ok_and(|before| before == bytes) {
            continue;
        }
        fs::write(&to, bytes).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(packed)
}

/// Packs a file in a moment.
fn gzip(file: &Path) -> Result<Vec<u8>> {
    let mut gzip = Command::new("gzip");
    gzip.args(["-1", "--no-name", "--stdout"]).arg(file);
    let output = gzip.output().context("run gzip")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "gzip: {errors}");
    Ok(output.stdout)
}

/// Packs a file as small as that form allows, in some seconds for each megabyte.
fn zopfli(file: &Path) -> Result<Vec<u8>> {
    let failed = || format!("pack {}", file.display());
    let from = fs::File::open(file).with_context(failed)?;
    let mut packed = Vec::new();
    let options = zopfli::Options::default();
    zopfli::compress(options, zopfli::Format::Gzip, from, &mut packed).with_context(failed)?;
    Ok(packed)
}

/// The version, with the commit and its date where the repository knows them.
fn version() -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let Some(commit) = git(&["log", "-1", "--format=%h, %cs"])? else {
        return Ok(version.to_owned());
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let changed = changed.is_some_and(|files| !files.is_empty());
    let changed = if changed { ", changed" } else { "" };
    Ok(format!("{version} ({commit}{changed})"))
}

/// The moment of the commit, in seconds since 1970; 0 where the repository does not know it.
fn moment() -> Result<i64> {
    let said = git(&["log", "-1", "--format=%ct"])?;
    said.map_or(Ok(0), |moment| {
        moment.parse().context("the moment of the commit")
    })
}

/// The answer of git about this repository; none where there is no git, or this is no clone.
fn git(words: &[&str]) -> Result<Option<String>> {
    let output = Command::new("git")
        .args(words)
        .current_dir(repository()?)
        .output();
    let said = output.ok().filter(|output| output.status.success());
    Ok(said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

/// Has the program write its man pages and completion scripts into an empty folder, below `share`,
/// which is of the form of `/usr/share`.
fn describe(place: &Path, work: &Path) -> Result<Vec<Installed>> {
    let share = work.join(SHARE);
    let man = share.join("man/man1");
    fs::create_dir_all(&man).with_context(|| format!("make {}", man.display()))?;
    // A script calls the program by the name by which it was called.
    let called = || {
        let mut command = Command::new(place);
        command.arg0(SUBLET);
        command
    };
    run_command(called().args(["man-pages", "--into"]).arg(&man))?;
    for (shell, script) in COMPLETIONS {
        let output = called().args(["completion", shell]).output();
        let output = output.with_context(|| format!("run {}", place.display()))?;
        ensure!(output.status.success(), "no completion for {shell}");
        let script = share.join(script);
        let folder = script.parent().context("it lies in no folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        fs::write(&script, output.stdout).with_context(|| format!("write {}", script.display()))?;
    }
    let mut files = Vec::new();
    list(&share, &mut files)?;
    files.sort();
    let installed = |file: PathBuf| {
        let below = file.strip_prefix(work)?.to_string_lossy().into_owned();
        Ok(Installed { place: below, file })
    };
    files.into_iter().map(installed).collect()
}

/// Folder of the bundle with what goes into `/usr/share`.
const SHARE: &str = "share";

/// Shells, and where their scripts lie in `/usr/share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/sublet"),
    ("zsh", "zsh/site-functions/_sublet"),
    ("fish", "fish/vendor_completions.d/sublet.fish"),
];

/// Copies a program over another one, which may be running.
fn put(built: &Path, place: &Path) -> Result<()> {
    let new = place.with_extension("new");
    fs::copy(built, &new).with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, place).with_context(|| format!("write {}", place.display()))
}

/// The name of the list of what is inside.
fn bill_name() -> String {
    format!("sublet-{}.cdx.json", env!("CARGO_PKG_VERSION"))
}

/// The name of the image's archive.
fn image_name() -> String {
    format!("sublet-{}-x86_64.oci.tar", env!("CARGO_PKG_VERSION"))
}

/// Packs the archive, and returns its name. `work`: the folder with what describes the program.
fn pack(out: &Path, work: &Path) -> Result<String> {
    let archive = format!("sublet-{}-x86_64.tar.gz", env!("CARGO_PKG_VERSION"));
    let mut tar = image::tar("--gzip", Path::new(&archive));
    tar.args([SUBLET, DATASET.0, OTHERS])
        .args([&bill_name(), "--directory"])
        .arg(work)
        .args([SHARE, "--directory"])
        .arg(repository()?)
        .args([LICENSE, NOTICE]);
    run_command(tar.current_dir(out))?;
    Ok(archive)
}

/// Writes the sums of these files. An older signature is of other sums.
fn sums(out: &Path, files: &[String]) -> Result<()> {
    let _absent = fs::remove_file(out.join(SIGNATURE));
    let output = Command::new("sha256sum")
        .args(files)
        .current_dir(out)
        .output();
    let output = output.context("run sha256sum")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "sha256sum: {errors}");
    let file = out.join(SUMS);
    fs::write(&file, output.stdout).with_context(|| format!("write {}", file.display()))
}

/// Signs the sums, and by them everything. (`PROTOCOL.sshsig` of OpenSSH.)
fn sign(out: &Path, key: &Path) -> Result<()> {
    let mut sign = Command::new("ssh-keygen");
    sign.args(["-Y", "sign", "-n", SUBLET, "-f"])
        .arg(key)
        .arg(out.join(SUMS));
    run_command(&mut sign)
}

/// Checks what lies in the folder: each file by its sum, and the sums by their signature where the
/// signers are known.
fn check(out: &Path, signers: Option<&Path>) -> Result<()> {
    let mut sums = Command::new("sha256sum");
    sums.args(["--check", "--strict", "--quiet", SUMS]);
    run_command(sums.current_dir(out))?;
    if let Some(signers) = signers {
        let file = out.join(SUMS);
        let file = fs::File::open(&file).with_context(|| format!("open {}", file.display()))?;
        let mut verify = Command::new("ssh-keygen");
        verify
            .args(["-Y", "verify", "-n", SUBLET, "-I", SUBLET, "-f"])
            .arg(signers)
            .arg("-s")
            .arg(out.join(SIGNATURE))
            .stdin(file);
        run_command(&mut verify)?;
    }
    Ok(())
}

fn put_text(place: &Path, text: &str) -> Result<()> {
    fs::write(place, text).with_context(|| format!("write {}", place.display()))
}
