//! Small stories, each with the states of the gates.

use sublet_model::{Class, Milli};

use super::world::ms;
use super::*;

fn milli(value: u16) -> Milli {
    Milli::new(value).expect("at most a whole")
}

/// A machine of turns, and how each gate was last set.
struct Story {
    turns: Turns,
    gates: BTreeMap<u64, LaunchGate>,
}

impl Story {
    fn new() -> Story {
        Story {
            turns: Turns::new(TurnRules::default()),
            gates: BTreeMap::new(),
        }
    }

    fn apply(&mut self, at: u64, event: TurnEvent) {
        let mut out = Vec::new();
        self.turns.apply(ms(at), event, &mut out);
        for SetGate { job, gate } in out {
            self.gates.insert(job.0, gate);
        }
    }

    fn place(&mut self, at: u64, job: u64, class: Class, cards: &[usize], range: (u16, u16)) {
        let shares = cards.iter().map(|card| TimeShare {
            card: *card,
            request: milli(range.0),
            limit: milli(range.1),
        });
        let (job, shares) = (JobId(job), shares.collect());
        self.apply(at, TurnEvent::Placed { job, class, shares });
    }

    fn wants(&mut self, at: u64, job: u64) {
        self.apply(at, TurnEvent::Wants(JobId(job)));
    }

    fn rests(&mut self, at: u64, job: u64) {
        self.apply(at, TurnEvent::Rests(JobId(job)));
    }

    /// Answers its last closing.
    fn drained(&mut self, at: u64, job: u64, wants: bool) {
        let LaunchGate::Closed(turn) = self.gates[&job] else {
            panic!("{job}'s gate is not closed");
        };
        let job = JobId(job);
        self.apply(at, TurnEvent::Drained { job, turn, wants });
    }

    fn tick(&mut self, at: u64) {
        self.apply(at, TurnEvent::Tick);
        self.turns.settle(ms(at));
    }

    /// Its first card.
    fn view(&self, job: u64) -> TurnView {
        self.turns.view(JobId(job))[0]
    }

    /// `F`ree, `O`pen (wanted by others or not) or `C`losed, of each job.
    fn gates(&self) -> String {
        let letter = |gate: &LaunchGate| match gate {
            LaunchGate::Free => 'F',
            LaunchGate::Open | LaunchGate::Contended => 'O',
            LaunchGate::Closed(_) => 'C',
        };
        self.gates.values().map(letter).collect()
    }
}

use Class::{Guaranteed, Opportunistic};

#[test]
fn alone_and_without_a_limit_nobody_looks_at_it() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (300, 1000));
    assert_eq!(story.gates(), "F");
    story.place(1, 2, Guaranteed, &[1], (300, 1000));
    assert_eq!(story.gates(), "FF");
    assert_eq!(story.turns.wake_at(), None);
    story.place(2, 3, Guaranteed, &[0], (300, 1000));
    assert_eq!(story.gates(), "OFC", "the first is watched now");
    story.apply(3, TurnEvent::Left(JobId(3)));
    assert_eq!(&story.gates()[..2], "FF");
}

#[test]
fn turns_alternate_by_what_is_due() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (750, 1000));
    story.place(0, 2, Guaranteed, &[0], (250, 1000));
    story.wants(0, 1);
    story.wants(0, 2);
    assert_eq!(story.gates(), "OC");
    let mut at = 0;
    let mut seen = String::new();
    for _ in 0..16 {
        at += 20;
        story.tick(at);
        for job in [1, 2] {
            if let LaunchGate::Closed(_) = story.gates[&job] {
                story.drained(at, job, true);
            }
        }
        seen.push(if story.gates().starts_with('O') {
            '1'
        } else {
            '2'
        });
    }
    assert_eq!(seen, "2111211121112111");
}

#[test]
fn a_limit_holds_also_for_one_that_is_alone() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (100, 500));
    story.wants(0, 1);
    assert_eq!(story.gates(), "O");
    while story.gates() == "O" {
        let at = story.turns.wake_at().expect("it has a limit");
        story.tick(at.as_millis() as u64);
    }
    assert_eq!(story.view(1).used, ms(500));
    story.drained(500, 1, true);
    assert!(story.view(1).is_at_limit);
    assert_eq!(
        story.turns.wake_at(),
        Some(ms(1005)),
        "room for the shortest turn"
    );
    story.tick(1005);
    assert_eq!(story.gates(), "O");
}

/// Used, waited, and throttled of that, in milliseconds since a job came.
fn in_all(story: &Story, job: u64) -> [u128; 3] {
    let view = story.view(job);
    [view.had, view.waited_in_all, view.throttled_in_all].map(|time| time.as_millis())
}

