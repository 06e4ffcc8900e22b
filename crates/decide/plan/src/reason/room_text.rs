//! The texts of reasons that come from the room on the node's cards, and from the number of cards
//! with room.

use std::fmt;

use sublet_model::Count;

use super::Reason;

impl Reason {
    /// Writes what a card lacks.
    pub(super) fn room_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::TooSmall {
                asked,
                largest,
                gpu,
            } => write!(
                f,
                "{asked} asked of one GPU, but the largest, GPU {gpu}, has {largest} in all ({} too few)",
                asked.saturating_sub(*largest)
            ),
            Reason::NoRoom {
                asked,
                hole,
                gpu,
                sick,
                unsure,
            } => {
                let lacks = asked.saturating_sub(*hole);
                write!(
                    f,
                    "GPU {gpu} lacks {lacks}: {asked} asked, and the largest hole on this node is {hole}"
                )?;
                if !unsure.is_zero() {
                    write!(
                        f,
                        "; {unsure} more are kept for pods that do not say which GPU they have"
                    )?;
                }
                sick.note(f)
            }
            Reason::NoCompute { asked, left, gpu } => write!(
                f,
                "GPU {gpu} lacks {} of its compute time: {asked} asked, and {left} is the most that is left of a GPU with enough memory",
                asked.saturating_sub(*left)
            ),
            Reason::Company { gpu } => write!(
                f,
                "GPU {gpu} has room, but a guaranteed pod that asks for all of a GPU's compute time shares it with no other guaranteed pod"
            ),
            Reason::Overfull { gpu } => write!(
                f,
                "GPU {gpu} takes no other pod: those on it together ask more than it has"
            ),
            Reason::Splits { splits } => write!(
                f,
                "GPUs have enough room, and {splits} pods each already, as many as `--gpu-splits` of the node's agent allows beside a pod of this form"
            ),
            _ => Ok(()),
        }
    }

    /// Writes how many cards there are, and how many are wanted.
    pub(super) fn number_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::TooFew {
                asked,
                total,
                chosen,
            } => {
                write!(f, "{asked} asked, but the node has {total}")?;
                match chosen {
                    true => write!(f, " that the pod accepts together"),
                    false => Ok(()),
                }
            }
            Reason::TooFewRooms {
                asked,
                part,
                fitting,
            } => write!(
                f,
                "{asked} with {part} of each asked, but {} of them can be had",
                fitting.get()
            ),
            Reason::TooFewForAll {
                containers,
                fitting,
            } => write!(
                f,
                "{containers} containers of the pod ask for GPUs each for itself, and only the first {fitting} of them can have theirs"
            ),
            Reason::NoIdle {
                asked,
                idle,
                total,
                sick,
                unsure,
            } => {
                write!(f, "{asked} asked, but {} of {total} idle", idle.get())?;
                if *unsure > Count::ZERO {
                    write!(
                        f,
                        "; {unsure} may be in use by pods that do not say which they have"
                    )?;
                }
                sick.note(f)
            }
            _ => Ok(()),
        }
    }
}
