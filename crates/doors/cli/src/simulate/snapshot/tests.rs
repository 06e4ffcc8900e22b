//! Running clusters: their entered objects, the nodes that are open to pods, and the gain of moves.

pub(crate) mod moves;

use clap::Parser;
use proptest::prelude::*;
use sublet_model::{MilliCpu, Sharing};

use super::*;
use crate::answer::{Answer, BAD_INPUT};
use crate::simulate::{Args, run};

const THREE_NODES: &str = include_str!("../../../../../../examples/plan/three-nodes.yaml");

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Runs with these words; `@` is a file with that text, `@out` one beside it.
fn simulated(text: &str, words: &str) -> (Answer, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("in"), folder.path().join("out"));
    std::fs::write(&file, text).unwrap();
    let words = format!("simulate --no-timing {words}");
    let words = words.split_whitespace().map(|word| match word {
        "@" => file.display().to_string(),
        "@out" => out.display().to_string(),
        _ => word.to_owned(),
    });
    let args = Line::try_parse_from(words).unwrap().args;
    let mut answer = run(&args).unwrap();
    let path = format!("{}/", folder.path().display());
    for note in &mut answer.notes {
        *note = note.replace(&path, "");
    }
    (answer, std::fs::read_to_string(out).unwrap_or_default())
}

fn snapshot(text: &str, adds: &[&str]) -> Result<Snapshot, String> {
    let mut input = Input::default();
    input.read("file", text);
    let adds: Vec<Add> = adds.iter().map(|add| add.parse().unwrap()).collect();
    of(input, Unit::MiB, &adds, true).map_err(|error| error.to_string())
}

fn json(answer: &Answer) -> serde_json::Value {
    assert_eq!((answer.code, &answer.notes), (0, &Vec::new()));
    serde_json::from_str(&answer.text).unwrap()
}

#[test]
fn what_runs_stays_and_counts_as_arrived() {
    let words = "--snapshot @ --policy binpack --arrive 300 --placements @out -o json";
    let (answer, placed) = simulated(THREE_NODES, words);
    let run = &json(&answer)["runs"][0];
    // 5,000 of 6,000 thousandths run. Of the pods like those that are there, 16276, 12207 and
    // 8138 MiB, just one of the last kind finds a hole, on n3.
    assert_eq!(run["placed"], 1);
    let placed: Vec<&str> = placed
        .lines()
        .filter(|line| !line.ends_with("[]"))
        .collect();
    assert!(
        placed.len() == 1 && placed[0].ends_with(" n3 [0]"),
        "{placed:?}"
    );
    let curve = run["curve"].as_array().unwrap();
    let first = &curve[0];
    assert_eq!(
        (&first["arrivedPercent"], &first["allocatedPercent"]),
        (&83.into(), &83.33.into())
    );
    assert_eq!(curve.last().unwrap()["allocatedPercent"], 91.67);

    let (answer, _) = simulated(THREE_NODES, "--snapshot @ --arrive 80");
    assert!(
        answer
            .text
            .starts_with("3 nodes with 6 GPUs; 6 pods run, new ones are like 7."),
        "{}",
        answer.text
    );
    assert!(answer.text.contains("\n83 %     83.33"), "{}", answer.text);
    assert!(
        answer.text.contains("\n0 arrived, 0 placed on 3 nodes."),
        "{}",
        answer.text
    );
}

#[test]
fn more_nodes_take_more_pods() {
    let words = "--snapshot @ --policy binpack --arrive 300 --add 2xn1 --placements @out";
    let (answer, placed) = simulated(THREE_NODES, words);
    assert!(
        answer.text.starts_with("5 nodes with 10 GPUs; 6 pods run"),
        "{}",
        answer.text
    );
    assert!(placed.contains(" n1-copy-1 [0]") && placed.contains(" n1-copy-2 [1]"));
    let (answer, _) = simulated(THREE_NODES, "--snapshot @ --add 2xn4");
    assert_eq!(answer.code, BAD_INPUT);
    assert!(
        answer.notes[0].contains("--add 2xn4: there is no node n4"),
        "{answer:?}"
    );
    let both = "name,cpu_milli,memory_mib,gpu,num_gpu,gpu_milli\na,9,9,3,1,1000\n";
    let (answer, _) = simulated(both, "--nodes @ --pods @ --add 2xa --add 1xa-copy-2");
    assert!(
        answer
            .text
            .starts_with("4 nodes with 12 GPUs; 1 pods in the list."),
        "{}",
        answer.text
    );
    let lists = "sn,cpu_milli,memory_mib,gpu\na,9,9,3\n";
    let (answer, _) = simulated(lists, "--nodes @ --pods @ --add 1xa");
    assert!(answer.notes[0].contains("num_gpu"), "{answer:?}");
}

