//! The list of targets.

mod admin_request;
mod admission_review;
mod agent_record;
mod amount;
mod annotation;
mod dataset_manifest;
mod dataset_pack;
mod dataset_record;
mod driver_message;
mod elf;
mod extender_call;
mod fake_machine;
mod gang_plan;
mod inventory;
mod kubelet_checkpoint;
mod node;
mod nri_frame;
mod page;
mod plan_input;
mod pod;
mod proc_stat;
mod queue_object;
mod quota;
mod trace;

use crate::Target;

/// Every target, by name.
pub const TARGETS: &[Target] = &[
    admin_request::TARGET,
    admission_review::TARGET,
    agent_record::TARGET,
    amount::TARGET,
    annotation::TARGET,
    dataset_manifest::TARGET,
    dataset_pack::TARGET,
    dataset_record::TARGET,
    driver_message::TARGET,
    elf::TARGET,
    extender_call::TARGET,
    fake_machine::TARGET,
    gang_plan::TARGET,
    inventory::TARGET,
    kubelet_checkpoint::TARGET,
    node::TARGET,
    nri_frame::TARGET,
    page::TARGET,
    plan_input::TARGET,
    pod::TARGET,
    proc_stat::TARGET,
    queue_object::TARGET,
    quota::TARGET,
    trace::TARGET,
];
