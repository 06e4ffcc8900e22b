//! Jobs and cards as cells of a table, the same for `sublet ps`, `sublet top` and its live
//! view. Pure.

use sublet_arbiter::admin::{GpuRow, MpsRow, RefusalRow, Snapshot, TenantRow};

use crate::align::columns;
use crate::compute;

/// Placeholder in an empty cell.
const NOTHING: &str = "-";

/// The keys of a card's columns.
const GPU_KEYS: [&str; 8] = [
    "gpu",
    "model",
    "memoryMiB",
    "usedMiB",
    "grantedMiB",
    "freeMiB",
    "uuid",
    "health",
];

/// Before which of them a card's compute time stands, where it is shown.
const GPU_COMPUTE: usize = 6;

/// A card's cells.
fn gpu_cells(gpu: &GpuRow) -> [String; 8] {
    [
        gpu.index.to_string(),
        or_nothing(&gpu.model),
        mib(gpu.memory_mib),
        mib(gpu.used_mib),
        mib(gpu.granted_mib),
        mib(gpu.free_mib),
        or_nothing(&gpu.uuid),
        health(gpu.sick.as_deref()),
    ]
}

/// Health of a card: `healthy`, or `unhealthy` with the problem.
pub(crate) fn health(problem: Option<&str>) -> String {
    problem.map_or_else(
        || "healthy".to_owned(),
        |problem| format!("unhealthy ({problem})"),
    )
}

/// The keys of a job's columns.
const JOB_KEYS: [&str; 11] = [
    "id",
    "name",
    "state",
    "gpus",
    "requestMiB",
    "limitMiB",
    "usedMiB",
    "pinnedUsedMiB",
    "lastRefusal",
    "pids",
    "reason",
];

/// Before which of them a job's compute time stands, where it is shown.
const JOB_COMPUTE: usize = 8;

/// The keys of jobs' columns. `with_compute`: whether compute time is shown.
pub(crate) fn job_keys(with_compute: bool) -> Vec<&'static str> {
    let more = with_compute.then_some(compute::JOB_KEYS);
    with_more(&JOB_KEYS, JOB_COMPUTE, more.iter().flatten())
}

/// A job's cells in them.
pub(crate) fn job_cells(job: &TenantRow, with_compute: bool) -> Vec<String> {
    let more = with_compute.then(|| compute::job_cells(job));
    with_more(&plain_cells(job), JOB_COMPUTE, more.iter().flatten())
}

/// A row with more cells before the one at that position.
fn with_more<'a, T: Clone + 'a>(row: &[T], at: usize, more: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut row = row.to_vec();
    row.splice(at..at, more.cloned());
    row
}

fn plain_cells(job: &TenantRow) -> [String; 11] {
    [
        job.id
            .map_or_else(|| NOTHING.to_owned(), |id| id.to_string()),
        or_nothing(&job.name),
        state(job),
        list(&job.gpus),
        request(job),
        job.memory_limit_mib.map_or_else(|| NOTHING.to_owned(), mib),
        mib(job.memory_used_mib),
        pinned(job),
        last_refusal(job).map_or_else(|| NOTHING.to_owned(), refusal),
        list(&job.pids),
        job.reason.clone().unwrap_or_default(),
    ]
}

/// Both tables as text; jobs only if `with_gpus` is false.
pub(crate) fn text(snapshot: &Snapshot, with_gpus: bool) -> String {
    let mut text = String::new();
    let with_compute = compute::is_shared(snapshot);
    if let Some(mps) = &snapshot.mps {
        text += &format!("mps: {}\n\n", mps_line(mps));
    }
    if with_gpus {
        let more = with_compute.then_some(compute::GPU_KEYS);
        let keys = with_more(&GPU_KEYS, GPU_COMPUTE, more.iter().flatten());
        let cells = |gpu| {
            let more = with_compute.then(|| compute::gpu_cells(gpu));
            with_more(&gpu_cells(gpu), GPU_COMPUTE, more.iter().flatten())
        };
        let rows: Vec<_> = snapshot.gpus.iter().map(cells).collect();
        text += &columns(&keys, &rows);
        text.push('\n');
    }
    if snapshot.tenants.is_empty() {
        text += "no job\n";
    } else {
        let cells = |job| {
            let cells = job_cells(job, with_compute).into_iter();
            cells.map(|cell| cell.replace(['\t', '\n'], " ")).collect()
        };
        let rows: Vec<Vec<String>> = snapshot.tenants.iter().map(cells).collect();
        text += &columns(&job_keys(with_compute), &rows);
    }
    text
}

