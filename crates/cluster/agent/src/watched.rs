//! Values that others watch. They are woken only by another value, so that a look at a node that has
//! not changed costs nothing further.

use tokio::sync::watch;

/// Puts `new` in the place of the value that `sender` shows; false if they are the same.
pub(crate) fn send_if_new<T: Clone + PartialEq>(sender: &watch::Sender<T>, new: &T) -> bool {
    sender.send_if_modified(|now| {
        let is_new = now != new;
        if is_new {
            now.clone_from(new);
        }
        is_new
    })
}
