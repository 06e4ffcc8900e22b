//! What people's commands and the arbiter say to each other on `admin.sock`: JSON, one
//! message a line. It exists so that the commands, the node agent and the arbiter share one
//! set of types; it decides nothing and never touches a shared page.
//!
//! A connection says one [`Request`] and gets [`Reply`]s. After `submit` and `resume` the
//! connection is the job's life line: the job ends when it closes. The job's root is the
//! process that made the connection, as the kernel names it, and no number in a message.
//!
//! A line the other side does not understand is answered by [`Reply::Error`]; fields that it
//! does not know are ignored, so that a newer command can talk to an older arbiter.

mod amount;
mod client;
mod compute;
mod counters;
mod mps;

pub use amount::{AmountError, parse_amount, parse_size};
pub use client::{Client, ClientError};
pub use compute::{ComputeError, parse_compute};
pub use counters::{Counters, UserRow};
pub use mps::{MpsRow, PlacedMps};
pub use sublet_abi::Mode;
pub use sublet_model::Class;

use serde::{Deserialize, Serialize};

use crate::gauge::Sizes;

/// The version of these messages. It rises when an old command could misunderstand a reply.
pub const PROTOCOL: u32 = 1;

/// The longest line that either side accepts.
pub const LINE_MAX: usize = 1 << 20;

/// What a command asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Request {
    /// Place a new job. Replies: `placed`; or `waiting` (again at each change), then `placed`;
    /// or `refused`. Later, while the job runs: `limited` when somebody changes its limits.
    Submit(Submit),
    /// A job that had its cards before the arbiter was restarted. It gets what the arbiter has
    /// recorded of it, if the process that asks is its root. Replies: `placed` or `refused`.
    Resume {
        /// The job.
        id: u64,
    },
    /// Everything there is to see, once. Reply: `snapshot`.
    List,
    /// The same every so often, until the connection is closed.
    Watch {
        /// Milliseconds between two snapshots; less than 100 counts as 100.
        #[serde(rename = "intervalMs")]
        interval_ms: u64,
    },
    /// Change a job's limit on each of its cards. Replies: `limited` or `refused`. After
    /// `limited`, no reservation against the old limit succeeds.
    Limit {
        /// The job.
        id: u64,
        /// `4GiB`, `512MiB` or `50%`, of each card.
        memory: String,
    },
    /// Change how much of the host's memory a job may pin. Replies as to `limit`; an arbiter
    /// that counts no such memory does not know this request.
    LimitPinned {
        /// The job.
        id: u64,
        /// `4GiB` or `512MiB`.
        memory: String,
    },
    /// Change a job's compute time of each of its cards. Replies as to `limit`; an arbiter that
    /// shares no compute time does not know this request.
    LimitCompute {
        /// The job.
        id: u64,
        /// `30%` or `30%..80%` ([`parse_compute`]).
        compute: String,
    },
    /// What a job used of each of its cards over the last hour. Reply: `history`.
    History {
        /// The job; it may be gone already.
        id: u64,
    },
    /// Who is there? Reply: `hello`.
    Hello,
    /// End the arbiter, if it has no job. Replies: `ending` or `refused`.
    Shutdown,
}

/// A new job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Submit {
    /// A name for people.
    pub name: String,
    /// `4GiB`, `512MiB` or `50%`, of each card; nothing for whole cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// How much of the host's memory it may pin: `4GiB`, `512MiB`; nothing for no limit. An
    /// arbiter that knows of no such limit answers without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_memory: Option<String>,
    /// Compute time of each card: `30%` or `30%..80%` ([`parse_compute`]); nothing for no promise
    /// and no limit. An arbiter that shares no compute time answers without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// Who gives way where compute time is short. An arbiter that shares no compute time passes
    /// over it.
    #[serde(default, with = "ClassText")]
    pub class: Class,
    /// On how many cards.
    #[serde(default = "one")]
    pub gpus: u32,
    /// Which cards it may be on, each by its number or the beginning of its UUID
    /// ([`is_name_of`]); nothing for any. An arbiter that knows of no such choice passes over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cards: Option<Vec<String>>,
    /// Wait until there is room, or be refused?
    pub wait: bool,
    /// Higher goes first among those that wait. An arbiter that knows of none passes over it.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub priority: i32,
    /// What the job does when its libraries find no arbiter, or meet a function they do not
    /// know.
    #[serde(default = "strict", with = "ModeText")]
    pub mode: Mode,
}

/// What needs not be said of a priority.
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

