//! Values of the chart, each with the text that it makes. It never starts anything.

use anyhow::{Context, Result, ensure};
use sublet_testbed::chart_folder;

use super::{helm, repository};

/// A value, the file that it is about, and the text that it makes there.
const MADE: &[(&str, &str, &str)] = &[
    ("image.repository=r/s", "60-agent.yaml", "image: r/s:"),
    (
        "imagePullSecrets[0].name=key",
        "70-controller.yaml",
        "imagePullSecrets: [{\"name\":\"key\"}]",
    ),
    (
        "webhook.clientCA=-----BEGIN CERTIFICATE-----",
        "70-controller.yaml",
        "- --client-ca=/etc/sublet/clients/ca.crt",
    ),
    (
        "networkPolicy.webhookFrom[0].ipBlock.cidr=10.0.0.0/28",
        "72-network.yaml",
        "  - ports: [{port: 9443}]\n    from:\n    - ipBlock:\n        cidr: 10.0.0.0/28\n",
    ),
    (
        "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",
        "72-network.yaml",
        "  - ports: [{port: 39997}]\n    from:\n    - podSelector:\n        matchLabels:\n          app: prometheus\n",
    ),
    ("memoryUnit=GiB", "50-scheduler.yaml", "- --memory-unit=GiB"),
    ("memoryUnit=GiB", "60-agent.yaml", "- --memory-unit=GiB"),
    (
        "memoryUnit=GiB",
        "70-controller.yaml",
        "- --memory-unit=GiB",
    ),
    (
        "moreSchedulers={a}",
        "33-scheduler-warning.yaml",
        "names: sublet-scheduler a\n",
    ),
    (
        "moreSchedulers={a}",
        "50-scheduler.yaml",
        "- --scheduler-name=a",
    ),
    (
        "scheduler.moreNames={koord-scheduler}",
        "40-scheduler-config.yaml",
        "    - schedulerName: koord-scheduler\n      pluginConfig:\n",
    ),
    (
        "scheduler.moreNames={koord-scheduler}",
        "50-scheduler.yaml",
        "- --scheduler-name=koord-scheduler",
    ),
    (
        "scheduler.moreNames={koord-scheduler}",
        "70-controller.yaml",
        "- --scheduler-name=koord-scheduler",
    ),
    (
        "scheduler.moreNames={koord-scheduler}",
        "33-scheduler-warning.yaml",
        "names: sublet-scheduler koord-scheduler\n",
    ),
    ("hostNetwork=true", "50-scheduler.yaml", "hostNetwork: true"),
    (
        "scheduler.hostNetwork=true",
        "50-scheduler.yaml",
        "maxUnavailable: 1, maxSurge: 0",
    ),
    (
        "hostNetwork=true",
        "70-controller.yaml",
        "maxUnavailable: 1, maxSurge: 0",
    ),
    (
        "apiServer.host=h",
        "40-scheduler-config.yaml",
        "server: https://h:443\n",
    ),
    (
        "apiServer.host=h",
        "60-agent.yaml",
        "KUBERNETES_SERVICE_HOST, value: \"h\"",
    ),
    (
        "scheduler.policy=binpack",
        "50-scheduler.yaml",
        "- --policy=binpack",
    ),
    (
        "scheduler.ports.extender=5",
        "40-scheduler-config.yaml",
        "http://127.0.0.1:5/sublet",
    ),
    (
        "scheduler.ports.kubeScheduler=5",
        "50-scheduler.yaml",
        "- --secure-port=5",
    ),
    (
        "scheduler.args={--few=0}",
        "50-scheduler.yaml",
        "- \"--few=0\"",
    ),
    (
        "controller.assignScheduler=true",
        "70-controller.yaml",
        "- --assign-scheduler=sublet-scheduler",
    ),
    (
        "controller.addSlots=true",
        "70-controller.yaml",
        "- --add-slots",
    ),
    (
        "webhook.url=https://h:1",
        "71-webhook.yaml",
        "url: https://h:1/bindings",
    ),
    (
        "webhook.failurePolicy=Fail",
        "71-webhook.yaml",
        "failurePolicy: Fail",
    ),
    ("queue.enabled=true", "50-scheduler.yaml", "- --queue\n"),
    ("queue.enabled=true", "70-controller.yaml", "- --queue\n"),
    ("queue.enabled=true", "70-controller.yaml", "--policy="),
    (
        "queue.enabled=true,queue.score=need",
        "70-controller.yaml",
        "- --queue-score=need\n",
    ),
    (
        "queue.enabled=true,queue.filters={known-end}",
        "70-controller.yaml",
        "- --queue-filter=known-end\n",
    ),
    (
        "queue.enabled=true,queue.profile=strict",
        "70-controller.yaml",
        "- --queue-profile=strict\n",
    ),
    (
        "queue.enabled=true,queue.minWithin=24h",
        "70-controller.yaml",
        "- --queue-min-within=24h\n",
    ),
    (
        "queue.enabled=true,queue.checkpointEvery=30m",
        "70-controller.yaml",
        "- --queue-checkpoint-every=30m\n",
    ),
    (
        "queue.enabled=true",
        "71-webhook.yaml",
        "resources: [elasticquotas]",
    ),
    (
        "queue.enabled=true",
        "17-queue-crds.yaml",
        "name: podgroups.scheduling.x-k8s.io",
    ),
    (
        "queue.enabled=true",
        "20-rbac-scheduler.yaml",
        "resources: [gangplans]",
    ),
    (
        "queue.enabled=true",
        "18-gang-plans.yaml",
        "name: gangplans.sublet.dev",
    ),
    (
        "agent.nodeSelector.pool=a",
        "60-agent.yaml",
        "nodeSelector: {\"gpushare\":\"true\",\"kubernetes.io/arch\":\"amd64\",\"pool\":\"a\"}",
    ),
    (
        "scheduler.nodeSelector.pool=a",
        "50-scheduler.yaml",
        "nodeSelector: {\"kubernetes.io/arch\":\"amd64\",\"pool\":\"a\"}",
    ),
    (
        "controller.nodeSelector.kubernetes\\.io/arch=arm64",
        "70-controller.yaml",
        "nodeSelector: {\"kubernetes.io/arch\":\"arm64\"}",
    ),
    (
        "agent.runtimeClassName=nvidia",
        "60-agent.yaml",
        "runtimeClassName: nvidia",
    ),
    (
        "agent.kubeletDir=/k",
        "60-agent.yaml",
        "path: /k/device-plugins",
    ),
    ("agent.stateDir=/s", "60-agent.yaml", "mountPath: /s}"),
    (
        "agent.identity=size-and-order",
        "60-agent.yaml",
        "- --identity=size-and-order",
    ),
    (
        "agent.nriDir=/n",
        "60-agent.yaml",
        "- --nri-socket=/n/nri.sock",
    ),
    ("agent.cdiDir=/c", "60-agent.yaml", "hostPath: {path: /c,"),
    (
        "agent.simulated=gpus: []",
        "60-agent.yaml",
        "cards.yaml: |\n    gpus: []\n",
    ),
    (
        "isolation.enabled=true",
        "60-agent.yaml",
        "- --isolation=on",
    ),
    (
        "isolation.enabled=false",
        "60-agent.yaml",
        "- --isolation=off",
    ),
    (
        "isolation.exclusiveSlices=all",
        "60-agent.yaml",
        "- --exclusive-slices=all",
    ),
    (
        "isolation.mps.enabled=true",
        "60-agent.yaml",
        "hostIPC: true",
    ),
    (
        "isolation.mps.enabled=true",
        "60-agent.yaml",
        "add: [SETUID, SETGID, KILL]",
    ),
    (
        "dialects.hami.gpuSplits=4",
        "60-agent.yaml",
        "- --gpu-splits=4",
    ),
    (
        "dialects.hami.register=true",
        "60-agent.yaml",
        "- --hami-register",
    ),
    (
        "dialects.koordinator.device=true",
        "60-agent.yaml",
        "- --koordinator-device",
    ),
    (
        "metrics.podMonitor.enabled=true",
        "80-monitor.yaml",
        "kind: PodMonitor",
    ),
];

