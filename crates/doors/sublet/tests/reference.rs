//! The reference of the user guide is made from the code by this test: each command's help, the
//! names on Kubernetes objects, the metrics. It fails when the page is stale, and
//! `SUBLET_BLESS=1 cargo test -p sublet --test reference` writes the page anew.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_api::keys::{self, KeyKind};
use sublet_telemetry::metrics::{
    AgentMetrics, ContainerLabels, ControllerLabel, ControllerMetrics, IsolationLabel, NodeLabel,
    OutcomeLabel, ReasonLabel, Refused, RefusedLabels, ResourceLabel, SchedulerMetrics,
    StandInMetrics, VerbLabel, WriteLabels, print,
};

const SUBLET: &str = env!("CARGO_BIN_EXE_sublet");

/// Command that writes the page anew.
const BLESS: &str = "SUBLET_BLESS=1 cargo test -p sublet --test reference";

#[test]
fn the_reference_page_is_what_the_code_says() {
    let place = page_file();
    let page = page();
    if std::env::var_os("SUBLET_BLESS").is_some() {
        fs::write(&place, &page).unwrap();
    }
    let committed = fs::read_to_string(&place).unwrap_or_default();
    let (new, old): (Vec<_>, Vec<_>) = (page.lines().collect(), committed.lines().collect());
    let differs = (0..new.len().max(old.len()))
        .find(|&at| new.get(at) != old.get(at))
        .map(|at| (at + 1, new.get(at), old.get(at)));
    assert!(
        differs.is_none(),
        "{} is stale: `{BLESS}` writes it anew; the first line that differs, new and old: {differs:?}",
        place.display()
    );
}

fn page_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guide/reference.md")
}

fn page() -> String {
    let mut page = format!(
        "# Reference\n\nMade from the code by `{BLESS}`; a test fails when it is stale.\n\n\
         - [Commands](#commands)\n- [Names on Kubernetes objects](#names-on-kubernetes-objects)\n\
         - [Metrics](#metrics)\n\n## Commands\n"
    );
    commands(&mut Vec::new(), &mut page);
    names(&mut page);
    metrics(&mut page);
    page
}

/// The help of a command and of all below it.
fn commands(words: &mut Vec<String>, page: &mut String) {
    let help = help(words);
    let title = ["sublet"]
        .into_iter()
        .chain(words.iter().map(String::as_str));
    let title = title.collect::<Vec<_>>().join(" ");
    write!(page, "\n### `{title}`\n\n```text\n{help}```\n").unwrap();
    for below in subcommands(&help) {
        words.push(below.to_owned());
        commands(words, page);
        words.pop();
    }
}

/// Text of `--help`, whatever this process's environment is.
fn help(words: &[String]) -> String {
    let output = Command::new(SUBLET)
        .args(words)
        .arg("--help")
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// The commands that a help text lists, without clap's own.
fn subcommands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect()
}

fn names(page: &mut String) {
    *page += "\n## Names on Kubernetes objects\n";
    for (kind, title) in [
        (KeyKind::Resource, "Resources"),
        (KeyKind::PodAnnotation, "Annotations of pods"),
        (KeyKind::PodLabel, "Labels of pods"),
        (KeyKind::SchedulingGate, "Scheduling gates of pods"),
        (KeyKind::NodeAnnotation, "Annotations of nodes"),
        (KeyKind::NodeLabel, "Labels of nodes"),
        (KeyKind::NamespaceLabel, "Labels of namespaces"),
        (KeyKind::DeviceLabel, "Labels of Koordinator's Device"),
        (KeyKind::QuotaKey, "Keys of ResourceQuotas"),
        (KeyKind::ElasticQuotaLabel, "Labels of ElasticQuotas"),
        (
            KeyKind::ElasticQuotaAnnotation,
            "Annotations of ElasticQuotas",
        ),
        (KeyKind::EventAnnotation, "Annotations of Events"),
        (KeyKind::Variable, "Variables of containers"),
        (KeyKind::ConfigMap, "ConfigMaps"),
    ] {
        write!(page, "\n### {title}\n\n| name | meaning |\n|---|---|\n").unwrap();
        for key in keys::ALL.iter().filter(|key| key.kind == kind) {
            let meaning = key.meaning.trim().replace('|', "\\|");
            writeln!(page, "| `{}` | {meaning} |", key.name).unwrap();
        }
    }
}

