//! Reports of processes, and the events that the turns get from them.

use super::*;

const JOB: JobId = JobId(3);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// `w`orks, stands at the `g`ate, has not `a`nswered.
fn said(text: &str) -> Said {
    Said {
        is_at_work: text.contains('w'),
        n_at_work: text.matches('w').count() as u32,
        is_at_gate: text.contains('g'),
        is_unanswered: text.contains('a'),
        has_old: text.contains('o'),
        has_new: false,
    }
}

fn word(event: &TurnEvent) -> &'static str {
    match event {
        TurnEvent::Wants(_) => "wants",
        TurnEvent::Rests(_) => "rests",
        TurnEvent::Drained { wants: true, .. } => "drained and wants",
        TurnEvent::Drained { .. } => "drained",
        TurnEvent::AtWork { n_processes: 2, .. } => "two at work",
        _ => "?",
    }
}

#[test]
fn what_processes_say_is_told_once_and_by_what_the_gate_is() {
    use LaunchGate::{Closed, Contended, Free, Open};
    for (gate, all_said, expected) in [
        (Free, &["w", ""][..], &[][..]),
        (Open, &["w", "w", "g", "", ""], &["wants", "rests"]),
        (Contended, &["", "w"], &["rests", "wants"]),
        // Who still works is not news; who comes to the gate is, and who leaves it.
        (
            Closed(1),
            &["wa", "wga", "wa", "wga"],
            &["wants", "rests", "wants"],
        ),
        // Who rests keeps its number.
        (
            Open,
            &["w", "ww", "", "ww"],
            &["wants", "two at work", "rests", "wants"],
        ),
        // An answer while something works is none.
        (Closed(1), &["wa", "w", "", "g"], &["drained", "wants"]),
        (
            Closed(1),
            &["wga", "g", "g"],
            &["wants", "drained and wants", "wants"],
        ),
        (Closed(1), &["", ""], &["drained"]),
        // Who does not follow rests, and has answered.
        (Contended, &["w", "wo"], &["wants", "rests"]),
        (Closed(1), &["wga", "wgao"], &["wants", "drained"]),
    ] {
        let mut watched = Watched::new();
        watched.set(ms(0), gate, 1);
        let mut out = Vec::new();
        for text in all_said {
            watched.hear(ms(5), JOB, said(text), &mut out);
        }
        let told: Vec<_> = out.iter().map(word).collect();
        assert_eq!(told, expected, "{gate:?}: {all_said:?}");
    }
}

#[test]
fn a_mini_batch_is_timed_by_its_units() {
    for (looks, expected) in [
        // Ten units a second, five a mini-batch.
        (&[(0, 0, 5), (1000, 10, 5)][..], Some(500)),
        (&[(0, 0, 5), (500, 5, 5)], None),
        // One that takes long.
        (&[(0, 0, 5), (1000, 2, 5), (2000, 4, 5)], None),
        (&[(0, 0, 5), (1000, 2, 5), (2500, 5, 5)], Some(2500)),
        // It stands until there is another one, or the program repeats itself no more.
        (&[(0, 0, 5), (1000, 10, 5), (1500, 10, 5)], Some(500)),
        (&[(0, 0, 5), (1000, 10, 5), (1500, 20, 0)], None),
    ] {
        let mut time = BatchTime::default();
        for (at, units, a_batch) in looks {
            let a_batch = Some(*a_batch).filter(|units| *units > 0);
            time.measure(ms(*at), *units, a_batch);
        }
        assert_eq!(time.time, expected.map(ms), "{looks:?}");
    }
}

#[test]
fn only_who_may_have_news_is_read_again() {
    let (mut watched, mut out) = (Watched::new(), Vec::new());
    watched.add(ms(0), Pid(7), SlotIndex::new(1).unwrap());
    assert!(watched.may_have_news(ms(0)), "it came");
    for (what, is_news) in [
        ("nothing", false),
        ("a knock", true),
        ("a knock of another one", false),
        ("a gate", true),
        ("an end", true),
    ] {
        watched.hear(ms(5), JOB, said("w"), &mut out);
        match what {
            "a knock" => assert!(watched.knock(Pid(7))),
            "a knock of another one" => assert!(!watched.knock(Pid(8))),
            "a gate" => watched.set(ms(5), LaunchGate::Open, 1),
            "an end" => watched.remove(Pid(7)),
            _ => {}
        }
        assert_eq!(watched.may_have_news(ms(5)), is_news, "{what}");
    }
    // Who may yet launch is read again in time.
    watched.set(ms(6), LaunchGate::Closed(1), 1);
    watched.set(ms(6), LaunchGate::Contended, 1);
    watched.hear(ms(6), JOB, said(""), &mut out);
    let due = [6, 7].map(|at| watched.may_have_news(ms(at)));
    assert_eq!(due, [false, true]);
}