/// State of MPS: `gone for 3 s: exit status: 1; started again in 2 s`.
pub(crate) fn mps_line(mps: &MpsRow) -> String {
    let mut line = format!("{} for {}", mps.state, duration(mps.for_ms));
    if let Some(reason) = &mps.reason {
        line += &format!(": {reason}");
    }
    if let Some(again_in_ms) = mps.again_in_ms {
        line += &format!("; started again in {}", duration(again_in_ms));
    }
    line
}

/// A job's state, with its position if it waits.
fn state(job: &TenantRow) -> String {
    match job.position {
        Some(position) => format!("{} ({position})", job.state),
        None => job.state.clone(),
    }
}

/// A job's request: so much of so many cards, and of which; a dash for a process that is no job.
pub(crate) fn request(job: &TenantRow) -> String {
    let each = match (job.request_mib, job.request_percent) {
        (Some(amount), _) => mib(amount),
        (None, Some(share)) => format!("{share} %"),
        (None, None) => "a whole GPU".to_owned(),
    };
    let request = match job.request_gpus {
        0 => return NOTHING.to_owned(),
        1 => each,
        n => format!("{n} × {each}"),
    };
    match &job.allowed_gpus {
        None => request,
        Some(gpus) => format!("{request} (GPU {})", list(gpus)),
    }
}

/// Pinned memory of the job, and its limit; a dash where nobody counts it.
fn pinned(job: &TenantRow) -> String {
    match (job.pinned_used_mib, job.pinned_limit_mib) {
        (None, _) => NOTHING.to_owned(),
        (Some(used), None) => mib(used),
        (Some(used), Some(limit)) => format!("{used}/{}", mib(limit)),
    }
}

/// The newest refusal, on any card or of pinned memory.
fn last_refusal(job: &TenantRow) -> Option<&RefusalRow> {
    let on_cards = job.per_gpu.iter().map(|gpu| &gpu.last_refusal);
    let refusals = on_cards.chain([&job.pinned_last_refusal]).flatten();
    refusals.min_by_key(|refusal| refusal.ago_ms)
}

/// Size of the refused request, and the time since.
fn refusal(refusal: &RefusalRow) -> String {
    let (size, time) = (size(refusal.bytes), duration(refusal.ago_ms));
    format!("{size}, {time} ago")
}

pub(crate) fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        MIB.. => mib(bytes.div_ceil(MIB)),
        KIB..MIB => format!("{} KiB", bytes.div_ceil(KIB)),
        _ => format!("{bytes} B"),
    }
}