/// Nodes that differ in all that matters, and pods with their wishes.
const WISHES: &str = r#"
kind: Node
metadata: {name: a, labels: {disk: ssd, kubernetes.io/hostname: a}}
spec: {taints: [{key: gpu, effect: NoSchedule}]}
status: {capacity: {nvidia.com/gpu: 2}, allocatable: {cpu: "4", memory: 8Gi}}
---
kind: Node
metadata: {name: b, labels: {disk: ssd, nvidia.com/gpu.product: T4}}
spec: {taints: [{key: slow, effect: PreferNoSchedule}]}
status: {capacity: {aliyun.com/gpu-mem: 20, aliyun.com/gpu-count: 2}, allocatable: {cpu: "4"}}
---
kind: Node
metadata: {name: c}
status: {capacity: {cpu: "4"}, allocatable: {cpu: "4", memory: 8Gi}}
---
kind: Pod
metadata: {name: any}
spec: {containers: [{name: m, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
kind: Pod
metadata: {name: tolerant}
spec: {tolerations: [{operator: Exists}], containers: [{name: m}]}
---
kind: Pod
metadata: {name: choosy}
spec: {tolerations: [{key: gpu, operator: Exists}], nodeSelector: {disk: ssd}, containers: [{name: m}]}
---
kind: Pod
metadata: {name: at-home}
spec: {tolerations: [{operator: Exists}], nodeSelector: {kubernetes.io/hostname: a}, containers: [{name: m}]}
"#;

#[test]
fn nodes_are_what_the_scheduler_knows_of_them() {
    let nodes = snapshot(WISHES, &[]).unwrap().nodes;
    let seen = |at: usize| {
        let node = &nodes.rows[at];
        (
            node.name.to_string(),
            node.sharing,
            node.inventory.gpus().len(),
            node.model.to_string(),
        )
    };
    assert_eq!(seen(0), ("a".to_owned(), Sharing::Whole, 2, String::new()));
    assert_eq!(
        seen(1),
        ("b".to_owned(), Sharing::Memory, 2, "T4".to_owned())
    );
    assert_eq!(seen(2).2, 0);
    assert_eq!(nodes.rows[0].host.cpu, MilliCpu::new(4000));
    // What a node of a file does not say is enough, and all that it lists counts.
    let host = nodes.rows[1].host;
    assert_eq!(host.cpu, MilliCpu::new(4000));
    assert!(host.memory.get() >= 1 << 60);
    let cards = nodes.rows[0].stock.as_ref().unwrap();
    assert_eq!(
        cards.resources.get("nvidia.com/gpu"),
        u64::MAX,
        "only allocatable is listed"
    );
    let sick = r#"{"version":1,"unit":"MiB","sharing":"both","identity":"size-and-order","advertise":"units","gpus":[{"index":0,"uuid":"GPU-a","memoryMiB":10,"sick":"xid 79"},{"index":3,"uuid":"GPU-b","memoryMiB":30}]}"#;
    let text = format!(
        "kind: Node\nmetadata: {{name: n, annotations: {{sublet.dev/inventory: '{sick}'}}}}\n---\nkind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, resources: {{limits: {{aliyun.com/gpu-mem: 10}}}}}}]}}\n"
    );
    let words = "--snapshot @ --arrive 1000 --placements @out --policy binpack -o csv";
    let (answer, placed) = simulated(&text, words);
    assert_eq!(answer.code, 0, "{answer:?}");
    let placed: Vec<&str> = placed
        .lines()
        .filter(|line| !line.ends_with("[]"))
        .collect();
    assert_eq!(
        placed, ["0 n [3]"; 3],
        "by its number, and never on the sick one"
    );
}

#[test]
fn taints_and_selectors_close_nodes() {
    let found = snapshot(WISHES, &["1xa"]).unwrap();
    // Rows: a, b, c, and a's copy, which has its taint and its labels but for the host name.
    let open = |at: usize| {
        let reach = found.pods.rows[at].reach.as_ref();
        reach.map(|reach| {
            reach
                .rows()
                .map(|row| (*row, reach.untolerated(*row)))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(open(0), Some(vec![(1, 1), (2, 0)]));
    assert_eq!(open(1), None);
    assert_eq!(open(2), Some(vec![(0, 0), (1, 1), (3, 0)]));
    assert_eq!(open(3), Some(vec![(0, 0)]));
    assert_eq!(found.nodes.rows[3].name.as_str(), "a-copy-1");
}

#[test]
fn what_the_stock_scheduler_counts_is_no_room_for_pods() {
    // Room for eight on the card; the node takes three pods, and one runs.
    let node = "kind: Node\nmetadata: {name: n, uid: u}\nstatus: {allocatable: {cpu: 8, memory: 8Gi, pods: 3, aliyun.com/gpu-mem: 8, aliyun.com/gpu-count: 1}, capacity: {aliyun.com/gpu-mem: 8, aliyun.com/gpu-count: 1}}\n";
    let pod = |name: &str, spec: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}, annotations: {{ALIYUN_COM_GPU_MEM_IDX: \"0\"}}, ownerReferences: [{{kind: ReplicaSet}}]}}\n\
             spec: {{{spec}containers: [{{name: c, resources: {{limits: {{aliyun.com/gpu-mem: 1}}}}}}]}}\n"
        )
    };
    let words = "--snapshot @ --arrive 1000 --policy binpack -o json";
    let text = node.to_owned() + &pod("runs", "nodeName: n, ");
    let (answer, _) = simulated(&text, words);
    assert_eq!(json(&answer)["runs"][0]["placed"], 2);
    assert_eq!(json(&answer)["runs"][0]["droppedByReason"]["pods"], 5);
    // Without its device plugin the node has cards, and none to give.
    let (answer, _) = simulated(
        &text.replace("pods: 3, aliyun.com/gpu-mem: 8", "pods: 3"),
        words,
    );
    assert_eq!(json(&answer)["runs"][0]["placed"], 0);
    let (answer, _) = simulated(
        &(text + &pod("waits", "resourceClaims: [{name: g}], ")),
        words,
    );
    assert_eq!(
        answer.notes,
        [
            "note: 1 pods have wishes that are not looked at (about other pods, even spreading, volumes \
          or resource claims)"
        ]
    );
}

#[test]
fn odd_objects_can_be_left_out() {
    let odd = "---\nkind: Pod\nmetadata: {name: odd}\nspec: {priority: high}\n";
    let text = format!("{odd}---\n{THREE_NODES}");
    let (answer, _) = simulated(&text, "--snapshot @");
    assert_eq!(answer.code, BAD_INPUT);
    let (answer, _) = simulated(&text, "--snapshot @ --bad-lines count");
    assert_eq!(answer.code, 0);
    assert!(
        answer.notes[0].starts_with("warning: in: document 1, line 4, field `spec.priority`: ")
    );
}

#[test]
fn what_cannot_be_used_is_named() {
    let notes = |text: &str, words: &str| {
        let (answer, _) = simulated(text, words);
        assert_eq!((answer.code, &*answer.text), (BAD_INPUT, ""), "{answer:?}");
        answer.notes
    };
    assert_eq!(
        notes("", "--snapshot @"),
        ["error: in: there is no Kubernetes object in it"]
    );
    let pod = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: much}}}]}\n";
    assert_eq!(
        notes(pod, "--snapshot @"),
        [
            "error: in: document 1, line 1, pod default/p, field `spec.containers[0].resources`: \
             container c: `aliyun.com/gpu-mem` is `much`: it is not a number such as `8138` or `8k`"
        ]
    );
    assert!(notes(&pod.replace("much", "1"), "--snapshot @")[0].contains("there is no node in it"));
    let node = "kind: Node\nmetadata: {name: n}\nstatus: {capacity: {aliyun.com/gpu-mem: 8, aliyun.com/gpu-count: 1}}\n";
    let nobody = notes(node, "--snapshot @");
    assert!(
        nobody[0].contains("it has no pod to draw new ones from"),
        "{nobody:?}"
    );
    let twice = notes(&format!("{node}---\n{node}"), "--snapshot @");
    assert!(
        twice[0].contains("node n, field `metadata.name`: it stands already in"),
        "{twice:?}"
    );
    assert!(
        notes(node, "--snapshot @ --defrag 3 --seed 1,2")[0]
            .contains("--defrag needs exactly one run")
    );
    assert!(
        notes(node, "--snapshot @ --defrag 3 --protocol timed")[0]
            .contains("--defrag has no meaning")
    );
    assert!(notes(node, "--snapshot @ --defrag 3 -o csv")[0].contains("as a table or as JSON"));
    for wrong in [
        "simulate --snapshot a --nodes b",
        "simulate --pods b",
        "simulate --nodes b",
        "simulate --nodes b --pods c --memory-unit GiB",
        "simulate --snapshot a --add n",
        "simulate --snapshot a --defrag 3 --plot x.svg",
    ] {
        assert!(
            Line::try_parse_from(wrong.split_whitespace()).is_err(),
            "{wrong}"
        );
    }
    let lost = format!(
        "{node}---\nkind: Pod\nmetadata: {{name: p}}\nspec: {{nodeName: gone, containers: [{{name: c}}]}}\n"
    );
    let (answer, _) = simulated(&lost, "--snapshot @");
    assert_eq!(
        (answer.code, &answer.notes[..]),
        (
            0,
            &[
                "note: in: document 2 (line 5): pod p: left out, its node gone is not there"
                    .to_owned()
            ][..]
        )
    );
}

