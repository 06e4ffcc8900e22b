//! Data sets of a job: brought here before the job asks for its GPUs, and kept until it ends.

use std::ffi::OsString;
use std::path::PathBuf;

use sublet_dataset::{DatasetClient, check_dataset_name};

use super::mounts::Bind;
use crate::answer::Advised;
use crate::dataset::{StoreArgs, held};

/// Start of the variables that say where a job's data sets are.
const VARIABLE: &str = "SUBLET_DATASET_";

/// A data set of a job, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedDataset {
    name: String,
    /// Folder that shows it to the job.
    target: Option<PathBuf>,
}

/// Reads `NAME` or `NAME=FOLDER`.
pub(super) fn wanted(text: &str) -> Result<WantedDataset, String> {
    let (name, target) = match text.split_once('=') {
        Some((name, target)) => (name, Some(PathBuf::from(target))),
        None => (text, None),
    };
    check_dataset_name(name)?;
    if let Some(target) = target.as_ref().filter(|target| !target.is_absolute()) {
        return Err(format!(
            "`{}` is no absolute path; write `{name}=/data`",
            target.display()
        ));
    }
    Ok(WantedDataset {
        name: name.to_owned(),
        target,
    })
}

/// Data sets that stay as long as this value does.
#[derive(Debug, Default)]
pub(super) struct HeldDatasets {
    sets: Vec<(WantedDataset, PathBuf)>,
    /// Each connection is a lease.
    _leases: Vec<DatasetClient>,
}

/// Brings the data sets of a job here. `may_mount`: folders of its own can be shown to the job.
///
/// # Errors
/// One cannot be had, or not be shown where it was asked for.
pub(super) fn hold(
    wanted: &[WantedDataset],
    store: &StoreArgs,
    may_mount: bool,
) -> anyhow::Result<HeldDatasets> {
    refuse(wanted, may_mount)?;
    let mut all = HeldDatasets::default();
    for wanted in wanted {
        let (lease, path) = held(store, &wanted.name)?;
        all.sets.push((wanted.clone(), path));
        all._leases.push(lease);
    }
    Ok(all)
}

/// Refuses what cannot be shown, before anything is fetched.
fn refuse(wanted: &[WantedDataset], may_mount: bool) -> Result<(), Advised> {
    let wrong = |what: String, hint: &str| Err(Advised::new(what, hint).of_input());
    for (at, set) in wanted.iter().enumerate() {
        let variable = variable(&set.name);
        if let Some(other) = wanted[..at]
            .iter()
            .find(|other| self::variable(&other.name) == variable)
        {
            let what = format!(
                "the data sets {} and {} have one variable, {variable}",
                other.name, set.name
            );
            return wrong(
                what,
                "name each data set once, and give one of two another name",
            );
        }
        let Some(target) = &set.target else {
            continue;
        };
        if !may_mount {
            let what = format!(
                "the data set {} cannot be shown in {}",
                set.name,
                target.display()
            );
            let hint = format!(
                "only root may mount; without `=FOLDER` the variable {variable} says where it is"
            );
            return wrong(what, &hint);
        }
        if !target.is_dir() {
            let what = format!("{} is no folder", target.display());
            return wrong(
                what,
                "make it first: a data set is shown over an empty folder",
            );
        }
    }
    Ok(())
}

impl HeldDatasets {
    /// Variables of the job: the folder of each data set.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, OsString)> + '_ {
        self.sets.iter().map(|(wanted, path)| {
            let shown = wanted.target.as_ref().unwrap_or(path);
            (variable(&wanted.name), shown.into())
        })
    }

    /// Mounts of the job.
    pub(super) fn binds(&self) -> Vec<Bind> {
        let targets = self.sets.iter().filter_map(|(wanted, path)| {
            Some(Bind {
                source: path.clone(),
                target: wanted.target.clone()?,
            })
        });
        targets.collect()
    }
}

/// Variable of a data set: its name in capitals, `_` for what no variable may have.
fn variable(name: &str) -> String {
    let letters = name
        .chars()
        .map(|letter| match letter.is_ascii_alphanumeric() {
            true => letter.to_ascii_uppercase(),
            false => '_',
        });
    VARIABLE.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_is_a_name_and_perhaps_a_folder() {
        let set = wanted("img-net.1=/data").unwrap();
        assert_eq!(set.target, Some(PathBuf::from("/data")));
        assert_eq!(variable(&set.name), "SUBLET_DATASET_IMG_NET_1");
        assert_eq!(wanted("a").unwrap().target, None);
        for wrong in ["", "=/data", "a b", "a=", "a=data", "../a"] {
            assert!(wanted(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_shown_is_refused_before_it_is_fetched() {
        let all = |texts: &[&str]| -> Vec<WantedDataset> {
            texts.iter().map(|text| wanted(text).unwrap()).collect()
        };
        let fault =
            |texts: &[&str], may_mount| refuse(&all(texts), may_mount).unwrap_err().to_string();
        assert!(fault(&["a-b", "a.b"], true).contains("one variable, SUBLET_DATASET_A_B"));
        assert!(fault(&["a=/tmp"], false).contains("cannot be shown"));
        assert!(fault(&["a=/nowhere"], true).contains("no folder"));
        refuse(&all(&["a=/tmp", "b"]), true).unwrap();
        refuse(&all(&["a", "b"]), false).unwrap();
    }
}
