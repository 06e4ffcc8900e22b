//! Plans of other leaderships: of earlier ones, and of none.

use std::time::Duration;

use super::*;

/// A gang of two on a plan of this epoch.
fn planned(epoch: u64) -> World {
    let mut world = World::new(4);
    world.epoch = epoch;
    world.pod_group("g", 2);
    world.pod("p0", "g");
    world.pod("p1", "g");
    let round = world.look();
    world.carry_out(round.steps);
    world
}

/// A successor finds the plans, makes them its own, and goes on. It tells nothing before it has
/// decided: there would be no room for its reasons then.
#[test]
fn a_successor_goes_on_with_the_plans_that_it_finds() {
    let mut world = planned(3);
    world.epoch = 4;
    world.memory = Memory::default();
    let round = world.look();
    assert_eq!(acts(&round.steps), ["replace"]);
    assert_eq!(round.report, StatusReport::default());
    let Act::Replace(plan) = &round.steps[0].write.act else {
        panic!("{round:?}")
    };
    assert_eq!(
        (&plan["spec"]["epoch"], &plan["metadata"]["resourceVersion"]),
        (&json!(4), &json!("1"))
    );
    world.carry_out(round.steps);
    let round = world.look();
    assert_eq!(acts(&round.steps), ["patch", "patch"]);
    assert_eq!(round.report.status.len(), 1);
    assert_eq!(world.names, 1);
}

/// A plan of a higher epoch is a successor's, for all that a leader knows. Once its Lease was renewed
/// beside the plan it is not, and nobody else will ever touch it.
#[test]
fn a_plan_that_outranks_a_confirmed_leader_goes_and_the_queue_goes_on() {
    let mut world = planned(70);
    world.epoch = 4;
    world.memory = Memory::default();
    let begin = Instant::now();
    let at = |now, renewed| {
        let moment = |s| begin + Duration::from_secs(s);
        (moment(now), moment(renewed))
    };
    for before in [at(10, 9), at(11, 9), at(12, 10)] {
        world.at = before;
        assert_eq!(acts(&world.look().steps), [""; 0], "{before:?}");
    }
    world.at = at(13, 12);
    let round = world.look();
    assert_eq!(acts(&round.steps), ["delete"]);
    world.carry_out(round.steps);
    let round = world.look();
    assert_eq!(acts(&round.steps), ["create"]);
    world.carry_out(round.steps);
    assert_eq!(acts(&world.look().steps), ["patch", "patch"]);
}
