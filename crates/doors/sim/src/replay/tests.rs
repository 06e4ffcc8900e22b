//! Stories short enough to follow with a finger. A line of a story is a moment, an event, and the
//! rows of the list to which it happens.

mod alone;
mod properties;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sublet_queue::Slot;

use super::*;
use crate::trace::{BadLines, read_nodes, read_pods, read_quotas};

/// Jobs and the cluster of a story.
struct Story {
    nodes: NodeList,
    pods: PodList,
    quotas: Option<Vec<QuotaRow>>,
    load: Option<u64>,
    interval: u64,
    profile: QueueProfile,
    min_within: Option<u64>,
    saves_every: Option<u64>,
    run_times: RunTimes,
}

impl Story {
    /// Nodes with so many cards, and jobs as `num_gpus,timestamp,duration,tenant`.
    fn new(cards: &[u16], jobs: &[&str]) -> Story {
        let mut nodes = "name,cpu_milli,memory_mib,gpu\n".to_owned();
        for (at, cards) in cards.iter().enumerate() {
            nodes += &format!("n{at},64000,65536,{cards}\n");
        }
        let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
        let header = "num_gpus,timestamp,duration,tenant,priority,cpu_milli,memory_mib,gpu_milli\n";
        let short = |job: &str| {
            let commas = job.matches(',').count();
            format!(
                "{job}{}\n",
                [",0", ",0", ",0", ","][commas.saturating_sub(3)..].concat()
            )
        };
        let text = header.to_owned() + &jobs.iter().map(|job| short(job)).collect::<String>();
        let (pods, _) = read_pods(text.as_bytes(), &nodes, BadLines::Stop).unwrap();
        Story {
            nodes,
            pods,
            quotas: None,
            load: None,
            interval: 0,
            profile: "koordinator".parse().unwrap(),
            min_within: None,
            saves_every: None,
            run_times: RunTimes::Unknown,
        }
    }

    fn with_quotas(mut self, text: &str) -> Story {
        let text = format!("tenant,gpus\n{text}");
        let (quotas, _) = read_quotas(text.as_bytes(), BadLines::Stop).unwrap();
        self.quotas = Some(quotas);
        self
    }

