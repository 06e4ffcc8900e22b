//! The request for a new job, as a command sends it, and as the arbiter records it.

use serde::{Deserialize, Serialize};
use sublet_abi::Mode;
use sublet_model::Class;

/// A new job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Submit {
    /// A name for people.
    pub name: String,
    /// `4GiB`, `512MiB` or `50%`, of each card; nothing for whole cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Limit of pinned host memory: `4GiB`, `512MiB`; nothing for no limit. An arbiter without
    /// such limits answers without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_memory: Option<String>,
    /// Compute time of each card: `30%` or `30%..80%` ([`parse_compute`](super::compute::parse_compute)); nothing for no promise
    /// and no limit. An arbiter that shares no compute time answers without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// Class: decides which job gives way when compute time is short. An arbiter that shares no
    /// compute time ignores it.
    #[serde(default, with = "ClassText")]
    pub class: Class,
    /// Length of its turns while others wait: `2ms` ([`SliceLength`](sublet_model::SliceLength));
    /// nothing for the usual one. An arbiter without this choice ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// On how many cards.
    #[serde(default = "one")]
    pub gpus: u32,
    /// Cards where the job may run, each by its number or the beginning of its UUID
    /// ([`is_name_of`]); nothing for any card. An arbiter without this choice ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cards: Option<Vec<String>>,
    /// Wait until there is room, or be refused?
    pub wait: bool,
    /// Higher goes first among the jobs that wait. An arbiter without priorities ignores it.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub priority: i32,
    /// Reaction of the job's libraries when they find no arbiter or meet an unknown function.
    #[serde(default = "strict", with = "ModeText")]
    pub mode: Mode,
}

/// Returns true for the default priority, which messages leave out.
fn is_usual(priority: &i32) -> bool {
    *priority == 0
}

fn one() -> u32 {
    1
}

/// Does a text name that card: by its number, as `nvidia-smi` counts, or by its UUID or the
/// beginning of it?
#[must_use]
pub fn is_name_of(name: &str, index: u16, uuid: &str) -> bool {
    const START: &str = "GPU-";
    if let Ok(number) = name.parse::<u16>() {
        return number == index;
    }
    let beginning = uuid.get(..name.len());
    name.len() > START.len() && beginning.is_some_and(|begins| begins.eq_ignore_ascii_case(name))
}

/// [`Mode`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode", rename_all = "camelCase")]
enum ModeText {
    Compat,
    Strict,
}

/// [`Class`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Class", rename_all = "camelCase")]
enum ClassText {
    Guaranteed,
    Opportunistic,
}

fn strict() -> Mode {
    Mode::Strict
}
