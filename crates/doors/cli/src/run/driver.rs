//! Finds the real driver's two libraries. The folders are the ones that NVIDIA's packages, the
//! distributions and the container toolkit use. The dynamic linker is not asked: it would find our
//! own libraries if they are preloaded. Only looks, never loads.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sublet_abi::settings::{DRIVER_CUDA, DRIVER_NVML};

use crate::answer::Advised;

/// Folders that a driver may be in, the likeliest first.
pub(super) const FOLDERS: [&str; 12] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/run/opengl-driver/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
];

/// One of the driver's two libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverLibrary {
    Cuda,
    Nvml,
}

impl DriverLibrary {
    /// The name by which programs load it.
    pub(super) fn soname(self) -> &'static str {
        match self {
            DriverLibrary::Cuda => "libcuda.so.1",
            DriverLibrary::Nvml => "libnvidia-ml.so.1",
        }
    }

    /// Start of the names of its files: `libcuda.so`, `libcuda.so.580.95.05`.
    fn stem(self) -> &'static str {
        match self {
            DriverLibrary::Cuda => "libcuda.so",
            DriverLibrary::Nvml => "libnvidia-ml.so",
        }
    }

    /// The variable that names the real library's file.
    pub(super) fn variable(self) -> &'static str {
        match self {
            DriverLibrary::Cuda => DRIVER_CUDA,
            DriverLibrary::Nvml => DRIVER_NVML,
        }
    }

    /// The file that this variable names, if it is a whole path.
    pub(super) fn set(self) -> Option<PathBuf> {
        let set = std::env::var_os(self.variable()).map(PathBuf::from);
        set.filter(|file| file.is_absolute())
    }
}

/// The real driver's files on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DriverFiles {
    /// Every file that is a `libcuda`, without links; the first is the one to use.
    pub(super) cuda: Vec<PathBuf>,
    /// Every file that is a `libnvidia-ml`.
    pub(super) nvml: Vec<PathBuf>,
}

/// Folders to search, and files that are not the real driver.
pub(super) struct Search<'a> {
    /// In this order.
    pub(super) folders: Vec<PathBuf>,
    /// Our own libraries, which may be mounted over the real ones.
    pub(super) own: &'a [PathBuf],
    /// Files that [`DriverLibrary::variable`] names.
    pub(super) set: [Option<PathBuf>; 2],
}

impl DriverFiles {
    /// All files of the real driver that `search` leads to.
    pub(super) fn find(search: &Search) -> DriverFiles {
        let [cuda, nvml] = &search.set;
        DriverFiles {
            cuda: files(DriverLibrary::Cuda, cuda.as_deref(), search),
            nvml: files(DriverLibrary::Nvml, nvml.as_deref(), search),
        }
    }

    /// The file of each to use. The error lists the names and folders of the search.
    pub(super) fn chosen(&self, search: &Search) -> Result<(&Path, &Path), Advised> {
        let cuda = first(&self.cuda, DriverLibrary::Cuda, search)?;
        let nvml = first(&self.nvml, DriverLibrary::Nvml, search)?;
        Ok((cuda, nvml))
    }
}

/// The file of one library to use.
fn first<'a>(
    files: &'a [PathBuf],
    library: DriverLibrary,
    search: &Search,
) -> Result<&'a Path, Advised> {
    if let Some(file) = files.first() {
        return Ok(file);
    }
    let folders: Vec<_> = search
        .folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let (name, variable) = (library.soname(), library.variable());
    let comes = Surroundings::of_this_process().driver_comes();
    Err(Advised::new(
        format!(
            "there is no NVIDIA driver: {name} is in none of {}",
            folders.join(", ")
        ),
        format!(
            "{comes}; {variable}=/path/{name} says where it is elsewhere; `sublet demo` and \
             `--fake-gpu 2x16GiB` need none"
        ),
    ))
}

/// Kinds of places that get a driver in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surroundings {
    Machine,
    Container,
    /// Windows Subsystem for Linux, version 2.
    Wsl,
}

impl Surroundings {
    fn of_this_process() -> Surroundings {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        // Docker's, and that of podman and CRI-O; others set the variable, as systemd asks for.
        let marks = ["/.dockerenv", "/run/.containerenv"];
        let is_marked = marks.iter().any(|mark| Path::new(mark).exists());
        let is_contained = is_marked || std::env::var_os("container").is_some();
        Surroundings::of(&release, is_contained)
    }

    fn of(kernel_release: &str, is_contained: bool) -> Surroundings {
        match (is_contained, kernel_release.contains("microsoft")) {
            (true, _) => Surroundings::Container,
            (false, true) => Surroundings::Wsl,
            (false, false) => Surroundings::Machine,
        }
    }

    /// The way by which a driver comes.
    fn driver_comes(self) -> &'static str {
        match self {
            Surroundings::Machine => "where it is installed, `nvidia-smi` lists the GPUs",
            Surroundings::Container => {
                "it comes into a container from the machine, by NVIDIA's container toolkit \
                 (`docker run --gpus all`)"
            }
            Surroundings::Wsl => "it comes with NVIDIA's driver for Windows, into /usr/lib/wsl/lib",
        }
    }
}

/// The file of the real driver's NVML, for a process that is in no job.
///
/// # Errors
/// There is none. The error lists the folders of the search.
pub(crate) fn real_nvml() -> Result<PathBuf, Advised> {
    let search = Search {
        folders: folders(std::env::var_os("LD_LIBRARY_PATH").as_deref()),
        own: &[],
        set: [None, DriverLibrary::Nvml.set()],
    };
    let found = DriverFiles::find(&search).nvml;
    first(&found, DriverLibrary::Nvml, &search).map(Path::to_owned)
}

