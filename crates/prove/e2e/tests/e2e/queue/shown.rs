//! Output of `sublet queue` and `sublet explain job` on a live cluster while a job waits.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{World, eventually, yaml};

use super::nodes;
use super::objects::{elastic_quota, job, namespace};

/// Three cards of a quota of four are used, and a job asks for two.
#[test]
fn who_waits_is_shown_with_reason_and_figures() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    nodes(&world, &[("n1", 8)])?;
    world.cluster.apply(&namespace("shown"))?;
    world
        .cluster
        .apply(&elastic_quota("shown", "shown", 2, 4))?;
    let pods = ["a", "b", "c"].map(|name| {
        let pod = yaml::Pod {
            name,
            limits: &["aliyun.com/gpu-mem: 1000"],
            metadata: "namespace: shown",
            ..yaml::Pod::default()
        };
        pod.yaml()
    });
    world.cluster.apply(&pods.concat())?;
    eventually(|| {
        let list = world.get(&["pods", "-n", "shown"])?;
        let pods = list["items"].as_array().context("no list")?;
        let bound = pods.iter().filter(|pod| pod["spec"]["nodeName"] == "n1");
        ensure!(bound.count() == 3, "{list}");
        Ok(())
    })?;
    world.cluster.apply(&job("late", "shown", 2, true))?;

    let (code, text, notes) = world.sublet(&["queue", "--cluster", "-o", "json"])?;
    assert_eq!((code, &*notes), (0, ""), "{text}");
    let shown: Value = serde_json::from_str(&text)?;
    let find = |list: &str, field: &str, name: &str| {
        let mut all = shown[list].as_array().into_iter().flatten();
        let found = all.find(|one| one[field] == name);
        found.with_context(|| format!("no {name}: {shown}"))
    };
    let late = find("groups", "group", "job/shown/late")?;
    let fields = ["quota", "state", "reasonLabel"].map(|field| late[field].as_str());
    assert_eq!(
        fields,
        [Some("shown"), Some("waiting"), Some("OverQuota")],
        "{late}"
    );
    let row = find("quotas", "name", "shown")?;
    assert_eq!(row["resource"], "sublet.dev/gpu");
    let figures = ["min", "max", "used", "borrowed"].map(|field| row[field].as_u64());
    assert_eq!(figures, [2, 4, 3, 1].map(Some), "{row}");

    let (code, text, notes) = world.sublet(&["explain", "job", "late", "-n", "shown"])?;
    assert_eq!((code, &*notes), (0, ""), "{text}");
    let why = late["reason"].as_str().context("no sentence")?;
    ensure!(text.contains("job/shown/late"), "{text}");
    ensure!(
        why.contains("asks 2 of sublet.dev/gpu") && text.contains(why),
        "{why}\n{text}"
    );
    // Nobody else waits, so nobody else is shown.
    ensure!(!text.contains("pod/shown/a"), "{text}");
    Ok(())
}
