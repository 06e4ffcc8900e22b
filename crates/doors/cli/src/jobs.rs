//! Jobs and cards as cells of a table, the same for `sublet ps`, `sublet top` and its live
//! view. Pure.

use sublet_arbiter::admin::{GpuRow, MpsRow, RefusalRow, Snapshot, TenantRow};

use crate::compute;

/// Placeholder in an empty cell.
const NOTHING: &str = "-";

const GPU_HEADING: [&str; 8] = [
    "GPU", "MODEL", "MEMORY", "USED", "GRANTED", "FREE", "UUID", "STATE",
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
        gpu.sick.clone().unwrap_or_else(|| "healthy".to_owned()),
    ]
}

const JOB_HEADING: [&str; 11] = [
    "ID",
    "NAME",
    "STATE",
    "GPU",
    "ASKED",
    "LIMIT",
    "USED",
    "PINNED",
    "LAST REFUSAL",
    "PIDS",
    "WHY",
];

/// Before which of them a job's compute time stands, where it is shown.
const JOB_COMPUTE: usize = 8;

/// The headings of jobs' columns. `with_compute`: whether compute time is shown.
pub(crate) fn job_heading(with_compute: bool) -> Vec<&'static str> {
    let more = with_compute.then_some(compute::JOB_HEADING);
    with_more(&JOB_HEADING, JOB_COMPUTE, more.iter().flatten())
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
        asked(job),
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
        let more = with_compute.then_some(compute::GPU_HEADING);
        let heading = with_more(&GPU_HEADING, GPU_COMPUTE, more.iter().flatten());
        let cells = |gpu| {
            let more = with_compute.then(|| compute::gpu_cells(gpu));
            with_more(&gpu_cells(gpu), GPU_COMPUTE, more.iter().flatten())
        };
        let rows: Vec<_> = snapshot.gpus.iter().map(cells).collect();
        text += &crate::align::table(&heading, &rows);
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
        text += &crate::align::table(&job_heading(with_compute), &rows);
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

/// A job's state, with its place if it waits.
fn state(job: &TenantRow) -> String {
    match job.position {
        Some(position) => format!("{} ({position})", job.state),
        None => job.state.clone(),
    }
}

pub(crate) fn asked(job: &TenantRow) -> String {
    let asked = match (job.asked.as_str(), job.asked_gpus) {
        ("", _) => return NOTHING.to_owned(),
        (asked, 0 | 1) => asked.to_owned(),
        (asked, n) => format!("{n} × {asked}"),
    };
    match &job.asked_of {
        None => asked,
        Some(cards) => format!("{asked} (GPU {})", list(cards)),
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
            ..GpuRow::default()
        };
        let job = |id, name: &str, state: &str| TenantRow {
            id: Some(id),
            name: name.to_owned(),
            state: state.to_owned(),
            asked: "4096 MiB".to_owned(),
            asked_gpus: 1,
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
                    asked_gpus: 2,
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
GPU  MODEL  MEMORY     USED      GRANTED   FREE       UUID   STATE
0    Fake   16384 MiB  4200 MiB  8192 MiB  8192 MiB   GPU-0  healthy
1    Fake   16384 MiB  0 MiB     0 MiB     16384 MiB  GPU-1  healthy

ID  NAME   STATE        GPU  ASKED         LIMIT     USED      PINNED     LAST REFUSAL      \
PIDS   WHY
1   train  running      0    4096 MiB      4096 MiB  3000 MiB  40 MiB     512 MiB, 3 s ago  11,12
2   serve  over         0,1  2 × 4096 MiB  1024 MiB  1200 MiB  0/512 MiB  -                 -      \
uses 176 MiB more than its limit
3   later  waiting (1)  -    4096 MiB      -         0 MiB     0 MiB      -                 -      \
GPU 0 lacks 1 MiB
-   stray  unmanaged    0    -             -         480 MiB   -          -                 99
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
                "GPU  MODEL  MEMORY     USED      GRANTED   FREE       PROMISED  TIME  UUID   STATE",
                "0    Fake   16384 MiB  4200 MiB  8192 MiB  8192 MiB   25 %      85 %  GPU-0  healthy",
            ]
        );
        assert_eq!(
            lines[4..7],
            [
                "ID  NAME   STATE        GPU  ASKED         LIMIT     USED      PINNED     CLASS          \
                 COMPUTE       TIME  WAITED  LAST REFUSAL      PIDS   WHY",
                "1   train  running      0    4096 MiB      4096 MiB  3000 MiB  40 MiB     guaranteed     \
                 25 %          25 %  75 %    512 MiB, 3 s ago  11,12",
                "2   serve  over         0,1  2 × 4096 MiB  1024 MiB  1200 MiB  0/512 MiB  opportunistic  \
                 at most 60 %  60 %  40 %    -                 -      uses 176 MiB more than its limit",
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
    fn what_a_job_asked_says_of_which_cards() {
        let asked = |job: &TenantRow| plain_cells(job)[4].clone();
        let mut job = example().tenants.remove(1);
        assert_eq!(asked(&job), "2 × 4096 MiB");
        job.asked_of = Some(vec![0, 1]);
        assert_eq!(asked(&job), "2 × 4096 MiB (GPU 0,1)");
        (job.asked_gpus, job.asked) = (1, "a whole GPU".to_owned());
        job.asked_of = Some(vec![1]);
        assert_eq!(asked(&job), "a whole GPU (GPU 1)");
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
