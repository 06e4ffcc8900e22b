//! The fake machine: a folder with one file, which every process that uses it maps. There is no
//! daemon; state is shared, and the memory of a dead process is freed by the next process that
//! looks, as in a driver.
//!
//! A [`FakeMachine`] is the view from outside (cards, their users, their utilisation); a
//! [`Registration`](registration::Registration) is one process's place in it, through which it takes memory and time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use sublet_model::Bdf;

use crate::spec::{
    CARDS_MAX, CardUuid, LAYOUT_VERSION, NAME_MAX, PackingRule, Spec, SpecError, TimeRule,
};

mod clock;
mod file;
mod layout;
pub mod registration;
pub mod rendezvous;
mod slots;
mod users;

#[cfg(test)]
mod tests;

pub use clock::Slice;
pub use file::now;
pub(crate) use file::sleep_until;
pub use layout::SLOTS;

use file::Mapped;
use layout::{MAGIC, Shared};
use slots::{Identity, Owner};

/// The variable that names the machine of a process: a SPEC or the machine's folder.
pub const VARIABLE: &str = "SUBLET_FAKE_GPU";
/// The variable that says where the folders of machines are.
pub const ROOT_VARIABLE: &str = "SUBLET_FAKE_ROOT";

const FILE: &str = "machine";

/// Reason why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The text is no machine.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The folder belongs to another user, and that user could change the machine under us.
    #[error("{folder} belongs to user {owner}, not to us; set {ROOT_VARIABLE} to another folder")]
    Owner {
        /// The folder.
        folder: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The system refused.
    #[error("fake machine {folder}: cannot {doing}")]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The failed action.
        doing: &'static str,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// All places are taken.
    #[error("fake machine {folder}: all {SLOTS} places for processes are taken")]
    NoSlot {
        /// The folder.
        folder: PathBuf,
    },
}

/// Properties of a card that do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardInfo {
    /// Its number, as NVML counts, and CUDA in the order of the bus.
    pub index: usize,
    /// Its UUID.
    pub uuid: CardUuid,
    /// Product name.
    pub name: String,
    /// Memory in bytes.
    pub memory: u64,
    /// Size of the first context of a process, in bytes.
    pub context: u64,
    /// Its PCI address.
    pub pci_address: Bdf,
    /// The number of its device file.
    pub minor: u32,
}

/// Memory use of a card now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardUse {
    /// All memory, in bytes.
    pub total: u64,
    /// Memory of living processes.
    pub used: u64,
    /// Free memory.
    pub free: u64,
}

/// One living process's use of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its PID in the reader's namespace, 0 if it has none there.
    pub pid: u32,
    /// Its place in the machine.
    pub slot: usize,
    /// Number of processes that had that place before it.
    pub generation: u32,
    /// The card.
    pub card: usize,
    /// Bytes, contexts included.
    pub bytes: u64,
    /// Bytes that are contexts.
    pub context_bytes: u64,
    /// Contexts on this card.
    pub n_contexts: u32,
    /// Nanoseconds of the last second in which its kernels had the card.
    pub busy: u64,
}

/// A machine, seen from outside.
#[derive(Debug, Clone)]
pub struct FakeMachine {
    mapped: &'static Mapped,
    folder: PathBuf,
    cards: Vec<CardInfo>,
    packing: PackingRule,
    time: TimeRule,
}

impl FakeMachine {
    /// Opens the machine that the value of [`VARIABLE`] means. A folder is opened; the machine of a
    /// SPEC is opened or made.
    ///
    /// # Errors
    /// The fault of the text or the folder.
    pub fn from_text(text: &str) -> Result<FakeMachine, MachineError> {
        let path = Path::new(text);
        if path.is_dir() {
            FakeMachine::open(path)
        } else {
            FakeMachine::open_or_create(&Spec::read(text)?)
        }
    }

    /// The machine of this kind that all processes of this user share.
    ///
    /// # Errors
    /// The folder cannot be made or is not ours.
    pub fn open_or_create(spec: &Spec) -> Result<FakeMachine, MachineError> {
        FakeMachine::open_or_create_in(&base(), spec)
    }