pub(crate) fn duration(ms: u64) -> String {
    match ms / 1000 {
        s if s < 60 => format!("{s} s"),
        s if s < 3600 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

pub(crate) fn mib(amount: u64) -> String {
    format!("{amount} MiB")
}

fn or_nothing(text: &str) -> String {
    if text.is_empty() { NOTHING } else { text }.to_owned()
}

/// Numbers with commas; more than a handful are counted.
fn list<T: ToString>(numbers: &[T]) -> String {
    const SHOWN: usize = 8;
    if numbers.is_empty() {
        return NOTHING.to_owned();
    }
    let shown: Vec<_> = numbers.iter().take(SHOWN).map(T::to_string).collect();
    let more = match numbers.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    shown.join(",") + &more
}

#[cfg(test)]
pub(crate) mod tests {
    use sublet_arbiter::admin::TenantGpuRow;

    use super::*;

    /// A machine with two cards, three jobs and a process that is none.
    pub(crate) fn example() -> Snapshot {
        let gpu = |index, used_mib, granted_mib| GpuRow {
            index,
            uuid: format!("GPU-{index}"),
            model: "Fake".to_owned(),
            memory_mib: 16384,
            used_mib,
            granted_mib,
            free_mib: 16384 - granted_mib,
            health: "healthy".to_owned(),
            ..GpuRow::default()
        };
        let job = |id, name: &str, state: &str| TenantRow {
            id: Some(id),
            name: name.to_owned(),
            state: state.to_owned(),
            request_mib: Some(4096),
            request_gpus: 1,
            pinned_used_mib: Some(0),
            ..TenantRow::default()
        };
        let refused = |bytes, ago_ms| TenantGpuRow {
            last_refusal: Some(RefusalRow { bytes, ago_ms }),
            ..TenantGpuRow::default()
        };
        Snapshot {
            gpus: vec![gpu(0, 4200, 8192), gpu(1, 0, 0)],
            tenants: vec![
                TenantRow {
                    pids: vec![11, 12],
                    gpus: vec![0],
                    memory_limit_mib: Some(4096),
                    memory_used_mib: 3000,
                    pinned_used_mib: Some(40),
                    per_gpu: vec![refused(1, 90_000), refused(512 << 20, 3000)],
                    ..job(1, "train", "running")
                },
                TenantRow {
                    gpus: vec![0, 1],
                    request_gpus: 2,
                    memory_limit_mib: Some(1024),
                    memory_used_mib: 1200,
                    pinned_limit_mib: Some(512),
                    reason: Some("uses 176 MiB more than its limit".to_owned()),
                    ..job(2, "serve", "over")
                },
                TenantRow {
                    position: Some(1),
                    reason: Some("GPU 0 lacks 1 MiB".to_owned()),
                    ..job(3, "later", "waiting")
                },
                TenantRow {
                    name: "stray".to_owned(),
                    state: "unmanaged".to_owned(),
                    pids: vec![99],
                    gpus: vec![0],
                    memory_used_mib: 480,
                    ..TenantRow::default()
                },
            ],
            ..Snapshot::default()
        }
    }

    #[test]
    fn cards_and_jobs_have_a_line_each() {
        assert_eq!(
            text(&example(), true),
            "\
GPU  MODEL  MEMORY     USED      GRANTED   FREE       UUID   HEALTH
0    Fake   16384 MiB  4200 MiB  8192 MiB  8192 MiB   GPU-0  healthy
1    Fake   16384 MiB  0 MiB     0 MiB     16384 MiB  GPU-1  healthy

ID  NAME   STATE        GPUS  REQUEST       LIMIT     USED      PINNED USED  LAST REFUSAL      \
PIDS   REASON
1   train  running      0     4096 MiB      4096 MiB  3000 MiB  40 MiB       512 MiB, 3 s ago  11,12
2   serve  over         0,1   2 × 4096 MiB  1024 MiB  1200 MiB  0/512 MiB    -                 -      \
uses 176 MiB more than its limit
3   later  waiting (1)  -     4096 MiB      -         0 MiB     0 MiB        -                 -      \
GPU 0 lacks 1 MiB
-   stray  unmanaged    0     -             -         480 MiB   -            -                 99
"
        );
        assert_eq!(text(&Snapshot::default(), false), "no job\n");
    }

    /// The example, where two jobs of a card share its compute time.
    pub(crate) fn example_of_shares() -> Snapshot {
        let mut snapshot = example();
        for (job, request, limit, used) in [(0, 25.0, 100.0, 24.8), (1, 0.0, 60.0, 60.0)] {
            let job = &mut snapshot.tenants[job];
            let class = if request > 0.0 {
                "guaranteed"
            } else {
                "opportunistic"
            };
            job.class = Some(class.to_owned());
            job.compute_request_percent = Some(request);
            job.compute_limit_percent = Some(limit);
            job.compute_used_percent = Some(used);
            job.waiting_percent = Some(100.0 - used);
        }
        snapshot.gpus[0].compute_promised_percent = 25.0;
        snapshot.gpus[0].compute_used_percent = Some(84.8);
        snapshot
    }

    #[test]
    fn compute_time_has_columns_where_it_is_shared() {
        let text = text(&example_of_shares(), true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "GPU  MODEL  MEMORY     USED      GRANTED   FREE       COMPUTE GRANTED  COMPUTE USED  UUID   HEALTH",
                "0    Fake   16384 MiB  4200 MiB  8192 MiB  8192 MiB   25 %             85 %          GPU-0  healthy",
            ]
        );
        assert_eq!(
            lines[4..7],
            [
                "ID  NAME   STATE        GPUS  REQUEST       LIMIT     USED      PINNED USED  CLASS          \
                 COMPUTE REQUEST  COMPUTE USED  TURN WAIT  LAST REFUSAL      PIDS   REASON",
                "1   train  running      0     4096 MiB      4096 MiB  3000 MiB  40 MiB       guaranteed     \
                 25 %             25 %          75 %       512 MiB, 3 s ago  11,12",
                "2   serve  over         0,1   2 × 4096 MiB  1024 MiB  1200 MiB  0/512 MiB    opportunistic  \
                 at most 60 %     60 %          40 %       -                 -      uses 176 MiB more than its limit",
            ]
        );
    }

    #[test]
    fn mps_has_a_line_where_the_operator_chose_it() {
        let mut snapshot = Snapshot::default();
        let check = |snapshot: &Snapshot| text(snapshot, false);
        assert_eq!(check(&snapshot), "no job\n");
        let mps = MpsRow {
            state: "serving".to_owned(),
            for_ms: 61_000,
            ..MpsRow::default()
        };
        snapshot.mps = Some(mps.clone());
        assert_eq!(check(&snapshot), "mps: serving for 1 min\n\nno job\n");
        snapshot.mps = Some(MpsRow {
            state: "gone".to_owned(),
            for_ms: 3100,
            reason: Some("signal: 9 (SIGKILL)".to_owned()),
            again_in_ms: Some(1900),
            ..mps
        });
        let gone = "mps: gone for 3 s: signal: 9 (SIGKILL); started again in 1 s\n\nno job\n";
        assert_eq!(check(&snapshot), gone);
    }

    #[test]
    fn the_newest_refusal_may_be_of_pinned_memory() {
        let mut job = example().tenants.remove(0);
        let refused = |bytes, ago_ms| Some(RefusalRow { bytes, ago_ms });
        job.pinned_last_refusal = refused(7 << 20, 1000);
        assert_eq!(plain_cells(&job)[8], "7 MiB, 1 s ago");
        job.pinned_last_refusal = refused(7 << 20, 5000);
        assert_eq!(plain_cells(&job)[8], "512 MiB, 3 s ago");
    }

    #[test]
    fn a_request_says_of_which_cards() {
        let mut job = example().tenants.remove(1);
        assert_eq!(request(&job), "2 × 4096 MiB");
        job.allowed_gpus = Some(vec![0, 1]);
        assert_eq!(request(&job), "2 × 4096 MiB (GPU 0,1)");
        (job.request_gpus, job.request_mib) = (1, None);
        job.allowed_gpus = Some(vec![1]);
        assert_eq!(request(&job), "a whole GPU (GPU 1)");
        job.request_percent = Some(12.5);
        assert_eq!(request(&job), "12.5 % (GPU 1)");
    }

    #[test]
    fn amounts_and_times_are_short() {
        let check = |bytes, ago_ms| refusal(&RefusalRow { bytes, ago_ms });
        assert_eq!(check(512, 0), "512 B, 0 s ago");
        assert_eq!(check(2048, 59_999), "2 KiB, 59 s ago");
        assert_eq!(check((1 << 30) + 1, 60_000), "1025 MiB, 1 min ago");
        assert_eq!(check(1 << 20, 7_200_000), "1 MiB, 2 h ago");
        let many: Vec<u32> = (0..10).collect();
        assert_eq!(list(&many), "0,1,2,3,4,5,6,7 and 2 more");
    }
}
