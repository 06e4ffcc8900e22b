//! A process's life: its election, its office, its watch.

use super::*;

impl Simulation {
    pub(super) fn start(&mut self, number: usize) {
        let bound = self.server.bound();
        let log_at = self.server.log.len();
        let process = &mut self.processes[number];
        if process.lives {
            return;
        }
        process.life += 1;
        process.lives = true;
        process.ending = false;
        process.election = Election::new(format!("{number}.{}", process.life), SWIFT);
        process.office = None;
        process.reading = None;
        process.ledger = bound
            .into_iter()
            .map(|(pod, card)| (pod, (card, true)))
            .collect();
        process.log_at = log_at;
        process.open = 0;
        self.tell(number, 400, Event::Round);
    }

    /// Binds no more, and gives the Lease back if no write of its own is open.
    pub(super) fn end(&mut self, number: usize) {
        let process = &mut self.processes[number];
        if !process.lives || self.now < process.paused_until {
            return;
        }
        process.office = None;
        process.lives = false;
        let given = process.election.release().filter(|_| process.open == 0);
        let (life, sent) = (process.life, self.clock(number));
        if let Some(act) = given {
            self.meet("Lease given back");
            self.after(300, Fate::LeaseWrite(number, life, act, sent));
        }
        self.after(3_000, Fate::Start(number));
    }

    pub(super) fn to(&mut self, number: usize, life: u32, event: Event) {
        let process = &self.processes[number];
        if !process.lives || process.life != life {
            return;
        }
        if self.now < process.paused_until {
            let at = process.paused_until;
            return self.at(at, Fate::To(number, life, event));
        }
        match event {
            Event::Round => {
                if !self.loses("Lease not asked") {
                    self.after(60, Fate::LeaseRead(number, life));
                }
                let again = self.now + SWIFT.retry.as_millis() as u64;
                self.at(again, Fate::To(number, life, Event::Round));
            }
            Event::LeaseSeen(lease) => self.lease_seen(number, lease.as_deref()),
            Event::LeaseWritten(sent, answer) => {
                let answer = answer.map_err(|code| WriteError::Refused {
                    code,
                    message: String::new(),
                });
                let answer = match self.hands {
                    Hands::Counting => answer.map(|_| self.counted()),
                    _ => answer,
                };
                self.processes[number].election.written(sent, &answer);
                self.seek_office(number);
            }
            Event::Listed(tenure, bound, upto) => self.listed(number, tenure, bound, upto),
            Event::Watch(upto) => self.watch(number, upto),
            Event::Bind(pod, card) => self.bind(number, pod, card),
            Event::Answer(id, seen, moment) => self.take_answer(id, seen, moment),
            Event::Read(id) => self.after(200, Fate::Look(id, self.now)),
        }
    }

    pub(super) fn lease_seen(&mut self, number: usize, lease: Option<&Lease>) {
        let now = self.clock(number);
        let mut lease = lease.cloned();
        if self.hands == Hands::Impatient
            && let Some(spec) = lease.as_mut().and_then(|lease| lease.spec.as_mut())
        {
            spec.lease_duration_seconds = Some(2);
        }
        let process = &mut self.processes[number];
        let step = process.election.read(lease.as_ref(), now);
        let act = process.election.act(&step, jiff::Timestamp::UNIX_EPOCH);
        let life = process.life;
        self.seek_office(number);
        if let Some(act) = act
            && !self.loses("write of the Lease lost")
        {
            // One that is late may be very late.
            let late = if !self.calm() && self.chance.u64(..20) == 0 {
                8_000
            } else {
                60
            };
            self.after(late, Fate::LeaseWrite(number, life, act, now));
        }
    }

    /// Whatever the election decided: an office ends with its tenure, and a new tenure begins
    /// with a list.
    pub(super) fn seek_office(&mut self, number: usize) {
        let now = self.clock(number);
        let process = &mut self.processes[number];
        let tenure = process.election.tenure;
        let is_late = tenure.is_some_and(|tenure| tenure.until <= now);
        let current = tenure.map(|tenure| tenure.number);
        if process.office != current && self.hands != Hands::Overstaying {
            process.office = None;
        }
        let Some(tenure) = tenure else { return };
        if is_late && process.office.is_some() {
            return self.meet("renewed late");
        }
        if is_late || process.office == current || process.reading == current {
            return;
        }
        if self.hands == Hands::Unread {
            process.office = current;
            return;
        }
        let quiet = tenure.quiet_at(&SWIFT);
        if quiet.is_some_and(|at| now < at) && self.hands != Hands::Careless {
            return self.meet("waits until all is quiet");
        }
        process.reading = current;
        process.gone.clear();
        let life = process.life;
        self.after(200, Fate::List(number, life, tenure.number));
    }

    pub(super) fn listed(
        &mut self,
        number: usize,
        tenure: u64,
        bound: BTreeMap<usize, usize>,
        upto: usize,
    ) {
        let process = &mut self.processes[number];
        process.reading = None;
        for (pod, card) in bound {
            if !process.gone.contains(&pod) {
                process.ledger.insert(pod, (card, true));
            }
        }
        let behind = process.log_at < upto;
        process.office = Some(tenure);
        if behind {
            self.meet("took office with a watch that is behind");
        }
        // It may be over by now.
        self.seek_office(number);
        self.check_epoch(number, tenure);
    }

    /// The transitions that the Lease has counted.
    fn counted(&self) -> u64 {
        let spec = self
            .server
            .lease
            .as_ref()
            .and_then(|lease| lease.spec.as_ref());
        let count = spec.and_then(|spec| spec.lease_transitions);
        count
            .and_then(|count| u64::try_from(count).ok())
            .unwrap_or(0)
    }

    /// An office that has just begun has a higher epoch than all before it.
    fn check_epoch(&mut self, number: usize, tenure: u64) {
        let process = &self.processes[number];
        let now = process
            .election
            .tenure
            .filter(|_| process.office == Some(tenure));
        let Some(Tenure { epoch, .. }) = now else {
            return;
        };
        // A tenure that was confirmed late may have two.
        let whose = (number, process.life, tenure);
        if let Some((before, of)) = self.epoch
            && (epoch < before || epoch == before && of != whose)
        {
            self.broken = Some(format!("an office of epoch {epoch} after one of {before}"));
        }
        self.epoch = Some((epoch, whose));
    }

    pub(super) fn watch(&mut self, number: usize, upto: usize) {
        let process = &mut self.processes[number];
        while process.log_at < upto {
            let (pod, card) = self.server.log[process.log_at];
            process.log_at += 1;
            match card {
                Some(card) => {
                    process.ledger.insert(pod, (card, true));
                }
                None => {
                    process.ledger.remove(&pod);
                    process.gone.push(pod);
                }
            }
        }
    }
}
