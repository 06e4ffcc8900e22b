//! The messages between commands and the arbiter on `admin.sock`: JSON, one message per line.
//! The module gives the commands, the node agent and the arbiter one set of types. It decides
//! nothing and never touches a shared page.
//!
//! A client sends one [`Request`] per connection and gets [`Reply`]s. After `submit` and
//! `resume` the connection is the job's life line: the job ends when the connection closes.
//! The job's root is the process that made the connection, as the kernel names it. No number
//! in a message decides it.
//!
//! The receiver answers a line that it does not understand with [`Reply::Error`]. It ignores
//! fields that it does not know, so a newer command can talk to an older arbiter.

mod amount;
mod client;
mod compute;
mod counters;
mod mps;
mod submit;

pub use amount::parse_amount;
pub use client::{Client, ClientError};
pub use compute::{ComputeError, parse_compute};
pub use counters::{Counters, UserRow};
pub use mps::{MpsRow, PlacedMps};
pub use sublet_abi::Mode;
pub use sublet_model::Class;
pub use submit::{Submit, is_name_of};

use serde::{Deserialize, Serialize};

use crate::gauge::Sizes;

/// The version of these messages. It rises when an old command could misunderstand a reply.
pub const PROTOCOL: u32 = 2;

/// The longest line that either side accepts.
pub const LINE_MAX: usize = 1 << 20;

/// A request of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Request {
    /// Place a new job. Replies: `placed`; or `waiting` (again at each change), then `placed`;
    /// or `refused`. Later, while the job runs: `limited` when its limits change.
    Submit(Submit),
    /// Resume a job that had its cards before the arbiter restarted. The job gets what the
    /// arbiter has recorded, if its root sends the request. Replies: `placed` or `refused`.
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
    /// Read a job's use of each of its cards over the last hour. Reply: `history`.
    History {
        /// The job; it may be gone already.
        id: u64,
    },
    /// Ask for the arbiter's version and process. Reply: `hello`.
    Hello,
    /// End the arbiter, if it has no job. Replies: `ending` or `refused`.
    Shutdown,
}

/// A reply of the arbiter.
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
    /// Refusal with its reason: names the card and the missing amount. As the answer to
    /// `submit` or `resume`, it closes the connection.
    Refused {
        /// For people.
        reason: String,
        /// True if waiting would not help either.
        #[serde(rename = "final")]
        is_final: bool,
        /// Remedy, if it is not to wait or to ask for less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
    /// A job's limits are these now. Answers `limit`, and tells the job's own connection.
    Limited(Placed),
    /// Everything there is to see.
    Snapshot(Box<Snapshot>),
    /// A job's use of its cards.
    History {
        /// Time between two points.
        #[serde(rename = "everyMs")]
        every_ms: u64,
        /// One entry per card; empty while there is no point yet.
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
        /// The arbiter's incarnation: it rises by one at each start in one run folder.
        epoch: u64,
    },
    /// The arbiter ends now.
    Ending,
    /// The request was not understood; the connection is closed after it.
    Error {
        /// Fault of the request, as a text for people.
        reason: String,
    },
}

/// The place of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// Its number.
    pub id: u64,
    /// Its cards.
    pub gpus: Vec<PlacedGpu>,
    /// Limit of pinned host memory; nothing for no limit.
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
    /// Connection of the job's programs to MPS, if they are its clients.
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
    /// Memory that the first context of a process takes there, as far as it is known.
    #[serde(rename = "contextMiB", default)]
    pub context_mib: u64,
}

/// Everything there is to see; `sublet top --once -o json` prints it as it is. Its keys are words of
/// STYLE.md's vocabulary: an amount without a thing is memory of a GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// Cards, by index.
    pub gpus: Vec<GpuRow>,
    /// Jobs by number, then processes that use a card without being a job.
    #[serde(rename = "jobs")]
    pub tenants: Vec<TenantRow>,
    /// Total use of the cards per user.
    pub users: Vec<UserRow>,
    /// State of MPS; nothing if the operator did not choose MPS.
    pub mps: Option<MpsRow>,
    /// The arbiter's counters since its start.
    pub counters: Counters,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuRow {
    /// Its number.
    #[serde(rename = "gpu")]
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
    /// Reserve: what the operator set aside, and the memory of processes outside any job.
    #[serde(rename = "keptMiB")]
    pub kept_mib: u64,
    /// Memory that a new job could have: neither granted nor kept.
    #[serde(rename = "freeMiB")]
    pub free_mib: u64,
    /// Compute time that is promised to its jobs.
    #[serde(rename = "computeGrantedPercent")]
    pub compute_promised_percent: f64,
    /// Compute time that its jobs used within the last second; nothing if it is not measured.
    pub compute_used_percent: Option<f64>,
    /// Memory cost of a new context, if it could be measured.
    #[serde(rename = "contextMiB", skip_serializing_if = "Option::is_none")]
    pub context_mib: Option<u64>,
    /// Packing of memory by the driver, if it could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packing: Option<Sizes>,
    /// `overlapping` if jobs' turns may overlap there; `exclusive` if a turn begins only when
    /// nothing of the last one runs.
    pub slices: String,
    /// `healthy`, or `unhealthy`: the card gets no new work.
    pub health: String,
    /// Reason why the card gets no new work; nothing if it is healthy.
    #[serde(rename = "problem", skip_serializing_if = "Option::is_none")]
    pub sick: Option<String>,
}

