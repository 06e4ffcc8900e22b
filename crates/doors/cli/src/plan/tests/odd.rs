//! Odd objects: each is named, with its file, document and field, and everything else is planned.

use super::*;

/// Messages about odd objects; everything else is planned.
fn odd(text: &str) -> Vec<String> {
    let answer = table(text);
    let notes = untiny(&answer).into_iter();
    notes
        .map(|note| {
            let rest = note.strip_prefix("warning: ");
            rest.or(note.strip_prefix("error: "))
                .unwrap_or(note)
                .to_owned()
        })
        .collect()
}

/// A pod that runs, on card 0 of `n1`.
fn running(name: &str, amount: &str, meta: &str) -> String {
    let meta = format!(", annotations: {{ALIYUN_COM_GPU_MEM_IDX: \"0\"}}{meta}");
    waiting(name, amount, &meta, "  nodeName: n1\n")
}

/// Odd objects, and the message about each.
fn odd_objects() -> [(String, &'static str); 6] {
    let node = NODE.replace("name: n1", "name: n2, labels: {sublet.dev/sharing: some}");
    [
        (
            running("a", "1, nvidia.com/gpu: 1", ""),
            "file1: document 2, line 5, pod default/a, field `spec.containers`: the pod asks for \
             `aliyun.com/gpu-mem` and for `nvidia.com/gpu`; a pod can use one way of asking for GPUs",
        ),
        (
            format!("---\n{node}"),
            "file1: document 2, line 5, node n2, field `metadata.labels.sublet.dev/sharing`: label \
             `sublet.dev/sharing` is `some`, not `memory`, `whole` or `both`",
        ),
        (
            running("a", "1", "").replace("IDX: \"0\"", "IDX: x"),
            "file1: document 2, line 5, pod default/a, field \
             `metadata.annotations.ALIYUN_COM_GPU_MEM_IDX`: annotation `ALIYUN_COM_GPU_MEM_IDX` has \
             `x`, which is not the index of a GPU; which GPU it has is not known",
        ),
        (
            running("a", "1", "").replace("IDX: \"0\"", "IDX: \"77\""),
            "file1: document 2, line 5, pod default/a, field \
             `metadata.annotations.ALIYUN_COM_GPU_MEM_IDX`: it says GPU 77, and node n1 has 1 GPUs; \
             which GPU it has is not known",
        ),
        (
            "---\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: n1, priority: high}\n"
                .to_owned(),
            "file1: document 2, line 7, field `spec.priority`: ",
        ),
        (
            "---\nkind: Pod\nmetadata: {name: a}\nspec: {nodeName: n1, containers: [}\n".to_owned(),
            "file1: document 2, line 7: ",
        ),
    ]
}

#[test]
fn one_odd_object_costs_nothing_but_itself() {
    let good = waiting("good", "3", "", "");
    for (text, expected) in odd_objects() {
        let text = NODE.to_owned() + &text + &good;
        let said = odd(&text);
        assert!(
            said.len() == 1 && said[0].starts_with(expected),
            "{said:?}\n{expected}"
        );
        let how = |format, strict| Printing {
            format,
            strict,
            annotations: false,
        };
        let answer = planned_so(&[&text], "binpack", how(Format::Json, false));
        let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(json["placed"], 1, "{text}");
        let listed = json["unreadable"].as_array().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(
            (&listed[0]["file"], &listed[0]["document"]),
            (&"file1".into(), &2.into())
        );
        // Whether that one waits cannot be read where even its kind cannot.
        let lost = !said[0].contains("field");
        assert_eq!(
            answer.code == DONE,
            !lost && !said[0].contains("priority"),
            "{said:?}"
        );
        let strict = planned_so(&[&text], "binpack", how(Format::Json, true));
        assert_eq!((strict.code, &strict.text), (BAD_INPUT, &answer.text));
        assert!(untiny(&strict)[0].starts_with("error: file1: document 2"));
    }
}

#[test]
fn an_odd_item_of_a_list_costs_nothing_but_itself() {
    let list = "kind: List\nitems:\n- kind: Node\n  metadata: {name: n1}\n\
                - kind: Pod\n  metadata: {name: p}\n  spec:\n    containers: 5\n\
                - kind: Pod\n  metadata: {name: q}\n  spec: {schedulerName: sublet-scheduler}\n";
    let start = "file1: document 1, item 2, line 8, field `items[1].spec.containers`: ";
    let said = odd(list);
    assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
    assert!(
        table(list).text.contains("\ndefault    q     n1"),
        "{}",
        table(list).text
    );
    let json = r#"{"kind":"PodList","items":[{"metadata":{"name":"p"},
 "spec":{"priority":"high"}},{"metadata":{"name":"q"},"spec":{"schedulerName":"sublet-scheduler"}},7]}"#;
    let said = odd(&format!("{NODE}---\n{json}\n"));
    assert!(
        said[0].starts_with("file1: document 2, item 1, line 6, field `items[0].spec.priority`: "),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("file1: document 2, item 3, line 6, field `items[2]`: "),
        "{said:?}"
    );
    assert!(
        table(&format!("{NODE}---\n{json}\n"))
            .text
            .contains("\ndefault    q     n1")
    );
    // One in braces that is no JSON cannot be cut apart.
    let flow = "{kind: List, items: [{kind: Pod, metadata: {name: [x]}}]}\n";
    let said = odd(&(NODE.to_owned() + "---\n" + flow));
    assert!(
        said[0].starts_with("file1: document 2, line 5, field `items[0].metadata.name"),
        "{said:?}"
    );
}