#[test]
fn an_amount_is_what_the_unit_says_and_a_card_may_be_unknown() {
    let text = "kind: Node\nmetadata: {name: n}\nstatus: {capacity: {aliyun.com/gpu-mem: 8, aliyun.com/gpu-count: 2}}\n---\n\
                kind: Pod\nmetadata: {name: p, annotations: {ALIYUN_COM_GPU_MEM_IDX: x}}\nspec: {nodeName: n, containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 2}}}]}\n";
    let (answer, _) = simulated(text, "--snapshot @ --memory-unit GiB --defrag 1 -o json");
    let found: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(found["states"][0]["largestPod"]["requestMiB"], 2048);
    assert!(
        answer.notes.len() == 1 && answer.notes[0].ends_with("which GPU it has is not known"),
        "{:?}",
        answer.notes
    );
}

#[test]
fn a_list_for_a_snapshot_asks_in_mib() {
    let pods = tempfile::NamedTempFile::new().unwrap();
    let words = format!("--snapshot @ --pods {} --arrive 92", pods.path().display());
    std::fs::write(pods.path(), "name,num_gpu,gpu_memory_mib\np,1,8138\n").unwrap();
    let (answer, _) = simulated(THREE_NODES, &words);
    assert!(answer.text.contains("\n1 arrived, 1 placed"), "{answer:?}");
    std::fs::write(pods.path(), "name,num_gpu,gpu_milli\np,1,500\n").unwrap();
    let (answer, _) = simulated(THREE_NODES, &words);
    assert_eq!(answer.code, BAD_INPUT);
    assert!(
        answer.notes[0].contains("column `gpu_memory_mib` is needed"),
        "{answer:?}"
    );
}

proptest! {
    #[test]
    fn any_damage_to_an_example_is_answered(at in 0..THREE_NODES.len(), with in "[ -~\n]{0,3}", most in 0..3usize) {
        let mut text = THREE_NODES.to_owned();
        text.replace_range(at..=at, &with);
        let (answer, _) = simulated(&text, &format!("--snapshot @ --defrag {most} --arrive 120"));
        prop_assert_eq!(answer.code == BAD_INPUT, answer.text.is_empty());
    }
}