/// What the arbiter answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Reply {
    /// The job has its cards.
    Placed(Placed),
    /// The job waits.
    Waiting {
        /// Its number already.
        id: u64,
        /// Its place in the queue, 1 for the next.
        position: u32,
        /// Why, for people.
        reason: String,
    },
    /// No, and why: with the card and by how much. The connection is closed after it where
    /// it answers `submit` or `resume`.
    Refused {
        /// For people.
        reason: String,
        /// True if waiting would not help either.
        #[serde(rename = "final")]
        is_final: bool,
        /// What can be done about it, where that is not to wait or to ask for less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
    /// A job's limits are these now. Answers `limit`, and tells the job's own connection.
    Limited(Placed),
    /// Everything there is to see.
    Snapshot(Box<Snapshot>),
    /// What a job used.
    History {
        /// How far apart two points are.
        #[serde(rename = "everyMs")]
        every_ms: u64,
        /// Card by card; none where there is no point yet.
        #[serde(rename = "perGpu")]
        per_gpu: Vec<UseHistory>,
    },
    /// The arbiter.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The program's version.
        version: String,
        /// The arbiter's process.
        pid: u32,
        /// Its incarnation: it rises by one at each start in one runtime folder.
        epoch: u64,
    },
    /// The arbiter ends now.
    Ending,
    /// The request was not understood; the connection is closed after it.
    Error {
        /// What was wrong with it, for people.
        reason: String,
    },
}

/// Where a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// Its number.
    pub id: u64,
    /// Its cards.
    pub gpus: Vec<PlacedGpu>,
    /// What it may pin of the host's memory; nothing for no limit.
    #[serde(
        default,
        rename = "pinnedLimitMiB",
        skip_serializing_if = "Option::is_none"
    )]
    pub pinned_limit_mib: Option<u64>,
    /// Its compute time of each card: `30 %..80 %` ([`parse_compute`]). Nothing from an arbiter
    /// that shares none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// Where its programs are to be clients of MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<PlacedMps>,
    /// The folder with its `tenant.sock`, for `SUBLET_DIR`.
    pub dir: String,
}

/// One card of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedGpu {
    /// The card's number on the machine.
    pub index: u16,
    /// Its UUID.
    pub uuid: String,
    /// The job's limit there.
    #[serde(rename = "limitMiB")]
    pub limit_mib: u64,
    /// What the first context of a process takes there, as far as that is known.
    #[serde(rename = "contextMiB", default)]
    pub context_mib: u64,
}

/// Everything there is to see; `sublet top --once -o json` prints it as it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// Cards, by index.
    pub gpus: Vec<GpuRow>,
    /// Jobs by number, then processes that use a card without being one.
    pub tenants: Vec<TenantRow>,
    /// What each user's jobs have of the cards together.
    pub users: Vec<UserRow>,
    /// How MPS is; nothing where the operator did not choose it.
    pub mps: Option<MpsRow>,
    /// What the arbiter has counted since it began.
    pub counters: Counters,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuRow {
    /// Its number.
    pub index: u16,
    /// Its UUID.
    pub uuid: String,
    /// Its product name.
    pub model: String,
    /// Memory that can be granted.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// Memory in use, as the driver says.
    #[serde(rename = "usedMiB")]
    pub used_mib: u64,
    /// The sum of its jobs' limits.
    #[serde(rename = "grantedMiB")]
    pub granted_mib: u64,
    /// Kept back: what the operator said, and what processes that are no job use.
    #[serde(rename = "keptMiB")]
    pub kept_mib: u64,
    /// What a new job could have.
    #[serde(rename = "freeMiB")]
    pub free_mib: u64,
    /// Compute time that is promised to its jobs.
    pub compute_promised_percent: f64,
    /// Compute time that its jobs used within the last second; nothing where that is not measured.
    pub compute_used_percent: Option<f64>,
    /// What a new context costs; 0 where that could not be measured.
    #[serde(rename = "contextMiB")]
    pub context_mib: u64,
    /// How the driver packs memory there, where that could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packing: Option<Sizes>,
    /// Whether jobs' turns may overlap there (`overlapping`), or one begins when nothing of the last
    /// one runs any more (`exclusive`).
    pub slices: String,
    /// Why no new work is put on it; nothing if it is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sick: Option<String>,
}

