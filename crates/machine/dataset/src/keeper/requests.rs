//! Requests of clients, and what they hear while they wait.

use std::io;
use std::sync::mpsc::Sender;
use std::time::Instant;

use sublet_cache::{CacheEvent, DatasetKey, DatasetOwner, Freshness, Urgency, VersionDigest};
use sublet_model::Time;

use super::{Caller, Input, Keeper, PROGRESS, Waiter, broken, refused, request_of};
use crate::record::{KeyRecord, SetRecord};
use crate::source::open::open_source;
use crate::wire::{
    DatasetList, DatasetReply, DatasetRequest, DatasetRow, DatasetStore, check_dataset_name,
};

impl Keeper {
    pub(super) fn request(
        &mut self,
        caller: &Caller,
        request: DatasetRequest,
        reply: Sender<DatasetReply>,
    ) {
        let key = |name: &str| DatasetKey {
            owner: DatasetOwner::User(caller.uid),
            name: name.to_owned(),
        };
        let answer = match request {
            DatasetRequest::Get {
                name,
                source,
                cached,
                wait,
            } => match self.get(
                caller,
                key(&name),
                source.as_deref(),
                (cached, wait),
                &reply,
            ) {
                Ok(()) => return,
                Err(refused) => refused,
            },
            DatasetRequest::List => DatasetReply::Sets(self.list(caller.uid)),
            DatasetRequest::Verify { name } => match self.version_of(&key(&name)) {
                Ok(version) => return self.verify(version, reply),
                Err(refused) => refused,
            },
            DatasetRequest::Pin { name, pinned } => self.pin(&key(&name), pinned),
            DatasetRequest::Remove { name, force } => {
                match self.remove(&key(&name), force, &reply) {
                    Some(answer) => answer,
                    None => return,
                }
            }
            DatasetRequest::Shutdown => match self.record.leases.len() + self.flights.len() {
                0 => {
                    let _it_ends_anyway = self.inputs.send(Input::End);
                    DatasetReply::Done
                }
                n => refused(format!("{n} jobs or fetches are under way"), None),
            },
        };
        let _gone = reply.send(answer);
    }

    fn get(
        &mut self,
        caller: &Caller,
        key: DatasetKey,
        source: Option<&str>,
        (mut cached, wait): (bool, bool),
        reply: &Sender<DatasetReply>,
    ) -> Result<(), DatasetReply> {
        check_dataset_name(&key.name).map_err(|reason| refused(reason, None))?;
        let known = self.record.set_mut(&key).map(|set| set.source.clone());
        match (source, known) {
            (None, None) => {
                let hint = format!(
                    "`sublet dataset get SOURCE --name {}` says where it comes from",
                    key.name
                );
                return Err(refused(
                    format!("no data set is called {}", key.name),
                    Some(hint),
                ));
            }
            (Some(source), known) if known.as_deref() != Some(source) => {
                self.refuse_another_source(&key)?;
                // A wrong source is told before it takes the place of a right one.
                open_source(source).map_err(|fault| refused(fault.text, None))?;
                self.set_source(&key, source)?;
                // The copy that is here is of the other source.
                cached = false;
            }
            _ => {}
        }
        // Those who wait for its end wait in vain.
        for reply in self.removals.remove(&key).unwrap_or_default() {
            let again = refused(format!("{} is wanted again", key.name), None);
            let _gone = reply.send(again);
        }
        let request = request_of(caller.connection);
        let waiter = Waiter {
            reply: reply.clone(),
            set: key.clone(),
            process: caller.process.clone(),
            is_ready: false,
        };
        self.waiters.insert(request.clone(), waiter);
        self.event(CacheEvent::Asked {
            request,
            set: key,
            urgency: Urgency::Now,
            freshness: if cached {
                Freshness::AsCached
            } else {
                Freshness::Compared
            },
            waits: wait,
        });
        Ok(())
    }

    /// A set that is on its way comes from one source.
    fn refuse_another_source(&self, key: &DatasetKey) -> Result<(), DatasetReply> {
        let view = self.cache.set(key);
        match view.filter(|view| view.waiting > 0 || self.flights.contains_key(key)) {
            None => Ok(()),
            Some(_) => {
                let reason = format!("{} is on its way from another source", key.name);
                let hint = "wait for it, or give this one another name (`--name`)".to_owned();
                Err(refused(reason, Some(hint)))
            }
        }
    }

    fn set_source(&mut self, key: &DatasetKey, source: &str) -> Result<(), DatasetReply> {
        match self.record.set_mut(key) {
            Some(set) => source.clone_into(&mut set.source),
            None => self.record.sets.push(SetRecord {
                key: KeyRecord::of(key),
                source: source.to_owned(),
                version: None,
                pinned: false,
                parts: Vec::new(),
                parts_used_ms: 0,
            }),
        }
        let saved = self.record.save(&self.store.record_file());
        saved.map_err(|error| {
            refused(
                format!("the record of the store cannot be written: {error}"),
                None,
            )
        })
    }

    fn version_of(&self, key: &DatasetKey) -> Result<VersionDigest, DatasetReply> {
        let view = self.cache.set(key);
        let version = view.and_then(|view| view.version);
        version.ok_or_else(|| refused(format!("the data set {} is not here", key.name), None))
    }

