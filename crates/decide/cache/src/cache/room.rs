//! Room on the disk: what a flight needs before its first byte, and the sets that go for it.
//!
//! A flight begins when 1.2 times its need is free (R4.4), less what other flights still have to
//! write. Else sets go that nobody uses, the longest unused first, and only as many as are needed.
//! All is worked out before anything goes: if not even all of them would do, nothing is deleted.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{Bytes, Milli, Time};

use super::state::{DatasetCache, Step, Version, VersionState};
use crate::event::{CacheAction, CacheAnswer, SourceListing, Urgency};
use crate::key::{DatasetKey, PackId, SourceFingerprint, VersionDigest};

/// Something that can be deleted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// Rest of a fetch that nobody goes on with.
    Part(DatasetKey),
    /// A version.
    Version(VersionDigest),
}

/// Users of each pack, by which a version says what its end frees.
type PackUsers = BTreeMap<PackId, usize>;

/// Room of flights that wait, in the order of flights.
#[derive(Debug, Clone, Copy)]
struct Pool {
    /// Free now.
    open: Bytes,
    /// The same, and what is being deleted.
    coming: Bytes,
    /// Flights that write.
    writing: usize,
}

impl DatasetCache {
    /// Begins the flights that have room, in order, and makes room for those that have none.
    pub(super) fn make_room(&mut self, now: Time, out: &mut Vec<CacheAction>) {
        let is_lost_going =
            |known: &Version| known.was_lost && matches!(known.state, VersionState::Evicting(_));
        if self.versions.values().any(is_lost_going) {
            // A fetch may make it anew, when it is gone.
            return;
        }
        let open = self.open();
        let mut pool = Pool {
            open,
            coming: open.plus(self.being_deleted()),
            writing: self.writing(),
        };
        for key in self.waiting_for_room() {
            let Some(Step::Waiting(listing)) = self.step_mut(&key).copied() else {
                continue;
            };
            if pool.writing >= self.limits.fetches {
                return;
            }
            match self.shows(listing.fingerprint) {
                // Another set brought it meanwhile.
                Some((version, VersionState::Ready)) => self.arrived(now, &key, version, out),
                Some((_, VersionState::Evicting(_))) => {}
                _ if self.is_coming(listing.fingerprint) => {}
                _ => self.make_room_for(&key, listing, &mut pool, out),
            }
        }
    }

    /// Does a fetch of another set bring that state of a source?
    fn is_coming(&self, state: SourceFingerprint) -> bool {
        let flights = self.sets.values().filter_map(|set| set.flight.as_ref());
        let mut steps = flights.map(|flight| flight.step);
        steps.any(|step| match step {
            Step::Fetching { fingerprint, .. } | Step::Stopping { fingerprint, .. } => {
                fingerprint == state
            }
            _ => false,
        })
    }

    fn make_room_for(
        &mut self,
        key: &DatasetKey,
        listing: SourceListing,
        pool: &mut Pool,
        out: &mut Vec<CacheAction>,
    ) {
        let could_ever = self.usable();
        if with_slack(listing.need) > could_ever {
            return self.does_not_fit(key, with_slack(listing.need), could_ever, |_| true, out);
        }
        if pool.open >= with_slack(listing.need) {
            return self.begin(key, listing, pool, out);
        }
        // The set's present version may go too, if nothing else does; then all must be fetched.
        let mut could = None;
        for (need, spares) in [(listing.need, Some(key)), (listing.whole, None)] {
            let wanted = with_slack(need);
            let lacking = wanted.saturating_sub(pool.coming);
            let (victims, freed) = self.victims(lacking, spares);
            could.get_or_insert(pool.coming.plus(freed));
            if freed < lacking {
                continue;
            }
            for victim in victims {
                self.delete(victim, out);
            }
            pool.coming = pool.coming.plus(freed).saturating_sub(wanted);
            pool.open = pool.open.saturating_sub(wanted);
            return;
        }
        if pool.writing == 0 && self.being_deleted() == Bytes::ZERO {
            let need = with_slack(listing.need);
            self.does_not_fit(key, need, could.unwrap_or_default(), |waits| !waits, out);
        }
    }

    /// Begins a fetch, and keeps room for it.
    fn begin(
        &mut self,
        key: &DatasetKey,
        listing: SourceListing,
        pool: &mut Pool,
        out: &mut Vec<CacheAction>,
    ) {
        let need = listing.need;
        let urgency = self.urgency_of(key).unwrap_or(Urgency::Ahead);
        let Some(set) = self.sets.get_mut(key) else {
            return;
        };
        let Some(flight) = set.flight.as_mut() else {
            return;
        };
        flight.step = Step::Fetching {
            fingerprint: listing.fingerprint,
            reserved: need,
            written: Bytes::ZERO,
            urgency,
        };
        out.push(CacheAction::Fetch {
            set: key.clone(),
            room: need,
            urgency,
        });
        pool.open = pool.open.saturating_sub(need);
        pool.coming = pool.coming.saturating_sub(need);
        pool.writing += 1;
    }

