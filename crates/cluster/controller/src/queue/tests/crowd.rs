//! Thousands that wait: what they are told, and what a look costs when nothing changes.

use super::*;

/// Jobs of one pod that are held back, in a quota of so many cards.
fn crowd(cards: u32, jobs: u32) -> World {
    let mut world = World::new(8);
    resize::quota(&mut world, cards);
    for at in 0..jobs {
        let object = serde_json::from_value(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": format!("j{at:04}"), "namespace": "a", "uid": format!("u-j{at:04}"),
                "creationTimestamp": "1970-01-01T00:00:01Z",
            },
            "spec": {"parallelism": 1, "suspend": true, "template": resize::template()},
        }));
        let change = Change::Set(object.unwrap());
        world.watched.object("batch/v1", "Job", change);
    }
    world
}

/// The reporter's lane is empty again each time.
fn told(world: &mut World, looks: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..looks {
        let round = world.look();
        told.extend(events(&round.report.events));
        world.carry_out(round.steps);
        world.now += 2_000;
    }
    told
}

#[test]
fn thousands_are_told_little_by_little_and_nobody_who_starts_soon() {
    let mut world = crowd(2, 202);
    let first = told(&mut world, 1);
    assert!(
        first.iter().all(|text| text.contains("may start")),
        "{first:?}"
    );
    assert_eq!(first.len(), 2);
    world.now += SOON_MS;
    let next = world.look();
    assert!(next.report.events.len() <= 50 && next.idle.is_none());
    let rest = told(&mut world, 10);
    let waits = |text: &&String| text.starts_with("position ");
    let waiting = next.report.events.len() + rest.iter().filter(waits).count();
    assert_eq!(waiting, 200);
}

/// A group that leaves the front of the line is no news for those behind it.
#[test]
fn another_position_is_no_event() {
    let mut world = crowd(1, 40);
    let all = told(&mut world, 8);
    assert_eq!(all.len(), 40);
    for at in 1..20 {
        let gone = serde_json::from_value(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": format!("j{at:04}"), "namespace": "a"},
        }));
        let change = Change::Gone(gone.unwrap());
        world.watched.object("batch/v1", "Job", change);
    }
    world.now += 60_000;
    assert_eq!(told(&mut world, 4), [""; 0]);
}

/// A look of thousands costs what it costs, whatever it finds: without a change there is hardly one.
#[test]
fn nothing_is_looked_at_while_nothing_happens() {
    let mut world = crowd(1, 20);
    let idle = |world: &mut World| world.look().idle.map(|time| time.as_millis());
    assert_eq!(idle(&mut world), None, "a plan is due");
    let _news = told(&mut world, 8);
    // Its plan has a deadline, and until then only a change starts somebody.
    assert_eq!(idle(&mut world), Some(20_000));
    world.now = 600_000;
    assert_eq!(idle(&mut world), Some(1_000));
    world.now = 1_000_000;
    assert_eq!(idle(&mut world), None, "the plan is given up");
}
