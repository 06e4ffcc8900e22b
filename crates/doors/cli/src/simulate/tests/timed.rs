//! Pods that come and go, and lists in other forms.

use super::*;

/// A job for both cards of `a`, two for the one of `b`, and two that no node can take.
const JOBS: &str = "\
    {\"num_gpus\": 2, \"timestamp\": \"2017-10-09 07:00:00\", \"duration\": \"100.0\"}\n\
    {\"num_gpus\": 1, \"timestamp\": \"2017-10-09 07:00:00\", \"duration\": 50}\n\
    {\"num_gpus\": 1, \"timestamp\": \"2017-10-09 07:00:10\", \"duration\": 49.5}\n\
    {\"num_gpus\": 3, \"timestamp\": \"2017-10-09 07:00:20\", \"duration\": 7}\n\
    {\"num_gpus\": 1, \"timestamp\": \"2017-10-09 07:00:20\", \"duration\": 7, \"gpu_spec\": \"H100\"}\n";

fn files() -> Files {
    let files = Files::new();
    files.write("pods.csv", JOBS);
    files
}

pub(super) fn answers() -> Vec<[String; 2]> {
    let files = files();
    vec![["", "-o json"].map(|form| files.run(&format!("--protocol timed {form}")).text)]
}

#[test]
fn jobs_come_wait_and_go() {
    let files = files();
    let answer = files.run("--protocol timed --policy binpack --policy spread -o json");
    assert_eq!((answer.code, &answer.notes[..]), (0, &[][..]));
    let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    // 0-100 both cards of a; 0-50 and 50-100 b's card: the third job waits for 40 s.
    let expected = serde_json::json!({
        "policy": "binpack",
        "protocol": "timed",
        "pods": 5,
        "placed": 3,
        "unsupported": 1,
        "neverPlaceable": {"model": 1},
        "waitSeconds": {"p50": 0, "p90": 40, "p99": 40, "max": 40},
        "makespanSeconds": 100,
        "allocatedPercent": 100.0,
        "allocatedByPartPercent": vec![100.0; 20],
    });
    assert_eq!(runs[0], expected);
    assert_eq!(
        (&runs[1]["policy"], &runs[1]["placed"]),
        (&"spread".into(), &3.into())
    );
}

#[test]
fn the_table_of_a_timed_run_has_waits_and_use_over_time() {
    let files = files();
    let text = files.run("--protocol timed --load 0.5").text;
    // 300 card-seconds (of jobs that can run) at 0.5 of three cards: 20 s become 199.6.
    for part in [
        "2 nodes with 3 GPUs; 5 pods in the list. They ask 0.5 of its GPU time while they come.\n",
        "1 pods are not supported: they ask more GPUs than any node has.\n",
        "1 pods can never be placed. What they lack: 1 model.\n",
        "\nPOLICY  PLACED  WAIT P50  WAIT P90  WAIT P99  WAIT MAX  ALLOCATED  MAKESPAN\n\
         tiling  3       0 s       0 s       0 s       0 s       ",
        "\nPART      tiling\n0-5 %     100.00\n",
        "\n95-100 %  ",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let timed = files.run("--protocol timed -o csv").text;
    let lines: Vec<&str> = timed.lines().collect();
    assert_eq!(lines.len(), 21);
    assert_eq!(lines[0], "policy,from_seconds,to_seconds,allocated_percent");
    assert_eq!(lines[20], "\"tiling\",95.00,100.00,100.0000");
}

#[test]
fn timed_runs_give_the_same_bytes_whatever_runs_beside() {
    let files = Files::new();
    let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,duration\n";
    let rows = (0..60).map(|at| {
        let milli = [300, 500, 1000][at % 3];
        format!(
            "p{at},100,1,1,{milli},{},{}\n",
            at * 7 % 50,
            10 + at * 13 % 40
        )
    });
    files.write("pods.csv", &format!("{header}{}", rows.collect::<String>()));
    let all = "--protocol timed --policy tiling --policy random --policy fgd --load 1.5 -o json";
    let one = files.run(&format!("{all} --threads 1"));
    assert_eq!(one, files.run(&format!("{all} --threads 3")));
    let json: serde_json::Value = serde_json::from_str(&one.text).unwrap();
    for run in json["runs"].as_array().unwrap() {
        assert_eq!(run["placed"], 60);
        assert!(run["waitSeconds"]["max"].as_u64() > Some(0), "{run}");
    }
    files.run(&format!("{all} --plot @use.svg"));
    let svg = files.read("use.svg");
    assert_eq!(svg.matches("<polyline").count(), 3);
    assert!(svg.contains("Allocated GPU share") && svg.contains("minutes") && !svg.contains("NaN"));
}

#[test]
fn what_has_no_meaning_with_a_protocol_is_refused() {
    let files = files();
    let check = |words: &str, said: &str| {
        let answer = files.run(words);
        assert_eq!((answer.code, &*answer.text), (BAD_INPUT, ""), "{words}");
        let note = answer.notes.join("\n");
        assert!(note.contains(said), "{words}: {note}");
    };
    check(
        "--load 0.9",
        "--load has no meaning with --protocol inflation",
    );
    for flag in [
        "--seed 1",
        "--arrive 100",
        "--sequence @s",
        "--placements @p",
        "--defrag 3",
    ] {
        let said = format!(
            "{} has no meaning with --protocol timed",
            flag.split(' ').next().unwrap()
        );
        check(&format!("--protocol timed {flag}"), &said);
    }
    check(
        "--protocol timed --policy fgd --policy fgd",
        "policy fgd is given twice",
    );
    files.write("pods.csv", PODS);
    check(
        "--protocol timed",
        "--protocol timed: pod p0 has no creation_time",
    );
    files.write("pods.csv", "num_gpu,creation_time,duration\n1,5,5\n");
    check("--protocol timed --load 1", "no load can be made of them");
    files.write("pods.csv", "[{\"num_gpu\":1},\n{\"num_gpu\":\"x\"}]");
    check(
        "",
        "/pods.csv\n  caused by: item 2, field `num_gpu`: `x` is not a number of GPUs",
    );
    let counted = files.run("--bad-lines count");
    assert_eq!(counted.code, 0);
    assert!(
        counted.notes[0].contains("; item 2, field `num_gpu`"),
        "{:?}",
        counted.notes
    );
}

#[test]
fn a_packed_list_of_json_gives_the_run_of_its_csv() {
    let files = Files::new();
    let csv = files.run("-o json --seed 3");
    let objects = "[\
        {\"name\":\"p0\",\"cpu_milli\":1000,\"memory_mib\":100,\"num_gpu\":1,\"gpu_milli\":500},\
        {\"name\":\"p1\",\"cpu_milli\":1000,\"memory_mib\":100,\"num_gpu\":2},\
        {\"name\":\"p2\",\"cpu_milli\":9000,\"memory_mib\":100,\"num_gpu\":1,\"gpu_milli\":\"100\"},\
        {\"name\":\"p3\",\"cpu_milli\":10,\"memory_mib\":10,\"num_gpu\":0}]";
    let file = std::fs::File::create(files.path("pods.csv")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    std::io::Write::write_all(&mut packed, objects.as_bytes()).unwrap();
    packed.finish().unwrap();
    assert_eq!(files.run("-o json --seed 3"), csv);
}
