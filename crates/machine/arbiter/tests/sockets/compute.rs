//! Compute time as it is asked for, shown, changed, and kept over a restart.

use sublet_arbiter::admin::{Class, Client, Placed, Reply, Request, Submit};

use crate::world::{PATIENCE, World, ask, reason};

fn asking(compute: Option<&str>, class: Class) -> Submit {
    Submit {
        compute: compute.map(str::to_owned),
        class,
        ..ask("100MiB", 1, false)
    }
}

fn submit(world: &World, submit: &Submit) -> (Client, Reply) {
    let mut line = world.admin();
    let request = Request::Submit(submit.clone());
    let reply = line.call(&request, PATIENCE).unwrap();
    (line, reply)
}

fn placed(world: &World, asked: &Submit) -> (Client, Placed) {
    match submit(world, asked) {
        (line, Reply::Placed(placed)) => (line, placed),
        (_, other) => panic!("{other:?}"),
    }
}

fn limit(world: &World, id: u64, compute: &str) -> Reply {
    let compute = compute.to_owned();
    world.call(&Request::LimitCompute { id, compute })
}

/// Class, promise and limit of a job, and the same of its card.
fn shown(world: &World, id: u64) -> String {
    let row = world.job(id).unwrap();
    let card = &row.per_gpu[0];
    assert_eq!(
        (card.compute_request_percent, card.compute_limit_percent),
        (row.compute_request_percent, row.compute_limit_percent)
    );
    let percent = |value: Option<f64>| value.unwrap().to_string();
    let (request, limit) = (row.compute_request_percent, row.compute_limit_percent);
    let (request, limit) = (percent(request), percent(limit));
    format!("{} {request}..{limit}", row.class.unwrap())
}

#[test]
fn what_is_asked_is_promised_shown_and_refused_beyond_a_whole_card() {
    let world = World::new(&[1024]);
    let (_first, one) = placed(&world, &asking(Some("30%"), Class::Guaranteed));
    let (_second, two) = placed(&world, &asking(Some("50.5%..80%"), Class::Guaranteed));
    let (_third, three) = placed(&world, &asking(None, Class::Opportunistic));
    assert_eq!(shown(&world, one.id), "guaranteed 30..100");
    assert_eq!(shown(&world, two.id), "guaranteed 50.5..80");
    assert_eq!(shown(&world, three.id), "opportunistic 0..100");
    assert_eq!(two.compute.as_deref(), Some("50.5 %..80 %"));
    assert_eq!(world.snapshot().gpus[0].compute_promised_percent, 80.5);
    let (_, refused) = submit(&world, &asking(Some("20%"), Class::Guaranteed));
    assert_eq!(
        reason(&refused),
        "GPU 0 lacks 0.5 % of its compute time: 20 % asked, and 19.5 % is left there"
    );
    for (compute, class, why) in [
        ("0%", Class::Guaranteed, "promises nothing"),
        ("9%..8%", Class::Guaranteed, "promises more than its limit"),
        ("30%", Class::Opportunistic, "is promised no compute time"),
    ] {
        let (_, refused) = submit(&world, &asking(Some(compute), class));
        assert!(reason(&refused).contains(why), "{refused:?}");
    }
    assert_eq!(world.snapshot().tenants.len(), 3);
}

#[test]
fn compute_time_is_changed_and_the_job_is_told() {
    let world = World::new(&[1024]);
    let (mut line, one) = placed(&world, &asking(Some("30%"), Class::Guaranteed));
    let (_other, _) = placed(&world, &asking(Some("50%"), Class::Guaranteed));
    let Reply::Limited(now) = limit(&world, one.id, "50%..60%") else {
        panic!("not changed")
    };
    assert_eq!(now.compute.as_deref(), Some("50 %..60 %"));
    assert_eq!(line.receive(Some(PATIENCE)).unwrap(), Reply::Limited(now));
    assert_eq!(shown(&world, one.id), "guaranteed 50..60");
    for (compute, why) in [
        ("50.1%", "GPU 0 lacks 0.1 % of its compute time"),
        ("half", "is no compute time"),
        ("0%", "promises nothing"),
    ] {
        let kept = limit(&world, one.id, compute);
        assert!(reason(&kept).contains(why), "{kept:?}");
    }
    assert_eq!(shown(&world, one.id), "guaranteed 50..60");
    assert_eq!(reason(&limit(&world, 77, "1%")), "there is no job 77");
}

#[test]
fn the_next_arbiter_promises_what_the_last_one_did() {
    let mut world = World::new(&[1024]);
    let guaranteed = asking(Some("30%"), Class::Guaranteed);
    let opportunistic = asking(Some("0%..30%"), Class::Opportunistic);
    let (_one, first) = placed(&world, &guaranteed);
    let (_two, second) = placed(&world, &opportunistic);
    let Reply::Limited(first) = limit(&world, first.id, "60%..80%") else {
        panic!("not changed")
    };
    world.restart(|_| {});
    let resume = |id: u64| {
        let mut line = world.admin();
        let reply = line.call(&Request::Resume { id }, PATIENCE).unwrap();
        (line, reply)
    };
    let (_lines, replies): (Vec<Client>, Vec<Reply>) =
        [first.id, second.id].map(resume).into_iter().unzip();
    assert_eq!(replies[0], Reply::Placed(first.clone()));
    assert_eq!(replies[1], Reply::Placed(second.clone()));
    assert_eq!(shown(&world, first.id), "guaranteed 60..80");
    assert_eq!(shown(&world, second.id), "opportunistic 0..30");
}
