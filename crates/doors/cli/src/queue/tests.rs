//! A cluster's queue from files: groups that start, groups that wait with their reasons, and bad
//! input.

mod as_in_a_cluster;

use proptest::prelude::*;
use serde_json::Value;
use sublet_api::flags::QueueRuleArgs;
use sublet_api::group::QueueScope;
use sublet_model::{Time, Unit};
use sublet_plan::Policy;
use sublet_queue::QueueRules;

use super::forecast::{ForecastOptions, forecast};
use super::print::{Printing, Shown, answer};
use super::{ScopeArgs, planned};
use crate::answer::{Answer, BAD_INPUT, DONE, Format, NOT_DONE};
use crate::plan::Input;

fn asked(text: &str, format: Format, only: Option<(&str, &str)>) -> Answer {
    asked_by("koordinator", text, format, only)
}

fn asked_by(profile: &str, text: &str, format: Format, only: Option<(&str, &str)>) -> Answer {
    let shown = match only {
        None => Shown::All { places: true },
        Some((namespace, name)) => Shown::One { namespace, name },
    };
    let mut input = Input::default();
    input.read("f", text);
    // An hour after the objects were made.
    let now = Time::from_ms(1_795_604_400_000);
    let options = ForecastOptions {
        scope: QueueScope {
            schedulers: ["ours".to_owned()].into(),
            assign: None,
            unit: Unit::MiB,
        },
        policy: Policy::default(),
        rules: QueueRules {
            profile: profile.parse().unwrap(),
            ..scope().queue_rules.rules()
        },
        now,
    };
    let forecast = forecast(input, &options);
    answer(&forecast, Printing { format, now, shown }).unwrap()
}

/// The same by `sublet plan --queue`.
fn planned_by_queue(text: &str, format: Format) -> Answer {
    let mut input = Input::default();
    input.read("f", text);
    planned(input, &scope(), format).unwrap()
}

fn scope() -> ScopeArgs {
    ScopeArgs {
        kubeconfig: None,
        scheduler_name: vec!["ours".to_owned()],
        memory_unit: Unit::default(),
        assign_scheduler: None,
        policy: Policy::default(),
        queue_rules: QueueRuleArgs {
            queue_profile: "koordinator".parse().unwrap(),
            ..QueueRuleArgs::default()
        },
    }
}

const NODE: &str = "
---
kind: Node
metadata: {name: node-1, uid: n1}
status: {allocatable: {nvidia.com/gpu: 8, cpu: 64, memory: 512Gi, pods: 110}, capacity: {nvidia.com/gpu: 8}}
";

/// A Job of so many pods with one card each, that waits for the queue.
fn job(name: &str, pods: u32, priority: &str) -> String {
    format!(
        "
---
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, namespace: team, uid: {name}, creationTimestamp: '2026-11-25T10:00:00Z'}}
spec:
  suspend: true
  parallelism: {pods}
  template:
    metadata: {{labels: {{quota.scheduling.koordinator.sh/name: team}}}}
    spec:
      schedulerName: ours
      priorityClassName: {priority}
      containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"
    )
}

fn quota(name: &str, min: u32, max: u32) -> String {
    format!(
        "
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata: {{name: {name}, namespace: kube-system}}
spec: {{min: {{nvidia.com/gpu: {min}}}, max: {{nvidia.com/gpu: {max}}}}}
"
    )
}

const CLASSES: &str = "
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 100
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: low}
value: 1
";

fn cluster() -> String {
    let jobs = [
        job("first", 6, "high"),
        job("second", 6, "low"),
        job("vast", 60, "low"),
    ];
    [NODE, CLASSES, &quota("team", 4, 16), &jobs.concat()].concat()
}

/// Table and JSON of an example.
pub(crate) fn answers() -> Vec<[String; 2]> {
    vec![[Format::Table, Format::Json].map(|form| asked(&cluster(), form, None).text)]
}

