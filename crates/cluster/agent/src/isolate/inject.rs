//! Makes the mounts and variables by which the programs of a container meet our libraries, as a
//! function of its inputs. Nothing here looks at a file.
//!
//! The libraries come in by `/etc/ld.so.preload`, which the loader reads for every dynamically
//! linked program whatever its environment is, so a program that clears `LD_PRELOAD` meets
//! them too. Beside them lies the file of settings by which they find their arbiter, for the same
//! reason: no variable of ours is needed. The container's own folder is mounted, never the socket
//! in it: a restarted agent makes a new socket in the same folder, and a mounted file would still
//! be the old one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sublet_abi::Mode;
use sublet_abi::settings::{FILE, ProcessSettings, SettingsError};
use sublet_kubelet::deviceplugin::Mount;
use sublet_model::{MiB, Milli};
use sublet_share::MpsTerms;

/// Everything of ours in a container is below this. Not in `/run` or `/tmp`, which pods mount
/// volumes over.
pub const INSIDE: &str = "/usr/local/sublet";

/// The file whose libraries the loader puts before all others.
const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// The file of the library folder that is mounted there.
const PRELOAD_NAME: &str = "ld.so.preload";

/// Its text: the names are those in the container. No preload answers to `libcuda.so` or to
/// absolute paths; the third library is for these.
const PRELOAD_TEXT: &str = "\
/usr/local/sublet/lib/libcuda.so.1
/usr/local/sublet/lib/libnvidia-ml.so.1
/usr/local/sublet/lib/libsublet_preload.so
";

/// The files that lie in the folder of our libraries: what the loader reads, and the settings. All
/// containers of one version and node have the same, and a container keeps those that it was started
/// with, as it does the libraries.
///
/// # Errors
/// The settings cannot be written; their paths are constants.
pub fn beside_libraries(
    mode: Mode,
    has_fake_cards: bool,
) -> Result<[(&'static str, Vec<u8>); 2], SettingsError> {
    let settings = settings(mode, has_fake_cards)?;
    Ok([(PRELOAD_NAME, PRELOAD_TEXT.into()), (FILE, settings)])
}

/// Settings by which a container's programs find their arbiter.
fn settings(mode: Mode, has_fake_cards: bool) -> Result<Vec<u8>, SettingsError> {
    let inside = |name: &str| format!("{INSIDE}/{name}").into_bytes();
    let [tenant, cuda, nvml] = ["tenant", DRIVER[0], DRIVER[1]].map(inside);
    let settings = ProcessSettings {
        directory: &tenant,
        mode,
        // The real driver is where NVIDIA's container toolkit puts it, and the interposer looks
        // there: the place is known only inside the container.
        cuda: has_fake_cards.then_some(&*cuda),
        nvml: has_fake_cards.then_some(&*nvml),
    };
    let mut text = Vec::new();
    settings.write(|piece| text.extend_from_slice(piece))?;
    Ok(text)
}

/// The two libraries of a driver that a container mounts.
const DRIVER: [&str; 2] = ["driver/libcuda.so.1", "driver/libnvidia-ml.so.1"];

/// Parts that all containers of this node have in common. Paths are the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kit {
    /// The folder with our libraries under the names that programs load, and the settings.
    pub libraries: PathBuf,
    /// For cards that a file plays.
    pub fake: Option<FakeKit>,
    /// The folder of MPS's sockets, where containers run under MPS.
    pub mps: Option<PathBuf>,
}

impl Kit {
    /// The folders of libraries that a container mounts.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let driver = self.fake.as_ref().map(|fake| &fake.driver);
        [Some(&self.libraries), driver]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}

/// The driver of cards that are not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeKit {
    /// The folder with its two libraries.
    pub driver: PathBuf,
    /// The machine's folder.
    pub machine: PathBuf,
}

impl FakeKit {
    /// The two libraries.
    #[must_use]
    pub fn files(&self) -> [PathBuf; 2] {
        ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| self.driver.join(name))
    }
}

/// Additions to a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injection {
    /// Variables.
    pub environment: BTreeMap<String, String>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Devices, by the names of their descriptions (CDI).
    pub devices: Vec<String>,
}

/// Folder in which MPS's clients and server share memory. The server is in the agent's container,
/// which therefore must have the node's own folder here (`hostIPC: true`).
const SHARED_MEMORY: &str = "/dev/shm";

/// Limits of a container on its cards, as MPS is told: the most compute time, and a limit of memory
/// for each card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLimits {
    /// The most compute time of each card.
    pub compute: Milli,
    /// Memory of each card.
    pub memory: Vec<MiB>,
}

/// Makes the additions for the container with this folder on the host and these limits.
#[must_use]
pub fn inject(kit: &Kit, tenant: &Path, limits: &ContainerLimits) -> Injection {
    let inside = |name: &str| format!("{INSIDE}/{name}");
    let mount = |host: &Path, container_path: String, read_only| Mount {
        container_path,
        host_path: host.display().to_string(),
        read_only,
    };
    let mut environment: BTreeMap<&str, String> = BTreeMap::new();
    let preload = kit.libraries.join(PRELOAD_NAME);
    let mut mounts = vec![
        // Read-only: a socket can be connected to, and not be removed or replaced.
        mount(tenant, inside("tenant"), true),
        mount(&kit.libraries, inside("lib"), true),
        mount(&preload, PRELOAD_FILE.to_owned(), true),
    ];
    // The real driver needs no mount, see `settings`.
    if let Some(fake) = &kit.fake {
        environment.insert("SUBLET_FAKE_GPU", inside("machine"));
        mounts.push(mount(&fake.driver, inside("driver"), true));
        mounts.push(mount(&fake.machine, inside("machine"), false));
    }
    if let Some(pipe) = &kit.mps {
        let terms = MpsTerms {
            pipe: inside("mps"),
            compute_limit: limits.compute,
            memory: in_any_order(&limits.memory),
        };
        environment.extend(terms.variables());
        // Its sockets are made anew with each daemon, in the same folder.
        mounts.push(mount(pipe, inside("mps"), true));
        let shared = Path::new(SHARED_MEMORY);
        mounts.push(mount(shared, SHARED_MEMORY.to_owned(), false));
    }
    let environment = environment.into_iter();
    Injection {
        environment: environment
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        mounts,
        devices: Vec::new(),
    }
}

