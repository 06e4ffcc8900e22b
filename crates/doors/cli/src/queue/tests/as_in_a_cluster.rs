//! Rules that paper and cluster share: the policy, priorities, trees, membership; and amounts as
//! kubectl prints them.

use super::super::no_cluster_meant;
use super::*;

/// A node with a card, of which a pod has so much already.
fn shared_node(name: &str, used: u32) -> String {
    let of_pod = match used {
        0 => String::new(),
        used => format!(
            "---\nkind: Pod\nmetadata: {{name: on-{name}, uid: on-{name}, annotations: \
             {{sublet.dev/allocation: '[{{\"container\":\"c\",\"index\":0,\"memoryMiB\":{used}}}]'}}}}\n\
             spec: {{nodeName: {name}, schedulerName: ours, containers: [{{name: c, resources: \
             {{limits: {{aliyun.com/gpu-mem: {used}}}}}}}]}}\n"
        ),
    };
    format!(
        "---\nkind: Node\nmetadata: {{name: {name}}}\nstatus: {{capacity: {{aliyun.com/gpu-mem: 16000, \
         aliyun.com/gpu-count: 1, cpu: 64, memory: 64Gi, pods: 9}}}}\n{of_pod}"
    )
}

/// JSON entry of a group.
fn of_group(answer: &Answer, id: &str) -> Value {
    let json: Value = serde_json::from_str(&answer.text).unwrap();
    let mut groups = json["groups"].as_array().unwrap().iter();
    groups.find(|group| group["group"] == id).unwrap().clone()
}

#[test]
fn gangs_go_by_the_policy_of_the_site() {
    let all = [
        shared_node("n1", 8_000),
        shared_node("n2", 0),
        job("g", 1, "").replace("nvidia.com/gpu: 1", "aliyun.com/gpu-mem: 4000"),
    ];
    for (policy, node) in [("binpack", "n1"), ("spread", "n2")] {
        let mut input = Input::default();
        input.read("f", &all.concat());
        let scope = ScopeArgs {
            policy: policy.parse().unwrap(),
            ..scope()
        };
        let answer = planned(input, &scope, Format::Json).unwrap();
        let group = of_group(&answer, "job/team/g");
        assert_eq!(group["slots"][0]["node"], node, "{policy}: {group}");
        let card = &group["slots"][0]["gpus"][0];
        assert_eq!((&card["container"], &card["gpu"]), (&"c".into(), &0.into()));
    }
}

#[test]
fn of_several_default_priorities_the_smallest_counts() {
    let class = |name: &str, value: i32| {
        format!(
            "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\n\
             value: {value}\nglobalDefault: true\n"
        )
    };
    let classes = [class("a", 5), class("b", -3), class("c", 7)].concat();
    let all = [NODE, &classes, &job("g", 1, "''")].concat();
    let answer = asked(&all, Format::Json, None);
    assert_eq!(of_group(&answer, "job/team/g")["priority"], -3);
}

/// As the controller mends them: one bad quota costs only itself.
#[test]
fn a_bad_tree_is_mended_and_told() {
    let orphan = quota("team", 4, 16).replace(
        "namespace: kube-system",
        "namespace: kube-system, labels: {quota.scheduling.koordinator.sh/parent: gone}",
    );
    let all = [NODE, &orphan, &quota("other", 1, 2), &job("g", 6, "")].concat();
    for answer in [
        asked(&all, Format::Json, None),
        planned_by_queue(&all, Format::Json),
    ] {
        assert_eq!(answer.code, NOT_DONE);
        let told = "warning: f: document 2, line 8, ElasticQuota team, field \
             `metadata.labels[quota.scheduling.koordinator.sh/parent]`: quota team has the parent gone, \
             which is not there; it stands at the top meanwhile";
        assert_eq!(answer.notes, [told]);
        assert_eq!(of_group(&answer, "job/team/g")["state"], "starting");
        assert!(
            answer.text.contains("\"name\": \"other\""),
            "{}",
            answer.text
        );
    }
}