/// One job, or one process that is none (`unmanaged`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantRow {
    /// The job's number; nothing for an unmanaged process.
    pub id: Option<u64>,
    /// The job's name, or the process's.
    pub name: String,
    /// Its processes on the GPUs.
    pub pids: Vec<u32>,
    /// Whose it is; nothing for a container and for an unmanaged process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Higher goes first among those that wait.
    pub priority: i32,
    /// How long it has waited; nothing where it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// What would start it, for people; nothing where it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_when: Option<String>,
    /// The process that submitted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Its cards' numbers.
    pub gpus: Vec<u16>,
    /// What was asked of each card, for people: `4096 MiB`, `50 %`, `a whole GPU`.
    pub asked: String,
    /// On how many cards.
    pub asked_gpus: u32,
    /// On which ones it may be; nothing for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_of: Option<Vec<u16>>,
    /// Its limit per card (the largest, where percentages make them differ); nothing while it
    /// waits, and for an unmanaged process.
    #[serde(rename = "memoryLimitMiB")]
    pub memory_limit_mib: Option<u64>,
    /// What it uses on the card where it uses most, contexts and modules included.
    #[serde(rename = "memoryUsedMiB")]
    pub memory_used_mib: u64,
    /// What it may pin of the host's memory; nothing where there is no limit.
    #[serde(rename = "pinnedLimitMiB")]
    pub pinned_limit_mib: Option<u64>,
    /// What it has pinned of the host's memory; nothing where that is not counted: for an
    /// unmanaged process, and for a job whose first program came with a library that speaks
    /// version 1 of the pages only.
    #[serde(rename = "pinnedUsedMiB")]
    pub pinned_used_mib: Option<u64>,
    /// The last request for memory of the host that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_last_refusal: Option<RefusalRow>,
    /// `guaranteed` or `opportunistic`; nothing for an unmanaged process.
    pub class: Option<String>,
    /// Compute time that it is promised of each card; nothing for an unmanaged process.
    pub compute_request_percent: Option<f64>,
    /// The most compute time that it gets of each card; nothing for an unmanaged process.
    pub compute_limit_percent: Option<f64>,
    /// Compute time that it used within the last second, of the card where it used most; nothing
    /// where that is not measured.
    pub compute_used_percent: Option<f64>,
    /// How much of the last second it waited for its turn, on the card where it waited longest;
    /// nothing where that is not measured.
    pub waiting_percent: Option<f64>,
    /// How long it takes for a mini-batch now, as far as that is seen from outside: the program
    /// repeats itself, and others want its cards. Nothing where that is not known.
    pub mini_batch_ms: Option<f64>,
    /// `waiting`, `running`, `over`, `ending` or `unmanaged`.
    pub state: String,
    /// `serving`, `lost` or `without`; nothing where it began without MPS.
    pub mps: Option<String>,
    /// Why it waits; why it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its place in the queue, 1 for the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Card by card.
    pub per_gpu: Vec<TenantGpuRow>,
    /// How many driver functions its programs asked for by name that the interposer does not
    /// know.
    pub unknown_names: u64,
}

/// One job on one card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantGpuRow {
    /// The card's number.
    pub index: u16,
    /// The job's limit there.
    #[serde(rename = "limitMiB")]
    pub limit_mib: u64,
    /// What it uses there.
    #[serde(rename = "usedMiB")]
    pub used_mib: u64,
    /// How much of that no allocation explains: modules, what contexts take beyond what was
    /// reserved for them, or memory that was had past the interposer.
    #[serde(rename = "overheadMiB")]
    pub overhead_mib: u64,
    /// How much of it is reserved for contexts.
    #[serde(rename = "contextMiB")]
    pub context_mib: u64,
    /// Compute time that it is promised there.
    pub compute_request_percent: Option<f64>,
    /// The most compute time that it gets there.
    pub compute_limit_percent: Option<f64>,
    /// Compute time that it used there within the last second; nothing where that is not measured.
    pub compute_used_percent: Option<f64>,
    /// How much of the last second it waited for its turn there; nothing where that is not
    /// measured.
    pub waiting_percent: Option<f64>,
    /// True while it waits because it is at its limit; nothing where that is not measured.
    pub is_throttled: Option<bool>,
    /// The card's time that it used, since it came or the arbiter began; nothing where that is not
    /// measured now.
    pub compute_used_seconds: Option<f64>,
    /// The time since then in which it wanted the card and had no turn.
    pub waited_seconds: Option<f64>,
    /// How much of that because it was at its limit.
    pub throttled_seconds: Option<f64>,
    /// The last request that was refused there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<RefusalRow>,
}

/// What a job used of one card, the oldest point first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UseHistory {
    /// The card's number.
    pub index: u16,
    /// How long ago the newest point was made.
    pub ago_ms: u64,
    /// Memory at each point.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: Vec<u64>,
    /// Of the card's time between each point and the one before, in percent.
    pub compute_percent: Vec<u64>,
}

/// A request for memory that was refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusalRow {
    /// Its size.
    pub bytes: u64,
    /// How long ago.
    pub ago_ms: u64,
}