/// Each value reaches the process or the object that it is about.
/// The schema refuses values that it does not know.
#[test]
fn a_values_file_of_the_first_release_is_accepted() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    let values = repository().join("fixtures/0.1.0/values.yaml");
    let values = values.display().to_string();
    let files = helm.manifests(&chart_folder(repository()), &["--values", &values])?;
    ensure!(files.contains_key("50-scheduler.yaml"));
    Ok(())
}

#[test]
fn a_value_changes_what_it_says() -> Result<()> {
    let Some(helm) = helm() else {
        return Ok(());
    };
    for &(value, file, made) in MADE {
        let files = helm.manifests(&chart_folder(repository()), &["--set", value])?;
        let text = files
            .get(file)
            .with_context(|| format!("{value}: no {file}"))?;
        ensure!(
            text.contains(made),
            "{value}: no `{made}` in {file}:\n{text}"
        );
    }
    let without = ["--set", "controller.enabled=false,crds.install=false"];
    let files = helm.manifests(&chart_folder(repository()), &without)?;
    for absent in [
        "15-flavors.yaml",
        "16-sharepods.yaml",
        "17-queue-crds.yaml",
        "70-controller.yaml",
        "71-webhook.yaml",
    ] {
        assert!(!files.contains_key(absent), "{absent}");
    }
    Ok(())
}
