//! A big gang's wait is bounded, whatever comes after it.

use sublet_model::Time;

use crate::scene::Scene;

/// Jobs of one card come without end, each for ten seconds. When does a gang start that needs all
/// cards, and has come when they were busy?
fn gang_starts(reservation_after: u64) -> Option<u64> {
    let mut scene = Scene::new(4, 4, &["a - 0 16", "b - 0 16"]);
    scene.rules.reservation_after_ms = reservation_after;
    scene.rules.lookahead = 64;
    let mut ends: Vec<(u64, String)> = Vec::new();
    for now in 0..240u64 {
        for (_, name) in ends.extract_if(.., |(at, _)| *at <= now) {
            scene.remove(&name);
        }
        for one in 0..3 {
            scene.add(&[&format!("s{now}-{one} a t{now} | w 1 1 1x")]);
        }
        if now == 20 {
            scene.add(&["big a t20 | w 4 4 4x"]);
        }
        for group in &mut scene.groups {
            let from = group.started.map_or(now, Time::ms);
            group.ends = Some(Time::from_ms(from + 10));
        }
        scene.tick(now);
        for group in &scene.groups {
            let name = group.id.object().to_owned();
            let is_known = ends.iter().any(|(_, known)| *known == name);
            if group.started.is_some() && !is_known {
                ends.push((now + 10, name));
            }
        }
        if now >= 20 && scene.group("big").started.is_some() {
            return Some(now);
        }
    }
    None
}

#[test]
fn a_gang_that_needs_everything_starts_within_the_bound() {
    assert_eq!(
        gang_starts(u64::MAX),
        None,
        "small jobs keep it waiting for ever"
    );
    let started = gang_starts(30).unwrap();
    // It came at 20, waited for 30, and then no longer than a job runs.
    assert!(started <= 20 + 30 + 10, "at {started}");
}

#[test]
fn while_nodes_are_held_only_who_is_gone_by_then_starts_there() {
    let mut scene = Scene::new(2, 2, &["a - 0 8", "b - 0 8"]);
    scene.rules.reservation_after_ms = 10;
    // Quotas are generous here: it is room that is missing.
    scene.total = [(crate::scene::GPU.into(), 8)].into();
    scene.add(&["x a ends=50 | w 1 1 1x", "y a | w 1 1 2x"]);
    assert_eq!(scene.tick(0), ["admit x 1", "admit y 1"]);
    scene.add(&["big b t0 | w 1 1 2x"]);
    assert_eq!(scene.tick(9), [] as [&str; 0], "it has not waited long");
    assert_eq!(scene.tick(10), ["hold 1 for big"]);
    assert_eq!(scene.hold.as_ref().unwrap().until, Some(Time::from_ms(50)));
    scene.add(&["2long a t20 ends=60 | w 1 1 1x"]);
    assert_eq!(scene.tick(20), ["hold 1 for big"]);
    scene.add(&["3short a t20 ends=40 | w 1 1 1x"]);
    assert_eq!(scene.tick(21), ["admit 3short 1", "hold 1 for big"]);
    scene.remove("3short");
    scene.remove("x");
    // The other one has waited long, too, and its turn is next.
    assert_eq!(scene.tick(50), ["admit big 1", "hold 1 for 2long"]);
}
