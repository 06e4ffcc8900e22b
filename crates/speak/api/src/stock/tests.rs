//! Rules as users write them: those that are read, those that are refused with their field, and
//! those that are not modelled.

use super::*;

fn pod(spec: &str) -> Pod {
    let text = format!(
        r#"{{"metadata":{{"name":"p","namespace":"team","labels":{{"app":"web"}}}},"spec":{{{spec}}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// A pod with that list of terms as its required affinity.
fn wants(terms: &str) -> Pod {
    let hard = "requiredDuringSchedulingIgnoredDuringExecution";
    pod(&format!(
        r#""affinity":{{"nodeAffinity":{{"{hard}":{{"nodeSelectorTerms":[{terms}]}}}}}}"#
    ))
}

fn node(labels: &str) -> NodeRules {
    let text = format!(
        r#"{{"metadata":{{"name":"n1","labels":{{{labels}}}}},
             "spec":{{"taints":[{{"key":"gpu","effect":"NoSchedule"}},{{"key":"x","effect":"Odd"}}]}}}}"#
    );
    node_rules(&serde_json::from_str(&text).unwrap())
}

#[test]
fn wishes_are_read_and_decide() {
    let read = pod_rules(&pod(
        r#""nodeSelector":{"zone":"a"},"tolerations":[{"key":"gpu","operator":"Exists"},{"operator":"Odd"}],
           "affinity":{"nodeAffinity":{
             "requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
               {"matchExpressions":[{"key":"cores","operator":"Gt","values":["8"]}],
                "matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]},
             "preferredDuringSchedulingIgnoredDuringExecution":[
               {"weight":7,"preference":{"matchExpressions":[{"key":"disk","operator":"Exists"}]}}]}}"#,
    ))
    .unwrap();
    assert_eq!(
        read.tolerations.len(),
        1,
        "what nobody knows tolerates nothing"
    );
    assert_eq!(read.preferred[0].0, 7);
    assert_eq!(read.check(&node(r#""zone":"a","cores":"9""#)), Ok(()));
    assert!(read.check(&node(r#""zone":"a","cores":"8""#)).is_err());
    assert!(read.check(&node(r#""zone":"b","cores":"9""#)).is_err());
    assert_eq!(
        node("").taints.len(),
        1,
        "an effect that nobody knows has none"
    );
    assert_eq!(pod_rules(&pod("")), Ok(PodRules::default()));
    assert_eq!(pod_rules(&wants("")).unwrap().required, Some(Vec::new()));
    assert_eq!(
        pod_rules(&wants("{}")).unwrap().required,
        Some(vec![Term::default()])
    );
}

#[test]
fn what_the_api_server_would_refuse_is_named_with_its_field() {
    let error = |list: &str, wish: &str| {
        let pod = wants(&format!(r#"{{}},{{"{list}":[{{"key":"k",{wish}}}]}}"#));
        let error = pod_rules(&pod).unwrap_err().to_string();
        let field = "field `spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.\
                     nodeSelectorTerms[1].";
        error.strip_prefix(field).unwrap_or(&error).to_owned()
    };
    let labels = [
        (
            r#""operator":"Gt","values":["x"]"#,
            "`x` is no whole number, which Gt needs",
        ),
        (
            r#""operator":"Lt","values":["1","2"]"#,
            "Lt needs exactly one value",
        ),
        (r#""operator":"In""#, "In needs a value"),
        (
            r#""operator":"Exists","values":["1"]"#,
            "Exists takes no value",
        ),
        (
            r#""operator":"Like""#,
            "`Like` is no operator; it is In, NotIn, Exists, DoesNotExist, Gt or Lt",
        ),
    ];
    for (wish, what) in labels {
        assert_eq!(
            error("matchExpressions", wish),
            format!("matchExpressions[0]`: {what}")
        );
    }
    assert_eq!(
        error("matchFields", r#""operator":"In","values":["1"]"#),
        "matchFields[0]`: only metadata.name can be compared, by In or NotIn with one value"
    );
}

#[test]
fn what_nobody_models_is_named() {
    let said = |spec: &str| {
        let found = unmodelled(&pod(spec));
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let hard = "requiredDuringSchedulingIgnoredDuringExecution";
    let soft = "preferredDuringSchedulingIgnoredDuringExecution";
    let cases = [
        (r#""containers":[]"#.to_owned(), None),
        (
            format!(r#""affinity":{{"podAffinity":{{"{soft}":[{{}}]}}}}"#),
            None,
        ),
        (
            r#""topologySpreadConstraints":[{"whenUnsatisfiable":"ScheduleAnyway"}]"#.to_owned(),
            None,
        ),
        (r#""volumes":[{"name":"v","emptyDir":{}}]"#.to_owned(), None),
        (
            format!(r#""affinity":{{"podAffinity":{{"{hard}":[{{}}]}}}}"#),
            Some("its pod affinity is not looked at"),
        ),
        (
            format!(r#""affinity":{{"podAntiAffinity":{{"{hard}":[{{}}]}}}}"#),
            Some("its pod anti-affinity is not looked at"),
        ),
        (
            r#""topologySpreadConstraints":[{"whenUnsatisfiable":"DoNotSchedule"}]"#.to_owned(),
            Some("its topology spread constraints are not looked at"),
        ),
        (
            r#""volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"c"}}]"#.to_owned(),
            Some("its volume data may bind it to other nodes"),
        ),
        (
            r#""resourceClaims":[{"name":"gpu"}]"#.to_owned(),
            Some("its resource claims are not looked at"),
        ),
    ];
    for (spec, expected) in cases {
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(said(&spec), expected, "{spec}");
    }
}

#[test]
fn a_pod_s_anti_affinity_means_pods_by_labels_and_namespaces() {
    let means = |term: &str, namespace: &str| {
        let hard = "requiredDuringSchedulingIgnoredDuringExecution";
        let spec = format!(r#""affinity":{{"podAntiAffinity":{{"{hard}":[{{{term}}}]}}}}"#);
        let terms = kept_away(&pod(&spec)).unwrap();
        let labels = BTreeMap::from([("app", "web")]);
        terms[0].means(namespace, |key| labels.get(key).copied())
    };
    let web = r#""labelSelector":{"matchLabels":{"app":"web"}}"#;
    assert!(means(web, "team"));
    assert!(!means(web, "other"));
    assert!(means(&format!(r#"{web},"namespaces":["other"]"#), "other"));
    assert!(!means(&format!(r#"{web},"namespaces":["other"]"#), "team"));
    assert!(means(
        &format!(r#"{web},"namespaceSelector":{{}}"#),
        "other"
    ));
    assert!(!means(
        r#""labelSelector":{"matchLabels":{"app":"db"}}"#,
        "team"
    ));
    assert!(means(r#""labelSelector":{}"#, "team"));
    assert!(!means(r#""topologyKey":"zone""#, "team"));
    let not = r#""labelSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}"#;
    assert!(!means(not, "team"));
}
