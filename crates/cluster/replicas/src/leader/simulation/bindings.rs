//! Bindings, from the scheduler's ask to certainty.

use sublet_model::Time;
use sublet_plan::BindingStep;

use super::server::CARDS;
use super::*;

impl Simulation {
    /// A scheduler's cycle for a pod: it asks the leader, or a former one.
    pub(super) fn schedule(&mut self, pod: usize) {
        if self.server.pods[pod] != Some(None) {
            return;
        }
        self.after(2_000, Fate::Schedule(pod));
        let leads = self.processes.iter().position(|one| one.office.is_some());
        let asked = match leads {
            Some(leader) if self.chance.u64(..4) != 0 => leader,
            _ => self.chance.usize(..3),
        };
        let card = self.chance.usize(..CARDS);
        if !self.loses("Bind lost") {
            self.tell(asked, 300, Event::Bind(pod, card));
        }
    }

    pub(super) fn bind(&mut self, number: usize, pod: usize, card: usize) {
        let now = self.clock(number);
        let process = &mut self.processes[number];
        let tenure = process.election.tenure;
        let within = tenure.is_some_and(|tenure| now < tenure.until);
        if process.office.is_none() || !(within || self.hands == Hands::Overstaying) {
            return self.meet("asked one that does not lead");
        }
        if let Some((there, _)) = process.ledger.get(&pod) {
            let what = if *there == card {
                "asked again"
            } else {
                "has a place"
            };
            return self.meet(what);
        }
        let used = process.ledger.iter().filter(|(_, (on, _))| *on == card);
        let used: u64 = used.map(|(pod, _)| self.server.sizes[*pod]).sum();
        if used + self.server.sizes[pod] > self.server.cards[card] {
            return self.meet("does not fit");
        }
        process.ledger.insert(pod, (card, false));
        process.open += 1;
        let life = process.life;
        let (binding, first) = Binding::start(Time::from_ms(self.now), SETTLE_MS);
        assert_eq!(first, BindingStep::Post);
        self.tries.push(Try {
            process: number,
            life,
            pod,
            card,
            binding,
            ended: false,
        });
        self.post(self.tries.len() - 1);
    }

    /// Sends a Binding. It arrives within the journey, and the server works on it no longer than
    /// its deadline.
    pub(super) fn post(&mut self, id: usize) {
        let journey = SWIFT_JOURNEY.as_millis() as u64;
        let kind = if self.calm() {
            9
        } else {
            self.chance.u64(..10)
        };
        let torn = self.hands == Hands::Torn && self.chance.u64(..10) == 0;
        let stop = if torn { self.chance.u64(..20_000) } else { 0 };
        let at = match kind {
            0 => {
                self.meet("Binding lost");
                None
            }
            // At the last moment.
            1 => Some(self.now + SETTLE_MS - 1),
            2 | 3 => Some(self.now + self.chance.u64(..SETTLE_MS)),
            _ => Some(self.now + self.chance.u64(..journey / 4)),
        };
        let answered = kind > 4;
        if let Some(at) = at {
            self.at(at + stop, Fate::Post(id, answered));
        }
        if at.is_none() || !answered {
            self.meet("Binding without an answer");
            let lost = ApiAnswer::Unanswered("no answer".to_owned());
            let waits = SETTLE_MS + stop;
            self.answer(id, waits, lost, self.now + waits);
        }
    }

    pub(super) fn answer(&mut self, id: usize, up_to_ms: u64, seen: ApiAnswer, moment: u64) {
        let Try { process, life, .. } = self.tries[id];
        self.after(
            up_to_ms,
            Fate::To(process, life, Event::Answer(id, seen, moment)),
        );
    }

    pub(super) fn post_arrives(&mut self, id: usize, answered: bool) {
        let Try {
            pod, card, ended, ..
        } = self.tries[id];
        let answer = match self.server.pods[pod] {
            None => ApiAnswer::Refused {
                code: 404,
                message: "gone".to_owned(),
            },
            Some(Some(_)) => ApiAnswer::Refused {
                code: 409,
                message: "bound".to_owned(),
            },
            Some(None) => {
                self.server.pods[pod] = Some(Some(card));
                self.meet("bound");
                if ended {
                    self.broken = Some(format!("{pod} was bound after that was given up"));
                }
                self.wrote(pod);
                ApiAnswer::Accepted
            }
        };
        if answered {
            self.answer(id, 200, answer, self.now);
        }
    }

    pub(super) fn take_answer(&mut self, id: usize, seen: ApiAnswer, moment: u64) {
        let this = &mut self.tries[id];
        if this.ended {
            return;
        }
        let step = this.binding.apply(Time::from_ms(moment), seen);
        let (number, pod) = (this.process, this.pod);
        let process = &mut self.processes[number];
        match step {
            BindingStep::Post => unreachable!("a Binding is sent once"),
            BindingStep::Read(at) => {
                let life = process.life;
                let at = at.ms().max(self.now);
                return self.at(at, Fate::To(number, life, Event::Read(id)));
            }
            BindingStep::Bound => {}
            BindingStep::Failed(_) => {
                if process.ledger.get(&pod).is_some_and(|(_, seen)| !seen) {
                    process.ledger.remove(&pod);
                }
            }
        }
        this.ended = true;
        process.open -= 1;
    }
}
