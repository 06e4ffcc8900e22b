//! Every end-to-end test, in one program: what they share is linked once. `cargo xtask test`
//! runs it several times side by side, each with other modules.
//!
//! # Modules
//! On one machine:
//! - `one_machine` (with `clients`: nvidia-ml-py, gpustat, nvitop, cuda-bindings and numba's
//!   driver tests), `one_file` (the release, alone in a folder), `wheel` (the same in a virtual
//!   environment), `handed_out` (its package and its chart), `limits`, `restart`, `tenants`,
//!   `attacks`.
//! - `interposer`: every function of the headers arrives unchanged, with and without a job.
//! - `known_failures`: failures of other GPU sharing systems; the table in its first lines has a
//!   named test for each row. It also kills a process at any instruction of a call.
//!
//! In a cluster:
//! - `published_examples`, `first_scheduler` (the cluster's own, without our extender and with
//!   it), `bad_input`, `real_node` (kubelet, containerd, runc), `real_node_dialects`,
//!   `real_node_install` (the chart with the image that is handed out, from nothing to removal,
//!   while pods come and go), `real_node_isolation` (limits, shares, and containers under a
//!   stand-in for MPS), `real_node_kinds` (several kinds of device from one agent, and their
//!   cleaning), `real_node_twins` (equal pods at once), `testbed`.
//! - `churn`: every revision is checked while the extender is killed at random, and while the
//!   leader of three is killed, frozen and ended.
//! - `queue`: gangs (Kubernetes' own too), quotas lent and taken back, trees of quotas, and jobs
//!   while the controller is killed; jobs that change while they run (`resize`); manifests from
//!   peers' documents (`peers`); and refusals (`refusals`).
//! - `operators`: jobs of the real JobSet and LeaderWorkerSet, which come when our controller
//!   already runs.
//! - `scheduling`: eviction, node modes, look-alikes, API server restarts, and the promises of
//!   `sublet plan` against the real schedulers, on clusters drawn at random, for pods one by one
//!   and together.
//! - `preemption`: the controller's own, with a budget, a forged note and a leader that dies.
//! - `controller_shell`: a toy controller, its leader killed, ended and frozen.
//! - `peers_reports`: the agent's reports of its node in the words of peers.
//! - `webhook`, `webhook_certificates`: pods as they are created, Bindings by strangers, with the
//!   webhook and without; renewals and replicas that come and go while calls flow.
//! - `flavors`: their definition, pods that share a card by them, and such a pod without the
//!   webhook.
//! - `share_pods`: KubeShare's SharePods: placement, tags, refusals, pods that go and come again.
//! - `chart`: helm's output, which equals `deploy/kubernetes/`.
//! - `long_…`: tests of `cargo xtask test --all` alone. `long_prometheus`: the real Prometheus
//!   reads our alerts and scrapes the extender. `long_operators`: jobs of more real operators.
//!   `long_real_drivers`: three of NVIDIA's own drivers, and their control program of MPS, without
//!   a card.
//! - `install`: one command installs, one removes; the real kube-scheduler from a patched
//!   manifest.
//! - `rights`: a right that nobody used fails. `quotas`: HAMi's keys in a ResourceQuota.

mod attacks;
mod bad_input;
mod chart;
mod churn;
mod controller_shell;
mod first_scheduler;
mod flavors;
mod handed_out;
mod install;
mod interposer;
mod known_failures;
mod limits;
mod long_operators;
mod long_prometheus;
mod long_real_drivers;
mod one_file;
mod one_machine;
mod operators;
mod peers_reports;
mod preemption;
mod published_examples;
mod queue;
mod quotas;
mod real_node;
mod real_node_dialects;
mod real_node_install;
mod real_node_isolation;
mod real_node_kinds;
mod real_node_nri;
mod real_node_twins;
mod restart;
mod rights;
mod scheduling;
mod share_pods;
mod tenants;
mod testbed;
mod webhook;
mod webhook_certificates;
mod wheel;