fn metrics(page: &mut String) {
    *page += "\n## Metrics\n\nA histogram has `_bucket`, `_sum` and `_count` behind its name.\n";
    for (process, text) in [
        ("sublet scheduler", scheduler_metrics()),
        ("sublet scheduler --stand-in-for", stand_in_metrics()),
        ("sublet agent", agent_metrics()),
        ("sublet controller", controller_metrics()),
    ] {
        write!(
            page,
            "\n### Of `{process}`\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        )
        .unwrap();
        let rows = rows(&text);
        assert!(rows.len() > 1, "{text}");
        rows.iter().for_each(|row| *page += row);
    }
}

/// The extender's page with a sample of each metric: one without any is not printed. A metric
/// that is missing here does not compile.
fn scheduler_metrics() -> String {
    let (metrics, registry) = SchedulerMetrics::registered();
    let SchedulerMetrics {
        calls,
        refusals,
        binds,
        leading,
        forwarded,
        free,
        used,
        largest,
        waiting,
        refused,
    } = metrics;
    refuse_one(&refused);
    let node = NodeLabel {
        node: String::new(),
    };
    calls.get_or_create(&VerbLabel { verb: "" }).observe(0.0);
    refusals.get_or_create(&ReasonLabel { reason: "" }).inc();
    binds.get_or_create(&OutcomeLabel { outcome: "" }).inc();
    leading.set(0);
    forwarded.get_or_create(&OutcomeLabel { outcome: "" }).inc();
    free.get_or_create(&node).set(0.0);
    used.get_or_create(&node).set(0.0);
    largest.get_or_create(&node).set(0.0);
    waiting.set(0);
    print(&registry)
}

fn refuse_one(refused: &Refused) {
    let (listener, reason) = ("", "");
    let labels = RefusedLabels { listener, reason };
    refused.get_or_create(&labels).inc();
}

/// The same of an extender's stand-in.
fn stand_in_metrics() -> String {
    let (metrics, registry) = StandInMetrics::registered();
    let StandInMetrics {
        active,
        calls,
        refused,
    } = metrics;
    refuse_one(&refused);
    active.set(0);
    calls.get_or_create(&OutcomeLabel { outcome: "" }).inc();
    print(&registry)
}

/// The same of the agent.
fn agent_metrics() -> String {
    let (metrics, registry) = AgentMetrics::registered();
    let AgentMetrics {
        allocations,
        registrations,
        unhealthy,
        isolation,
        tenant_limit,
        tenant_used,
        tenant_refusals,
        tenant_gpu_time,
        tenant_gate_wait,
        tenant_throttled,
        refused,
    } = metrics;
    refuse_one(&refused);
    let resource = ResourceLabel {
        resource: String::new(),
    };
    let tenant = ContainerLabels {
        namespace: String::new(),
        pod: String::new(),
        container: String::new(),
        gpu: 0,
    };
    allocations
        .get_or_create(&OutcomeLabel { outcome: "" })
        .inc();
    registrations.get_or_create(&resource).inc();
    unhealthy.set(0);
    let state = IsolationLabel { state: "" };
    isolation.get_or_create(&state).set(0);
    tenant_limit.get_or_create(&tenant).set(0);
    tenant_used.get_or_create(&tenant).set(0);
    tenant_refusals.get_or_create(&tenant).inc();
    for seconds in [tenant_gpu_time, tenant_gate_wait, tenant_throttled] {
        seconds.get_or_create(&tenant).inc();
    }
    print(&registry)
}

/// The same of the controller.
fn controller_metrics() -> String {
    let (metrics, registry) = ControllerMetrics::registered();
    let ControllerMetrics {
        leading,
        decisions,
        writes,
        admissions,
        bindings,
        admitted,
        certificate_end,
        refused,
    } = metrics;
    refuse_one(&refused);
    let (controller, outcome) = ("", "");
    leading.set(0);
    decisions
        .get_or_create(&ControllerLabel { controller })
        .inc();
    let labels = WriteLabels {
        controller,
        outcome,
    };
    writes.get_or_create(&labels).inc();
    admissions.observe(0.0);
    bindings.get_or_create(&OutcomeLabel { outcome }).inc();
    admitted.get_or_create(&OutcomeLabel { outcome }).inc();
    certificate_end.set(0);
    print(&registry)
}

/// A row for each metric of a page in Prometheus' text form.
fn rows(text: &str) -> Vec<String> {
    let told = |word: &str, name: &str| {
        let line = format!("# {word} {name} ");
        let found = text.lines().find_map(|text| text.strip_prefix(&line));
        found.unwrap_or_default().to_owned()
    };
    let described = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    described
        .map(|line| {
            let (name, meaning) = line.split_once(' ').unwrap();
            let kind = told("TYPE", name);
            let suffix = if kind == "counter" { "_total" } else { "" };
            let labels = labels(text, name).join(", ");
            let meaning = meaning.trim_end_matches('.');
            format!("| `{name}{suffix}` | {kind} | {labels} | {meaning} |\n")
        })
        .collect()
}

/// The labels of a metric's first sample, without a bucket's bound.
fn labels(text: &str, name: &str) -> Vec<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let mut labelled = samples.filter_map(|line| line.split_once('{'));
    let found = labelled.find(|(sample, _)| {
        let suffix = sample.strip_prefix(name);
        suffix.is_some_and(|suffix| matches!(suffix, "" | "_total" | "_sum"))
    });
    let inside = found.and_then(|(_, rest)| rest.split('}').next());
    let pairs = inside.unwrap_or_default().split(',');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(label, _)| format!("`{label}`"))
        .collect()
}