    /// As [`FakeMachine::open_or_create`], below a folder of the caller's choice.
    ///
    /// # Errors
    /// The folder cannot be made or is not ours.
    pub fn open_or_create_in(base: &Path, spec: &Spec) -> Result<FakeMachine, MachineError> {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt};
        let name = format!("sublet-fake-{}-{}", file::user(), spec.digest());
        let folder = base.join(name);
        let failed = |doing| {
            let folder = folder.clone();
            move |cause| MachineError::Io {
                folder,
                doing,
                cause,
            }
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed("make the folder"))?;
        let about = folder.symlink_metadata().map_err(failed("look at it"))?;
        if !about.is_dir() || about.uid() != file::user() {
            let owner = about.uid();
            return Err(MachineError::Owner { folder, owner });
        }
        if !folder.join(FILE).exists() {
            create(&folder, spec).map_err(failed("make the file"))?;
        }
        FakeMachine::open(&folder)
    }

    /// The machine in `folder`.
    ///
    /// # Errors
    /// There is none, or it is of another version.
    pub fn open(folder: &Path) -> Result<FakeMachine, MachineError> {
        let mapped = Mapped::open(&folder.join(FILE)).map_err(|cause| MachineError::Io {
            folder: folder.to_owned(),
            doing: "open the file",
            cause,
        })?;
        Ok(FakeMachine {
            mapped,
            folder: folder.to_owned(),
            cards: read_cards(mapped.shared()),
            packing: layout::packing(mapped.shared()),
            time: layout::time(mapped.shared()),
        })
    }

    /// Returns its folder: the value of [`VARIABLE`] for another process.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its cards.
    #[must_use]
    pub fn cards(&self) -> &[CardInfo] {
        &self.cards
    }

    /// Returns its driver's packing rule.
    #[must_use]
    pub fn packing(&self) -> PackingRule {
        self.packing
    }

    /// The last slices of a card and the places of the processes that had them.
    #[must_use]
    pub fn slices(&self, card: usize) -> Vec<(u64, Slice)> {
        let clocks = &self.mapped.shared().clocks;
        clocks.get(card).map_or_else(Vec::new, clock::slices)
    }

    /// Cleans up after processes that have ended; how many there were.
    ///
    /// # Errors
    /// The machine's file cannot be locked.
    pub fn sweep(&self) -> Result<usize, MachineError> {
        let own = Identity::own();
        let accounts = self.mapped.accounts().map_err(self.failed("lock it"))?;
        let mut n_dead = 0;
        for index in 0..slots::n_slots(self.mapped) {
            let owner = slots::owner(self.mapped, index, own).map_err(self.failed("look"))?;
            if owner == Owner::Dead {
                slots::clean(self.mapped, index);
                self.remove_files_of(index);
                n_dead += 1;
            }
        }
        drop(accounts);
        Ok(n_dead)
    }

    /// Removes the folder. Processes that use the machine go on, but no other one finds
    /// it; the next one makes a new machine.
    ///
    /// # Errors
    /// The system refused.
    pub fn remove(self) -> Result<(), MachineError> {
        std::fs::remove_dir_all(&self.folder).map_err(self.failed("remove it"))
    }

    /// Files with shared memory that the last process in a place left.
    fn remove_files_of(&self, index: usize) {
        let start = format!("ipc-{index}-");
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&start) {
                // Gone already if another process swept too.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn failed(&self, doing: &'static str) -> impl Fn(io::Error) -> MachineError + use<> {
        let folder = self.folder.clone();
        move |cause| MachineError::Io {
            folder: folder.clone(),
            doing,
            cause,
        }
    }
}

