//! Our libraries in place of the driver's files, for one job. Programs that open the driver by an
//! absolute path, or by a name that no preload answers to, then find ours too. So do programs
//! without the job's environment, such as setuid ones: for them a file holds the values of the
//! variables. Only root may mount. The mounts are in a namespace of their own, which ends with the
//! job's last process, and nobody else sees them.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount,
};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, move_into_link_name_space,
};
use sublet_abi::settings::PLACES;

use super::driver::{DriverFiles, DriverLibrary};
use super::libraries::Interposer;

/// One file over another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bind {
    /// File that is shown at the target.
    pub(super) source: PathBuf,
    /// Path of the mount.
    pub(super) target: PathBuf,
}

/// Mounts of a job, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MountPlan {
    pub(super) binds: Vec<Bind>,
    /// Paths under which the real driver stays reachable: CUDA and NVML; `None` if a fake one is
    /// used.
    pub(super) real: Option<(PathBuf, PathBuf)>,
}

/// The mounts of a job. `real` is the real driver's two files, if the job uses it: they are
/// mounted again in `folder` first, because their own places are taken after that.
pub(super) fn plan(
    driver: &DriverFiles,
    ours: &Interposer,
    real: Option<(&Path, &Path)>,
    folder: &Path,
) -> MountPlan {
    let mut binds = Vec::new();
    let kept = real.map(|(cuda, nvml)| {
        let mut keep = |source: &Path, library: DriverLibrary| {
            let target = folder.join(library.soname());
            // A job inside a job: the outer one has kept it there already.
            if source != target {
                binds.push(Bind {
                    source: source.to_owned(),
                    target: target.clone(),
                });
            }
            target
        };
        (
            keep(cuda, DriverLibrary::Cuda),
            keep(nvml, DriverLibrary::Nvml),
        )
    });
    let over = |files: &[PathBuf], ours: &Path| -> Vec<Bind> {
        let bind = |target: &PathBuf| Bind {
            source: ours.to_owned(),
            target: target.clone(),
        };
        let taken = files.iter().filter(|file| !file.starts_with(folder));
        taken.map(bind).collect()
    };
    binds.extend(over(&driver.cuda, &ours.cuda));
    binds.extend(over(&driver.nvml, &ours.nvml));
    MountPlan { binds, real: kept }
}

/// Checks whether this process may mount. Its mounts are believed because they are root's.
pub(super) fn is_allowed() -> bool {
    let may_mount = || {
        let own = capabilities(None);
        own.is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN))
    };
    rustix::process::geteuid().is_root() && may_mount()
}

/// File in which the programs of a job look for their settings.
pub(super) fn settings_file() -> &'static Path {
    Path::new(OsStr::from_bytes(PLACES[1].to_bytes()))
}

/// This process in a mount namespace of its own. Its children inherit the namespace. Dropping this
/// value takes the process itself back, so that an arbiter that it may start later sees the real
/// driver.
pub(super) struct Mounted {
    outside: File,
    folder: File,
}

impl Mounted {
    /// Enters a new namespace and mounts; `settings` are the settings file's path and its content
    /// there.
    ///
    /// # Errors
    /// An error of the kernel; the process is then back in its old namespace.
    pub(super) fn apply(plan: &MountPlan, settings: (&Path, &[u8])) -> io::Result<Mounted> {
        if let Some((cuda, nvml)) = &plan.real {
            // A file can only be mounted over a file.
            for file in [cuda, nvml] {
                if let Some(folder) = file.parent() {
                    std::fs::create_dir_all(folder)?;
                    // Whatever the mask of new files is: the command may become another user.
                    std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
                }
                File::options().create(true).append(true).open(file)?;
            }
        }
        let mounted = Mounted {
            outside: File::open("/proc/self/ns/mnt")?,
            folder: File::open(".")?,
        };
        own_name_space()?;
        // What is mounted here must not appear outside; what is mounted outside may appear
        // here, such as a disk that is plugged in while the job runs.
        mount_change(
            "/",
            MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
        )?;
        for bind in &plan.binds {
            mount_bind(&bind.source, &bind.target)?;
        }
        mount_settings(settings)?;
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It was this process's own a moment ago: nothing can refuse it. The kernel moves
        // whoever enters a name space to its root folder.
        let _back = move_into_link_name_space(self.outside.as_fd(), Some(LinkNameSpaceType::Mount));
        let _back = rustix::process::fchdir(&self.folder);
    }
}

/// A file system with only this file, which nobody can change. The folder under the mount stays,
/// empty and open to all: to remove it would take it from other jobs too.
fn mount_settings((file, text): (&Path, &[u8])) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let all = |mode| Permissions::from_mode(mode);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)?;
    // Whatever the mask of new files is. A job inside a job finds the outer one's, for reading only.
    let _as_it_is = std::fs::set_permissions(folder, all(0o755));
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sublet", folder, "tmpfs", flags, c"mode=755,size=64k")?;
    std::fs::write(file, text)?;
    std::fs::set_permissions(file, all(0o644))?;
    Ok(mount_remount(folder, flags | MountFlags::RDONLY, "")?)
}