/// A pod that was asked to go is no member any more, and its group waits again.
#[test]
fn a_pod_that_goes_is_no_member() {
    let pod = |name: &str, more: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}, namespace: team, uid: {name}, labels: \
             {{scheduling.x-k8s.io/pod-group: g}}{more}}}\nspec: {{schedulerName: ours, containers: \
             [{{name: c, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]}}\n"
        )
    };
    let group = "---\napiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g, \
                 namespace: team}\nspec: {minMember: 2}\n";
    let goes = ", deletionTimestamp: '2026-11-25T10:59:00Z'";
    let all = [NODE, group, &pod("a", ""), &pod("b", goes)].concat();
    let answer = asked(&all, Format::Json, None);
    let group = of_group(&answer, "podgroup/team/g");
    assert_eq!(
        (&group["reasonLabel"], &group["members"]),
        (&"Incomplete".into(), &1.into())
    );
}

/// No member of a gang that runs with all its members waits, however much its quota is entitled to.
/// Found by `what_plan_queue_says_the_real_controller_does`.
#[test]
fn a_gang_that_runs_beyond_its_quota_does_not_wait() {
    let pod = "---\nkind: Pod\nmetadata: {name: a, namespace: team, uid: a, annotations: \
               {sublet.dev/slot: '{}', sublet.dev/allocation: '[{\"container\": \"c\", \"index\": 0, \
               \"memoryMiB\": 0}]'}}\nspec: {nodeName: node-1, schedulerName: ours, containers: [{name: c, \
               resources: {limits: {nvidia.com/gpu: 1}}}]}\n";
    let all = [NODE, &quota("team", 0, 1), &quota("other", 8, 8), pod].concat();
    let asks = job("g", 8, "").replace("name: team}", "name: other}");
    let answer = asked(&[all, asks].concat(), Format::Json, None);
    assert_eq!(
        of_group(&answer, "pod/team/a")["state"],
        "running",
        "{}",
        answer.text
    );
}

/// Jobs whose pods get their scheduler at creation queue before they have pods.
#[test]
fn a_job_without_a_scheduler_queues_where_it_is_assigned() {
    let job = job("g", 1, "").replace("      schedulerName: ours\n", "");
    let all = [NODE, &job].concat();
    let is_there = |assign: Option<&str>| {
        let mut input = Input::default();
        input.read("f", &all);
        let scope = ScopeArgs {
            assign_scheduler: assign.map(str::to_owned),
            ..scope()
        };
        let answer = planned(input, &scope, Format::Json).unwrap();
        answer.text.contains("job/team/g")
    };
    assert_eq!([None, Some("ours")].map(is_there), [false, true]);
}

#[test]
fn amounts_in_tables_are_as_kubectl_prints_them() {
    let all = [
        NODE,
        &quota("team", 1, 2).replace(
            "nvidia.com/gpu: 2}",
            "nvidia.com/gpu: 2, cpu: 500, memory: 64Gi}",
        ),
        &job("g", 1, "").replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 1, cpu: 501"),
    ];
    let text = asked(&all.concat(), Format::Table, None).text;
    let max = |resource: &str| {
        let mut lines = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = lines.find(|words| words.get(1) == Some(&resource));
        line.map(|words| words[3].to_owned()).unwrap_or_default()
    };
    assert_eq!(
        (max("cpu"), max("memory")),
        ("500".to_owned(), "64Gi".to_owned()),
        "{text}"
    );
    assert!(
        text.contains("it asks 501 of cpu, and quota team has 500 at most"),
        "{text}"
    );
}

#[test]
fn a_kubeconfig_without_a_cluster_says_what_to_type() {
    let program = crate::paste::program();
    for (machine, words) in [
        (true, "the jobs of this machine"),
        (false, "the objects of files"),
    ] {
        let answer = no_cluster_meant("a b".as_ref(), machine);
        assert_eq!((answer.code, &*answer.text), (BAD_INPUT, ""));
        assert!(answer.notes[0].contains(words), "{:?}", answer.notes);
        let typed = format!("`{program} queue --cluster --kubeconfig 'a b'`");
        assert!(answer.notes[1].contains(&typed), "{:?}", answer.notes);
    }
}