#[test]
fn time_is_counted_for_as_long_as_a_job_is_there() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (100, 500));
    story.tick(100);
    assert_eq!(in_all(&story, 1), [0, 0, 0], "it wants nothing");
    story.wants(100, 1);
    while story.gates() == "O" {
        let at = story.turns.wake_at().expect("it has a limit");
        story.tick(at.as_millis() as u64);
    }
    story.drained(600, 1, true);
    story.tick(900);
    assert_eq!(in_all(&story, 1), [500, 300, 300], "nobody else is there");
    // Now another one has the card, and the first one's limit leaves it room.
    story.place(900, 2, Guaranteed, &[0], (900, 1000));
    story.wants(900, 2);
    while story.gates() == "CO" {
        let at = story.turns.wake_at().expect("somebody waits");
        story.tick(at.as_millis() as u64);
    }
    let [used, waited, throttled] = in_all(&story, 1);
    assert_eq!((used, throttled), (500, 505), "there is room from 1105 on");
    let other = in_all(&story, 2);
    assert_eq!(waited - throttled, other[0] - 205, "the other's turn");
    assert_eq!(other[1..], [0, 0]);
}

#[test]
fn an_opportunistic_one_stops_at_once_and_gets_its_least() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (1000, 1000));
    story.place(0, 2, Opportunistic, &[0], (0, 1000));
    story.wants(0, 2);
    assert_eq!(story.gates(), "OO", "the guaranteed gate stays open");
    story.wants(7, 1);
    assert_eq!(story.gates(), "OC");
    story.drained(8, 2, true);
    story.tick(1007);
    assert_eq!(story.gates(), "OC");
    assert_eq!(story.turns.wake_at(), Some(ms(1008)), "a second in vain");
    story.tick(1008);
    assert_eq!(story.turns.wake_at(), Some(ms(1030)), "the other's slice");
    story.tick(1030);
    assert_eq!(story.gates(), "CO");
    assert_eq!(story.turns.wake_at(), Some(ms(1035)));
    story.drained(1031, 1, true);
    assert_eq!(story.gates(), "CO", "it has five milliseconds");
    story.tick(1035);
    assert_eq!(story.gates(), "OC");
}

#[test]
fn turns_of_several_cards_end_at_the_same_moments() {
    let mut story = Story::new();
    // They come at any time, and the first turns end 20 ms later, or near that.
    for (card, came) in [(0, 1), (1, 7), (2, 16)] {
        let first = 2 * card as u64 + 1;
        for job in [first, first + 1] {
            story.place(came, job, Guaranteed, &[card], (500, 1000));
        }
        story.wants(came, first);
        story.wants(came, first + 1);
    }
    for (at, gates) in [(20, "COOCOC"), (30, "COCOOC"), (40, "OCCOCO")] {
        assert_eq!(story.turns.wake_at(), Some(ms(at)), "{}", story.gates());
        let before = story.gates();
        story.tick(at);
        assert_eq!(story.gates(), gates, "{at}");
        for (job, (was, is)) in (1..).zip(before.chars().zip(gates.chars())) {
            if (was, is) == ('O', 'C') {
                story.drained(at, job, true);
            }
        }
    }
}

#[test]
fn turns_that_must_not_overlap_wait_for_the_end_of_the_one_before() {
    for overlap in [Overlap::Allowed, Overlap::Never] {
        let mut story = Story::new();
        story.turns.set_overlap(0, overlap);
        story.place(0, 1, Guaranteed, &[0], (500, 1000));
        story.place(0, 2, Guaranteed, &[0], (500, 1000));
        story.wants(0, 1);
        story.wants(0, 2);
        story.tick(20);
        let expected = if overlap == Overlap::Allowed {
            "CO"
        } else {
            "CC"
        };
        assert_eq!(story.gates(), expected);
        story.apply(
            21,
            TurnEvent::Drained {
                job: JobId(1),
                turn: 77,
                wants: true,
            },
        );
        assert_eq!(story.gates(), expected, "an answer to another closing");
        story.drained(25, 1, true);
        assert_eq!(story.gates(), "CO");
        let used = story.view(1).used;
        let split = if overlap == Overlap::Allowed { 5 } else { 0 };
        assert_eq!(used * 2, ms(50 - split), "{overlap:?}");
    }
}