#[test]
fn each_process_has_its_part_of_the_queue() {
    let mut watched = Watched::new();
    watched.set_queue(ms(250));
    let mut queues = vec![watched.queue_us()];
    for pid in 1..=4 {
        let slot = SlotIndex::new(pid).unwrap();
        watched.add(ms(0), Pid(pid), slot);
    }
    queues.push(watched.queue_us());
    watched.set(ms(0), LaunchGate::Contended, 1);
    watched.set_queue(ms(2));
    for text in ["w", "ww", ""] {
        watched.hear(ms(1), JOB, said(text), &mut Vec::new());
        queues.push(watched.queue_us());
    }
    // All four could have worked while nobody looked. In its second turn it is known that two do.
    assert_eq!(queues, [250_000, 62_500, 500, 500, 500]);
    for gate in [LaunchGate::Closed(1), LaunchGate::Contended] {
        watched.set(ms(2), gate, 1);
    }
    assert_eq!(watched.queue_us(), 1000);
    watched.remove(Pid(1));
    watched.remove(Pid(2));
    watched.remove(Pid(3));
    assert_eq!(watched.queue_us(), 2000);
}

/// Processes end one by one as a gate closes, and begin one by one as it opens: each of them would
/// have the whole queue for itself then.
#[test]
fn the_number_of_processes_at_work_is_that_of_a_turn_and_not_of_its_ends() {
    let (mut watched, mut out) = (Watched::new(), Vec::new());
    watched.set(ms(0), LaunchGate::Contended, 1);
    for (at, gate, texts, expected) in [
        (0, "", &["ww", "wwww", "w"][..], 4),
        (20, "closed", &["www", "w", ""], 4),
        (40, "open", &["w"], 4),
        (50, "", &["wwww"], 4),
        (60, "closed", &["w"], 4),
        // Only one works now. That shows when a whole turn was so.
        (80, "open", &["w"], 4),
        (90, "closed", &["w"], 4),
        // Nobody looked in this one.
        (95, "open", &[], 1),
        (96, "closed", &[], 1),
        (97, "open", &["ww"], 2),
        // Or a second of a turn without end, and once more as long.
        (1100, "", &["w"], 2),
        (2200, "", &["w"], 1),
    ] {
        match gate {
            "open" => watched.set(ms(at), LaunchGate::Contended, 1),
            "closed" => watched.set(ms(at), LaunchGate::Closed(1), 1),
            _ => {}
        }
        for text in texts {
            watched.hear(ms(at), JOB, said(text), &mut out);
        }
        assert_eq!(watched.at_work.number(), expected, "at {at} ms");
    }
    let told = out.iter().filter_map(|event| match event {
        TurnEvent::AtWork { n_processes, .. } => Some(*n_processes),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [2, 4, 2, 1]);
}

#[test]
fn the_gate_of_one_who_does_not_follow_stays_open() {
    let mut watched = Watched::new();
    watched.set(ms(0), LaunchGate::Closed(1), 7);
    assert_eq!(watched.word(), GateWord::new(GateState::Closed, 7));
    for (text, is_news, state) in [
        ("a", false, GateState::Closed),
        ("ao", true, GateState::Free),
        ("ao", false, GateState::Free),
        ("a", true, GateState::Closed),
    ] {
        let was_news = watched.hear(ms(5), JOB, said(text), &mut Vec::new());
        assert_eq!((was_news, watched.word().state()), (is_news, state));
    }
}

#[test]
fn who_was_just_let_go_is_given_time_to_launch() {
    let mut watched = Watched::new();
    let mut out = Vec::new();
    watched.set(ms(0), LaunchGate::Closed(1), 1);
    watched.set(ms(10), LaunchGate::Contended, 1);
    watched.hear(ms(10), JOB, said(""), &mut out);
    assert_eq!((&out[..], watched.look_again_at()), (&[][..], Some(ms(11))));
    watched.hear(ms(11), JOB, said(""), &mut out);
    assert_eq!(out, [TurnEvent::Rests(JOB)]);
    assert_eq!(watched.look_again_at(), None);
    // Another word of the same open gate changes nothing.
    watched.set(ms(12), LaunchGate::Open, 1);
    watched.hear(ms(12), JOB, said("w"), &mut out);
    assert_eq!(out.last(), Some(&TurnEvent::Wants(JOB)));
}