    fn play(
        &self,
        discipline: &str,
        watch: &mut dyn FnMut(ReplayEvent<'_>),
    ) -> Result<ReplayOutcome, ReplayError> {
        replay(self.run(discipline, &"binpack".parse().unwrap()), watch)
    }

    fn run<'a>(&'a self, discipline: &str, policy: &'a Policy) -> Replay<'a> {
        let mut known = DISCIPLINES.iter();
        let discipline = known.find(|known| known.name() == discipline).unwrap();
        Replay {
            nodes: &self.nodes,
            pods: &self.pods,
            policy,
            discipline: *discipline,
            quotas: self.quotas.as_deref(),
            load: self.load,
            interval: self.interval,
            profile: self.profile,
            min_within: self.min_within,
            saves_every: self.saves_every,
            run_times: self.run_times,
        }
    }

    /// The starts and evictions, moment by moment: `5 +2 -1` for a start of job 2 and an eviction
    /// of job 1 at 5.
    fn told(&self, discipline: &str) -> (String, ReplayOutcome) {
        let mut told: BTreeMap<u64, String> = BTreeMap::new();
        let outcome = self.play(discipline, &mut |event| {
            let sign = match event.step {
                ReplayStep::Starts(_) => '+',
                ReplayStep::Evicted => '-',
                ReplayStep::Comes | ReplayStep::Ends => return,
            };
            let line = told.entry(event.at).or_default();
            *line += &format!(" {sign}{}", event.row);
        });
        let lines = told.into_iter().map(|(at, line)| format!("{at}{line}"));
        let outcome = outcome.unwrap();
        assert!(outcome.ends_empty && outcome.left == 0, "{outcome:?}");
        (lines.collect::<Vec<_>>().join(", "), outcome)
    }
}

#[test]
fn each_discipline_lets_others_pass_whom_its_rule_lets_pass() {
    // Two cards. One runs until 10. A job of two comes at 1 and waits. Then come small ones: of the
    // same tenant at 2, of another one at 3.
    let story = Story::new(&[2], &["1,0,10,a", "2,1,5,a", "1,2,3,a", "1,3,4,b"]);
    let rows = [
        ("fifo", "0 +0, 10 +1, 15 +2 +3"),
        ("backfill", "0 +0, 2 +2, 5 +3, 10 +1"),
        // Nobody of a passes the head of a; the head of b starts beside it.
        ("heads-strict", "0 +0, 3 +3, 10 +1, 15 +2"),
        // The head of a is put aside.
        ("heads", "0 +0, 2 +2, 5 +3, 10 +1"),
        // Both cards are a's, which did most of the work and asks for them: b, whose part rounds to
        // nothing, waits for its turn although a card is free.
        ("sublet", "0 +0, 2 +2, 10 +1, 15 +3"),
        // Both who pass have ended when the first has room.
        ("easy", "0 +0, 2 +2, 5 +3, 10 +1"),
        // b has no nodes.
        ("partitions", "0 +0, 2 +2, 10 +1"),
    ];
    for (discipline, told) in rows {
        assert_eq!(story.told(discipline).0, told, "{discipline}");
    }
    assert_eq!(DISCIPLINES.len(), rows.len(), "each has its row");
}

/// Checks CONTRIBUTING: each file of the folder has one `mod` line, and each rule in it one line in
/// the list.
#[test]
fn a_discipline_is_one_file_and_one_line() {
    let source = include_str!("discipline.rs");
    let (_, list) = source
        .split_once("DISCIPLINES: &[&dyn Discipline] = &[\n")
        .unwrap();
    let (list, _) = list.split_once("];").unwrap();
    let file_of = |line: &'static str| line.trim().strip_prefix('&')?.split("::").next();
    let listed: Vec<&str> = list.lines().filter_map(file_of).collect();
    assert_eq!(
        listed.len(),
        DISCIPLINES.len(),
        "each has a line of its own"
    );
    let mods = source
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let mut mods: Vec<&str> = mods.collect();
    mods.sort_unstable();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/replay/discipline");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        files.push(name.trim_end_matches(".rs").to_owned());
    }
    files.sort_unstable();
    assert_eq!(mods, files);
    let listed: BTreeSet<&str> = listed.into_iter().collect();
    assert_eq!(Vec::from_iter(listed), files, "each file is in the list");
}

#[test]
fn a_job_larger_than_a_node_starts_on_several_at_once_or_not_at_all() {
    let story = Story::new(&[4, 4, 2], &["1,0,10,a", "7,1,5,a", "2,2,1,b"]);
    for discipline in DISCIPLINES {
        let mut places = Vec::new();
        let outcome = story.play(discipline.name(), &mut |event| {
            if let (ReplayStep::Starts(slots), 1) = (event.step, event.row) {
                let place = |slot: &Slot| (slot.node.to_string(), slot.allocation.grants.len());
                places = slots.iter().map(place).collect();
            }
        });
        places.sort();
        // Four cards on one node and three on another: the smallest node could take the rest of
        // none.
        let cards: Vec<usize> = places.iter().map(|(_, cards)| *cards).collect();
        assert!(matches!(cards[..], [3, 4] | [4, 3]), "{places:?}");
        let outcome = outcome.unwrap();
        let gangs = outcome.sizes.last().unwrap();
        assert_eq!((gangs.of, gangs.waits.len()), (SizeClass::Gang, 1));
    }
}

#[test]
fn what_was_lent_comes_back_and_the_work_of_those_who_go_is_lost() {
    let jobs = [
        "1,0,100,a",
        "1,0,100,a",
        "1,0,100,a",
        "1,0,100,a",
        "2,10,20,b",
    ];
    let story = Story::new(&[4], &jobs).with_quotas("a,2\nb,2\n");
    let (told, outcome) = story.told("sublet");
    assert_eq!(told, "0 +0 +1 +2 +3, 10 -2 -3 +4, 30 +2 +3");
    assert_eq!((outcome.evictions, outcome.makespan), (2, 130));
    let evictions: Vec<u64> = outcome.tenants.iter().map(|of| of.evictions).collect();
    assert_eq!(evictions, [2, 0]);
    // Until they started for good.
    let waits: Vec<_> = outcome
        .tenants
        .iter()
        .map(|of| (&*of.of, &of.waits[..]))
        .collect();
    assert_eq!(waits, [("a", &[0, 0, 30, 30][..]), ("b", &[0][..])]);
    assert!((outcome.lost_hours - 20.0 / 3600.0).abs() < 1e-12);
    // Until the last one came, at 10: twenty of forty card-seconds came to something.
    assert!((outcome.useful_percent - 50.0).abs() < 1e-9, "{outcome:?}");
    assert!((outcome.lost_percent - 50.0).abs() < 1e-9, "{outcome:?}");
    // Nobody else evicts.
    for other in DISCIPLINES[1..].iter().filter(|other| !other.is_apart()) {
        let (told, outcome) = story.told(other.name());
        assert_eq!(
            (told.as_str(), outcome.evictions),
            ("0 +0 +1 +2 +3, 100 +4", 0)
        );
    }
}