#[expect(
    deprecated,
    reason = "its successor is unsafe because of tables of descriptors, which are not unshared here"
)]
fn own_name_space() -> io::Result<()> {
    Ok(rustix::thread::unshare(UnshareFlags::NEWNS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Interposer {
        Interposer {
            cuda: "/l/libcuda.so.1".into(),
            nvml: "/l/libnvidia-ml.so.1".into(),
            preload: "/l/libsublet_preload.so".into(),
        }
    }

    fn check(real: Option<(&Path, &Path)>) -> String {
        let driver = DriverFiles {
            cuda: vec!["/a/libcuda.so.580".into(), "/b/libcuda.so.1".into()],
            nvml: vec!["/a/libnvidia-ml.so.580".into()],
        };
        let plan = plan(&driver, &ours(), real, Path::new("/r/driver"));
        let lines = plan
            .binds
            .iter()
            .map(|bind| format!("{} over {}\n", bind.source.display(), bind.target.display()));
        lines.collect()
    }

    #[test]
    fn the_real_driver_is_kept_before_its_place_is_taken() {
        let real = (
            Path::new("/a/libcuda.so.580"),
            Path::new("/a/libnvidia-ml.so.580"),
        );
        assert_eq!(
            check(Some(real)),
            "/a/libcuda.so.580 over /r/driver/libcuda.so.1\n\
             /a/libnvidia-ml.so.580 over /r/driver/libnvidia-ml.so.1\n\
             /l/libcuda.so.1 over /a/libcuda.so.580\n\
             /l/libcuda.so.1 over /b/libcuda.so.1\n\
             /l/libnvidia-ml.so.1 over /a/libnvidia-ml.so.580\n"
        );
        assert_eq!(
            check(None),
            "/l/libcuda.so.1 over /a/libcuda.so.580\n\
             /l/libcuda.so.1 over /b/libcuda.so.1\n\
             /l/libnvidia-ml.so.1 over /a/libnvidia-ml.so.580\n"
        );
        // Inside another job, whose real driver is where ours would be.
        let inner = DriverFiles {
            cuda: vec!["/r/driver/libcuda.so.1".into()],
            nvml: vec!["/r/driver/libnvidia-ml.so.1".into()],
        };
        let real = (&*inner.cuda[0], &*inner.nvml[0]);
        let inside = plan(&inner, &ours(), Some(real), Path::new("/r/driver"));
        assert_eq!(inside.binds, []);
        assert_eq!(inside.real.unwrap().0, inner.cuda[0]);
        let nothing = plan(&DriverFiles::default(), &ours(), None, Path::new("/r"));
        assert_eq!(nothing, MountPlan::default());
    }

    /// Runs only if the tests are root: nobody else can mount. It needs a thread of its own,
    /// because a namespace belongs to a thread.
    #[test]
    fn mounts_are_the_job_s_alone() {
        if !is_allowed() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let (real, ours) = (base.path().join("real"), base.path().join("ours"));
        std::fs::write(&real, "real").unwrap();
        std::fs::write(&ours, "ours").unwrap();
        let kept = base.path().join("driver/libcuda.so.1");
        let bind = |source: &Path, target: &Path| Bind {
            source: source.to_owned(),
            target: target.to_owned(),
        };
        let plan = MountPlan {
            binds: vec![bind(&real, &kept), bind(&ours, &real)],
            real: Some((kept.clone(), base.path().join("driver/nvml"))),
        };
        let settings = base.path().join("job/settings");
        let reads = |file: &Path| std::fs::read_to_string(file).unwrap();
        let inside = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let mounted = Mounted::apply(&plan, (&settings, b"told"));
                mounted.map(|mounted| {
                    let seen = (reads(&kept), reads(&real), reads(&settings));
                    let written = std::fs::write(&settings, "other");
                    assert_eq!(
                        written.unwrap_err().kind(),
                        io::ErrorKind::ReadOnlyFilesystem
                    );
                    let child = std::process::Command::new("cat").arg(&real).output();
                    drop(mounted);
                    (seen, String::from_utf8(child.unwrap().stdout).unwrap())
                })
            });
            inside.join().unwrap()
        });
        // A sandbox may give the capability and refuse the call.
        let Ok((seen, child)) = inside else { return };
        assert_eq!(seen, ["real", "ours", "told"].map(str::to_owned).into());
        assert!(!settings.exists(), "nobody else sees it");
        assert_eq!(child, "ours");
        assert_eq!(
            (reads(&real), reads(&kept)),
            ("real".to_owned(), String::new())
        );
    }
}