#[test]
fn half_of_a_collective_gets_its_other_half() {
    let mut story = Story::new();
    story.turns.set_overlap(0, Overlap::Never);
    story.place(0, 1, Guaranteed, &[0, 1], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(0, 1);
    story.wants(0, 2);
    story.tick(20);
    assert_eq!(story.gates(), "CC");
    // Rank 1 has come to the gate; rank 0 waits for it on the card.
    story.wants(21, 1);
    assert_eq!(story.turns.wake_at(), Some(ms(40)));
    story.tick(40);
    assert_eq!(story.gates(), "OC");
    story.tick(60);
    assert_eq!(story.gates(), "CC");
    story.drained(61, 1, true);
    assert_eq!(story.gates(), "CO");
    assert_eq!(story.view(1).used, ms(61), "on its account");
}

#[test]
fn a_kernel_of_ten_seconds_is_paid_back() {
    let mut story = Story::new();
    story.turns.set_overlap(0, Overlap::Never);
    story.place(0, 1, Guaranteed, &[0], (250, 1000));
    story.place(0, 2, Guaranteed, &[0], (750, 1000));
    story.wants(0, 1);
    story.wants(0, 2);
    let mut at = 0;
    while at < 10_000 {
        at += 20;
        story.tick(at);
    }
    story.drained(at, 1, true);
    assert_eq!(story.gates(), "CO");
    while story.gates() == "CO" {
        at += 20;
        story.tick(at);
    }
    assert!(
        (39_900..=40_100).contains(&at),
        "it has had a quarter of {at} ms"
    );
}

#[test]
fn time_that_goes_back_or_jumps_is_not_charged() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(100, 1);
    story.tick(110);
    story.tick(50);
    assert_eq!(story.view(1).used, ms(10));
    story.tick(3_600_000);
    assert_eq!(story.view(1).used, ms(1000));
    story.wants(3_600_000, 2);
    assert_eq!(story.gates(), "OC");
}

#[test]
fn who_pauses_for_a_moment_keeps_its_turn_and_who_pauses_long_gives_way_at_once() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(0, 1);
    story.wants(0, 2);
    story.rests(5, 1);
    assert_eq!(story.gates(), "OC");
    assert_eq!(story.turns.wake_at(), Some(ms(7)));
    story.wants(6, 1);
    assert_eq!(story.turns.wake_at(), Some(ms(20)), "it is back");
    let mut at = 6;
    for expected in ["OC", "OC", "CO"] {
        // Its turn, until it rests.
        story.rests(at + 1, 1);
        assert_eq!(story.gates(), expected, "at {at}");
        story.tick(at + 3);
        assert_eq!(story.gates(), "CO", "at {at}");
        story.drained(at + 3, 1, false);
        story.wants(at + 10, 1);
        at += 10;
        while story.gates() == "CO" {
            at += 1;
            story.tick(at);
        }
        story.drained(at, 2, true);
    }
}

#[test]
fn a_gate_says_whether_others_want_the_card() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(0, 1);
    assert_eq!(story.gates[&1], LaunchGate::Open, "nobody else does");
    story.wants(5, 2);
    assert_eq!(story.gates[&1], LaunchGate::Contended);
    story.rests(6, 2);
    assert_eq!(
        story.gates[&1],
        LaunchGate::Contended,
        "it may be back soon"
    );
    assert_eq!(story.turns.wake_at(), Some(ms(1005)));
    story.tick(1005);
    assert_eq!(story.gates[&1], LaunchGate::Open);
    story.place(2000, 3, Guaranteed, &[1], (500, 900));
    story.wants(2000, 3);
    assert_eq!(story.gates[&3], LaunchGate::Contended, "it has a limit");
}

#[test]
fn who_says_that_it_rests_and_does_not_loses_its_gate_all_the_same() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (750, 1000));
    story.place(0, 2, Guaranteed, &[0], (250, 1000));
    story.wants(0, 2);
    story.drained(0, 1, false);
    story.wants(1, 1);
    story.tick(20);
    assert_eq!(story.gates(), "OC");
    // It does not answer and stands at the gate, as half of a collective would.
    story.wants(21, 2);
    story.tick(40);
    assert_eq!(story.gates(), "OO");
    story.rests(41, 2);
    story.tick(1000);
    assert_eq!(story.gates(), "OO", "it has nothing to do, it says");
    let (job, card, by) = (JobId(2), 0, ms(400));
    story.apply(1000, TurnEvent::Overused { job, card, by });
    assert_eq!(
        story.turns.wake_at(),
        Some(ms(1020)),
        "the end of its slice"
    );
    story.tick(1020);
    assert_eq!(story.gates(), "OC");
}

#[test]
fn who_took_more_than_its_turns_pays_for_it() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(0, 1);
    story.wants(0, 2);
    let (job, card, by) = (JobId(1), 0, ms(100));
    story.apply(10, TurnEvent::Overused { job, card, by });
    assert_eq!(story.view(1).used, ms(110));
    assert_eq!(story.view(1).had, ms(10), "by its turns");
    story.tick(20);
    assert_eq!(story.gates(), "CO");
    story.drained(20, 1, true);
    let mut at = 20;
    while story.gates() == "CO" {
        at += 20;
        story.tick(at);
    }
    assert_eq!(at, 160, "until the other has had more");
}
