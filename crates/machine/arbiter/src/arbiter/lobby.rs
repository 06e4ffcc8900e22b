//! Connections that came and are not let in yet: one queue per user, in place of the kernel's one
//! queue for all, which a user who connects without end keeps full.
//!
//! To take a connection into a queue costs two system calls, or three if the queue is full and the
//! connection is closed. That is less than a connect costs, so the kernel's queue empties, and
//! other users find a place in it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

use rustix::net::SendFlags;
use rustix::process::Resource;

use crate::admin::Reply;
use crate::closers::Owner;
use crate::socket::Connection;

/// Maximum number of waiting connections of one user. Three hundred programs that start
/// together wait for a moment.
const LINE_MAX: u64 = 512;

/// Part of the process's descriptors that may be in here: one in eight.
const DESCRIPTORS_A_PLACE: u64 = 8;

/// Part of the places that one user may have: one in four.
const PLACES_A_USER: u64 = 4;

/// The lines.
#[derive(Debug)]
pub(super) struct Lobby<C = Connection> {
    lines: BTreeMap<Owner, VecDeque<C>>,
    len: usize,
    /// Maximum number of waiting connections of one user, and in all.
    places: (usize, usize),
}

impl Default for Lobby {
    fn default() -> Lobby {
        let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
        Lobby::among(descriptors.unwrap_or(u64::MAX))
    }
}

impl Lobby {
    /// Takes a connection in, or gives it back if there is no place for it.
    pub(super) fn enter(&mut self, connection: Connection) -> Result<(), Connection> {
        self.enter_as(connection.owner(), connection)
    }
}

impl<C> Lobby<C> {
    /// The lobby of a process with at most this number of descriptors.
    fn among(descriptors: u64) -> Lobby<C> {
        let in_all = descriptors / DESCRIPTORS_A_PLACE;
        let a_user = (in_all / PLACES_A_USER).clamp(1, LINE_MAX);
        let count = |places| usize::try_from(places).unwrap_or(usize::MAX);
        Lobby {
            lines: BTreeMap::new(),
            len: 0,
            places: (count(a_user), count(in_all)),
        }
    }

    fn enter_as(&mut self, owner: Owner, connection: C) -> Result<(), C> {
        let (a_user, in_all) = self.places;
        let line = self.lines.entry(owner).or_default();
        // If all lines together are too long, each user has one place.
        let most = if self.len < in_all { a_user } else { 1 };
        if line.len() >= most {
            return Err(connection);
        }
        line.push_back(connection);
        self.len += 1;
        Ok(())
    }

    /// Takes up to `of_each` connections of each user, the longest wait first, users by turns.
    pub(super) fn take(&mut self, of_each: usize) -> Vec<C> {
        let mut taken = Vec::new();
        for _ in 0..of_each {
            let firsts = self.lines.values_mut().filter_map(VecDeque::pop_front);
            let n_before = taken.len();
            taken.extend(firsts);
            if taken.len() == n_before {
                break;
            }
        }
        self.lines.retain(|_, line| !line.is_empty());
        self.len -= taken.len();
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The last message for a connection that cannot be let in: a line, made once.
type Farewell = LazyLock<Vec<u8>>;

static NO_ROOM: Farewell = LazyLock::new(|| {
    refusal("the arbiter has no room for one more connection: every one is a job's")
});

static LINE_FULL: Farewell = LazyLock::new(|| {
    refusal("too many commands of this user wait for the arbiter already; try again")
});

fn refusal(reason: &str) -> Vec<u8> {
    let refused = Reply::Refused {
        reason: reason.to_owned(),
        is_final: false,
        hint: None,
    };
    let mut line = serde_json::to_vec(&refused).unwrap_or_default();
    line.push(b'\n');
    line
}

fn say(socket: &Connection, words: &Farewell) {
    // Who does not read it, learns it from the closed connection.
    let _ = rustix::net::send(socket, words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Tells a connection the reason: there is no room.
pub(super) fn turn_away(socket: &Connection) {
    say(socket, &NO_ROOM);
}

/// Tells a connection the reason: there is no place in its user's queue.
pub(super) fn send_back(socket: &Connection) {
    say(socket, &LINE_FULL);
}

#[cfg(test)]
mod tests {
    use sublet_share::UserId;

    use super::*;

    fn enter(lobby: &mut Lobby<(u32, u32)>, user: u32, number: u32) -> bool {
        let owner = Owner::User(UserId(user));
        lobby.enter_as(owner, (user, number)).is_ok()
    }

    #[test]
    fn users_are_let_in_by_turns_and_each_in_its_order() {
        let mut lobby = Lobby::among(1024);
        let crowd = (0..100).filter(|number| enter(&mut lobby, 1, *number));
        // An eighth of the descriptors, and a quarter of that.
        assert_eq!(crowd.count(), 32);
        assert!(enter(&mut lobby, 2, 0) && enter(&mut lobby, 2, 1));
        assert_eq!(lobby.take(2), [(1, 0), (2, 0), (1, 1), (2, 1)]);
        assert_eq!(lobby.take(2), [(1, 2), (1, 3)]);
        assert_eq!(lobby.take(99).len(), 28);
        assert!(lobby.is_empty() && lobby.take(1).is_empty());
    }

    #[test]
    fn where_all_places_are_taken_each_user_has_one_more() {
        let mut lobby = Lobby::among(64);
        assert_eq!((0..9).filter(|user| enter(&mut lobby, *user, 0)).count(), 9);
        assert!(!enter(&mut lobby, 0, 1));
        assert!(enter(&mut lobby, 10, 0));
        assert_eq!(lobby.take(1).len(), 10);
        assert!(enter(&mut lobby, 0, 1) && enter(&mut lobby, 0, 2));
        // Few descriptors are some.
        assert!(enter(&mut Lobby::among(0), 1, 1));
    }
}
