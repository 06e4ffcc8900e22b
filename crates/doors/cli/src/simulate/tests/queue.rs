//! Jobs of tenants through a queue, as people start it and read it.

use super::*;

/// A job for both cards of the one node, a gang of all three cards, one that is too large for the
/// cluster, and one of another tenant.
const JOBS: &str = "num_gpus,timestamp,duration,cluster\n\
    2,0,100,x\n3,5,10,x\n4,6,10,x\n1,7,20,y\n";

fn files() -> Files {
    let files = Files::new();
    files.write("pods.csv", JOBS);
    files
}

pub(super) fn answers() -> Vec<[String; 2]> {
    let files = files();
    let fifo = "--protocol queue --discipline fifo";
    vec![["", "-o json"].map(|form| files.run(&format!("{fifo} {form}")).text)]
}

#[test]
fn jobs_go_through_the_queue_by_each_discipline() {
    let files = files();
    let answer =
        files.run("--protocol queue --interval 0 --discipline fifo --discipline backfill -o json");
    assert_eq!((answer.code, &answer.notes[..]), (0, &[][..]));
    let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    let waits =
        |p50: u64, p90: u64| serde_json::json!({"p50": p50, "p90": p90, "p99": p90, "max": p90});
    // Alone x has the cluster too, and waits no longer.
    let partition = serde_json::json!({
        "gpus": 3, "jobs": 2, "meanWaitSeconds": 47.5, "p90WaitSeconds": 95,
        "sameJobsMeanWaitSeconds": 47.5, "sameJobsP90WaitSeconds": 95, "lagSeconds": 0,
    });
    // The gang waits until 100, and the job behind it until 110.
    let expected = serde_json::json!({
        "discipline": "fifo",
        "about": "by priority and age; nobody passes the first",
        "protocol": "queue",
        "policy": "tiling",
        "intervalSeconds": 0,
        "jobs": 4,
        "ended": 3,
        "impossible": 1,
        // Two of three cards until the last one came.
        "allocatedPercent": 66.6667,
        "usefulPercent": 66.6667,
        "lostPercent": 0.0,
        "evictions": 0,
        "lostWorkGpuHours": 0.0,
        "makespanSeconds": 130,
        "meanWaitSeconds": 66.0,
        // 1, 105 / 10 and 123 / 20.
        "meanBoundedSlowdown": 5.8833,
        "sharingIncentive": 0,
        "sharingIncentiveOf": 0,
        "sharingIncentiveOnMin": 0,
        "largestLagSeconds": 0,
        "largestLagQuota": "x",
        "largestLagOnMinSeconds": 0,
        "largestWaitWithinMinSeconds": null,
        "lateWithinMin": null,
        "waitBySize": [
            {"gpus": "up to 1", "jobs": 1, "evictions": 0, "meanWaitSeconds": 103.0,
             "waitSeconds": waits(103, 103)},
            {"gpus": "2 to 4", "jobs": 1, "evictions": 0, "meanWaitSeconds": 0.0,
             "waitSeconds": waits(0, 0)},
            {"gpus": "gangs", "jobs": 1, "evictions": 0, "meanWaitSeconds": 95.0,
             "waitSeconds": waits(95, 95)},
        ],
        "waitByQuota": [
            {"quota": "x", "minGpus": 3, "jobs": 2, "evictions": 0, "meanWaitSeconds": 47.5,
             "waitSeconds": waits(0, 95), "partition": partition},
            {"quota": "y", "minGpus": 0, "jobs": 1, "evictions": 0, "meanWaitSeconds": 103.0,
             "waitSeconds": waits(103, 103)},
        ],
        "gangsWaitedSeconds": {},
    });
    assert_eq!(runs[0], expected);
    assert_eq!(runs[1]["waitByQuota"][1]["waitSeconds"], waits(0, 0));
}

