//! Quotas and groups with errors: their user is told the wrong field, at once.

use anyhow::{Context, Result, ensure};
use sublet_e2e::{World, eventually};

use super::events;

const KOORDINATOR: &str = "scheduling.sigs.k8s.io";
const PLUGINS: &str = "scheduling.x-k8s.io";

/// An object in one line of YAML.
fn object(group: &str, kind: &str, name: &str, labels: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: {group}/v1alpha1, kind: {kind}, metadata: {{name: {name}, labels: \
         {{{labels}}}}}, spec: {{{spec}}}}}\n"
    )
}

fn quota(name: &str, parent: &str, is_parent: bool, min: &str, max: &str) -> String {
    let labels = format!(
        "quota.scheduling.koordinator.sh/parent: \"{parent}\", \
         quota.scheduling.koordinator.sh/is-parent: \"{is_parent}\""
    );
    let spec = format!("min: {{{min}}}, max: {{{max}}}");
    object(KOORDINATOR, "ElasticQuota", name, &labels, &spec)
}

/// The user's error when this is applied; it must be refused.
fn refusal(world: &World, manifest: &str) -> Result<String> {
    let error = world.cluster.apply(manifest).err();
    Ok(format!(
        "{:#}",
        error.with_context(|| format!("taken: {manifest}"))?
    ))
}

/// Errors in one object, by the rules of its definition.
#[test]
fn a_wrong_field_of_a_quota_or_a_group_is_named() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    for (group, kind, spec, told) in [
        (
            KOORDINATOR,
            "ElasticQuota",
            "min: {cpu: -1}, max: {cpu: 1}",
            "spec.min: no amount may be negative",
        ),
        (
            PLUGINS,
            "ElasticQuota",
            "max: {cpu: -1m}",
            "spec.max: no amount may be negative",
        ),
        (
            KOORDINATOR,
            "ElasticQuota",
            "min: {cpu: 1}, max: {memory: 1Gi}",
            "spec.min: it names a resource that spec.max does not name",
        ),
        (
            PLUGINS,
            "ElasticQuota",
            "min: {cpu: 1500m}, max: {cpu: 1}",
            "spec.min: of a resource it is more than spec.max",
        ),
        (
            KOORDINATOR,
            "ElasticQuota",
            "max: {cpu: lots}",
            "spec.max.cpu",
        ),
        (PLUGINS, "PodGroup", "minMember: 0", "spec.minMember"),
        (KOORDINATOR, "PodGroup", "minMember: -1", "spec.minMember"),
        (
            KOORDINATOR,
            "PodGroup",
            "scheduleTimeoutSeconds: -1",
            "spec.scheduleTimeoutSeconds",
        ),
    ] {
        let said = refusal(&world, &object(group, kind, "wrong", "", spec))?;
        ensure!(said.contains(told), "{group} {kind} {spec}: {said}");
    }
    // As their own definitions: a group of Koordinator's may have no minimum.
    world
        .cluster
        .apply(&object(KOORDINATOR, "PodGroup", "free", "", "minMember: 0"))?;
    Ok(())
}

/// Amounts and names of the quotas in Koordinator's manual.
const MIN: &str = "cpu: 10, memory: 20Mi";
const LIMITS: &str = "cpu: 40, memory: 40Gi";

const PARENT: &str = "quota-parent-example";
const CHILD: &str = "quota-example";

/// Beginning of the message about the label that names a parent.
const PARENT_LABEL: &str = "metadata.labels[quota.scheduling.koordinator.sh/parent]: ";

fn child(min: &str, max: &str) -> String {
    quota(CHILD, PARENT, false, min, max)
}

/// Changes that do not fit below the parent, and the message for each.
fn misfits() -> [(String, &'static str); 3] {
    [
        (
            child("cpu: 20, memory: 20Mi", LIMITS),
            "spec.min[cpu]: the children of quota quota-parent-example would be promised 20000",
        ),
        (
            child(MIN, "cpu: 40, memory: 40Gi, test: 200"),
            "spec.max: it must name what the max of the parent quota-parent-example names; they \
             differ in test",
        ),
        (
            quota(PARENT, PARENT, true, "", LIMITS),
            "parent]: a quota cannot be its own parent",
        ),
    ]
}

/// Errors of a quota beside the others, by the webhook. The cases are those of Koordinator's
/// manual, and its words for them are ours for the field.
#[test]
fn a_quota_that_does_not_fit_the_tree_is_refused_by_the_field() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    let missing = refusal(&world, &child("cpu: 10", LIMITS))?;
    ensure!(
        missing.contains(&format!("{PARENT_LABEL}there is no quota {PARENT}")),
        "{missing}"
    );
    world.cluster.apply(&quota(PARENT, "", true, MIN, LIMITS))?;
    for (wrong, told) in misfits() {
        // The webhook knows of the parent by a watch.
        eventually(|| {
            let said = refusal(&world, &wrong)?;
            ensure!(said.contains(told), "{wrong}: {said}");
            Ok(())
        })?;
    }
    world.cluster.apply(&child(MIN, LIMITS))?;
    eventually(|| {
        a_child_has_no_children(&world)?;
        a_parent_stays_while_it_has_children(&world)
    })
}

fn a_child_has_no_children(world: &World) -> Result<()> {
    let said = refusal(world, &quota("below", CHILD, false, "cpu: 1", LIMITS))?;
    ensure!(
        said.contains(&format!("{PARENT_LABEL}quota {CHILD} is no parent")),
        "{said}"
    );
    Ok(())
}

fn a_parent_stays_while_it_has_children(world: &World) -> Result<()> {
    let said = refusal(world, &quota(PARENT, "", false, MIN, LIMITS))?;
    let told = "is-parent]: it must stay `true` while the quota has children: quota-example";
    ensure!(said.contains(told), "{said}");
    let delete = ["delete", "elasticquotas.scheduling.sigs.k8s.io", PARENT];
    let refused = world.cluster.kubectl(&delete).err();
    let said = format!("{:#}", refused.context("a quota goes before its children")?);
    ensure!(
        said.contains("quota quota-parent-example has children: quota-example"),
        "{said}"
    );
    Ok(())
}

/// An object that passes the API server and cannot be read all the same gets an event about itself.
#[test]
fn what_cannot_be_read_has_an_event_about_itself() -> Result<()> {
    let Some(world) = World::lease_queueing()? else {
        return Ok(());
    };
    // The annotation of a Job says what must start together.
    let annotations = "annotations: {gang.scheduling.koordinator.sh/min-available: many}";
    let job = super::objects::job("odd", "default", 1, true);
    let job = job.replace(
        "metadata: {name",
        &format!("metadata: {{{annotations}, name"),
    );
    world.cluster.apply(&job)?;
    eventually(|| {
        let events = events(&world, "default", "odd")?;
        let told = events.iter().find(|(reason, _)| reason == "CannotQueue");
        let (_, text) = told.with_context(|| format!("{events:?}"))?;
        let field = "metadata.annotations.gang.scheduling.koordinator.sh/min-available";
        ensure!(text.contains(field) && text.contains("`many`"), "{text}");
        Ok(())
    })
}
