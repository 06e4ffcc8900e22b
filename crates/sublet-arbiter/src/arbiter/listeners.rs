//! The two sockets at which everybody may connect, and the descriptor in reserve that turns
//! somebody away where no other is left.

use std::os::fd::OwnedFd;

use rustix::net::SocketType;

use super::sources::{Source, Sources};
use crate::error::ArbiterError;
use crate::runtime::{Audience, Folder};
use crate::socket::{Spare, listen};

/// How many connections are accepted in one turn.
pub(super) const ACCEPTS_A_TURN: usize = 64;

/// The sockets of the arbiter's folder.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For people's commands: `admin.sock`.
    pub(super) admin: OwnedFd,
    /// For processes below a `sublet run`: `tenant.sock`. Containers have sockets of their own.
    pub(super) processes: OwnedFd,
    pub(super) spare: Spare,
}

impl Listeners {
    pub(super) fn open(
        folder: &Folder,
        audience: Audience,
        sources: &mut Sources,
    ) -> Result<Listeners, ArbiterError> {
        let mode = match audience {
            Audience::Owner => 0o600,
            Audience::Everybody => 0o666,
        };
        let admin = listen(&folder.admin_socket(), SocketType::STREAM, mode)?;
        let processes = listen(&folder.tenant_socket(), SocketType::SEQPACKET, mode)?;
        sources.add(&admin, "admin.sock", Source::AdminListener)?;
        sources.add(&processes, "tenant.sock", Source::ProcessListener(None))?;
        Ok(Listeners {
            admin,
            processes,
            spare: Spare::new(),
        })
    }
}
