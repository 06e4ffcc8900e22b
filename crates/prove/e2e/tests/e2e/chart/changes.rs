//! A release that changes: by every value that adds or takes away an object, from the last version
//! and back to it, and gone and made anew. Each time helm says that it was done, and the objects in
//! the cluster are those of the release.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use sublet_e2e::eventually;
use sublet_testbed::{chart_folder, chart_values, deployed};

use super::repository;
use super::site::Site;

/// The chart of the last version.
const LAST: &str = "fixtures/0.1.0/sublet-0.1.0.tgz";

/// Each value that adds an object or takes one away.
const VALUES: [&str; 12] = [
    "queue.enabled=true",
    "queue.crds=false",
    "sharePods.enabled=false",
    "crds.install=false",
    "networkPolicy.enabled=false",
    "hostNetwork=true",
    "metrics.podMonitor.enabled=true",
    "metrics.rules.enabled=true",
    "metrics.dashboards.enabled=true",
    "agent.simulated=gpus: []",
    "webhook.clientCA=-----BEGIN CERTIFICATE-----",
    "controller.enabled=false",
];

/// A definition stays, and with it what users made.
fn is_kept(name: &str) -> bool {
    name.starts_with("customresourcedefinition")
}

/// Objects of the release so far, to see which of them go.
struct Release<'a> {
    site: &'a Site,
    known: BTreeSet<String>,
}

impl Release<'_> {
    /// All of what the release says is there, and nothing else but definitions.
    fn check(&mut self, after: &str) -> Result<()> {
        let said = self.site.said()?;
        self.known.extend(said.iter().cloned());
        let called = said
            .iter()
            .any(|name| name.contains("webhookconfiguration"));
        eventually(|| {
            let there = self.site.there(&self.known)?;
            let lacking: Vec<_> = said.difference(&there).collect();
            let left = there.difference(&said).filter(|name| !is_kept(name));
            let left: Vec<_> = left.collect();
            ensure!(
                lacking.is_empty() && left.is_empty(),
                "lacking: {lacking:?}; left: {left:?}"
            );
            Ok(())
        })
        .with_context(|| format!("after {after}"))?;
        match called {
            true => self
                .site
                .until_trusted()
                .with_context(|| format!("after {after}")),
            false => Ok(()),
        }
    }
}

/// The table has each value that is on or off and that changes which objects there are.
fn check_that_none_is_forgotten(site: &Site) -> Result<()> {
    let folder = chart_folder(repository());
    let yaml = std::fs::read_to_string(folder.join("values.yaml"))?;
    let objects = |values: &str| -> Result<BTreeSet<String>> {
        let files = site.helm.manifests(&folder, &["--set", values])?;
        site.names(&files.into_values().collect::<Vec<_>>().join("---\n"))
    };
    let mut adding = BTreeSet::new();
    for value in chart_values(&yaml)? {
        let other = match value.default.as_str() {
            "true" => "false",
            "false" => "true",
            _ => continue,
        };
        // Of the queue's own values, too.
        let changed = match value.path.starts_with("queue.") {
            true => format!("queue.enabled=true,{}={other}", value.path),
            false => format!("{}={other}", value.path),
        };
        let usual = match value.path == "queue.crds" {
            true => "queue.enabled=true",
            false => "queue.enabled=false",
        };
        if objects(&changed)? != objects(usual)? {
            adding.insert(format!("{}={other}", value.path));
        }
    }
    let table: BTreeSet<String> = VALUES.map(str::to_owned).into();
    let forgotten: Vec<_> = adding.difference(&table).collect();
    ensure!(forgotten.is_empty(), "not in VALUES: {forgotten:?}");
    Ok(())
}

#[test]
fn every_change_of_a_release_goes_back_and_forth() -> Result<()> {
    let Some(site) = Site::start()? else {
        return Ok(());
    };
    check_that_none_is_forgotten(&site)?;
    let mut release = Release {
        site: &site,
        known: BTreeSet::new(),
    };
    let last = repository().join(LAST).display().to_string();
    let install = ["install", "sublet", "--create-namespace"];
    site.helm(&[&install[..], &[&last, "--set", "queue.enabled=true"]].concat())?;

    // To this version and off in one step, whose controller has not run yet; and back.
    site.upgrade(&site.chart, "queue.enabled=false")?;
    site.start_controller()?;
    release.check("the upgrade from the last version")?;
    site.helm(&["rollback", "sublet"])?;
    release.check("the rollback to the last version")?;
    site.upgrade(&last, "queue.enabled=false")?;
    release.check("the queue off in the last version")?;
    site.upgrade(&site.chart, "queue.enabled=false")?;
    release.check("the second upgrade")?;

    for value in VALUES {
        site.upgrade(&site.chart, value)?;
        release.check(value)?;
        site.helm(&["rollback", "sublet"])?;
        release.check(&format!("the rollback of {value}"))?;
    }
    // All at once, without what leaves nothing to change.
    let most = VALUES[..VALUES.len() - 1].join(",");
    site.upgrade(&site.chart, &most)?;
    release.check(&most)?;
    site.helm(&["rollback", "sublet"])?;
    release.check("the rollback of all")?;

    gone_and_made_anew(&mut release)
}

/// The Secrets are empty then, as after the first installation, and the definitions are there.
fn gone_and_made_anew(release: &mut Release<'_>) -> Result<()> {
    let site = release.site;
    site.helm(&["uninstall", "sublet"])?;
    site.cluster.stop(deployed::CONTROLLER);
    eventually(|| {
        let there = site.there(&release.known)?;
        let left: Vec<_> = there.iter().filter(|name| !is_kept(name)).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    site.helm(&[
        "install",
        "sublet",
        &site.chart,
        "--set",
        "queue.enabled=true",
    ])?;
    let secret = [
        "secret/sublet-webhook-certificates",
        "--namespace=sublet-system",
    ];
    ensure!(site.get(&secret)?["data"].is_null(), "it is not empty");
    site.cluster.start_again(deployed::CONTROLLER)?;
    release.check("the second installation")?;
    ensure!(site.get(&secret)?["data"]["certificates.json"].is_string());
    site.upgrade(&site.chart, "queue.enabled=false")?;
    release.check("the queue off after it")
}
