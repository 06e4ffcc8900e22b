//! Needs of a job on a machine: our libraries, the driver behind them, and the mounts. They are
//! found before the job is queued, so that nobody waits for a place and then fails.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sublet_abi::settings::PLACES;
use sublet_arbiter::libraries::{Carried, Store};

use super::arbiter::LaunchOptions;
use super::driver::{self, DriverFiles, DriverLibrary, Search};
use super::environment::{self, JobEnvironment};
use super::libraries::{self, Interposer};
use super::mounts::{self, Bind, MountPlan, Mounted};
use crate::answer::Advised;
use crate::machine::Machine;

/// Everything a job needs on a machine, found before it is queued.
pub(super) struct Setup {
    /// Keeps the files of both in their places.
    _store: Store,
    pub(super) interposer: Interposer,
    /// The two libraries behind ours: the real driver's, or the fake one's.
    pub(super) driver: (PathBuf, PathBuf),
    /// The fake machine's folder.
    pub(super) fake: Option<PathBuf>,
    /// Mounts for the command.
    pub(super) mounts: MountPlan,
    /// Options for the start of an arbiter.
    pub(super) launch: LaunchOptions,
}

impl Setup {
    /// Finds our libraries and the driver's. `carried` are the libraries inside this program, if it
    /// has any.
    ///
    /// # Errors
    /// A library is missing or cannot be copied; there is no driver.
    pub(super) fn find(
        machine: &Machine,
        carried: Option<&'static Carried>,
    ) -> anyhow::Result<Setup> {
        machine.prepare()?;
        let store = libraries::usual_store(machine, carried)?;
        let interposer = libraries::interposer(&store)?;
        refuse_unloadable(&interposer)?;
        // An outer job on a fake machine has its own idea of what is real.
        let set = |library: DriverLibrary| library.set().filter(|_| machine.fake.is_none());
        let own = [interposer.cuda.clone(), interposer.nvml.clone()];
        let search = Search {
            folders: driver::folders(std::env::var_os("LD_LIBRARY_PATH").as_deref()),
            own: &own,
            set: [set(DriverLibrary::Cuda), set(DriverLibrary::Nvml)],
        };
        let found = DriverFiles::find(&search);
        let (driver, fake, real) = match &machine.fake {
            Some(fake) => {
                let machine = sublet_fakegpu::FakeMachine::from_text(fake.text())?;
                let folder = machine.folder().to_owned();
                (libraries::fake_driver(&store)?, Some(folder), None)
            }
            None => {
                let (cuda, nvml) = found.chosen(&search)?;
                let pair = (cuda.to_owned(), nvml.to_owned());
                (pair, None, Some((cuda, nvml)))
            }
        };
        let folder = machine.file("driver");
        let mounts = mounts::plan(&found, &interposer, real, &folder);
        let launch = LaunchOptions {
            driver: real.map(|(cuda, nvml)| (cuda.to_owned(), nvml.to_owned())),
        };
        // Those of earlier versions; what stays is looked at another time.
        let _removed = store.remove_unused(&[]);
        Ok(Setup {
            _store: store,
            interposer,
            driver,
            fake,
            mounts,
            launch,
        })
    }

    fn may_mount(&self) -> bool {
        !self.mounts.binds.is_empty() && mounts::is_allowed()
    }

    /// The mounts, if they are allowed and there is a file to mount over. Without them preloading
    /// reaches all programs but those that load the driver past the C library or have lost the
    /// job's environment, and the arbiter reports these. `more` are mounts that the user asked for.
    ///
    /// # Errors
    /// They are not allowed, or the kernel refuses one.
    pub(super) fn mount(&self, given: &JobEnvironment, more: &[Bind]) -> io::Result<Mounted> {
        if !mounts::is_allowed() || (self.mounts.binds.is_empty() && more.is_empty()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let settings = environment::settings(given).map_err(io::Error::other)?;
        let mut plan = self.mounts.clone();
        plan.binds.extend_from_slice(more);
        Mounted::apply(&plan, (mounts::settings_file(), &settings))
    }

    /// Refuses a job whose programs would read an existing settings file instead of ours.
    ///
    /// # Errors
    /// Such a file exists, and we cannot mount another over it.
    pub(super) fn refuse_if_told_otherwise(&self) -> Result<(), Advised> {
        let places = PLACES.map(|place| Path::new(OsStr::from_bytes(place.to_bytes())));
        refuse_if_told(&places, self.may_mount())
    }
}

/// `places` are the paths of settings files; we can mount over the last one.
fn refuse_if_told(places: &[&Path], may_mount: bool) -> Result<(), Advised> {
    let decisive = &places[..places.len() - usize::from(may_mount)];
    match decisive.iter().find(|place| place.exists()) {
        None => Ok(()),
        Some(place) => Err(Advised::new(
            format!(
                "programs here have a part of a GPU already: {} says which",
                place.display()
            ),
            "start the program itself, without `sublet run`",
        )),
    }
}

/// The dynamic linker takes blanks and colons in `LD_PRELOAD` for the end of a path.
fn refuse_unloadable(interposer: &Interposer) -> Result<(), Advised> {
    let folder = interposer.cuda.display().to_string();
    if folder.contains([' ', ':', ';']) {
        return Err(Advised::new(
            format!("{folder} cannot be preloaded: its path has a blank or a colon"),
            "SUBLET_RUNTIME_DIR can name another folder",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_refused_where_its_programs_would_go_by_another_s_settings() {
        let base = tempfile::tempdir().unwrap();
        let places = ["container", "job"].map(|name| base.path().join(name));
        let check = |may_mount| refuse_if_told(&[&places[0], &places[1]], may_mount);
        assert!(check(false).is_ok() && check(true).is_ok());
        // A job inside root's job: root's own inner job has settings of its own.
        std::fs::write(&places[1], "").unwrap();
        assert!(check(true).is_ok());
        let why = crate::error_text(&check(false).unwrap_err().into());
        let start = format!(
            "error: programs here have a part of a GPU already: {} says which\nhint: start",
            places[1].display()
        );
        assert!(why.starts_with(&start), "{why}");
        std::fs::write(&places[0], "").unwrap();
        assert!(check(true).is_err() && check(false).is_err());
    }
}