#[test]
fn what_is_counted_of_a_pod_that_cannot_be_read() {
    // Its memory on a card is not known, but what it takes of the machine is.
    let node = NODE.replace("{capacity: {", "{capacity: {cpu: 4, ");
    let odd = running("odd", "1, nvidia.com/gpu: 1, cpu: 3", "");
    let text = node + &odd + &waiting("w", "1, cpu: 2", "", "");
    let plan: serde_json::Value =
        serde_json::from_str(&planned(&[&text], Format::Json, "binpack").text).unwrap();
    assert_eq!(
        plan["pods"][0]["refusals"]["n1"],
        "2 CPU asked, and 1 CPU is left on the node"
    );
}

#[test]
fn a_node_that_cannot_be_read_gets_no_pods() {
    let node = NODE.replace("gpu-mem: 10", "gpu-mem: 1.5");
    let text = node + &waiting("w", "1", "", "");
    let answer = table(&text);
    assert_eq!(answer.code, NOT_DONE);
    assert_eq!(
        odd(&text),
        [
            "file1: document 1, line 1, node n1, field `status.capacity.aliyun.com/gpu-mem`: \
          status.capacity `aliyun.com/gpu-mem` is `1.5`: it is not a whole number"
        ]
    );
    let why = "n1  the node is not known, or its GPU inventory cannot be read";
    assert!(answer.text.contains(why), "{}", answer.text);
}

#[test]
fn a_waiting_pod_that_cannot_be_read_is_not_placed() {
    let check = |amount: &str| {
        let text = NODE.to_owned() + &waiting("p", amount, "", "");
        assert_eq!(table(&text).code, NOT_DONE);
        odd(&text).remove(0)
    };
    let what = "file1: document 2, line 5, pod default/p, field `spec.containers[0].resources`: \
                container c: `aliyun.com/gpu-mem` is";
    assert_eq!(check("-1"), format!("{what} `-1`: it is negative"));
    assert_eq!(
        check("1.5"),
        format!("{what} `1.5`: it is not a whole number")
    );
    assert_eq!(check("99E"), format!("{what} `99E`: it is too large"));
    assert_eq!(
        check("much"),
        format!("{what} `much`: it is not a number such as `8138` or `8k`")
    );
    let cpu = check("1, cpu: x");
    assert!(cpu.contains("`cpu` is `x`"), "{cpu}");
    assert!(
        check("[1]")
            .contains("line 9, field `spec.containers[0].resources.limits.aliyun.com/gpu-mem`")
    );
    let wish = "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
                {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Like}]}]}}}\n";
    let text = NODE.to_owned() + &waiting("p", "1", "", wish);
    let said = odd(&text).remove(0);
    assert!(
        said.contains("nodeSelectorTerms[0].matchExpressions[0]`: `Like` is no operator"),
        "{said}"
    );
    assert_eq!(table(&text).code, NOT_DONE);
}

#[test]
fn bad_documents_are_named_with_line_and_field() {
    let hopeless = |text: &str| {
        let answer = table(text);
        assert_eq!(
            (answer.code, answer.text.as_str()),
            (BAD_INPUT, ""),
            "{text}"
        );
        odd(text).remove(0)
    };
    let empty = "file1: there is no Kubernetes object in it";
    assert_eq!(hopeless(""), empty);
    assert_eq!(hopeless("\n# nothing\n---\n...\n"), empty);
    assert_eq!(
        hopeless("a: 1\n"),
        "file1: document 1, line 1, field `kind`: it is missing"
    );
    assert!(hopeless("kind: [\n").starts_with("file1: document 1, line "));
    assert!(hopeless("hello\n").starts_with("file1: document 1, line 1: "));
    let wrong = NODE.to_owned()
        + "---\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    resources: 7\n"
        + "---\nkind: Pod\nmetadata: {name: b}\nspec:\n  priority: high\n";
    let said = odd(&wrong);
    assert!(
        said[0].starts_with("file1: document 2, line 10, field `spec.containers[0].resources`: "),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("file1: document 3, line 15, field `spec.priority`: "),
        "{said:?}"
    );
    // A whole file without anything in it is a mistake, whatever the others have.
    let answer = planned(&[NODE, ""], Format::Table, "binpack");
    assert_eq!((answer.code, answer.text.as_str()), (BAD_INPUT, ""));
}

#[test]
fn of_two_objects_of_one_name_the_first_counts() {
    let pod = waiting("p", "1", "", "");
    let text = NODE.to_owned() + "---\n" + NODE + &pod + &pod;
    assert_eq!(
        odd(&text),
        [
            "file1: document 2, line 5, node n1, field `metadata.name`: it stands already in file1: \
             document 1 (line 1), which counts",
            "file1: document 4, line 15, pod default/p, field `metadata.name`: it stands already in \
             file1: document 3 (line 9), which counts",
        ]
    );
    assert!(table(&text).text.contains("1 placed, 0 not placed"));
    let twins = waiting("a", "1", ", uid: u1", "") + &waiting("b", "1", ", uid: u1", "");
    assert_eq!(
        odd(&(NODE.to_owned() + &twins)),
        [
            "file1: document 3, line 11, a pod with the UID u1, field `metadata.uid`: it stands already \
          in file1: document 2 (line 5), which counts"
        ]
    );
    assert!(odd("kind: Pod\nspec: {containers: []}\n")[0].contains("must not be empty"));
    assert!(odd("kind: Node\n")[0].contains("node name must not be empty"));
}