/// A pod of a Job that queued: on the node, or held back.
fn member(name: &str, is_bound: bool) -> String {
    let (slot, place) = match is_bound {
        true => (
            ", annotations: {sublet.dev/slot: '{}', sublet.dev/allocation: '[{\"container\": \"c\", \
             \"index\": 0, \"memoryMiB\": 0}]'}",
            "nodeName: node-1",
        ),
        false => ("", "schedulingGates: [{name: sublet.dev/queue}]"),
    };
    format!(
        "---\nkind: Pod\nmetadata: {{name: {name}, namespace: team, uid: {name}, labels: {{app: x}}, ownerReferences: \
         [{{apiVersion: batch/v1, kind: Job, name: g, uid: g, controller: true}}]{slot}}}\nspec: \
         {{{place}, schedulerName: ours, containers: [{{name: c, resources: {{limits: \
         {{nvidia.com/gpu: 1}}}}}}]}}\n"
    )
}

/// A gang that has lost members runs, and says so in the words of its event; who waits for a start comes
/// first in the line.
#[test]
fn a_gang_that_lost_members_runs_and_stands_in_no_line() {
    let pods: String = (0..8).map(|at| member(&format!("g{at}"), at < 6)).collect();
    let all = [
        NODE,
        &quota("team", 6, 16),
        &quota("other", 2, 16),
        &job("g", 8, "").replace("suspend: true", "suspend: false"),
        &pods,
        &job("h", 3, "").replace("T10:", "T11:"),
        &job("k", 2, "").replace("name: team}", "name: other}"),
    ];
    let answer = asked(&all.concat(), Format::Json, None);
    let (ran, waits) = (
        of_group(&answer, "job/team/g"),
        of_group(&answer, "job/team/h"),
    );
    assert_eq!(
        (&ran["state"], &ran["placed"]),
        (&"running".into(), &6.into())
    );
    assert!(ran["position"].is_null() && ran["waitedMs"] == 0, "{ran}");
    let reason = ran["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("it runs, and more of it wait: "),
        "{reason}"
    );
    assert_eq!(ran["reasonLabel"], "OverQuota");
    assert_eq!(
        (&waits["state"], &waits["position"]),
        (&"waiting".into(), &1.into())
    );
}

/// As the controller, paper breaks no disruption budget; and who would go runs until then.
#[test]
fn a_budget_on_paper_guards_as_in_the_cluster() {
    let pods: String = (0..8).map(|at| member(&format!("g{at}"), true)).collect();
    let all = [
        NODE,
        &quota("team", 8, 16),
        &quota("other", 0, 16),
        &job("g", 8, "")
            .replace("suspend: true", "suspend: false")
            .replace("name: team}", "name: other}"),
        &pods,
        &job("c", 4, ""),
    ];
    let free = asked(&all.concat(), Format::Json, None);
    let claimant = of_group(&free, "job/team/c");
    assert_eq!(claimant["state"], "starting", "{}", free.text);
    assert_eq!(claimant["victims"].as_array().unwrap().len(), 8);
    let victim = of_group(&free, "job/team/g");
    assert_eq!(
        (&victim["state"], &victim["reason"]),
        (
            &"running".into(),
            &"it runs, and 8 pods go for job/team/c".into()
        )
    );

    let budget = "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b, namespace: \
                  team}\nspec: {selector: {matchLabels: {app: x}}}\nstatus: {disruptionsAllowed: 7}\n";
    let guarded = asked(&[&all.concat(), budget].concat(), Format::Json, None);
    let claimant = of_group(&guarded, "job/team/c");
    assert_eq!(claimant["reasonLabel"], "Guarded", "{}", guarded.text);
    assert_eq!(of_group(&guarded, "job/team/g")["state"], "running");
    let budget = budget.replace("Allowed: 7", "Allowed: 8");
    let allowed = asked(&[&all.concat(), &*budget].concat(), Format::Json, None);
    assert_eq!(of_group(&allowed, "job/team/c")["state"], "starting");
}

