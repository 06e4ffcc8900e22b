//! The command line of each stock component.
//!
//! The reason for a flag stands beside it. Nothing is started here.

use std::path::Path;
use std::process::Command;

use crate::build::Binaries;
use crate::pki::Pki;

/// The name of the etcd process.
pub const ETCD: &str = "etcd";
/// The name of the API server process.
pub const APISERVER: &str = "apiserver";
/// The name of the controller manager process.
pub const CONTROLLERS: &str = "controllers";
/// The name of the KWOK process.
pub const KWOK: &str = "kwok";

/// The flag that switches on Kubernetes' own gangs (1.36: alpha), all that belongs to them: the API,
/// the scheduler's cycle for a whole gang, and its preemption for a whole gang.
pub const GANG_FEATURE_GATES: &str =
    "--feature-gates=GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true";

/// The ports of one cluster, all on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) apiserver: u16,
    pub(crate) controllers: u16,
}

pub(crate) fn etcd(binaries: &Binaries, dir: &Path, ports: Ports) -> Command {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    let mut command = Command::new(binaries.cluster("etcd"));
    command
        .args([
            "--name=default",
            "--log-level=warn",
            "--quota-backend-bytes=4294967296",
        ])
        // No data need survive here: a cluster is deleted with its directory.
        .arg("--unsafe-no-fsync")
        .arg(format!("--data-dir={}", dir.join("etcd").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"));
    command
}

pub(crate) fn apiserver(binaries: &Binaries, pki: &Pki, ports: Ports) -> Command {
    let file = |name: &str| pki.path(name).display().to_string();
    let mut command = Command::new(binaries.cluster("kube-apiserver"));
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd))
        .arg(format!("--secure-port={}", ports.apiserver))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        // The service `kubernetes` accepts no loopback address as an endpoint.
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--tls-cert-file={}", file("apiserver.crt")))
        .arg(format!("--tls-private-key-file={}", file("apiserver.key")))
        .arg(format!("--token-auth-file={}", file("tokens.csv")))
        // Without it schedulers log forever that extension-apiserver-authentication is missing.
        .arg(format!("--client-ca-file={}", file("authority.crt")))
        .arg(format!(
            "--kubelet-client-certificate={}",
            file("kubelet-client.crt")
        ))
        .arg(format!(
            "--kubelet-client-key={}",
            file("kubelet-client.key")
        ))
        // A node's address must not be loopback, but its name may resolve to loopback.
        .arg("--kubelet-preferred-address-types=Hostname")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!(
            "--service-account-signing-key-file={}",
            file("service-account.key")
        ))
        .arg(format!(
            "--service-account-key-file={}",
            file("service-account.pub")
        ))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .args([
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
        ])
        .args(["--allow-privileged=true", "--max-requests-inflight=2000"])
        .arg("--max-mutating-requests-inflight=1000");
    command
}

/// The rule of the audit log: each request with its user gets one line when it is answered.
pub(crate) const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

pub(crate) fn audit(dir: &Path) -> [String; 2] {
    [
        format!(
            "--audit-policy-file={}",
            dir.join("audit-policy.yaml").display()
        ),
        format!("--audit-log-path={}", dir.join("audit.log").display()),
    ]
}

pub(crate) fn controllers(
    binaries: &Binaries,
    pki: &Pki,
    kubeconfig: &Path,
    ports: Ports,
) -> Command {
    let kubeconfig = kubeconfig.display();
    let mut command = Command::new(binaries.cluster("kube-controller-manager"));
    command
        .arg(format!("--kubeconfig={kubeconfig}"))
        .arg(format!("--authentication-kubeconfig={kubeconfig}"))
        .arg(format!("--authorization-kubeconfig={kubeconfig}"))
        .arg(format!("--secure-port={}", ports.controllers))
        .arg(format!("--cert-dir={}", pki.path("controllers").display()))
        .args(["--bind-address=127.0.0.1", "--leader-elect=false"])
        .arg("--use-service-account-credentials")
        .arg(format!(
            "--service-account-private-key-file={}",
            pki.path("service-account.key").display()
        ))
        .arg(format!(
            "--root-ca-file={}",
            pki.path("authority.crt").display()
        ))
        // KWOK's nodes send no heartbeat, because thousands of leases would be a load. So the node
        // controller must not miss a heartbeat for a day. But it must run: every new node has a
        // not-ready taint, and only this controller removes it.
        .arg("--node-monitor-grace-period=24h")
        .args(["--kube-api-qps=500", "--kube-api-burst=1000"]);
    command
}

pub(crate) fn kwok(binaries: &Binaries, kubeconfig: &Path) -> Command {
    let mut command = Command::new(binaries.cluster("kwok"));
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        // KWOK does nothing without stages, and has none built in.
        .arg(format!(
            "--config={}",
            binaries.cluster("stages.yaml").display()
        ))
        .arg("--manage-nodes-with-label-selector=type=kwok")
        .args(["--node-lease-duration-seconds=0", "--node-ip=127.0.0.1"]);
    command
}

pub(crate) fn scheduler(
    binaries: &Binaries,
    config: &Path,
    kubeconfig: &Path,
    port: u16,
) -> Command {
    let mut command = Command::new(binaries.cluster("kube-scheduler"));
    command
        .arg(format!("--config={}", config.display()))
        .arg(format!(
            "--authentication-kubeconfig={}",
            kubeconfig.display()
        ))
        .arg(format!(
            "--authorization-kubeconfig={}",
            kubeconfig.display()
        ))
        .arg(format!("--secure-port={port}"))
        // Without a folder for certificates, it makes one in memory.
        .args(["--bind-address=127.0.0.1", "--cert-dir="]);
    command
}