/// The order that is shown is the one in which they are tried.
#[test]
fn a_short_job_stands_before_a_long_one() {
    let says = |name: &str, time: &str| {
        let own = format!("name: {name}, annotations: {{sublet.dev/max-run-time: {time}}},");
        job(name, 8, "low").replacen(&format!("name: {name},"), &own, 1)
    };
    let jobs = [says("a", "8h"), job("b", 8, "low"), says("c", "1m")];
    let text = [NODE, CLASSES, &quota("team", 8, 8), &jobs.concat()].concat();
    for (profile, expected) in [
        ("fair", "a waiting 2, b waiting 1, c starting null"),
        ("koordinator", "a starting null, b waiting 1, c waiting 2"),
    ] {
        let answer = asked_by(profile, &text, Format::Json, None);
        let json: Value = serde_json::from_str(&answer.text).unwrap();
        let groups = json["groups"].as_array().unwrap().iter();
        let mut told: Vec<String> = groups
            .map(|group| {
                let name = group["group"].as_str().unwrap().rsplit('/').next().unwrap();
                let state = group["state"].as_str().unwrap();
                format!("{name} {state} {}", group["position"])
            })
            .collect();
        told.sort();
        assert_eq!(told.join(", "), expected, "{profile}");
    }
}

#[test]
fn one_job_starts_whole_and_the_others_say_why_they_wait() {
    let answer = asked(&cluster(), Format::Json, None);
    assert_eq!((answer.code, &answer.notes[..]), (DONE, &[][..]));
    let json: Value = serde_json::from_str(&answer.text).unwrap();
    let group = |name: &str| {
        let groups = json["groups"].as_array().unwrap();
        let id = format!("job/team/{name}");
        groups
            .iter()
            .find(|group| group["group"] == *id)
            .unwrap()
            .clone()
    };
    let first = group("first");
    assert_eq!(
        (&first["state"], &first["priority"]),
        (&"starting".into(), &100.into())
    );
    let slots = first["slots"].as_array().unwrap();
    assert!(slots.len() == 6 && slots.iter().all(|slot| slot["node"] == "node-1"));
    let second = group("second");
    assert_eq!(
        (&second["state"], &second["position"]),
        (&"waiting".into(), &1.into())
    );
    assert_eq!(second["waitedMs"], 3_600_000);
    assert!(second["slots"].is_null(), "{second}");
    let vast = group("vast");
    assert_eq!(vast["reasonLabel"], "Infeasible");
    let reason = vast["reason"].as_str().unwrap();
    assert!(
        reason.contains("60 of nvidia.com/gpu, and quota team has 16"),
        "{reason}"
    );
}