#[test]
fn a_job_that_writes_checkpoints_loses_only_what_came_after_the_last() {
    let jobs = ["1,0,100,a", "1,0,100,a", "2,10,20,b"];
    let mut story = Story::new(&[2], &jobs).with_quotas("a,0\nb,2\n");
    story.saves_every = Some(4);
    let (told, outcome) = story.told("sublet");
    assert_eq!(told, "0 +0 +1, 10 -0 -1 +2, 30 +0 +1");
    // Eight seconds of each are done already.
    assert_eq!(outcome.makespan, 30 + 92);
    assert_eq!(outcome.tenants[0].waits, [22, 22]);
    assert!((outcome.lost_hours - 4.0 / 3600.0).abs() < 1e-12);
    assert!((outcome.useful_percent - 80.0).abs() < 1e-9, "{outcome:?}");
}

#[test]
fn a_gang_s_wait_is_told_by_what_it_waits_for() {
    // A gang of three has all cards of its tenant and one of another's until 10, when that one comes
    // back for it. Then the gang exceeds what it is entitled to until the other ends at 30.
    let story = Story::new(&[2, 2], &["3,0,100,a", "2,10,20,b"]).with_quotas("a,2\nb,2\n");
    let (told, outcome) = story.told("sublet");
    assert_eq!(told, "0 +0, 10 -0 +1, 30 +0");
    let waited = outcome.gangs_waited_for.into_iter().collect::<Vec<_>>();
    assert_eq!(waited, [("ExceedsEntitlement", 20)]);
    let (_, outcome) = story.told("backfill");
    assert!(outcome.gangs_waited_for.is_empty(), "it does not say");
}

#[test]
fn heads_that_borrow_nothing_come_first() {
    // a has one card of its own and borrows the other. It comes free at 10, and the younger job of b
    // borrows nothing.
    let story = Story::new(&[2], &["1,0,99,a", "1,0,10,a", "1,1,5,a", "1,2,5,b"]);
    let story = story.with_quotas("a,1\nb,1\n");
    for (discipline, told) in [
        ("backfill", "0 +0 +1, 10 +2, 15 +3"),
        ("heads", "0 +0 +1, 10 +3, 15 +2"),
        ("heads-strict", "0 +0 +1, 10 +3, 15 +2"),
        // Ours takes the card back at once.
        ("sublet", "0 +0 +1, 2 -1 +3, 7 +1, 17 +2"),
    ] {
        assert_eq!(story.told(discipline).0, told, "{discipline}");
    }
}

#[test]
fn easy_lets_those_pass_for_whom_the_first_starts_no_later() {
    // The first of the line needs all four cards, at 10. One card until 22 is in its way, one until
    // 11 too, and two until 10 are not.
    let jobs = ["2,0,10,a", "4,1,5,a", "1,2,20,a", "2,3,7,a", "1,3,8,a"];
    let rows: [(&[u16], &[&str], &str); 4] = [
        (&[4], &jobs, "0 +0, 3 +3, 10 +1, 15 +2 +4"),
        // Another node than the one on which the first will be.
        (
            &[4, 2],
            &["4,0,10,a", "4,1,5,a", "2,2,50,a"],
            "0 +0, 2 +2, 10 +1",
        ),
        // The same node, which has room for both.
        (
            &[4],
            &["3,0,10,a", "3,1,5,a", "1,2,50,a"],
            "0 +0, 2 +2, 10 +1",
        ),
        // A higher priority becomes the first, and gets a promise of its own.
        (
            &[2],
            &["1,0,10,a", "2,1,5,a", "2,2,4,a,9", "1,3,7,a", "1,3,8,a"],
            "0 +0, 3 +3, 10 +2, 14 +1, 19 +4",
        ),
    ];
    for (cards, jobs, told) in rows {
        assert_eq!(Story::new(cards, jobs).told("easy").0, told, "{jobs:?}");
    }
}

