//! The package of Debian and the packed chart of a release, by the tools of those who take them:
//! `dpkg-deb`, a shell, `helm` and `tar`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_testbed::Helm;

/// The folder of the release. If there is none, prints why and returns `None`.
fn release() -> Result<Option<PathBuf>> {
    let Some(file) = std::env::var_os("SUBLET_ONE_FILE").map(PathBuf::from) else {
        println!("skipped: SUBLET_ONE_FILE is not set; run `cargo xtask test`");
        return Ok(None);
    };
    Ok(Some(
        file.parent().context("it lies in no folder")?.to_owned(),
    ))
}

/// The file of the release whose name ends so.
fn ending_with(folder: &Path, end: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(end) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Output of a command that must succeed.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The package, unpacked in a folder of its own, with what dpkg runs in `DEBIAN`.
fn unpacked(into: &Path) -> Result<Option<PathBuf>> {
    let Some(folder) = release()? else {
        return Ok(None);
    };
    let Some(package) = ending_with(&folder, ".deb")? else {
        let lacking = Command::new("dpkg-deb").arg("--version").output();
        ensure!(
            lacking.is_err(),
            "dpkg-deb is here, and the release has no package"
        );
        println!("skipped: no dpkg-deb");
        return Ok(None);
    };
    let root = into.join("root");
    let mut unpack = Command::new("dpkg-deb");
    said(unpack.arg("--raw-extract").arg(package).arg(&root))?;
    Ok(Some(root))
}

#[test]
fn a_package_has_the_program_and_says_what_it_needs() -> Result<()> {
    let work = tempfile::tempdir()?;
    let Some(root) = unpacked(work.path())? else {
        return Ok(());
    };
    let version = said(Command::new(root.join("usr/bin/sublet")).arg("--version"))?;
    assert!(version.starts_with("sublet "), "{version}");
    let serves = said(Command::new(root.join("usr/bin/sublet-dataset")).arg("--version"))?;
    assert!(serves.starts_with("sublet-dataset "), "{serves}");
    let fields = fs::read_to_string(root.join("DEBIAN/control"))?;
    for field in [
        "Package: sublet\n",
        "Architecture: amd64\n",
        "libc6 (>= 2.28)",
    ] {
        assert!(fields.contains(field), "{field:?}: {fields}");
    }
    let about = "usr/share/doc/sublet";
    for place in [
        "usr/share/man/man1/sublet-run.1.gz",
        "usr/share/zsh/vendor-completions/_sublet",
        &format!("{about}/copyright"),
        &format!("{about}/THIRD-PARTY-LICENSES.gz"),
        &format!("{about}/changelog.gz"),
    ] {
        assert!(root.join(place).is_file(), "{place}");
    }
    let mut sums = Command::new("md5sum");
    sums.args(["--check", "--quiet", "DEBIAN/md5sums"]);
    assert_eq!(said(sums.current_dir(&root))?, "");
    Ok(())
}

/// Purged: nothing of root's is left. Removed, or while somebody is at work: all of it. In mounts of
/// its own, so that this machine's folders are left alone.
#[test]
fn purging_leaves_nothing_unless_somebody_is_at_work() -> Result<()> {
    let work = tempfile::tempdir()?;
    let Some(root) = unpacked(work.path())? else {
        return Ok(());
    };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can mount");
        return Ok(());
    }
    let script = root.join("DEBIAN/postrm");
    let left = |before: &str, action: &str| -> Result<String> {
        let steps = format!(
            "for place in /run /var/cache /var/lib; do mount -t tmpfs none $place; done\n\
             mkdir -p /run/sublet/gpu /var/cache/sublet/sublet-1\n\
             touch /run/sublet/gpu/arbiter.lock\n{before} \"$0\" {action}\n\
             cd /; ls -d run/sublet var/cache/sublet || true"
        );
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-ec", &steps]).arg(&script);
        said(&mut shell)
    };
    let all = "run/sublet\nvar/cache/sublet\n";
    assert_eq!(left("", "remove")?, all);
    assert_eq!(left("", "purge")?, "");
    assert_eq!(left("flock /run/sublet/gpu/arbiter.lock", "purge")?, all);
    assert_eq!(left("mkdir /var/lib/sublet;", "purge")?, all);
    let store = "/var/cache/sublet/datasets";
    let serves = format!(
        "mkdir -p {store}/views/a; mount -t tmpfs none {store}/views/a; touch {store}/lock;"
    );
    assert_eq!(left(&serves, "purge")?, "");
    let serves = format!("{serves} flock {store}/lock");
    assert_eq!(left(&serves, "purge")?, all);
    Ok(())
}

/// The chart asks for exactly the image beside it, whatever lies in the registry under its tag.
#[test]
fn the_packed_chart_names_the_image_by_its_digest() -> Result<()> {
    let Some(folder) = release()? else {
        return Ok(());
    };
    let Some(helm) = Helm::from_env() else {
        println!("skipped: SUBLET_HELM is not set; run `cargo xtask test`");
        return Ok(());
    };
    let chart = ending_with(&folder, ".tgz")?.context("no chart")?;
    let image = ending_with(&folder, ".oci.tar")?.context("no image")?;
    let mut tar = Command::new("tar");
    tar.arg("--extract")
        .arg("--to-stdout")
        .arg("--file")
        .arg(image);
    let index: Value = serde_json::from_str(&said(tar.arg("./index.json"))?)?;
    let digest = index["manifests"][0]["digest"]
        .as_str()
        .context("no digest")?;
    let chart = chart.to_str().context("a path that is not UTF-8")?;
    let registry = "image.repository=registry.example/sublet";
    let manifests = helm.run(&["template", "x", chart, "--set", registry], None)?;
    let named = manifests.matches("image: registry.example/sublet").count();
    let wanted = format!("image: registry.example/sublet@{digest}");
    // Extender, controller and agent at least.
    assert!(named >= 3, "{manifests}");
    assert_eq!(manifests.matches(&wanted).count(), named, "{wanted}");
    Ok(())
}
