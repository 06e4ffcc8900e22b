//! The real Prometheus reads our alerts and scrapes the extender. Only `cargo xtask test --all` runs
//! this, because Prometheus takes long to build.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::{World, eventually, yaml};
use sublet_testbed::{Prometheus, deployed, free_port, http_get};

const ALERTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../deploy/chart/sublet/files/alerts.yaml"
);

fn prometheus() -> Option<Prometheus> {
    let found = Prometheus::from_env();
    if found.is_none() {
        println!("skipped: SUBLET_PROMETHEUS is not set; run `cargo xtask test --all`");
    }
    found
}

/// Answer of its API.
fn ask(port: u16, path: &str) -> Result<Value> {
    let (status, body) = http_get(port, path)?;
    ensure!(status == 200, "{path} answers {status}: {body}");
    let answer: Value = serde_json::from_str(&body)?;
    Ok(answer["data"].clone())
}

/// Has promtool read the alerts: it finds nothing wrong, and as many rules as there are.
fn check_alerts(prometheus: &Prometheus) -> Result<()> {
    let checked = prometheus.check_rules(Path::new(ALERTS))?;
    let n_alerts = fs::read_to_string(ALERTS)?.matches("- alert: ").count();
    let found = format!(" {n_alerts} rules found");
    ensure!(checked.contains(&found), "{n_alerts} alerts: {checked}");
    Ok(())
}

/// A rule as it was last evaluated.
fn rule(port: u16, name: &str) -> Result<Value> {
    let answer = ask(port, "/api/v1/rules")?;
    let mut rules = answer["groups"][0]["rules"]
        .as_array()
        .into_iter()
        .flatten();
    let found = rules.find(|rule| rule["name"] == name);
    Ok(found
        .with_context(|| format!("no rule {name} in {answer}"))?
        .clone())
}

#[test]
fn it_reads_the_alerts_scrapes_the_extender_and_notices_that_it_is_away() -> Result<()> {
    let Some(prometheus) = prometheus() else {
        return Ok(());
    };
    check_alerts(&prometheus)?;
    let Some(world) = World::start()? else {
        return Ok(());
    };
    let port = start(&world, &prometheus)?;
    world.cluster.apply(&yaml::share_node("n1", 2, 32_552))?;
    for (name, memory) in [("a", 12_207), ("b", 16_277)] {
        let limit = format!("aliyun.com/gpu-mem: {memory}");
        let pod = yaml::Pod {
            name,
            limits: &[&limit],
            ..yaml::Pod::default()
        };
        world.cluster.apply(&pod.yaml())?;
    }
    world.until_placed("a")?;
    the_extender_is_scraped(port)?;
    the_alerts_are_read(port)?;
    // What a rule says is a second old at most; before the first scrape everything is away.
    let until_state = |name: &str, wanted: &str| {
        eventually(|| {
            let rule = rule(port, name)?;
            ensure!(rule["state"] == wanted, "{name}: {rule}");
            Ok(())
        })
    };
    until_state("SubletSchedulerAway", "inactive")?;
    until_state("SubletPodsWaitLong", "pending")?;
    world.cluster.stop(deployed::EXTENDER);
    until_state("SubletSchedulerAway", "pending")
}

/// Starts Prometheus and returns its port.
fn start(world: &World, prometheus: &Prometheus) -> Result<u16> {
    let dir = world.cluster.dir();
    let configuration = dir.join("prometheus.yaml");
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{ALERTS}]\n\
         scrape_configs:\n- job_name: sublet\n  static_configs: [{{targets: ['127.0.0.1:{}']}}]\n",
        world.port
    );
    fs::write(&configuration, text)?;
    let port = free_port()?;
    let data = dir.join("prometheus");
    world.cluster.spawn(
        "prometheus",
        prometheus.command(&configuration, &data, port),
    )?;
    world
        .cluster
        .wait_http("prometheus", port, "/-/ready", Duration::from_secs(60))?;
    Ok(port)
}

fn the_extender_is_scraped(port: u16) -> Result<()> {
    for (metric, wanted) in [
        ("sublet_gpu_pods_waiting", "1"),
        ("sublet_gpu_memory_largest_free_bytes", "17066622976"),
        ("sublet_gpu_memory_granted_bytes", "12799967232"),
    ] {
        eventually(|| {
            let answer = ask(port, &format!("/api/v1/query?query={metric}"))?;
            let value = &answer["result"][0]["value"][1];
            ensure!(*value == *wanted, "{metric}: {answer}");
            Ok(())
        })?;
    }
    Ok(())
}

fn the_alerts_are_read(port: u16) -> Result<()> {
    eventually(|| {
        let answer = ask(port, "/api/v1/rules")?;
        let rules = answer["groups"][0]["rules"]
            .as_array()
            .context("no rules")?;
        ensure!(rules.len() == 13, "{answer}");
        ensure!(rules.iter().all(|rule| rule["health"] == "ok"), "{answer}");
        Ok(())
    })
}
