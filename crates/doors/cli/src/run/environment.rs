//! Environment of CMD: the address of its arbiter, the libraries before the driver, the cards that
//! it sees. If we may mount, a file holds the same settings, so that they also apply to programs
//! with another environment. A function of its inputs; it reads no variable itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use sublet_abi::settings::{self, ProcessSettings, SettingsError};
use sublet_arbiter::admin::{Mode, Placed, PlacedGpu, PlacedMps, is_name_of};
use sublet_arbiter::libraries::PRELOAD;
use sublet_model::{MiB, Milli};
use sublet_share::MpsTerms;

use super::libraries::Interposer;

/// Parts of a job's environment.
pub(super) struct JobEnvironment<'a> {
    /// Place of the job.
    pub(super) placed: &'a Placed,
    /// The cards that the user named, in the order in which the job shall count them.
    pub(super) chosen: &'a [String],
    /// Strictness of its libraries.
    pub(super) mode: Mode,
    /// Our libraries.
    pub(super) interposer: &'a Interposer,
    /// The real or fake driver's two libraries.
    pub(super) driver: (&'a Path, &'a Path),
    /// The fake machine's folder.
    pub(super) fake: Option<&'a Path>,
    /// The socket for its driver's notices.
    pub(super) notices: Option<&'a Path>,
    /// Earlier value of `LD_PRELOAD`.
    pub(super) preload: Option<&'a OsStr>,
}

/// The variables to set, on top of everything the user has set.
pub(super) fn environment(given: &JobEnvironment) -> Vec<(&'static str, OsString)> {
    let mut gpus: Vec<&PlacedGpu> = given.placed.gpus.iter().collect();
    let place = |gpu: &PlacedGpu| {
        let mut names = given.chosen.iter();
        names.position(|name| is_name_of(name, gpu.index, &gpu.uuid))
    };
    // Stable: cards that nobody named stay in the order of their numbers.
    gpus.sort_by_key(|gpu| place(gpu));
    let uuids: Vec<&str> = gpus.iter().map(|gpu| &*gpu.uuid).collect();
    let ours = given.interposer;
    let mut set = vec![
        (settings::DIRECTORY, OsString::from(&given.placed.dir)),
        (settings::MODE, settings::word_of(given.mode).into()),
        (settings::DRIVER_CUDA, given.driver.0.into()),
        (settings::DRIVER_NVML, given.driver.1.into()),
        ("LD_PRELOAD", preload(ours, given.preload)),
        ("CUDA_VISIBLE_DEVICES", OsString::from(uuids.join(","))),
    ];
    if let Some(mps) = &given.placed.mps {
        let variables = mps_terms(mps, &gpus).variables();
        set.extend(variables.map(|(name, value)| (name, value.into())));
    }
    if let Some(machine) = given.fake {
        set.push((sublet_fakegpu::machine::VARIABLE, machine.into()));
    }
    if let Some(place) = given.notices {
        set.push((sublet_fakegpu::notice::VARIABLE, place.into()));
    }
    set
}

/// Settings file with the values of the first four variables. The file takes precedence over all
/// variables.
pub(super) fn settings(given: &JobEnvironment) -> Result<Vec<u8>, SettingsError> {
    let settings = ProcessSettings {
        directory: given.placed.dir.as_bytes(),
        mode: given.mode,
        cuda: Some(given.driver.0.as_os_str().as_bytes()),
        nvml: Some(given.driver.1.as_os_str().as_bytes()),
    };
    let mut bytes = Vec::new();
    settings.write(|piece| bytes.extend_from_slice(piece))?;
    Ok(bytes)
}

/// MPS terms of the job; its cards are in this order.
fn mps_terms(mps: &PlacedMps, gpus: &[&PlacedGpu]) -> MpsTerms {
    let limits = gpus.iter().map(|gpu| MiB::new(gpu.limit_mib));
    MpsTerms {
        pipe: mps.pipe.clone(),
        compute_limit: Milli::new(mps.compute_limit_milli).unwrap_or(Milli::WHOLE),
        memory: limits.map(|limit| limit.unwrap_or(MiB::MAX)).collect(),
    }
}

/// Our libraries come first, so that the driver's names are taken before any other library can take
/// them. The user's libraries follow, without the libraries of a job around this one.
fn preload(ours: &Interposer, user: Option<&OsStr>) -> OsString {
    let mut all: Vec<Vec<u8>> = [&ours.cuda, &ours.nvml, &ours.preload]
        .map(|file| file.as_os_str().as_bytes().to_vec())
        .into();
    all.extend(foreign(user).into_iter().map(<[u8]>::to_vec));
    OsString::from_vec(all.join(&b':'))
}

/// `LD_PRELOAD` without our own libraries, for a process that is no part of a job; `None` if
/// nothing is left.
pub(super) fn without_ours(user: Option<&OsStr>) -> Option<OsString> {
    let rest = foreign(user);
    (!rest.is_empty()).then(|| OsString::from_vec(rest.join(&b':')))
}