/// A plan for a gang of four on four cards. `first`: the pod that its first slot is for.
fn promised(first: Option<&str>) -> String {
    let slot = |at: u32| {
        let pod = first.filter(|_| at == 0);
        let pod = pod.map_or_else(String::new, |uid| format!(", pod: {uid}"));
        format!(
            "    - {{role: w, index: {at}, node: node-1, \
             allocation: [{{container: c, index: {at}, memoryMiB: 0}}]{pod}}}\n"
        )
    };
    let slots: String = (0..4).map(slot).collect();
    format!(
        "
---
apiVersion: sublet.dev/v1alpha1
kind: GangPlan
metadata: {{name: p1}}
spec:
  epoch: 1
  deadline: '2026-11-25T11:30:00Z'
  groups:
  - id: podgroup/team/other
    quota: team
    roles:
    - name: w
      pod: {{spec: {{containers: [{{name: c, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}}}
    slots:
{slots}"
    )
}

/// A pod on the node with the first card, which has the first slot of that plan.
const TAKER: &str = r#"
---
kind: Pod
metadata:
  name: taker
  namespace: team
  uid: u1
  annotations:
    sublet.dev/allocation: '[{"container": "c", "index": 0, "memoryMiB": 0}]'
    sublet.dev/slot: '{"plan": "p1", "group": "podgroup/team/other", "role": "w", "index": 0, "node": "node-1"}'
spec:
  nodeName: node-1
  schedulerName: ours
  priority: 1000
  containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]
"#;

#[test]
fn what_a_plan_has_promised_to_another_is_taken_once() {
    let state = |pods: u32, promised: &str| {
        let job = job("first", pods, "high");
        let all = [NODE, CLASSES, &quota("team", 16, 16), &job, promised].concat();
        let answer = asked(&all, Format::Json, None);
        assert_eq!((answer.code, &answer.notes[..]), (DONE, &[][..]));
        let json: Value = serde_json::from_str(&answer.text).unwrap();
        let mut groups = json["groups"].as_array().unwrap().iter();
        let first = groups.find(|group| group["group"] == "job/team/first");
        first.unwrap()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(8, ""), "starting");
    for first in [None, Some("u1"), Some("u2")] {
        assert_eq!(state(5, &promised(first)), "waiting", "{first:?}");
        assert_eq!(state(4, &promised(first)), "starting", "{first:?}");
    }
    // The plan may not say yet which pod has the slot.
    for first in [None, Some("u1")] {
        let both = [&promised(first), TAKER].concat();
        assert_eq!(state(5, &both), "waiting", "{first:?}");
        assert_eq!(state(4, &both), "starting", "{first:?}");
    }
}

/// A cluster with tree `t1`. The annotation gives the tree's total, and the cluster's own tree has
/// the other five.
fn with_a_tree() -> String {
    let of_tree = |name: &str, parent: &str, total: &str| {
        let labels = format!(
            "labels: {{quota.scheduling.koordinator.sh/tree-id: t1, \
             quota.scheduling.koordinator.sh/parent: '{parent}'}}{total}, namespace: kube-system"
        );
        quota(name, 0, 9).replace("namespace: kube-system", &labels)
    };
    let total = ", annotations: {quota.scheduling.koordinator.sh/total-resource: \
                 '{\"nvidia.com/gpu\": 3}'}";
    let side = |name: &str, pods: u32| job(name, pods, "low").replace("name: team}", "name: side}");
    let jobs = [
        job("own", 5, "low"),
        job("vast", 6, "low"),
        side("in", 2),
        side("later", 2),
        side("never", 4),
    ];
    let quotas = [
        quota("team", 0, 16),
        of_tree("pool", "", total),
        of_tree("side", "pool", ""),
    ];
    [NODE, CLASSES, &quotas.concat(), &jobs.concat()].concat()
}

#[test]
fn groups_of_a_tree_share_what_that_has() {
    let all = with_a_tree();
    let answers = [
        asked(&all, Format::Json, None),
        planned_by_queue(&all, Format::Json),
    ];
    for answer in answers {
        assert_eq!((answer.code, &answer.notes[..]), (DONE, &[][..]));
        let json: Value = serde_json::from_str(&answer.text).unwrap();
        for (name, state, why) in [
            ("own", "starting", ""),
            (
                "vast",
                "waiting",
                "asks 6 of nvidia.com/gpu, and the cluster has 5 in all",
            ),
            ("in", "starting", ""),
            (
                "later",
                "waiting",
                "quota side uses 2 of its entitlement of 3",
            ),
            (
                "never",
                "waiting",
                "asks 4 of nvidia.com/gpu, and tree t1 has 3 in all",
            ),
        ] {
            let id = format!("job/team/{name}");
            let mut groups = json["groups"].as_array().unwrap().iter();
            let group = groups.find(|group| group["group"] == *id).unwrap();
            assert_eq!(group["state"], state, "{group}");
            let reason = group["reason"].as_str().unwrap_or_default();
            assert!(reason.contains(why), "{name}: {reason}");
        }
        let mut quotas = json["quotas"].as_array().unwrap().iter();
        let side = quotas.find(|quota| quota["name"] == "side").unwrap();
        assert_eq!(
            (&side["tree"], &side["entitlement"]),
            (&"t1".into(), &3.into())
        );
    }
    let table = asked(&all, Format::Table, None).text;
    assert!(table.contains("\n  side (t1)"), "{table}");
    let silent = all.replace("total-resource", "something-else");
    let answer = asked(&silent, Format::Json, None);
    assert_eq!(answer.code, NOT_DONE);
    assert!(
        answer.notes[0].contains("tree t1: nothing says"),
        "{:?}",
        answer.notes
    );
}

/// These names are a promise: scripts read them.
#[test]
fn the_json_form_is_as_promised() {
    let answer = asked(&cluster(), Format::Json, None);
    let json: Value = serde_json::from_str(&answer.text).unwrap();
    let fields = |value: &Value| {
        let fields = value.as_object().unwrap().keys().cloned();
        fields.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(fields(&json), "groups held of quotas unreadable");
    assert_eq!(
        fields(&json["quotas"][0]),
        "borrowed entitlement lent max min name parent request resource used"
    );
    assert_eq!(
        fields(&json["groups"][1]),
        "group members placed position priority quota reason reasonLabel state waitedMs"
    );
    assert_eq!(
        fields(&json["groups"][0]["slots"][0]),
        "gpus index node role state"
    );
}

#[test]
fn people_see_quotas_then_groups_and_one_job_with_its_places() {
    let all = asked(&cluster(), Format::Table, None).text;
    let lines: Vec<&str> = all.lines().collect();
    assert!(lines[0].starts_with("NAME  RESOURCE"), "{all}");
    assert!(
        lines[1].starts_with("team  nvidia.com/gpu  4    16"),
        "{all}"
    );
    assert!(all.contains("6 members start now"), "{all}");
    let one = asked(&cluster(), Format::Table, Some(("team", "first")));
    assert_eq!(one.code, DONE);
    let row = "job/team/first  worker  0      node-1  starting";
    assert!(one.text.contains(row), "{}", one.text);
    assert!(!one.text.contains("second"), "{}", one.text);
    let none = asked(&cluster(), Format::Table, Some(("team", "fir")));
    assert_eq!(none.code, NOT_DONE);
    assert!(
        none.notes[0].contains("no job, gang or pod team/fir is queued"),
        "{:?}",
        none.notes
    );
}

#[test]
fn a_bad_object_costs_only_itself() {
    for (odd, words) in [
        (
            job("odd", 1, "low").replace("parallelism: 1", "parallelism: many"),
            "field `spec.parallelism`: it is no whole number",
        ),
        (
            "\n---\napiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\n\
             spec: {minMember: -1}\n"
                .to_owned(),
            "field `spec.minMember`",
        ),
        (
            quota("odd", 1, 2).replace("gpu: 1", "gpu: x"),
            "field `spec.min[nvidia.com/gpu]`",
        ),
    ] {
        let answer = asked(&[cluster(), odd].concat(), Format::Json, None);
        assert_eq!(answer.code, NOT_DONE, "{words}");
        let notes = answer.notes.join("\n");
        assert!(notes.contains(words), "{notes}");
        assert!(answer.text.contains("job/team/first"), "{}", answer.text);
    }
    assert_eq!(asked("", Format::Table, None).code, BAD_INPUT);
    // A quota that is the only one, and a job without a name.
    for (all, words, code) in [
        (
            [
                NODE,
                &quota("team", 1, 2).replace("gpu: 1", "gpu: -6"),
                &job("first", 1, ""),
            ]
            .concat(),
            "field `spec.min[nvidia.com/gpu]`: \"-6\": it is negative",
            NOT_DONE,
        ),
        (
            [NODE, &job("first", 1, "").replace("name: first, ", "")].concat(),
            "field `metadata.name`: it is missing",
            BAD_INPUT,
        ),
    ] {
        let answer = asked(&all, Format::Table, None);
        assert_eq!(answer.code, code, "{words}");
        let notes = answer.notes.join("\n");
        assert!(notes.contains(words), "{notes}");
    }
    let nothing = asked(NODE, Format::Table, None);
    assert_eq!(
        (nothing.code, &*nothing.text),
        (DONE, "nothing is queued\n")
    );
}

proptest! {
    #[test]
    fn any_text_is_answered(kind in 0..4_usize, text in "[a-z:{}\\[\\]'\" \\n0-9-]{0,80}") {
        let (api, kind) = [
            ("batch/v1", "Job"),
            ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
            ("sublet.dev/v1alpha1", "GangPlan"),
            ("kubeflow.org/v1", "TFJob"),
        ][kind];
        let text = format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {text}");
        let answer = asked(&text, Format::Json, None);
        prop_assert!(answer.code == DONE || !answer.notes.is_empty());
    }
}