/// Returns the parent of the machines' folders. It is in memory if there is such a place, because
/// the file is written often and must not outlive the real machine that it is on.
fn base() -> PathBuf {
    if let Some(root) = std::env::var_os(ROOT_VARIABLE) {
        return PathBuf::from(root);
    }
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// Makes the file under a name of our own and gives it its name when it is complete, so
/// nobody ever opens half a machine. Somebody else's that was quicker is kept.
fn create(folder: &Path, spec: &Spec) -> io::Result<()> {
    let draft = folder.join(format!("{FILE}.{}.{}", std::process::id(), now()));
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&draft)?;
    let result = file
        .set_len(size_of::<Shared>() as u64)
        .and_then(|()| write_header(&draft, &file, spec))
        .and_then(|()| std::fs::hard_link(&draft, folder.join(FILE)));
    std::fs::remove_file(&draft)?;
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// The header as bytes: the file is not mapped for this, because a mapping is for ever.
fn write_header(_draft: &Path, file: &std::fs::File, spec: &Spec) -> io::Result<()> {
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;
    let at = |offset: usize, bytes: &[u8]| file.write_all_at(bytes, offset as u64);
    for (index, card) in spec.cards().iter().enumerate() {
        let base = offset_of!(Shared, header)
            + offset_of!(layout::Header, cards)
            + index * size_of::<layout::Card>();
        at(base + offset_of!(layout::Card, uuid), &card.uuid.0)?;
        at(
            base + offset_of!(layout::Card, memory),
            &card.memory.to_ne_bytes(),
        )?;
        at(
            base + offset_of!(layout::Card, context),
            &card.context.to_ne_bytes(),
        )?;
        let words = [
            (
                offset_of!(layout::Card, pci_address),
                layout::word_of(card.pci_address),
            ),
            (offset_of!(layout::Card, minor), card.minor.into()),
        ];
        for (offset, word) in words {
            at(base + offset, &word.to_ne_bytes())?;
        }
        at(base + offset_of!(layout::Card, name), card.name.as_bytes())?;
    }
    let header = offset_of!(Shared, header);
    let PackingRule { small, piece, kept } = spec.packing();
    let packing = [small, piece, kept].map(u64::to_ne_bytes);
    at(
        header + offset_of!(layout::Header, packing),
        packing.as_flattened(),
    )?;
    let TimeRule { slice, switch } = spec.time();
    let time = [slice, switch].map(u64::to_ne_bytes);
    at(
        header + offset_of!(layout::Header, time),
        time.as_flattened(),
    )?;
    let n_cards = u32::try_from(spec.cards().len()).unwrap_or(0);
    at(
        header + offset_of!(layout::Header, n_cards),
        &n_cards.to_ne_bytes(),
    )?;
    at(
        header + offset_of!(layout::Header, version),
        &LAYOUT_VERSION.to_ne_bytes(),
    )?;
    let size = size_of::<Shared>() as u64;
    at(
        header + offset_of!(layout::Header, size),
        &size.to_ne_bytes(),
    )?;
    at(
        header + offset_of!(layout::Header, magic),
        &MAGIC.to_ne_bytes(),
    )
}

fn read_cards(shared: &Shared) -> Vec<CardInfo> {
    let n_cards = shared.header.n_cards.load(Relaxed) as usize;
    shared
        .header
        .cards
        .iter()
        .enumerate()
        .take(n_cards.min(CARDS_MAX))
        .map(|(index, card)| {
            let mut uuid = [0; 16];
            for (part, word) in uuid.chunks_exact_mut(8).zip(&card.uuid) {
                part.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
            }
            let name = card.name.iter().take(NAME_MAX);
            let name: Vec<u8> = name
                .map(|byte| byte.load(Relaxed))
                .take_while(|byte| *byte != 0)
                .collect();
            CardInfo {
                index,
                uuid: CardUuid(uuid),
                name: String::from_utf8_lossy(&name).into_owned(),
                memory: card.memory.load(Relaxed),
                context: card.context.load(Relaxed),
                pci_address: layout::pci_address_of(card.pci_address.load(Relaxed)),
                minor: u32::try_from(card.minor.load(Relaxed)).unwrap_or(u32::MAX),
            }
        })
        .collect()
}
