//! Jobs that make their pods one wave after the other: more completions than pods at a time.

use super::resize::{bound, quota, settle, template, worker_of_job};
use super::*;

/// A Job as its controller leaves it: so many of its completions are done.
fn job(world: &mut World, parallelism: u32, (completions, succeeded): (u32, u32), suspend: bool) {
    let object = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "namespace": "a", "uid": "u-j"},
        "spec": {
            "parallelism": parallelism, "completions": completions, "suspend": suspend,
            "template": template(),
        },
        "status": {"succeeded": succeeded},
    }));
    let change = Change::Set(object.unwrap());
    world.watched.object("batch/v1", "Job", change);
}

/// The pod has done its work. The object stays, as a Job's does.
fn end(world: &mut World, uid: &str) {
    let pod = Arc::make_mut(world.watched.pods.get_mut(uid).unwrap());
    "Succeeded".clone_into(&mut pod.status.phase);
    world.bound.remove(uid);
}

/// Takes the due steps and binds, but does not look again: so pods can end unseen.
fn start(world: &mut World) {
    for _ in 0..2 {
        let round = world.look();
        world.carry_out(round.steps);
    }
    world.bind();
}

/// Pods end before anybody has seen them run, so the plan that started them is still there.
#[test]
fn every_wave_of_a_job_starts_however_quickly_its_pods_end() {
    for is_seen in [true, false] {
        let mut world = World::new(4);
        quota(&mut world, 4);
        for wave in 0..3 {
            job(&mut world, 2, (6, 2 * wave), false);
            let names = [format!("j{wave}a"), format!("j{wave}b")];
            for name in &names {
                worker_of_job(&mut world, name);
            }
            let before = bound(&world).len();
            start(&mut world);
            if bound(&world).len() == before {
                // The plan of the wave before has gone now.
                start(&mut world);
            }
            assert_eq!(
                bound(&world).len(),
                before + 2,
                "wave {wave}, seen {is_seen}"
            );
            if is_seen {
                settle(&mut world);
            }
            for name in &names {
                end(&mut world, &format!("u-{name}"));
            }
        }
        job(&mut world, 2, (6, 6), false);
        settle(&mut world);
        assert_eq!(world.plans(), [""; 0], "seen {is_seen}");
    }
}

/// One of two ends at once, and the next pod of the Job comes while the other has not been bound.
#[test]
fn who_comes_for_one_that_ended_has_its_place() {
    let mut world = World::new(2);
    quota(&mut world, 2);
    job(&mut world, 2, (4, 0), false);
    for name in ["j0", "j1"] {
        worker_of_job(&mut world, name);
    }
    start(&mut world);
    let unbound = Arc::make_mut(world.watched.pods.get_mut("u-j1").unwrap());
    unbound.spec.node_name.clear();
    world.bound.remove("u-j1");
    end(&mut world, "u-j0");
    job(&mut world, 2, (4, 1), false);
    worker_of_job(&mut world, "j2");
    let done = settle(&mut world);
    assert!(!done.contains(&"evict"), "{done:?}");
    assert_eq!(bound(&world), ["j0", "j1", "j2"]);
    assert_eq!(world.plans(), [""; 0]);
}

/// A Job is made smaller while it is held back, before and after it has a plan.
#[test]
fn a_job_made_smaller_while_it_is_suspended_runs_to_its_end() {
    for has_plan in [false, true] {
        let mut world = World::new(4);
        quota(&mut world, 4);
        job(&mut world, 3, (3, 0), true);
        if has_plan {
            let round = world.look();
            assert_eq!(acts(&round.steps), ["create"]);
            world.carry_out(round.steps);
        }
        job(&mut world, 1, (3, 0), true);
        let mut released = false;
        for _ in 0..4 {
            let round = world.look();
            released |= acts(&round.steps).contains(&"patch");
            world.carry_out(round.steps);
        }
        assert!(released, "plan {has_plan}");
        for wave in 0..3 {
            job(&mut world, 1, (3, wave), false);
            worker_of_job(&mut world, &format!("j{wave}"));
            start(&mut world);
            if bound(&world).len() == wave as usize {
                start(&mut world);
            }
            assert_eq!(bound(&world).len(), wave as usize + 1, "plan {has_plan}");
            end(&mut world, &format!("u-j{wave}"));
        }
    }
}