    /// Tells those that wait that there is no room, if `told` of their patience.
    fn does_not_fit(
        &mut self,
        key: &DatasetKey,
        need: Bytes,
        could: Bytes,
        told: impl Fn(bool) -> bool,
        out: &mut Vec<CacheAction>,
    ) {
        for request in self.waiting(key) {
            if self
                .requests
                .get(&request)
                .is_some_and(|one| told(one.waits))
            {
                self.requests.remove(&request);
                let answer = CacheAnswer::DoesNotFit { need, could };
                out.push(CacheAction::Answer(request, answer));
            }
        }
        if self.urgency_of(key).is_none() {
            self.land(key);
        }
    }

    /// Sets that wait for room: the urgent ones first, then by age of their flights.
    fn waiting_for_room(&self) -> Vec<DatasetKey> {
        let flights = self.sets.iter().filter_map(|(key, set)| {
            let flight = set.flight.as_ref()?;
            matches!(flight.step, Step::Waiting(_)).then_some((key, flight.number))
        });
        let mut flights: Vec<_> = flights
            .map(|(key, number)| (std::cmp::Reverse(self.urgency_of(key)), number, key.clone()))
            .collect();
        flights.sort();
        flights.into_iter().map(|(_, _, key)| key).collect()
    }

    pub(super) fn writing(&self) -> usize {
        let steps = self.sets.values().filter_map(|set| set.flight.as_ref());
        let is_writing =
            |step: &Step| matches!(step, Step::Fetching { .. } | Step::Stopping { .. });
        steps.filter(|flight| is_writing(&flight.step)).count()
    }

    /// Room that a new fetch could have now, the 1.2 times included.
    fn open(&self) -> Bytes {
        let steps = self
            .sets
            .values()
            .filter_map(|set| Some(set.flight.as_ref()?.step));
        let unwritten = steps.map(|step| match step {
            Step::Fetching {
                reserved, written, ..
            }
            | Step::Stopping {
                reserved, written, ..
            } => reserved.saturating_sub(written),
            _ => Bytes::ZERO,
        });
        let unwritten = unwritten.fold(Bytes::ZERO, Bytes::plus);
        let of_disk = self.disk.free.saturating_sub(self.kept());
        let open = match self.limits.store {
            Some(most) => of_disk.min(most.saturating_sub(self.stored())),
            None => of_disk,
        };
        open.saturating_sub(unwritten)
    }

    /// Room if nothing of ours were there.
    fn usable(&self) -> Bytes {
        let of_disk = self
            .disk
            .free
            .plus(self.stored())
            .saturating_sub(self.kept());
        self.limits.store.map_or(of_disk, |most| most.min(of_disk))
    }

    /// The part of the disk that is kept free.
    fn kept(&self) -> Bytes {
        let whole = u128::from(Milli::WHOLE.get());
        let kept = whole.saturating_sub(self.limits.disk.get().into());
        let kept = u128::from(self.disk.capacity.get()) * kept / whole;
        Bytes::new(u64::try_from(kept).unwrap_or(u64::MAX))
    }

    /// Bytes of the store: packs once, however many versions have them.
    fn stored(&self) -> Bytes {
        let mut packs: BTreeMap<PackId, Bytes> = BTreeMap::new();
        let mut sum = Bytes::ZERO;
        for version in self.versions.values() {
            sum = sum.plus(version.own);
            packs.extend(&version.packs);
        }
        let parts = self.sets.values().map(|set| {
            let flight = set.flight.as_ref().map(|flight| flight.step);
            match flight {
                Some(Step::Fetching { written, .. } | Step::Stopping { written, .. }) => {
                    written.max(set.part.bytes)
                }
                _ => set.part.bytes,
            }
        });
        let all = packs.into_values().chain(parts);
        all.fold(sum, Bytes::plus)
    }

    pub(super) fn being_deleted(&self) -> Bytes {
        let versions = self.versions.values().map(|version| match version.state {
            VersionState::Evicting(frees) => frees,
            _ => Bytes::ZERO,
        });
        let parts = self.sets.values().map(|set| match set.part.is_dropping {
            true => set.part.bytes,
            false => Bytes::ZERO,
        });
        versions.chain(parts).fold(Bytes::ZERO, Bytes::plus)
    }

