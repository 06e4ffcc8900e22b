//! A process is killed at each instruction of taking and giving back memory, in turn. All its
//! memory comes back, once, and the memory of others is not touched.
//!
//! The victim is a child that works on a real ledger page. The test plays the arbiter and a
//! neighbour: the same tenant's other process. Unlucky orders of two living processes are tried in
//! `reserve`, with loom; here the machine's own instructions run.

mod account;
mod page;
mod stepped;

use std::process::abort;

use anyhow::{Context, Result, bail, ensure};
use sublet_abi::{DeviceIndex, SlotIndex, Units};

use account::{Account, Kind};
use page::Page;
use stepped::{Stepped, stay_on_one_processor};

const LIMIT: Units = units(100);
/// Memory of each before the victim's last operation.
const VICTIM_HAS: Units = units(5);
const NEIGHBOUR_HAS: Units = units(7);
const OVERHEAD: Units = units(2);
/// Memory that the third process is about to take when it dies.
const THIRD_TAKES: Units = units(4);

/// No operation has so many instructions, without optimisation too: one that does is lost.
const MOST_STEPS: usize = 5_000;

const fn units(count: u64) -> Units {
    Units::new(count).expect("so few are units")
}

const fn slot(index: u32) -> SlotIndex {
    SlotIndex::of_process(index).expect("there is such a slot")
}

const VICTIM: SlotIndex = slot(1);
const NEIGHBOUR: SlotIndex = slot(2);
const THIRD: SlotIndex = slot(3);
/// Kinds of memory under test: of a device, and of the host.
const KINDS: [Kind; 2] = [
    Kind::Device(DeviceIndex::new(3).expect("there is such a device")),
    Kind::Host,
];

/// Operation that the victim dies in. Only actions that need no memory may happen here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Reserve,
    Refused,
    Charge,
    Release,
}

const ALL: [Operation; 4] = [
    Operation::Reserve,
    Operation::Refused,
    Operation::Charge,
    Operation::Release,
];

impl Operation {
    fn run(self, account: Account) {
        let asked = units(11);
        let is_done = match self {
            Operation::Reserve => account.reserve(VICTIM, asked, LIMIT).is_ok(),
            Operation::Refused => account.reserve(VICTIM, LIMIT, LIMIT).is_err(),
            Operation::Charge => account.charge(VICTIM, asked).is_ok(),
            Operation::Release => account.release(VICTIM, units(3)).is_ok(),
        };
        if !is_done {
            abort();
        }
    }

    /// Returns the victim's memory afterwards.
    fn after(self) -> Units {
        match self {
            Operation::Reserve | Operation::Charge => units(16),
            Operation::Refused => VICTIM_HAS,
            Operation::Release => units(2),
        }
    }
}

/// End of a victim.
enum Fate {
    /// Killed; the arbiter found so much on its account.
    Killed(Units),
    /// It had done all its work before.
    Ended,
    /// The system lets nobody lead another process.
    NotAllowed,
}

/// The pages of the test.
struct Pages {
    kind: Kind,
    /// All three have something; never changed after it was made.
    prepared: Page,
    /// The victim's.
    page: Page,
    /// A copy of that, to see what else could have happened after the death.
    scratch: Page,
}

impl Pages {
    fn create(kind: Kind) -> Result<Pages> {
        let prepared = Page::create()?;
        let account = Account::of(&prepared, kind);
        account.charge(SlotIndex::ARBITER, OVERHEAD)?;
        account.reserve(VICTIM, VICTIM_HAS, LIMIT)?;
        account.reserve(NEIGHBOUR, NEIGHBOUR_HAS, LIMIT)?;
        Ok(Pages {
            kind,
            prepared,
            page: Page::create()?,
            scratch: Page::create()?,
        })
    }

    /// Kills a victim after `n_steps` instructions. Others come between before one of these.
    fn kill_after(
        &self,
        operation: Operation,
        n_steps: usize,
        others_at: Option<usize>,
    ) -> Result<Fate> {
        self.page.copy(&self.prepared);
        let account = Account::of(&self.page, self.kind);
        let Some(mut victim) = Stepped::start(|| operation.run(account))? else {
            return Ok(Fate::NotAllowed);
        };
        for step in 0..n_steps {
            if others_at == Some(step) {
                take_and_give_back(account)?;
                die_half_way(account)?;
            }
            if !victim.step()? {
                return Ok(Fate::Ended);
            }
        }
        victim.kill()?;
        // On a copy the neighbour works before the arbiter comes, which then takes the other dead
        // first. All is as if it had not.
        self.scratch.copy(&self.page);
        let other = Account::of(&self.scratch, self.kind);
        take_and_give_back(other)?;
        let [had, third] = bury(account, [VICTIM, THIRD])?;
        let [third_too, had_too] = bury(other, [THIRD, VICTIM])?;
        let differs = had != had_too || third != third_too;
        ensure!(
            !differs,
            "{had:?} and {third:?}, or {had_too:?} and {third_too:?}"
        );
        let third_has = if others_at.is_some() {
            THIRD_TAKES
        } else {
            Units::ZERO
        };
        ensure!(third == third_has, "the third process had {third:?}");
        Ok(Fate::Killed(had))
    }
}

