//! Every end-to-end test, in one program: what they share is linked once. `cargo xtask test`
//! runs it several times side by side, each with other modules.

mod attacks;
mod bad_input;
mod chart;
mod churn;
mod controller_shell;
mod first_scheduler;
mod flavors;
mod install;
mod interposer;
mod known_failures;
mod limits;
mod long_prometheus;
mod one_file;
mod one_machine;
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