/// Only the field is lost.
#[test]
fn a_time_of_a_minimum_that_is_none_is_told_and_the_quota_counts() {
    let odd = quota("team", 4, 16).replace(
        "namespace: kube-system",
        "namespace: kube-system, annotations: {sublet.dev/min-within: soon}",
    );
    let all = [NODE, &odd, &job("g", 6, "")].concat();
    for answer in [
        asked(&all, Format::Json, None),
        planned_by_queue(&all, Format::Json),
    ] {
        assert_eq!(answer.code, NOT_DONE);
        let told = "ElasticQuota team, field `metadata.annotations[sublet.dev/min-within]`: \"soon\": it \
                    is no duration such as `0s`, `1h` or `24h`; the site's counts";
        assert!(
            answer.notes.len() == 1 && answer.notes[0].ends_with(told),
            "{:?}",
            answer.notes
        );
        assert_eq!(of_group(&answer, "job/team/g")["state"], "starting");
    }
}

/// A pod with a card of a node, or one that waits for so many.
fn lone(name: &str, quota: &str, place: Result<(&str, usize), u32>) -> String {
    let (notes, node, cards) = match place {
        Ok((node, card)) => (
            format!(
                "sublet.dev/slot: '{{}}', sublet.dev/allocation: '[{{\"container\": \"c\", \"index\": {card}, \
                 \"memoryMiB\": 0}}]'"
            ),
            format!("nodeName: {node}"),
            1,
        ),
        Err(cards) => (String::new(), "priority: 0".to_owned(), cards),
    };
    format!(
        "---\nkind: Pod\nmetadata: {{name: {name}, namespace: team, uid: {name}, creationTimestamp: \
         '2026-11-25T10:00:00Z', labels: {{quota.scheduling.koordinator.sh/name: {quota}}}, annotations: \
         {{{notes}}}}}\nspec: {{{node}, schedulerName: ours, containers: [{{name: c, resources: {{limits: \
         {{nvidia.com/gpu: {cards}}}}}}}]}}\nstatus: {{startTime: '2026-11-25T10:00:00Z'}}\n"
    )
}

/// Paper decides by the profile that the controller is told, and by its times.
#[test]
fn a_profile_on_paper_chooses_as_in_the_cluster() {
    let small = NODE
        .replace("name: node-1, uid: n1", "name: node-2, uid: n2")
        .replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 4");
    // By their names those of both nodes come by turns.
    let borrow = |node: &'static str, count: usize| {
        let name = move |at: usize| format!("p{}-{node}-{at}", at * 4 / count);
        (0..count).map(move |at| lone(&name(at), "bor", Ok((node, at))))
    };
    let all = [
        NODE,
        &small,
        &quota("own", 8, 12),
        &quota("bor", 4, 12),
        &borrow("node-1", 8).collect::<String>(),
        &borrow("node-2", 4).collect::<String>(),
        &lone("claimant", "own", Err(4)),
    ];
    let all = all.concat();
    for (profile, within, victims) in [
        ("koordinator", None, None),
        ("fair", Some(0), Some(4)),
        ("strict", Some(0), Some(4)),
        // Before its time too much would be lost.
        ("fair", Some(u64::MAX), None),
    ] {
        let mut input = Input::default();
        input.read("f", &all);
        let scope = ScopeArgs {
            queue_rules: QueueRuleArgs {
                queue_profile: profile.parse().unwrap(),
                queue_min_within: within,
                ..QueueRuleArgs::default()
            },
            ..scope()
        };
        let answer = planned(input, &scope, Format::Json).unwrap();
        let claimant = of_group(&answer, "pod/team/claimant");
        let found = claimant["victims"].as_array().map(Vec::len);
        assert_eq!(found.filter(|n| *n > 0), victims, "{profile}: {claimant}");
    }
}
