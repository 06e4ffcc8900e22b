//! The image of a cluster's processes, as an OCI archive that is made without Docker: this machine's
//! C library in one layer, `sublet` in the other.
//!
//! The same files make the same bytes, for any packer at any time. (OCI image specification 1.1:
//! image layout, manifest and configuration.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::setup::run as run_command;

/// Libraries of glibc, which the driver's libraries want too, though newer ones are empty. A
/// machine may lack them if its glibc contains them.
const MAY_BE_ABSENT: [&str; 7] = [
    "libdl.so.2",
    "libnss_dns.so.2",
    "libnss_files.so.2",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libm.so.6",
];

/// User of a container without a user of its own: no account has this number. The manifests ask
/// for it too, and for root where the agent needs it.
const USER: &str = "65532:65532";

/// The name under which containerd has it after an import.
fn reference() -> String {
    format!("sublet.dev/sublet:{}", env!("CARGO_PKG_VERSION"))
}

/// Makes the archive of that program, with its licences and the list of its contents. Returns the
/// image's digest, by which a registry has it too.
pub(crate) fn pack(sublet: &Path, documents: &[PathBuf], archive: &Path) -> Result<String> {
    let work = tempfile::tempdir().context("make a folder for the image")?;
    let (base, own) = (work.path().join("base"), work.path().join("own"));
    for library in c_library(sublet)? {
        // At the same place as here, which is where its loader looks.
        put(&library, &base.join(library.strip_prefix("/")?))?;
    }
    put(sublet, &own.join("usr/local/bin/sublet"))?;
    for document in documents {
        let name = document.file_name().context("a document without a name")?;
        put(document, &own.join("usr/share/doc/sublet").join(name))?;
    }
    let layout = Layout::new(work.path().join("image"))?;
    let layers = [layout.layer(&base)?, layout.layer(&own)?];
    let digest = layout.finish(&layers)?;
    archive_of(&layout.0, archive)?;
    Ok(digest)
}

/// Libraries that the program is loaded with, and further ones of the driver's libraries.
fn c_library(program: &Path) -> Result<Vec<PathBuf>> {
    let listed = output(Command::new("ldd").arg(program))?;
    let words = |line: &str| {
        line.split_whitespace()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    let mut found: Vec<PathBuf> = listed.lines().filter_map(words).collect();
    let libc = found.iter().find(|file| file.ends_with("libc.so.6"));
    let folder = libc.and_then(|file| file.parent()).map(Path::to_owned);
    let folder = folder.context("the program is linked with no libc.so.6")?;
    let more = MAY_BE_ABSENT.map(|name| folder.join(name));
    found.extend(more.into_iter().filter(|file| file.is_file()));
    found.sort();
    found.dedup();
    Ok(found)
}

/// Copies a file, and makes the folders above it.
fn put(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("no folder")?)?;
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    Ok(())
}

/// An image layout in a folder.
struct Layout(PathBuf);

/// Something that stands under its digest.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn describe(&self, kind: &str) -> Value {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": self.digest,
            "size": self.size,
        })
    }
}

impl Layout {
    fn new(folder: PathBuf) -> Result<Layout> {
        fs::create_dir_all(folder.join("blobs/sha256"))?;
        fs::write(
            folder.join("oci-layout"),
            json!({ "imageLayoutVersion": "1.0.0" }).to_string(),
        )?;
        Ok(Layout(folder))
    }

    /// Moves a file to the place that its digest names.
    fn keep(&self, file: &Path) -> Result<Blob> {
        let sum = output(Command::new("sha256sum").arg(file))?;
        let sum = sum.split_whitespace().next().context("no sum")?;
        let size = fs::metadata(file)?.len();
        fs::rename(file, self.0.join("blobs/sha256").join(sum))?;
        Ok(Blob {
            digest: format!("sha256:{sum}"),
            size,
        })
    }

    /// Everything in a folder. Not compressed, so that its digest is that of its files too.
    fn layer(&self, folder: &Path) -> Result<Blob> {
        let file = self.0.join("layer.tar");
        archive_of(folder, &file)?;
        self.keep(&file)
    }

    fn json(&self, value: &Value) -> Result<Blob> {
        let file = self.0.join("new.json");
        fs::write(&file, value.to_string())?;
        self.keep(&file)
    }