    /// The victims by which so much comes free, and how much does; all that may go, if that is not
    /// enough. `spares`: a set whose present version stays.
    fn victims(&self, lacking: Bytes, spares: Option<&DatasetKey>) -> (Vec<Victim>, Bytes) {
        let mut chosen = Vec::new();
        let mut freed = Bytes::ZERO;
        let mut users = self.pack_users();
        for victim in self.candidates(spares) {
            if freed >= lacking {
                break;
            }
            freed = freed.plus(self.frees(&victim, &mut users));
            chosen.push(victim);
        }
        if freed < lacking {
            return (chosen, freed);
        }
        // A set that came in for the sake of little is spared if the others do.
        for victim in chosen.clone().into_iter().rev() {
            let rest: Vec<Victim> = chosen
                .iter()
                .filter(|one| **one != victim)
                .cloned()
                .collect();
            let without = self.freed_by(&rest);
            if without >= lacking {
                (chosen, freed) = (rest, without);
            }
        }
        (chosen, freed)
    }

    fn freed_by(&self, victims: &[Victim]) -> Bytes {
        let mut users = self.pack_users();
        let each = victims.iter().map(|victim| self.frees(victim, &mut users));
        each.fold(Bytes::ZERO, Bytes::plus)
    }

    /// All that may go: rests of fetches, then versions that nobody has, each the longest unused
    /// first.
    fn candidates(&self, spares: Option<&DatasetKey>) -> Vec<Victim> {
        let parts = self.sets.iter().filter(|(_, set)| {
            set.flight.is_none() && !set.part.is_dropping && set.part.bytes > Bytes::ZERO
        });
        let mut parts: Vec<_> = parts
            .map(|(key, set)| (set.part.used, Victim::Part(key.clone())))
            .collect();
        parts.sort();
        // A fetch takes from the present version of its set what has not changed.
        let mut kept: BTreeSet<VersionDigest> = BTreeSet::new();
        for (key, set) in &self.sets {
            let is_source = match set.flight.as_ref().map(|flight| flight.step) {
                None | Some(Step::Waiting(_) | Step::Resting { .. }) => spares == Some(key),
                Some(_) => true,
            };
            if set.is_pinned || is_source {
                kept.extend(set.current);
            }
        }
        let free = self.versions.iter().filter(|(version, known)| {
            known.state == VersionState::Ready
                && known.leases.is_empty()
                && !kept.contains(*version)
        });
        let mut free: Vec<_> = free
            .map(|(version, known)| (known.used, Victim::Version(*version)))
            .collect();
        free.sort();
        let all = parts.into_iter().chain(free);
        all.map(|(_, victim)| victim).collect()
    }

    fn pack_users(&self) -> PackUsers {
        let mut users = PackUsers::new();
        let staying = self.versions.values();
        for version in staying.filter(|known| !matches!(known.state, VersionState::Evicting(_))) {
            for pack in version.packs.keys() {
                *users.entry(*pack).or_default() += 1;
            }
        }
        users
    }

    /// Bytes that the end of a victim frees, after those before it.
    fn frees(&self, victim: &Victim, users: &mut PackUsers) -> Bytes {
        let version = match victim {
            Victim::Part(key) => {
                return self.sets.get(key).map_or(Bytes::ZERO, |set| set.part.bytes);
            }
            Victim::Version(version) => version,
        };
        let Some(known) = self.versions.get(version) else {
            return Bytes::ZERO;
        };
        let mut freed = known.own;
        for (pack, bytes) in &known.packs {
            if let Some(left) = users.get_mut(pack) {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    freed = freed.plus(*bytes);
                }
            }
        }
        freed
    }

    fn delete(&mut self, victim: Victim, out: &mut Vec<CacheAction>) {
        match victim {
            Victim::Part(key) => self.drop_part(&key, out),
            Victim::Version(version) => self.evict(version, out),
        }
    }

    /// Deletes the rest of a fetch that nobody goes on with.
    pub(super) fn drop_part(&mut self, key: &DatasetKey, out: &mut Vec<CacheAction>) {
        if let Some(set) = self.sets.get_mut(key)
            && set.flight.is_none()
            && set.part.bytes > Bytes::ZERO
            && !set.part.is_dropping
        {
            set.part.is_dropping = true;
            out.push(CacheAction::Drop(key.clone()));
        }
    }

    /// Deletes a version that nobody has.
    pub(super) fn evict(&mut self, version: VersionDigest, out: &mut Vec<CacheAction>) {
        let frees = self.freed_by(&[Victim::Version(version)]);
        if let Some(known) = self.versions.get_mut(&version) {
            known.state = VersionState::Evicting(frees);
            self.forget_version(version);
            out.push(CacheAction::Evict(version));
        }
    }
}

/// The free room that a set wants: 1.2 times its need (R4.4).
fn with_slack(need: Bytes) -> Bytes {
    need.plus(Bytes::new(need.get().div_ceil(5)))
}
