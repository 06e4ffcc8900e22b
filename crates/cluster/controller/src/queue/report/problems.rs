//! Events on objects that cannot be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use sublet_api::object::Pod;
use sublet_client::{Write, pod_reference, reference};

use super::super::memory::Memory;
use super::super::watched_state::counts;
use super::{ReportInputs, job_reference, pod_group_reference};

/// The word of such events.
const REASON: &str = "CannotQueue";

impl ReportInputs<'_> {
    /// Tells the faults of each object that cannot be read, as far as there is room.
    pub(super) fn problems(&self, memory: &mut Memory, writes: &mut Vec<Write>) {
        let has_room = |writes: &Vec<Write>| writes.len() < self.look.room.reasons;
        for ((_, namespace, name), unread) in &self.look.watched.unreadable {
            let (version, kind) = &unread.api;
            let about = reference(version, kind, namespace, name, &unread.uid);
            let place = format!("unreadable {version} {kind} {namespace}/{name}");
            if !has_room(writes) {
                memory.is_behind = true;
                return;
            }
            if memory.tells(&place, REASON, &unread.why, self.look.now) {
                writes.push(self.event(&about, "Warning", REASON, &unread.why));
            }
        }
        let problems = &self.state.gathered.problems;
        if problems.is_empty() {
            return;
        }
        let objects = self.objects();
        for problem in problems {
            let text = format!("{}: {}", problem.of, problem.error);
            let place = format!("problem {text}");
            let Some(about) = objects.get(own_name(&problem.of)) else {
                continue;
            };
            if !has_room(writes) {
                memory.is_behind = true;
                return;
            }
            if memory.tells(&place, REASON, &text, self.look.now) {
                writes.push(self.event(about, "Warning", REASON, &text));
            }
        }
    }

    /// Pods, PodGroups and jobs, by their names in messages.
    fn objects(&self) -> BTreeMap<String, Value> {
        let watched = self.look.watched;
        let pods = watched.pods.values().filter(|pod| counts(pod));
        let pods = pods.map(|pod: &Arc<Pod>| {
            let meta = &pod.metadata;
            let called = format!("pod/{}/{}", meta.namespace, meta.name);
            (called, pod_reference(pod))
        });
        let groups = watched.pod_groups.values();
        let groups = groups.map(|group| {
            let facts = &group.facts;
            (facts.gang.to_string(), pod_group_reference(facts))
        });
        let jobs = watched.jobs.values();
        let jobs = jobs.map(|job| (job.job.to_string(), job_reference(job)));
        pods.chain(groups).chain(jobs).collect()
    }
}

/// The object that a problem is of: a role and a copy stand behind its name, and so do the gangs that
/// start with it.
fn own_name(of: &str) -> &str {
    let of = of.split([',', '+']).next().unwrap_or(of);
    let ends = of.match_indices('/').nth(2).map(|(at, _)| at);
    ends.map_or(of, |at| &of[..at])
}

#[cfg(test)]
mod tests {
    use super::own_name;

    #[test]
    fn a_problem_is_told_on_the_object_that_has_it() {
        for (of, expected) in [
            ("pod/a/p", "pod/a/p"),
            ("job/a/j, role worker", "job/a/j"),
            ("leaderworkerset/a/l/3", "leaderworkerset/a/l"),
            ("podgroup/a/g+b/h", "podgroup/a/g"),
            ("", ""),
        ] {
            assert_eq!(own_name(of), expected);
        }
    }
}
