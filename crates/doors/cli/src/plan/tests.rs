//! Plans of example files, decisions of the stock scheduler, every kind of odd input, and text that
//! is no input at all.

mod coming;
mod hami;
mod odd;
mod stock;

use std::sync::Arc;

use proptest::prelude::*;
use sublet_model::Unit;

use super::*;
use crate::answer::{Answer, DONE, NOT_DONE};
use crate::compute;

const THREE_NODES: &str = include_str!("../../../../../examples/plan/three-nodes.yaml");
const FOUR_GPUS: &str = include_str!("../../../../../examples/plan/four-gpus.yaml");

fn planned(files: &[&str], format: Format, policy: &str) -> Answer {
    let how = Printing {
        format,
        annotations: true,
        strict: false,
    };
    planned_so(files, policy, how)
}

fn planned_so(files: &[&str], policy: &str, how: Printing) -> Answer {
    arriving(files, policy, Arrival::default(), how)
}

fn arriving(files: &[&str], policy: &str, arrival: Arrival, how: Printing) -> Answer {
    let mut input = Input::default();
    for (at, text) in files.iter().enumerate() {
        input.read(&format!("file{}", at + 1), text);
    }
    let options = PlanOptions {
        policy: policy.parse().unwrap(),
        arrival,
        unit: Unit::MiB,
        schedulers: vec!["sublet-scheduler".to_owned()],
        now_ns: 1_700_000_000_000_000_000,
    };
    let planned = Planned::of(input, &options, how);
    let text = written(|out| planned.write(out));
    Answer {
        text,
        notes: planned.notes,
        code: planned.code,
    }
}