    fn finish(&self, layers: &[Blob]) -> Result<String> {
        let config = self.json(&configuration(layers))?;
        let layers = layers.iter().map(|layer| layer.describe("layer.v1.tar"));
        let manifest = self.json(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.describe("config.v1+json"),
            "layers": layers.collect::<Vec<_>>(),
        }))?;
        let mut described = manifest.describe("manifest.v1+json");
        described["annotations"] = json!({
            "io.containerd.image.name": reference(),
            "org.opencontainers.image.ref.name": env!("CARGO_PKG_VERSION"),
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [described],
        });
        fs::write(self.0.join("index.json"), index.to_string())?;
        Ok(manifest.digest)
    }
}

/// Configuration of its containers.
fn configuration(layers: &[Blob]) -> Value {
    let digests: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": USER,
            "Entrypoint": ["/usr/local/bin/sublet"],
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "Labels": {
                "org.opencontainers.image.title": "sublet",
                "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": digests },
    })
}

/// `tar`, which makes the same archive of the same files, whoever packs them, and when. `form`: an
/// option such as `--gzip`. What goes in follows.
pub(crate) fn tar(form: &str, archive: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", form, "--file"]).arg(archive);
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mode=u=rwX,go=rX", "--mtime=@0"]);
    tar
}

/// An archive of all in a folder.
fn archive_of(folder: &Path, archive: &Path) -> Result<()> {
    let mut tar = tar("--format=gnu", archive);
    run_command(tar.arg("--directory").arg(folder).arg("."))
}

/// Output of a program.
fn output(command: &mut Command) -> Result<String> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {what}"))?;
    if !output.status.success() {
        bail!("{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_make_the_same_image_and_all_of_it_is_there() {
        let work = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let make = |name: &str| {
            let archive = work.path().join(name);
            let license = crate::setup::repository().unwrap().join("LICENSE");
            let digest = pack(&program, &[license], &archive).unwrap();
            (digest, fs::read(archive).unwrap())
        };
        assert!(
            make("a.tar") == make("b.tar"),
            "two images of one program differ"
        );

        let unpacked = work.path().join("unpacked");
        fs::create_dir(&unpacked).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("--extract")
            .arg("--file")
            .arg(work.path().join("a.tar"));
        assert!(tar.current_dir(&unpacked).status().unwrap().success());
        let read = |digest: &Value| {
            let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
            fs::read(unpacked.join("blobs/sha256").join(digest)).unwrap()
        };
        let json = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
        let index = json(fs::read(unpacked.join("index.json")).unwrap());
        assert_eq!(index["manifests"][0]["digest"], make("a.tar").0);
        let manifest = json(read(&index["manifests"][0]["digest"]));
        let config = json(read(&manifest["config"]["digest"]));
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        for (layer, diff) in layers
            .iter()
            .zip(config["rootfs"]["diff_ids"].as_array().unwrap())
        {
            assert_eq!(layer["digest"], *diff);
            assert_eq!(layer["size"], read(diff).len());
        }
        assert_eq!(config["config"]["User"], USER, "a container of it is root");
        let own = String::from_utf8_lossy(&read(&layers[1]["digest"])).into_owned();
        assert!(own.contains("./usr/local/bin/sublet"));
        let base = String::from_utf8_lossy(&read(&layers[0]["digest"])).into_owned();
        assert!(base.contains("/libc.so.6") && base.contains("/ld-linux-x86-64.so.2"));
    }

    /// Docker's image of the same file runs as the same user. The manifests say it too, for an
    /// image from another builder.
    #[test]
    fn no_container_is_root_unless_its_manifest_says_so() {
        let dockerfile = include_str!("../../deploy/Dockerfile");
        let users: Vec<&str> = dockerfile
            .lines()
            .filter_map(|line| line.strip_prefix("USER "))
            .collect();
        assert_eq!(users, [USER]);
        let after = dockerfile.split("\nUSER ").nth(1).unwrap();
        assert!(!after.contains("\nFROM "), "a later stage is root again");

        let (user, group) = USER.split_once(':').unwrap();
        let nobody =
            format!("runAsNonRoot: true\n        runAsUser: {user}\n        runAsGroup: {group}\n");
        let scheduler = include_str!("../../deploy/kubernetes/50-scheduler.yaml");
        let controller = include_str!("../../deploy/kubernetes/70-controller.yaml");
        for manifest in [scheduler, controller] {
            assert_eq!(manifest.matches("runAsUser: ").count(), 1);
            assert!(manifest.contains(&nobody), "{manifest}");
        }
        let agent = include_str!("../../deploy/kubernetes/60-agent.yaml");
        assert!(
            agent.contains("runAsUser: 0\n          runAsGroup: 0\n"),
            "{agent}"
        );
    }
}