/// Takes and gives back memory, as the neighbour does now and then: the page is afterwards as full
/// as before.
fn take_and_give_back(account: Account) -> Result<()> {
    account.reserve(NEIGHBOUR, units(1), LIMIT)?;
    account.release(NEIGHBOUR, units(1))?;
    Ok(())
}

/// A third process is killed between the moment of its operation and the update of its account: the
/// next process has to finish for it.
fn die_half_way(account: Account) -> Result<()> {
    let before = account.total();
    let take = || {
        if account.charge(THIRD, THIRD_TAKES).is_err() {
            abort();
        }
    };
    let mut third = Stepped::start(take)?.context("it was allowed before")?;
    while account.total() == before {
        ensure!(third.step()?, "the third process took nothing");
    }
    third.kill()?;
    let held = account.held(THIRD);
    ensure!(held == Units::ZERO, "the third process was not half way");
    Ok(())
}

/// The arbiter finds processes dead, in this order. Returns the memory that each had. All memory
/// that the limit allows is there again for the living processes, and not one unit more.
fn bury(account: Account, dead: [SlotIndex; 2]) -> Result<[Units; 2]> {
    let had = [account.reclaim(dead[0])?, account.reclaim(dead[1])?];
    let holders = [
        (VICTIM, Units::ZERO),
        (THIRD, Units::ZERO),
        (NEIGHBOUR, NEIGHBOUR_HAS),
        (SlotIndex::ARBITER, OVERHEAD),
    ];
    for (slot, should) in holders {
        let held = account.held(slot);
        ensure!(held == should, "{slot:?} has {held:?}, not {should:?}");
    }
    let total = account.total();
    ensure!(
        total == NEIGHBOUR_HAS.saturating_add(OVERHEAD),
        "the total is {total:?}"
    );
    // The slot's next process takes all that is left.
    let rest = LIMIT.saturating_sub(total);
    account.reserve(VICTIM, rest, LIMIT)?;
    let more = account.reserve(NEIGHBOUR, units(1), LIMIT);
    ensure!(more.is_err(), "more than the limit is there");
    account.release(VICTIM, rest)?;
    let others = account.others_total();
    ensure!(others == Units::ZERO, "another account was touched");
    Ok(had)
}

/// Checks that the victim of an operation has its memory from before or from after it.
fn is_whole(operation: Operation, had: Units) -> Result<()> {
    let is_known = had == VICTIM_HAS || had == operation.after();
    ensure!(is_known, "half of {operation:?} was done: {had:?}");
    Ok(())
}

/// All deaths of one operation, from before its first instruction to after its last: it happens
/// at one of them, and is not undone. Says how many there are; `None` where this cannot be done.
fn die_everywhere(pages: &Pages, operation: Operation) -> Result<Option<usize>> {
    let mut last = VICTIM_HAS;
    for n_steps in 0..MOST_STEPS {
        let had = match pages.kill_after(operation, n_steps, None)? {
            Fate::Killed(had) => had,
            Fate::Ended => {
                ensure!(last == operation.after(), "it ended with {last:?}");
                return Ok(Some(n_steps));
            }
            Fate::NotAllowed => return Ok(None),
        };
        is_whole(operation, had)?;
        ensure!(
            last == VICTIM_HAS || had == last,
            "undone after {n_steps} steps"
        );
        last = had;
    }
    bail!("it does not end")
}

/// The same, and before some instruction others change the page. The victim then may need more
/// instructions than the `usual` ones. Says how many of its deaths are later than those.
fn die_among_others(pages: &Pages, operation: Operation, usual: usize) -> Result<usize> {
    let mut n_late = 0;
    for n_steps in 1..usual * 3 / 2 {
        // Any of the steps before the death, but the same in every run.
        let mixed = (n_steps as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let others_at = mixed as usize % n_steps;
        if let Fate::Killed(had) = pages.kill_after(operation, n_steps, Some(others_at))? {
            is_whole(operation, had)?;
            n_late += usize::from(n_steps > usual);
        }
    }
    Ok(n_late)
}

#[test]
fn a_process_killed_at_any_instruction_leaks_nothing() -> Result<()> {
    stay_on_one_processor();
    for kind in KINDS {
        let pages = Pages::create(kind)?;
        for operation in ALL {
            let what = || format!("{operation:?} of {kind:?}");
            let deaths = die_everywhere(&pages, operation);
            let Some(n_deaths) = deaths.with_context(what)? else {
                println!("skipped: the system allows no ptrace");
                return Ok(());
            };
            let late = die_among_others(&pages, operation, n_deaths);
            let n_late = late.with_context(|| format!("{} among others", what()))?;
            println!("{}: killed at {n_deaths} instructions", what());
            // Else nobody was made to try again.
            let is_tried_again = n_late > 0 || operation == Operation::Refused;
            ensure!(
                is_tried_again,
                "nobody ever was in the way of {operation:?}"
            );
        }
    }
    Ok(())
}