    fn pin(&mut self, key: &DatasetKey, pinned: bool) -> DatasetReply {
        let Some(set) = self.record.set_mut(key) else {
            return refused(format!("no data set is called {}", key.name), None);
        };
        set.pinned = pinned;
        self.save();
        self.event(CacheEvent::Pinned(key.clone(), pinned));
        DatasetReply::Done
    }

    /// Deletes a set. It is answered when its bytes are gone, or at once if a job has it.
    fn remove(
        &mut self,
        key: &DatasetKey,
        force: bool,
        reply: &Sender<DatasetReply>,
    ) -> Option<DatasetReply> {
        if self.record.set_mut(key).is_none() {
            return Some(refused(format!("no data set is called {}", key.name), None));
        }
        let view = self.cache.set(key);
        let users = view.map_or(0, |view| view.leases + view.waiting);
        if users > 0 && !force {
            let hint = "`--force` deletes it when the last job has ended".to_owned();
            let reason = match users {
                1 => format!("a job uses or waits for {}", key.name),
                n => format!("{n} jobs use or wait for {}", key.name),
            };
            return Some(refused(reason, Some(hint)));
        }
        self.removals.entry(key.clone()).or_default();
        self.event(CacheEvent::Unwanted(key.clone()));
        if users > 0 {
            return Some(DatasetReply::Done);
        }
        let waiting = self.removals.entry(key.clone()).or_default();
        waiting.push(reply.clone());
        None
    }

    /// Forgets the sets that were deleted and are gone, and tells those who wait for it.
    pub(super) fn end_removals(&mut self) {
        if self.cache.is_deleting() {
            return;
        }
        let gone =
            |key: &DatasetKey| self.cache.set(key).is_none() && !self.flights.contains_key(key);
        let gone: Vec<DatasetKey> = self
            .removals
            .keys()
            .filter(|key| gone(key))
            .cloned()
            .collect();
        for key in gone {
            let name = KeyRecord::of(&key);
            self.record.sets.retain(|set| set.key != name);
            self.save();
            for reply in self.removals.remove(&key).unwrap_or_default() {
                let _gone = reply.send(DatasetReply::Done);
            }
        }
    }

    fn verify(&self, version: VersionDigest, reply: Sender<DatasetReply>) {
        let store = self.store.clone();
        let failed = Input::Verified {
            version,
            reply: reply.clone(),
            outcome: Box::new(Err(io::Error::other(broken("a check").text))),
        };
        self.spawn("verify a version", failed, move || Input::Verified {
            version,
            reply,
            outcome: Box::new(store.verify(version)),
        });
    }

    pub(super) fn verified(
        &mut self,
        version: VersionDigest,
        reply: &Sender<DatasetReply>,
        outcome: io::Result<(u64, Vec<String>)>,
    ) {
        let answer = match outcome {
            Ok((size_bytes, damaged)) => {
                if !damaged.is_empty() {
                    self.event(CacheEvent::Damaged(version));
                }
                DatasetReply::Verified {
                    size_bytes,
                    damaged,
                }
            }
            Err(error) => refused(format!("it cannot be read: {error}"), None),
        };
        let _gone = reply.send(answer);
    }

    /// Tells those that wait how far it is.
    pub(super) fn tell_progress(&mut self) {
        if self.told.elapsed() < PROGRESS {
            return;
        }
        self.told = Instant::now();
        let waiting = self.waiters.values().filter(|waiter| !waiter.is_ready);
        for waiter in waiting {
            if let Some(row) = self.row(&waiter.set) {
                let _gone = waiter.reply.send(DatasetReply::Progress(Box::new(row)));
            }
        }
    }

    fn list(&self, uid: u32) -> DatasetList {
        let disk = self.store.disk();
        let keys = self
            .record
            .sets
            .iter()
            .filter(|set| set.key.uid == Some(uid));
        let mut sets: Vec<DatasetRow> = keys.filter_map(|set| self.row(&set.key.read()?)).collect();
        sets.sort_by(|a, b| a.name.cmp(&b.name));
        DatasetList {
            store: DatasetStore {
                path: self.store.root().display().to_string(),
                view: self.store.mode.name().to_owned(),
                view_reason: self.store.mode_reason.clone(),
                disk_bytes: disk.capacity.get(),
                free_bytes: disk.free.get(),
            },
            sets,
        }
    }

    pub(super) fn row(&self, key: &DatasetKey) -> Option<DatasetRow> {
        let record = KeyRecord::of(key);
        let set = self.record.sets.iter().find(|set| set.key == record)?;
        let mut row = DatasetRow {
            name: key.name.clone(),
            state: "absent".to_owned(),
            source: set.source.clone(),
            pinned: set.pinned,
            ..DatasetRow::default()
        };
        if let Some(view) = self.cache.set(key) {
            row.state = view.state.name().to_owned();
            row.version = view.version.map(|version| version.to_string());
            row.size_bytes = view.size.get();
            row.fetched_bytes = view.written.get();
            row.needed_bytes = view.need.get();
            row.jobs = view.leases as u64;
            row.waiting = view.waiting as u64;
            row.last_used_ms = view.used.map(Time::ms);
            row.reason = view.trouble;
        }
        let version = self
            .record
            .versions
            .iter()
            .find(|known| Some(&known.digest) == row.version.as_ref());
        row.files = version.map_or(0, |known| known.files);
        Some(row)
    }
}