#[test]
fn the_table_has_all_disciplines_beside_each_other_and_says_what_they_are() {
    let files = files();
    files.write("quotas.csv", "tenant,gpus\nx,1\ny,2\n");
    let text = files
        .run("--protocol queue --quotas @quotas.csv --interval 60")
        .text;
    for part in [
        "2 nodes with 3 GPUs; 4 pods in the list.\nThe min of each quota is from ",
        "The queue decides at most once in 60 s.\n",
        "\n1 jobs could not start even if nothing ran, and are left out (the first: 3).\n",
        "\nDISCIPLINE    ENDED  ALLOCATED  USEFUL   LOST ",
        "  EVICTIONS  LOST WORK  MAKESPAN\n",
        "\nGPUS     JOBS  sublet",
        "\nQUOTA  MIN GPUS  JOBS  sublet",
        "\nx      1         2     ",
        "\nheads: Kueue's BestEffortFIFO, re-implemented",
        "\nDISCIPLINE    MEAN WAIT  MEAN BOUNDED SLOWDOWN  SHARING INCENTIVE  SHARING INCENTIVE ON MIN",
        "  LARGEST LAG QUOTA  LARGEST WAIT WITHIN MIN  LATE WITHIN MIN\n",
        "\nQUOTA  PARTITION GPUS  PARTITION JOBS  PARTITION MEAN WAIT  PARTITION P90 WAIT  sublet",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let csv = files
        .run("--protocol queue --interval 0 --discipline fifo -o csv")
        .text;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 3 + 2);
    assert_eq!(lines[3], "fifo,size,gangs,1,95,95,95,95");
    assert_eq!(lines[5], "fifo,quota,y,1,103,103,103,103");
}

#[test]
fn replays_give_the_same_bytes_whatever_runs_beside() {
    let files = Files::new();
    let rows = (0..80).map(|at| {
        let (gpus, comes, lasts) = ([1, 1, 2, 3][at % 4], at * 7 % 50, 1 + at * 13 % 40);
        format!("{gpus},{comes},{lasts},t{}\n", at % 3)
    });
    let header = "num_gpus,timestamp,duration,tenant\n".to_owned();
    files.write("pods.csv", &(header + &rows.collect::<String>()));
    let one = files.run("--protocol queue --interval 0 --load 1.5 -o json --threads 1");
    assert_eq!(
        one,
        files.run("--protocol queue --interval 0 --load 1.5 -o json --threads 4")
    );
    let json: serde_json::Value = serde_json::from_str(&one.text).unwrap();
    for run in json["runs"].as_array().unwrap() {
        // Partitions alone are too small for some.
        let [ended, impossible] = ["ended", "impossible"].map(|key| run[key].as_u64().unwrap());
        assert_eq!(ended + impossible, 80, "{run}");
        assert!(
            impossible == 0 || run["discipline"] == "partitions",
            "{run}"
        );
    }
}

#[test]
fn odd_requests_and_lists_are_refused_with_what_is_wrong() {
    let files = files();
    let check = |words: &str, said: &str| {
        let answer = files.run(words);
        assert_eq!((answer.code, &*answer.text), (BAD_INPUT, ""), "{words}");
        let note = answer.notes.join("\n");
        assert!(note.contains(said), "{words}: {note}");
    };
    for flag in ["--seed 1", "--arrive 9", "--plot @x.svg", "--defrag 1"] {
        let name = flag.split(' ').next().unwrap();
        let said = format!("{name} has no meaning with --protocol queue");
        check(&format!("--protocol queue {flag}"), &said);
    }
    for flag in ["--discipline fifo", "--quotas @q", "--interval 5"] {
        let name = flag.split(' ').next().unwrap();
        let said = format!("{name} has no meaning with --protocol timed: only a queue has it");
        check(&format!("--protocol timed {flag}"), &said);
    }
    let queue = "--protocol queue";
    check(
        &format!("{queue} --policy fgd --policy binpack"),
        "by one policy; 2 are given",
    );
    check(
        &format!("{queue} --discipline fifo --discipline fifo"),
        "discipline fifo is given twice",
    );
    for (quotas, said) in [
        (
            "tenant,gpus\nx,1\n",
            "job 4 is of tenant y, for whom there is no quota",
        ),
        (
            "tenant,gpus\nx,1\nx,2\n",
            "line 3, column 1 (`tenant`): `x` is not a tenant of its own",
        ),
        (
            "tenant,gpus\nx,-1\n",
            "line 2, column 2 (`gpus`): `-1` is not a number of GPUs",
        ),
        (
            "name,gpus\nx,1\n",
            "there is no column `tenant (or cluster)`",
        ),
        ("", "there is no column `tenant (or cluster)`"),
    ] {
        files.write("q.csv", quotas);
        check(&format!("{queue} --quotas @q.csv"), said);
    }
    let none = "there is no job that could start on these nodes";
    for (jobs, said) in [
        ("num_gpus,timestamp,duration,cluster\n", none),
        ("num_gpus,timestamp,duration,cluster\n7,0,1,x\n", none),
        (
            "num_gpus,timestamp,cluster\n1,0,x\n",
            "pod 1 has no creation_time",
        ),
        (
            "num_gpus,timestamp,duration,cluster\n1,0,1,a b\n",
            "column 4 (`cluster`): `a b`",
        ),
        ("", "it is empty"),
    ] {
        files.write("pods.csv", jobs);
        check(queue, said);
    }
}
