//! Values that the chart refuses before anything is applied, with the name of the value.

use anyhow::{Result, ensure};
use sublet_testbed::chart_folder;

use super::{helm, repository};

/// Wrong values, and the message for each.
const WRONG: &[(&str, &str)] = &[
    (
        "memoryUnit=MB",
        "'/memoryUnit': value must be one of 'MiB', 'GiB'",
    ),
    (
        "image.digest=sha256:0",
        "'/image/digest': 'sha256:0' does not match",
    ),
    (
        "scheduler.image.digest=v1.36.3",
        "'/scheduler/image/digest': 'v1.36.3' does not match",
    ),
    (
        "scheduler.policy=best",
        "'/scheduler/policy': 'best' does not match",
    ),
    (
        "scheduler.ports.health=0",
        "'/scheduler/ports/health': minimum: got 0, want 1",
    ),
    (
        "agent.sharin=both",
        "'/agent': additional properties 'sharin' not allowed",
    ),
    (
        "webhook.url=http://10.0.0.5",
        "'/webhook/url': 'http://10.0.0.5' does not match",
    ),
    (
        "webhook.failurePolicy=fail",
        "'/webhook/failurePolicy': value must be one of",
    ),
    (
        "webhook.clientCA=/etc/ca.crt",
        "'/webhook/clientCA': '/etc/ca.crt' does not match",
    ),
    (
        "isolation.opportunisticDuty=0",
        "'/isolation/opportunisticDuty': minimum",
    ),
    (
        "isolation.enabled=maybe",
        "'/isolation/enabled': value must be one of 'auto', true",
    ),
    (
        "isolation.mps.enabled=true,isolation.exclusiveSlices=all",
        "isolation.exclusiveSlices makes no sense with isolation.mps.enabled",
    ),
    (
        "scheduler.moreNames={Koord}",
        "'/scheduler/moreNames/0': 'Koord' does not match",
    ),
    (
        "scheduler.moreNames={default-scheduler}",
        "default-scheduler in scheduler.moreNames is the name of a scheduler that is there",
    ),
    (
        "scheduler.moreNames={a},moreSchedulers={a}",
        "a stands in scheduler.moreNames and in moreSchedulers",
    ),
    (
        "queue.enabled=true,controller.enabled=false",
        "queue.enabled needs controller.enabled",
    ),
    (
        "isolation.mps.enabled=true,isolation.enabled=false",
        "isolation.mps.enabled needs isolation.enabled",
    ),
    (
        "controller.resources.limits.memory=lots",
        "'/controller/resources/limits/memory': 'lots' does not match",
    ),
    (
        "agent.resources.requests.cpu=-1",
        "'/agent/resources/requests/cpu': minimum: got -1, want 0",
    ),
    (
        "scheduler.resources.limit.cpu=1",
        "'/scheduler/resources': additional properties 'limit' not allowed",
    ),
    (
        "scheduler.image.tag=1.36.3",
        "'/scheduler/image/tag': '1.36.3' does not match",
    ),
    (
        "agent.simulated=2x16",
        "agent.simulated is `2x16`, and has no list of cards, such as `gpus: [{memory: 16GiB",
    ),
    (
        "agent.simulated=gpus: [16GiB]",
        "agent.simulated: gpus[0] needs a memory such as 16GiB, and has ``",
    ),
    (
        "agent.simulated=gpus: [{memory: 16}]",
        "agent.simulated: gpus[0] needs a memory such as 16GiB, and has `16`",
    ),
    (
        "scheduler.ports.health=39994",
        "port 39994 stands in scheduler.ports.health and in scheduler.ports.replicas",
    ),
    (
        "agent.ports.top=39997",
        "port 39997 stands in agent.ports.health and in agent.ports.top: each listens for itself",
    ),
    (
        "hostNetwork=true,agent.ports.top=9443",
        "port 9443 stands in agent.ports.top and in controller.ports.webhook: each listens for \
         itself, and with hostNetwork all on one node",
    ),
];

/// The message for a user who has mistyped a value: the name of the field, and its allowed values.
#[test]
fn a_wrong_value_is_refused_by_its_name() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    for &(wrong, told) in WRONG {
        let made = helm.manifests(&chart_folder(repository()), &["--set", wrong]);
        let said = made.map_or_else(|error| format!("{error:#}"), |_| "it was taken".to_owned());
        ensure!(said.contains(told), "{wrong}: {said}");
    }
    Ok(())
}

/// Values that look alike and are good: amounts in every form that Kubernetes takes, and ports that are
/// twice in networks of their own.
#[test]
fn what_is_good_is_not_refused() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    for good in [
        "agent.resources.limits.cpu=2",
        "agent.resources.limits.cpu=1.5",
        "agent.resources.limits.memory=1.5Gi",
        "controller.resources.requests.memory=1e8",
        "scheduler.image.tag=v1.36.3-eks-1",
        "agent.ports.top=9443",
        "hostNetwork=true",
        "hostNetwork=true,controller.enabled=false,agent.ports.top=9443",
    ] {
        helm.manifests(&chart_folder(repository()), &["--set", good])?;
    }
    Ok(())
}