/// One job, or one process outside any job (`unmanaged`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantRow {
    /// The job's number; nothing for an unmanaged process.
    pub id: Option<u64>,
    /// The job's name, or the process's.
    pub name: String,
    /// Its processes on the GPUs.
    pub pids: Vec<u32>,
    /// Number of the user who owns the job; nothing for a container or an unmanaged process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Name of that user. The command that shows it looks it up, never the arbiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Higher goes first among the jobs that wait.
    pub priority: i32,
    /// Time waited so far; nothing if it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Condition that would start it, for people; nothing if it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_when: Option<String>,
    /// The process that submitted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Its cards' numbers.
    pub gpus: Vec<u16>,
    /// Request per card, whatever its limit is now. Without this and the percentage it asked for
    /// whole cards, or asked for nothing.
    #[serde(rename = "requestMiB")]
    pub request_mib: Option<u64>,
    /// The same as a percentage of each card's memory.
    pub request_percent: Option<f64>,
    /// On how many cards; 0 for an unmanaged process.
    pub request_gpus: u32,
    /// Cards where it may run; nothing for any card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_gpus: Option<Vec<u16>>,
    /// Limit per card (the largest, if percentages make them differ); nothing while it waits,
    /// and for an unmanaged process.
    #[serde(rename = "limitMiB")]
    pub memory_limit_mib: Option<u64>,
    /// Use on the card with the highest use, contexts and modules included.
    #[serde(rename = "usedMiB")]
    pub memory_used_mib: u64,
    /// Limit of pinned host memory; nothing for no limit.
    #[serde(rename = "pinnedLimitMiB")]
    pub pinned_limit_mib: Option<u64>,
    /// Pinned host memory; nothing for an unmanaged process.
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
    /// Compute time used within the last second, on the card with the highest use; nothing if it
    /// is not measured.
    pub compute_used_percent: Option<f64>,
    /// Share of the last second spent waiting for a turn, on the card with the longest wait;
    /// nothing if it is not measured.
    #[serde(rename = "turnWaitPercent")]
    pub waiting_percent: Option<f64>,
    /// Duration of a mini-batch now, as far as it is visible from outside: the program repeats
    /// itself, and other jobs want its cards. Nothing if it is not known.
    pub mini_batch_ms: Option<f64>,
    /// `waiting`, `running`, `over`, `ending` or `unmanaged`.
    pub state: String,
    /// `serving`, `waiting`, `lost` or `without`; nothing if the job began without MPS.
    pub mps: Option<String>,
    /// Reason of its wait or of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its place in the queue, 1 for the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Card by card.
    pub per_gpu: Vec<TenantGpuRow>,
    /// Driver functions that its programs asked for by name and the interposer does not know.
    pub unknown_names: u64,
}

/// One job on one card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantGpuRow {
    /// The card's number.
    #[serde(rename = "gpu")]
    pub index: u16,
    /// The job's limit there.
    #[serde(rename = "limitMiB")]
    pub limit_mib: u64,
    /// Memory used there.
    #[serde(rename = "usedMiB")]
    pub used_mib: u64,
    /// Part of that without an allocation: modules, memory of contexts beyond their reserve,
    /// or memory that bypassed the interposer.
    #[serde(rename = "overheadMiB")]
    pub overhead_mib: u64,
    /// Part of it that is reserved for contexts.
    #[serde(rename = "contextMiB")]
    pub context_mib: u64,
    /// Compute time that it is promised there.
    pub compute_request_percent: Option<f64>,
    /// The most compute time that it gets there.
    pub compute_limit_percent: Option<f64>,
    /// Compute time used there within the last second; nothing if it is not measured.
    pub compute_used_percent: Option<f64>,
    /// Share of the last second spent waiting for a turn there; nothing if it is not measured.
    #[serde(rename = "turnWaitPercent")]
    pub waiting_percent: Option<f64>,
    /// True while it waits because it is at its limit; nothing if it is not measured.
    pub is_throttled: Option<bool>,
    /// Time of the card that it used, since it came or the arbiter began; nothing if it is not
    /// measured now.
    pub compute_used_seconds: Option<f64>,
    /// The time since then in which it wanted the card and had no turn.
    #[serde(rename = "turnWaitSeconds")]
    pub waited_seconds: Option<f64>,
    /// Part of that time spent waiting at its limit.
    pub throttled_seconds: Option<f64>,
    /// The last request that was refused there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_refusal: Option<RefusalRow>,
}

/// A job's use of one card, the oldest point first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UseHistory {
    /// The card's number.
    #[serde(rename = "gpu")]
    pub index: u16,
    /// Age of the newest point.
    pub ago_ms: u64,
    /// Memory at each point.
    #[serde(rename = "usedMiB")]
    pub memory_mib: Vec<u64>,
    /// Percentage of the card's time used between each point and the one before.
    #[serde(rename = "computeUsedPercent")]
    pub compute_percent: Vec<u64>,
}

/// A request for memory that was refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusalRow {
    /// Its size.
    pub bytes: u64,
    /// Age of the value.
    pub ago_ms: u64,
}
