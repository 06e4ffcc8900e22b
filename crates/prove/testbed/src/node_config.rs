//! The node's name, and the configuration files of containerd and the kubelet.
//!
//! Everything that can be private to the node's directory is private to it. Only the kubelet's
//! folder cannot, because it is a constant (`node::KUBELET_DIR`). Nothing is started here.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use crate::build::Binaries;

/// containerd's configuration: overlay snapshots, CDI and NRI on, no network, sockets in `dir`.
pub(crate) fn containerd(binaries: &Binaries, dir: &Path) -> String {
    let cni = binaries.node("cni").display().to_string();
    let runc = binaries.node("runc").display().to_string();
    let dir = dir.display();
    // restrict_oom_score_adj: without CAP_SYS_RESOURCE, runc may not lower the score, and no
    // container would start. use_internal_loopback: only our plugin, which makes no network, is
    // needed then.
    format!(
        r#"version = 3
root = "{dir}/containerd"
state = "{dir}/state"
[grpc]
address = "{dir}/containerd.sock"
[ttrpc]
address = "{dir}/containerd.sock.ttrpc"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "sublet.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
cdi_spec_dirs = ["{dir}/cdi"]
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{dir}/cni"
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{dir}/runc"
SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{dir}/nri.sock"
plugin_path = "{dir}/nri-plugins"
plugin_config_path = "{dir}/nri-conf"
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
"#
    )
}

/// The network of pods: each pod has its own loopback, and an address that is not used.
pub(crate) const NETWORK: &str =
    r#"{"cniVersion":"1.0.0","name":"none","plugins":[{"type":"none"}]}"#;

/// The kubelet's configuration: no evictions or garbage collection, control groups v1 allowed.
///
/// A threshold of 0 % is none (`parseThresholdStatement` of kubelet's `eviction/helpers.go`). With
/// any other, a full disk of the machine under the test refuses the pods of the test.
pub(crate) fn kubelet(
    dir: &Path,
    authority: &Path,
    port: u16,
    healthz: u16,
    extra: &[String],
) -> String {
    let authority = authority.display();
    let dir = dir.display();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: {port}
healthzPort: {healthz}
containerRuntimeEndpoint: unix://{dir}/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
podLogsDir: {dir}/pod-logs
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: "{authority}"}}}}
authorization: {{mode: Webhook}}
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 0%, nodefs.available: 0%, imagefs.available: 0%}}
makeIPTablesUtilChains: false
resolvConf: ""
nodeStatusUpdateFrequency: 1s
nodeStatusReportFrequency: 10s
{}
"#,
        extra.join("\n")
    )
}

/// The name of this machine's node. It resolves to 127.0.0.1, so that the API server's calls for
/// logs stay on loopback.
pub(crate) fn name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_lowercase();
    let local = |address: SocketAddr| address.ip() == Ipv4Addr::LOCALHOST;
    let resolves = (host.as_str(), 0)
        .to_socket_addrs()
        .is_ok_and(|mut all| all.all(local));
    if resolves && !host.is_empty() {
        host
    } else {
        "localhost".to_owned()
    }
}