/// The entries that are not ours. Ours are the files beside a `libsublet_preload.so`.
fn foreign(user: Option<&OsStr>) -> Vec<&[u8]> {
    let entries: Vec<&[u8]> = user
        .map(OsStr::as_bytes)
        .unwrap_or_default()
        .split(|byte| matches!(byte, b' ' | b':'))
        .filter(|entry| !entry.is_empty())
        .collect();
    let folder = |entry: &[u8]| {
        let path = Path::new(OsStr::from_bytes(entry));
        path.parent().map(Path::to_owned)
    };
    let is_marker = |entry: &&&[u8]| {
        Path::new(OsStr::from_bytes(entry)).file_name() == Some(OsStr::new(PRELOAD))
    };
    let own: Vec<_> = entries
        .iter()
        .filter(is_marker)
        .map(|e| folder(e))
        .collect();
    entries
        .iter()
        .filter(|entry| !own.contains(&folder(entry)))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(fake: Option<&Path>, preload: Option<&str>) -> String {
        check_chosen(fake, preload, &[])
    }

    fn check_chosen(fake: Option<&Path>, preload: Option<&str>, chosen: &[&str]) -> String {
        check_all(fake, preload, chosen, None)
    }

    fn check_all(
        fake: Option<&Path>,
        preload: Option<&str>,
        chosen: &[&str],
        mps: Option<PlacedMps>,
    ) -> String {
        let chosen: Vec<String> = chosen.iter().map(|name| (*name).to_owned()).collect();
        let gpu = |index, uuid: &str| PlacedGpu {
            index,
            uuid: uuid.to_owned(),
            limit_mib: 4096 + u64::from(index),
            context_mib: 0,
        };
        let placed = Placed {
            id: 3,
            gpus: vec![gpu(0, "GPU-a"), gpu(2, "GPU-c")],
            pinned_limit_mib: None,
            compute: None,
            mps,
            dir: "/run/sublet/gpu".to_owned(),
        };
        let interposer = Interposer {
            cuda: "/l/libcuda.so.1".into(),
            nvml: "/l/libnvidia-ml.so.1".into(),
            preload: "/l/libsublet_preload.so".into(),
        };
        let given = JobEnvironment {
            placed: &placed,
            chosen: &chosen,
            mode: Mode::Strict,
            interposer: &interposer,
            driver: (Path::new("/d/libcuda.so.1"), Path::new("/d/nvml")),
            fake,
            notices: fake.map(|_| Path::new("/m/notice-1")),
            preload: preload.map(OsStr::new),
        };
        let set = environment(&given);
        let lines = set
            .iter()
            .map(|(name, value)| format!("{name}={}\n", value.to_string_lossy()));
        let all: String = lines.collect();
        // The file says what the variables say, in as many words.
        let file = String::from_utf8(settings(&given).unwrap()).unwrap();
        let (_version, file) = file.split_once('\n').unwrap();
        assert!(all.starts_with(file), "{file} is not the start of {all}");
        assert_eq!(file.lines().count(), 4);
        all
    }

    #[test]
    fn a_job_finds_everything_in_its_environment() {
        assert_eq!(
            check(None, None),
            "SUBLET_DIR=/run/sublet/gpu\n\
             SUBLET_MODE=strict\n\
             SUBLET_DRIVER_CUDA=/d/libcuda.so.1\n\
             SUBLET_DRIVER_NVML=/d/nvml\n\
             LD_PRELOAD=/l/libcuda.so.1:/l/libnvidia-ml.so.1:/l/libsublet_preload.so\n\
             CUDA_VISIBLE_DEVICES=GPU-a,GPU-c\n"
        );
        let fake = check(Some(Path::new("/dev/shm/sublet-fake-0-1")), None);
        let machine = "SUBLET_FAKE_GPU=/dev/shm/sublet-fake-0-1";
        let expected = format!("\n{machine}\nSUBLET_FAKE_NOTICE=/m/notice-1\n");
        assert!(fake.ends_with(&expected), "{fake}");
    }

    #[test]
    fn a_client_of_mps_has_its_limits_in_the_order_of_its_cards() {
        let mps = || {
            Some(PlacedMps {
                pipe: "/run/sublet/gpu/mps/pipe".to_owned(),
                compute_limit_milli: 300,
            })
        };
        for (chosen, limits) in [
            (&[][..], "0=4096M,1=4098M"),
            (&["2", "0"], "0=4098M,1=4096M"),
        ] {
            let all = check_all(None, None, chosen, mps());
            let told = format!(
                "\nCUDA_MPS_PIPE_DIRECTORY=/run/sublet/gpu/mps/pipe\n\
                 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30\n\
                 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limits}\n"
            );
            assert!(all.ends_with(&told), "{chosen:?}: {all}");
        }
        assert!(!check(None, None).contains("MPS"));
    }

    #[test]
    fn a_job_counts_its_cards_as_the_user_named_them() {
        for (chosen, expected) in [
            (&[][..], "GPU-a,GPU-c"),
            (&["0", "2"], "GPU-a,GPU-c"),
            (&["2", "0"], "GPU-c,GPU-a"),
            (&["1", "2", "GPU-a"], "GPU-c,GPU-a"),
        ] {
            let all = check_chosen(None, None, chosen);
            let line = format!("\nCUDA_VISIBLE_DEVICES={expected}\n");
            assert!(all.contains(&line), "{chosen:?}: {all}");
        }
    }

    #[test]
    fn the_user_s_preloads_are_kept_and_an_outer_job_s_are_not() {
        let kept = |preload: &str| {
            let all = check(None, Some(preload));
            let line = all.lines().find_map(|l| l.strip_prefix("LD_PRELOAD="));
            let ours = "/l/libcuda.so.1:/l/libnvidia-ml.so.1:/l/libsublet_preload.so";
            line.unwrap().strip_prefix(ours).unwrap().to_owned()
        };
        assert_eq!(kept(""), "");
        assert_eq!(kept("a.so  /b/c.so:"), ":a.so:/b/c.so");
        assert_eq!(
            kept("/o/libcuda.so.1:/o/libsublet_preload.so:/x/libcuda.so.1"),
            ":/x/libcuda.so.1"
        );
        let own = OsStr::new("/o/libcuda.so.1 /o/libsublet_preload.so");
        assert_eq!(without_ours(Some(own)), None);
        assert_eq!(without_ours(None), None);
        assert_eq!(
            without_ours(Some(OsStr::new("a.so"))),
            Some(OsString::from("a.so"))
        );
    }
}
