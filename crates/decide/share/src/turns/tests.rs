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
            turns: Turns::new(TurnRules {
                period: ms(100),
                ..TurnRules::default()
            }),
            gates: BTreeMap::new(),
        }
    }

    fn apply(&mut self, at: u64, event: TurnEvent) {
        let mut out = Vec::new();
        self.turns.apply(ms(at), event, &mut out);
        for SetGate { job, gate, .. } in out {
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
        self.apply(
            at,
            TurnEvent::Placed {
                job,
                class,
                shares,
                slice: None,
            },
        );
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

    /// All whose gates are closing have drained, and want to go on.
    fn drain(&mut self, at: u64) {
        for job in self.gates.keys().copied().collect::<Vec<_>>() {
            if let LaunchGate::Closed(_) = self.gates[&job] {
                self.drained(at, job, true);
            }
        }
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
    assert_eq!(
        story.view(1).used,
        ms(100),
        "two runs: it wanted nothing before"
    );
    story.drained(100, 1, true);
    for at in [150, 250] {
        assert!(story.view(1).is_at_limit);
        assert_eq!(story.turns.wake_at(), Some(ms(at)), "half of each 100 ms");
        story.tick(at);
        assert_eq!(story.gates(), "O");
        while story.gates() == "O" {
            let at = story.turns.wake_at().expect("it has a limit");
            story.tick(at.as_millis() as u64);
        }
        assert_eq!(story.turns.now, ms(at + 50));
        story.drained(at + 50, 1, true);
    }
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
    story.drained(200, 1, true);
    story.tick(240);
    assert_eq!(in_all(&story, 1), [100, 40, 40], "nobody else is there");
    // Now another one has the card, and the first one's limit leaves it room.
    story.place(240, 2, Guaranteed, &[0], (900, 1000));
    story.wants(240, 2);
    story.tick(250);
    assert_eq!(story.gates(), "OC", "there is room, and the other is ahead");
    assert_eq!(in_all(&story, 1), [100, 50, 50]);
    story.drained(251, 2, true);
    story.tick(260);
    assert_eq!(in_all(&story, 2), [10, 9, 0], "it waits for its turn");
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
    // They come at any time.
    for (card, came) in [(0, 1), (1, 7), (2, 16)] {
        let first = 2 * card as u64 + 1;
        for job in [first, first + 1] {
            story.place(came, job, Guaranteed, &[card], (500, 1000));
            story.wants(came, job);
        }
        story.drain(came);
    }
    let mut at = 16;
    for _ in 0..40 {
        let wake = story.turns.wake_at().expect("all want their cards");
        at = wake.as_millis() as u64;
        assert!(at < 100 || at.is_multiple_of(10), "{at}");
        story.tick(at);
        story.drain(at);
    }
    assert!(at >= 300, "{at}");
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
    assert_eq!(story.gates(), "CO", "it is behind, and new");
}

#[test]
fn who_pauses_for_a_moment_keeps_its_turn_and_who_pauses_long_gives_way_at_once() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(0, 1);
    story.wants(0, 2);
    story.rests(1, 1);
    assert_eq!(story.gates(), "OC");
    assert_eq!(story.turns.wake_at(), Some(ms(2)));
    story.wants(1, 1);
    story.rests(1, 1);
    story.tick(2);
    assert_eq!(story.gates(), "CO", "it is away, and ahead");
    story.drained(2, 1, false);
    // It comes back, is behind by now, and takes the card; with its next pause it leaves it at once.
    for at in [20, 40, 60] {
        story.wants(at, 1);
        assert_eq!(story.gates(), "OC", "at {at}");
        story.drained(at + 1, 2, true);
        story.rests(at + 2, 1);
        assert_eq!(
            story.gates(),
            "OO",
            "at {at}: it is behind, so its gate stays open"
        );
    }
}

#[test]
fn who_wakes_and_is_behind_takes_the_card_after_the_shortest_turn() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(0, 1);
    story.wants(1, 2);
    assert_eq!(story.gates(), "OC", "not at once");
    assert_eq!(story.turns.wake_at(), Some(ms(2)));
    story.tick(2);
    assert_eq!(story.gates(), "CO");
    story.drained(2, 1, true);
    // The first one did not wake: it waits for the end of the turn.
    assert_eq!(story.turns.wake_at(), Some(ms(20)));
    story.tick(20);
    assert_eq!(story.gates(), "OC");
    // Who pauses in its turn, and comes back ahead of the other, waits for it too.
    story.drained(21, 2, false);
    story.wants(30, 2);
    assert_eq!(story.gates(), "OC");
    assert_eq!(story.turns.wake_at(), Some(ms(40)));
}

#[test]
fn a_job_that_closes_its_gate_opens_it_again_when_the_other_is_done() {
    for (overlap, expected) in [(Overlap::Allowed, "OO"), (Overlap::Never, "CC")] {
        let mut story = Story::new();
        story.turns.set_overlap(0, overlap);
        story.place(0, 1, Guaranteed, &[0], (500, 1000));
        story.place(0, 2, Guaranteed, &[0], (500, 1000));
        story.wants(0, 1);
        story.tick(100);
        story.wants(100, 2);
        assert_eq!(&story.gates()[..1], "C");
        // A request of a moment, before the other was drained; then a longer pause.
        for at in [101, 111, 121] {
            story.rests(at, 2);
            story.tick(at + 1);
            story.wants(at + 9, 2);
        }
        story.rests(131, 2);
        assert_eq!(story.gates(), expected, "{overlap:?}");
    }
}

#[test]
fn a_gate_says_whether_others_want_the_card() {
    let mut story = Story::new();
    story.place(0, 1, Guaranteed, &[0], (500, 1000));
    story.place(0, 2, Guaranteed, &[0], (500, 1000));
    story.wants(5, 1);
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
    assert_eq!(story.gates(), "OO", "it has nothing to do, it says");
    story.tick(202);
    let (job, card, by) = (JobId(2), 0, ms(400));
    story.apply(202, TurnEvent::Overused { job, card, by });
    story.tick(230);
    assert_eq!(story.gates(), "OC", "and it works, whatever it says");
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
    assert_eq!(at, 140, "until the other has had as much");
}