#[test]
fn on_a_beat_jobs_start_later_and_end_in_their_own_time() {
    let mut story = Story::new(&[1], &["1,0,70,a", "1,5,10,a", "1,61,0,a"]);
    story.interval = 60;
    let (told, outcome) = story.told("fifo");
    assert_eq!(told, "0 +0, 120 +1, 180 +2");
    assert_eq!(outcome.makespan, 180);
    assert_eq!(outcome.sizes[0].waits, [0, 115, 119]);
}

#[test]
fn quotas_are_the_part_of_the_work_unless_they_are_given() {
    // 30, 10 and 0 card-seconds of 4 cards; nobody said whose the last one is.
    let jobs = ["3,0,10,a", "1,0,10,b", "1,0,0,"];
    let minima = |story: &Story| -> Vec<(String, u64)> {
        let (_, outcome) = story.told("sublet");
        let of = outcome.tenants.iter();
        of.map(|of| (of.of.to_string(), of.min_milli)).collect()
    };
    let is = |all: [(&str, u64); 3]| all.map(|(name, milli)| (name.to_owned(), milli)).to_vec();
    let story = Story::new(&[4], &jobs);
    assert_eq!(
        minima(&story),
        is([("a", 3000), ("b", 1000), ("default", 0)])
    );
    let story = story.with_quotas("default,1\nb,2\na,1\nnobody,7\n");
    assert_eq!(
        minima(&story),
        is([("a", 1000), ("b", 2000), ("default", 1000)])
    );
}

#[test]
fn odd_lists_are_refused_or_counted() {
    let why = |story: &Story| story.play("sublet", &mut |_| {}).unwrap_err().to_string();
    let no_jobs = "there is no job that could start on these nodes";
    assert_eq!(why(&Story::new(&[4], &[])), no_jobs);
    assert_eq!(why(&Story::new(&[0], &["1,0,1,a"])), no_jobs);
    assert_eq!(why(&Story::new(&[], &["0,0,1,a"])), no_jobs);
    assert!(why(&Story::new(&[4], &["1,,1,a"])).starts_with("pod 1 has no creation_time"));
    let story = Story::new(&[4], &["1,0,1,a", "1,0,1,b"]).with_quotas("a,4\n");
    assert_eq!(
        why(&story),
        "job 2 is of tenant b, for whom there is no quota"
    );
    let mut story = Story::new(&[4], &["1,0,1,a"]);
    story.load = Some(900_000);
    assert!(
        why(&story).contains("no load can be made"),
        "all come at once"
    );
    // More than the cluster has, and more members than can start together.
    let story = Story::new(&[2, 2], &["9,0,1,a", "1,0,1,a", "5,0,1,b"]);
    let (_, outcome) = story.told("sublet");
    assert_eq!(outcome.impossible, (2, Some("1".into())));
    assert_eq!((outcome.ended, outcome.tenants.len()), (1, 1));
}

#[test]
fn a_gang_s_members_take_their_part_of_cpu_and_memory() {
    // 9 GPUs of 4: two of four and one of one, of 100,000 thousandths of a core.
    let story = Story::new(&[4, 4, 4], &["9,0,1,a,0,100000,90000,"]);
    let mut kinds = Kinds::of(&story.nodes, &story.pods);
    kinds.try_each(|_| true);
    let jobs = Jobs::of((&story.nodes, &story.pods), None, None, kinds).unwrap();
    let members = jobs.kind(0).members.iter();
    let each = members.map(|one| {
        let host = one.claim.host();
        (one.count, host.cpu.get(), host.memory.get() >> 20)
    });
    assert_eq!(
        each.collect::<Vec<_>>(),
        [(2, 44_445, 40_000), (1, 11_112, 10_000)]
    );
}