/// The folders of `LD_LIBRARY_PATH`, then the well-known ones.
pub(super) fn folders(library_path: Option<&OsStr>) -> Vec<PathBuf> {
    let given = library_path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
    given
        .into_iter()
        .flatten()
        .filter(|folder| folder.is_absolute())
        .chain(FOLDERS.map(PathBuf::from))
        .collect()
}

/// The files of one library, each once, even if several links lead to it.
fn files(library: DriverLibrary, set: Option<&Path>, search: &Search) -> Vec<PathBuf> {
    let own: Vec<_> = search
        .own
        .iter()
        .filter_map(|file| identity(file))
        .collect();
    let mut seen = Vec::new();
    let mut found = Vec::new();
    let mut take = |file: &Path| {
        let Ok(file) = file.canonicalize() else {
            return;
        };
        let Some(identity) = identity(&file) else {
            return;
        };
        if !own.contains(&identity) && !seen.contains(&identity) && is_for_this_machine(&file) {
            seen.push(identity);
            found.push(file);
        }
    };
    if let Some(set) = set {
        take(set);
    }
    for folder in &search.folders {
        take(&folder.join(library.soname()));
        // Programs open `libcuda.so` and the versioned name too; usually links to one file.
        for file in matching(folder, library.stem()) {
            take(&file);
        }
    }
    found
}

/// The files of a folder that are named `stem`, perhaps with a version; sorted.
fn matching(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(stem));
            rest.is_some_and(|rest| {
                rest.is_empty()
                    || rest.starts_with('.')
                        && rest
                            .bytes()
                            .all(|byte| byte == b'.' || byte.is_ascii_digit())
            })
        })
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    let about = file.metadata().ok()?;
    Some((about.dev(), about.ino()))
}

/// An ELF file of 64 bits for x86-64: `/usr/lib` may hold the 32-bit driver.
fn is_for_this_machine(file: &Path) -> bool {
    let mut header = [0; 20];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut header));
    let (class_64_bit, machine_x86_64) = (header[4] == 2, header[18..20] == [62, 0]);
    read.is_ok() && header.starts_with(b"\x7fELF") && class_64_bit && machine_x86_64
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The first bytes of a shared library for this machine.
    const ELF: [u8; 20] = [
        0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 62, 0,
    ];

    fn search(folders: &[&Path], own: &[PathBuf]) -> DriverFiles {
        DriverFiles::find(&Search {
            folders: folders.iter().map(|folder| folder.to_path_buf()).collect(),
            own,
            set: [None, None],
        })
    }

    #[test]
    fn each_file_is_found_once_and_never_our_own() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (a, b, c) = (base.join("a"), base.join("b"), base.join("c"));
        for folder in [&a, &b, &c] {
            std::fs::create_dir(folder).unwrap();
        }
        let real = a.join("libcuda.so.580.95.05");
        std::fs::write(&real, ELF).unwrap();
        symlink(&real, a.join("libcuda.so.1")).unwrap();
        symlink("libcuda.so.1", a.join("libcuda.so")).unwrap();
        std::fs::write(a.join("libcudart.so.13"), ELF).unwrap();
        std::fs::write(a.join("libcuda.so.bak"), ELF).unwrap();
        // The 32-bit driver, and our own library in a real one's place.
        let mut small = ELF;
        small[4] = 1;
        std::fs::write(b.join("libcuda.so.1"), small).unwrap();
        let own = c.join("libcuda.so.1");
        std::fs::write(&own, ELF).unwrap();
        std::fs::write(c.join("libnvidia-ml.so.1"), ELF).unwrap();

        let driver = search(&[&b, &c, &a], std::slice::from_ref(&own));
        assert_eq!(driver.cuda, [real]);
        assert_eq!(driver.nvml, [c.join("libnvidia-ml.so.1")]);
    }

    #[test]
    fn a_variable_goes_before_every_folder() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (set, other) = (base.join("my-driver"), base.join("libcuda.so.1"));
        std::fs::write(&set, ELF).unwrap();
        std::fs::write(&other, ELF).unwrap();
        let driver = DriverFiles::find(&Search {
            folders: vec![base],
            own: &[],
            set: [Some(set.clone()), None],
        });
        assert_eq!(driver.cuda, [set, other]);
    }

    #[test]
    fn each_kind_of_place_is_told_its_own_way_to_a_driver() {
        let comes = |release, is_contained| Surroundings::of(release, is_contained).driver_comes();
        let wsl = "5.15.167.4-microsoft-standard-WSL2";
        assert!(comes("6.8.0-generic", false).contains("nvidia-smi"));
        assert!(comes(wsl, false).contains("Windows"));
        assert!(comes(wsl, true).contains("--gpus all"));
        assert!(comes("6.8.0-generic", true).contains("--gpus all"));
    }

    #[test]
    fn a_missing_driver_is_told_with_all_places() {
        let search = Search {
            folders: folders(Some(OsStr::new("/opt/drv:relative:"))),
            own: &[],
            set: [None, None],
        };
        assert_eq!(search.folders.len(), FOLDERS.len() + 1);
        let error = DriverFiles::default().chosen(&search).unwrap_err();
        let text = crate::error_text(&error.into());
        for part in [
            "libcuda.so.1 is in none of /opt/drv, /usr/lib/x86_64-linux-gnu, ",
            "/usr/lib/wsl/lib",
            "SUBLET_DRIVER_CUDA=",
            "`sublet demo` and `--fake-gpu 2x16GiB`",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