/// The order in which a container counts its cards is known only inside it. If their limits differ,
/// MPS is told the largest of them for each; our library holds the container to the others.
fn in_any_order(limits: &[MiB]) -> Vec<MiB> {
    let largest = limits.iter().max().copied().unwrap_or(MiB::ZERO);
    vec![largest; limits.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(fake: Option<FakeKit>) -> String {
        picture_of(fake, None, &[])
    }

    fn picture_of(fake: Option<FakeKit>, mps: Option<&str>, memory: &[u32]) -> String {
        let kit = Kit {
            libraries: "/s/libraries/sublet-1".into(),
            fake,
            mps: mps.map(PathBuf::from),
        };
        let limits = ContainerLimits {
            compute: Milli::new(300).unwrap(),
            memory: memory.iter().map(|mib| MiB::from(*mib)).collect(),
        };
        let tenant = Path::new("/s/containers/u/main-0/tenant");
        let injection = inject(&kit, tenant, &limits);
        let variables = injection.environment.iter();
        let variables = variables.map(|(name, value)| format!("{name}={value}\n"));
        let mounts = injection.mounts.iter().map(|mount| {
            let how = if mount.read_only { "ro" } else { "rw" };
            format!("{how} {} at {}\n", mount.host_path, mount.container_path)
        });
        variables.chain(mounts).collect()
    }

    #[test]
    fn a_container_gets_its_folder_and_the_libraries() {
        assert_eq!(
            picture(None),
            "ro /s/containers/u/main-0/tenant at /usr/local/sublet/tenant\n\
             ro /s/libraries/sublet-1 at /usr/local/sublet/lib\n\
             ro /s/libraries/sublet-1/ld.so.preload at /etc/ld.so.preload\n"
        );
    }

    #[test]
    fn with_cards_of_a_file_it_gets_their_driver_too() {
        let fake = picture(Some(FakeKit {
            driver: "/s/libraries/fake-1".into(),
            machine: "/r/machines/sublet-fake-0-1".into(),
        }));
        for line in [
            "SUBLET_FAKE_GPU=/usr/local/sublet/machine\n",
            "ro /s/libraries/fake-1 at /usr/local/sublet/driver\n",
            // Its processes write their use of memory there, as into a card.
            "rw /r/machines/sublet-fake-0-1 at /usr/local/sublet/machine\n",
        ] {
            assert!(fake.contains(line), "{line} is not in\n{fake}");
        }
    }

    #[test]
    fn the_settings_lie_where_they_are_looked_for_and_name_what_is_mounted() {
        let place = sublet_abi::settings::PLACES[0].to_str().unwrap();
        assert_eq!(place, format!("{INSIDE}/lib/{FILE}"));
        for (mode, has_fake_cards, text) in [
            (
                Mode::Strict,
                false,
                "sublet settings 1\nSUBLET_DIR=/usr/local/sublet/tenant\nSUBLET_MODE=strict\n",
            ),
            (
                Mode::Compat,
                true,
                "sublet settings 1\nSUBLET_DIR=/usr/local/sublet/tenant\nSUBLET_MODE=compat\n\
                 SUBLET_DRIVER_CUDA=/usr/local/sublet/driver/libcuda.so.1\n\
                 SUBLET_DRIVER_NVML=/usr/local/sublet/driver/libnvidia-ml.so.1\n",
            ),
        ] {
            let [_, settings] = beside_libraries(mode, has_fake_cards).unwrap();
            assert_eq!(settings, (FILE, text.into()));
        }
    }

    #[test]
    fn a_client_of_mps_gets_its_limits_and_the_way_to_the_daemon() {
        for (memory, limits) in [
            (&[300][..], "0=300M"),
            // Which is which is not known here.
            (&[300, 500], "0=500M,1=500M"),
        ] {
            let client = picture_of(None, Some("/r/gpu/mps/pipe"), memory);
            let limits = format!("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}\n");
            for line in [
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30\n",
                "CUDA_MPS_PIPE_DIRECTORY=/usr/local/sublet/mps\n",
                "ro /r/gpu/mps/pipe at /usr/local/sublet/mps\n",
                "rw /dev/shm at /dev/shm\n",
                &limits,
            ] {
                assert!(client.contains(line), "{line} is not in\n{client}");
            }
        }
        // Our library looks for the sockets beside the folder `tenant`.
        assert_eq!(sublet_abi::settings::MPS_PIPES[1], "../mps");
    }

    #[test]
    fn nothing_depends_on_ld_preload_and_every_library_is_named_once() {
        assert!(!picture(None).contains("LD_PRELOAD"));
        let names: Vec<&str> = PRELOAD_TEXT.lines().collect();
        assert_eq!(names.len(), 3);
        let below = format!("{INSIDE}/lib/");
        assert!(names.iter().all(|name| name.starts_with(&below)));
        // The driver's names first, so that nobody else takes them.
        assert!(names[2].ends_with(sublet_arbiter::libraries::PRELOAD));
    }
}