fn written(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut text = Vec::new();
    write(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn table(text: &str) -> Answer {
    planned(&[text], Format::Table, "binpack")
}

fn json(text: &str) -> serde_json::Value {
    let answer = planned(&[text], Format::Json, "binpack");
    assert_eq!(untiny(&answer), Vec::<&str>::new());
    serde_json::from_str(&answer.text).unwrap()
}

/// The notes, but that a pod asks for few units: most pods here do.
fn untiny(answer: &Answer) -> Vec<&str> {
    let notes = answer.notes.iter().map(String::as_str);
    notes.filter(|note| !note.contains(TINY)).collect()
}

const TINY: &str = "of `aliyun.com/gpu-mem`, and one is a MiB here (--memory-unit)";

#[test]
fn few_units_of_a_mib_are_remarked_on_once() {
    let of = |amounts: &[&str]| {
        let pods = amounts.iter().enumerate();
        let pods = pods.map(|(at, amount)| waiting(&format!("p{at}"), amount, "", ""));
        let notes = table(&(NODE.to_owned() + &pods.collect::<String>())).notes;
        notes
            .iter()
            .any(|note| note.contains(TINY))
            .then_some(notes)
    };
    assert_eq!(of(&["64"]), None);
    let one = of(&["64", "2"]).unwrap();
    let words = "warning: pod default/p1: container c asks for 2 of `aliyun.com/gpu-mem`";
    assert!(one[0].starts_with(words), "{one:?}");
    let three = of(&["1", "2", "3"]).unwrap();
    let words = "warning: pod default/p0, and 2 pods like it: container c asks for 1 of";
    assert!(three[0].starts_with(words) && three.len() == 1, "{three:?}");
}

#[test]
fn r1_3_one_gpu_must_have_the_room() {
    let answer = table(THREE_NODES);
    assert_eq!((answer.code, &answer.notes), (DONE, &Vec::new()));
    assert_eq!(
        answer.text,
        "\
NAMESPACE  NAME    NODE  CONTAINER  GPU  GRANTED   UUID
default    wanted  n3    main       0    8138 MiB  -

default/wanted gets the annotations
  ALIYUN_COM_GPU_MEM_ASSIGNED: false
  ALIYUN_COM_GPU_MEM_ASSUME_TIME: 1700000000000000000
  ALIYUN_COM_GPU_MEM_DEV: 16276
  ALIYUN_COM_GPU_MEM_IDX: 0
  ALIYUN_COM_GPU_MEM_POD: 8138
  scheduler.framework.gpushare.allocation: {\"0\":{\"0\":8138}}
  sublet.dev/allocation: [{\"container\":\"main\",\"index\":0,\"memoryMiB\":8138}]
  sublet.dev/assigned: []

1 placed, 0 not placed, 0 held back
"
    );
}

/// A plan with compute time. No dialect can limit it yet, so the claim is put into the plan by hand.
fn plan_of_shares(format: Format) -> String {
    let mut input = Input::default();
    input.read("file", FOUR_GPUS);
    let options = PlanOptions {
        policy: "binpack".parse().unwrap(),
        arrival: Arrival::default(),
        unit: Unit::MiB,
        schedulers: vec!["sublet-scheduler".to_owned()],
        now_ns: 0,
    };
    let mut plan = plan(input, &options);
    plan.pods[0].claim = Arc::new(compute::tests::claim(8138, 300, 600));
    let how = Printing {
        format,
        ..Printing::default()
    };
    written(|out| print::write(&plan, how, out))
}

/// Table and JSON of examples.
pub(crate) fn answers() -> Vec<[String; 2]> {
    let forms = [Format::Table, Format::Json];
    let files = |text: &str| forms.map(|form| planned(&[text], form, "binpack").text);
    let unread = "kind: Pod\nmetadata: {name: a}\nspec: {priority: high}\n";
    vec![
        forms.map(plan_of_shares),
        files(FOUR_GPUS),
        files(&[THREE_NODES, "---\n", unread].concat()),
    ]
}

#[test]
fn compute_time_is_shown_where_a_pod_asks_for_it() {
    let table = plan_of_shares(Format::Table);
    for line in [
        "NAMESPACE  NAME       NODE    CONTAINER  GPU  GRANTED   COMPUTE REQUEST     UUID\n",
        "default    wanted     n1      main       1    8138 MiB  30 %, at most 60 %  -\n",
        "default    too-large  (none)  -          -    -         -                   -\n",
    ] {
        assert!(table.contains(line), "{line}{table}");
    }
    let json: serde_json::Value = serde_json::from_str(&plan_of_shares(Format::Json)).unwrap();
    assert_eq!(
        json["pods"][0]["gpus"],
        serde_json::json!([{
            "container": "main", "gpu": 1, "uuid": null, "grantedMiB": 8138,
            "computeRequestPercent": 30.0, "computeLimitPercent": 60.0,
        }])
    );
}

#[test]
fn r1_4_the_fullest_gpu_that_fits_and_r1_10_a_refusal_with_its_reason() {
    let plan = json(FOUR_GPUS);
    assert_eq!(plan["pods"][0]["node"], "n1");
    assert_eq!(
        plan["pods"][0]["gpus"],
        serde_json::json!([{"container": "main", "gpu": 1, "uuid": null, "grantedMiB": 8138}])
    );
    assert_eq!(plan["pods"][0]["refusals"], serde_json::json!({}));
    assert_eq!(
        plan["pods"][1],
        serde_json::json!({
            "namespace": "default", "name": "too-large", "verdict": "refused", "node": null,
            "gpus": [], "annotations": {},
            "refusals": {"n1": "16277 MiB asked of one GPU, but the largest, GPU 0, has 16276 MiB \
                in all (1 MiB too few)"},
        })
    );
    let spread = planned(&[FOUR_GPUS], Format::Table, "spread");
    assert_eq!(spread.code, NOT_DONE);
    assert!(
        spread
            .text
            .contains("wanted     n1      main       3    8138 MiB"),
        "{}",
        spread.text
    );
    assert!(
        spread
            .text
            .contains("\ndefault/too-large is not placed\n  n1  16277 MiB asked")
    );
    let yaml = planned(&[FOUR_GPUS], Format::Yaml, "binpack").text;
    assert!(
        yaml.starts_with(
            "pods:\n- namespace: default\n  name: wanted\n  verdict: placed\n  node: n1\n"
        ),
        "{yaml}"
    );
}

/// One node with a card of 10 MiB.
const NODE: &str = "\
kind: Node
metadata: {name: n1}
status: {capacity: {aliyun.com/gpu-mem: 10, aliyun.com/gpu-count: 1}}
";

/// A pod that waits; `meta` and `spec` are further fields.
fn waiting(name: &str, amount: &str, meta: &str, spec: &str) -> String {
    format!(
        "---\nkind: Pod\nmetadata: {{name: {name}{meta}}}\n\
         spec:\n  schedulerName: sublet-scheduler\n  containers: [{{name: c, resources: {{limits: {{aliyun.com/gpu-mem: {amount}}}}}}}]\n\
         {spec}"
    )
}

#[test]
fn priority_then_age_then_the_order_of_the_files() {
    let old = ", creationTimestamp: \"2026-01-01T00:00:00Z\"";
    let new = ", creationTimestamp: \"2026-01-02T00:00:00Z\"";
    let text = NODE.to_owned()
        + &waiting("fifth", "3", "", "")
        + &waiting("third", "3", new, "")
        + &waiting("fourth", "3", new, "")
        + &waiting("second", "3", old, "")
        + &waiting("first", "3", new, "  priority: 5\n");
    let plan = json(&text);
    let names: Vec<_> = plan["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert_eq!(names, ["first", "second", "third", "fourth", "fifth"]);
    assert_eq!((&plan["placed"], &plan["refused"]), (&3.into(), &2.into()));
}

#[test]
fn pods_held_back_are_listed_and_so_are_pods_of_no_gpu_that_name_the_scheduler() {
    let text = NODE.to_owned()
        + &waiting("held", "3", "", "  schedulingGates: [{name: queue}]\n")
        + &waiting("none", "0", "", "")
        + &waiting("theirs", "0", "", "").replace("sublet-scheduler", "other")
        + &waiting(
            "going",
            "3",
            ", deletionTimestamp: \"2026-01-01T00:00:00Z\"",
            "",
        );
    let answer = table(&text);
    assert_eq!(answer.code, DONE);
    assert_eq!(
        answer.text,
        "\
NAMESPACE  NAME  NODE         CONTAINER  GPU  GRANTED  UUID
default    held  (held back)  -          -    -        -
default    none  n1           -          -    -        -

default/held is held back by scheduling gates: queue

1 placed, 0 not placed, 1 held back
"
    );
    assert_eq!(
        untiny(&answer),
        [
            "note: 1 waiting pods of other schedulers ask for no GPU and are passed over; they may yet \
          take CPU and memory"
        ]
    );
    assert_eq!(table(NODE).text, "no pod waits\n");
}

#[test]
fn taints_close_a_node_unless_tolerated() {
    let node = NODE.to_owned() + "spec: {taints: [{key: gpu, effect: NoSchedule}]}\n";
    let plan = json(&(node.clone() + &waiting("p", "3", "", "")));
    assert_eq!(
        plan["pods"][0]["refusals"]["n1"],
        "the pod does not tolerate the taint gpu:NoSchedule"
    );
    let tolerant = waiting("p", "3", "", "  tolerations: [{operator: Exists}]\n");
    assert_eq!(json(&(node + &tolerant))["placed"], 1);
}

#[test]
fn equal_pods_follow_each_other_on_paper() {
    let inventory = r#"{"version":1,"unit":"MiB","sharing":"memory","identity":"size-and-order","advertise":"units","gpus":[{"index":0,"uuid":"GPU-a","memoryMiB":10}]}"#;
    let text = format!("kind: Node\nmetadata: {{name: n1, annotations: {{sublet.dev/inventory: '{inventory}'}}}}\n")
        + &waiting("a", "3", "", "  nodeName: n1\n").replace(
            "name: a",
            "name: a, annotations: {ALIYUN_COM_GPU_MEM_IDX: \"0\", ALIYUN_COM_GPU_MEM_ASSIGNED: \"false\"}",
        )
        + &waiting("b", "3", "", "")
        + &waiting("c", "3", "", "");
    let plan = json(&text);
    assert_eq!(plan["placed"], 2);
    assert_eq!(plan["pods"][1]["gpus"][0]["uuid"], "GPU-a");
}

#[test]
fn an_opportunistic_pod_goes_where_least_use_was_measured() {
    let node = |name: &str, measured: &str| {
        let inventory = r#"{"version":1,"unit":"MiB","sharing":"memory","identity":"nri","advertise":"units","gpus":[{"index":0,"memoryMiB":10},{"index":1,"memoryMiB":10}]}"#;
        format!(
            "kind: Node\nmetadata:\n  name: {name}\n  annotations:\n    sublet.dev/inventory: '{inventory}'\n    sublet.dev/measured-use: '{measured}'\n---\n"
        )
    };
    let low = ", labels: {sublet.dev/class: opportunistic}";
    let pods = ["a", "b", "c"].map(|name| waiting(name, "3", low, ""));
    let nodes = |second: &str| {
        let first = r#"{"0":{"percent":60,"pods":0},"1":{"percent":40,"pods":0}}"#;
        node("n1", first) + &node("n2", second)
    };
    let second = r#"{"0":{"percent":90,"pods":0},"1":{"percent":20,"pods":0}}"#;
    let places = |plan: serde_json::Value| {
        let pods = plan["pods"].as_array().unwrap().clone();
        let place = |pod: &serde_json::Value| {
            let node = pod["node"].as_str().unwrap();
            format!("{node}/{}", pod["gpus"][0]["gpu"])
        };
        pods.iter().map(place).collect::<Vec<_>>()
    };
    // A pod that was just placed counts for 25 %. The last one is guaranteed, and goes where
    // least memory is left.
    let plan = json(&(nodes(second) + &pods.concat() + &waiting("z", "3", "", "")));
    assert_eq!(places(plan), ["n2/1", "n1/1", "n2/1", "n2/1"]);
    // What cannot be read is said, and is as good as nothing.
    let text = nodes(r#"{"0":{"percent":900,"pods":0}}"#) + &pods[0];
    let answer = planned(&[&text], Format::Json, "binpack");
    let note = "`metadata.annotations.sublet.dev/measured-use`: GPU 0 is busy for 900 % of its";
    assert!(untiny(&answer)[0].contains(note), "{:?}", answer.notes);
    let plan = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(places(plan), ["n2/0"]);
}

#[test]
fn a_node_may_have_no_card_or_a_thousand() {
    let text = "kind: Node\nmetadata: {name: n1}\nstatus: {capacity: {aliyun.com/gpu-mem: 1k, aliyun.com/gpu-count: COUNT}}\n"
        .to_owned()
        + &waiting("a", "1", "", "")
        + &waiting("b", "1", "", "");
    let plan = json(&text.replace("COUNT", "0"));
    assert_eq!(plan["pods"][0]["refusals"]["n1"], "the node has no GPU");
    let plan = json(&text.replace("COUNT", "1000"));
    assert_eq!(plan["pods"][1]["gpus"][0]["gpu"], 1);
}

#[test]
fn lists_and_json_are_read_and_other_kinds_are_passed_over() {
    let list = "apiVersion: v1\nitems:\n- kind: Node\n  metadata: {name: n1}\n- kind: Service\n\
                - {kind: Pod, metadata: {name: p}}\nkind: List\n";
    let json =
        r#"{"kind":"PodList","items":[{"metadata":{"name":"q","managedFields":[{"a":{"b":1}}]}}]}"#;
    let answer = planned(&[list, json, "kind: Ingress\n"], Format::Table, "binpack");
    assert_eq!(
        answer.notes,
        [
            "note: file1: document 1, item 2: passed over, its kind is Service",
            "note: file3: document 1 (line 1): passed over, its kind is Ingress",
            "note: 2 waiting pods of other schedulers ask for no GPU and are passed over; they may \
             yet take CPU and memory",
        ]
    );
    assert_eq!(
        (answer.code, answer.text.as_str()),
        (DONE, "no pod waits\n")
    );
}

proptest! {
    #[test]
    fn any_text_is_answered(text in r#"([ -~\n]|kind: |Pod|Node|List|items:|- |metadata: |spec: |[{}\[\],"'&*#!|>%]|---\n|\PC){0,60}"#) {
        let answer = table(&text);
        prop_assert_eq!(answer.code == BAD_INPUT, answer.text.is_empty());
    }

    #[test]
    fn any_damage_to_an_example_is_answered(at in 0..FOUR_GPUS.len(), with in "[ -~\n]{0,3}") {
        let mut text = FOUR_GPUS.to_owned();
        text.replace_range(at..=at, &with);
        let answer = table(&text);
        prop_assert_eq!(answer.code == BAD_INPUT, answer.text.is_empty());
    }
}
