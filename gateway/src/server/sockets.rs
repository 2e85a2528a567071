//! The sockets that are listened on. They are opened before anything else is started, so that an address that is taken
//! is told at once, and they can be handed over to the process that comes next.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::StartError;
use crate::conf::Bootstrap;

/// An open socket, under the address that the configuration has for it. With port 0 there, the socket has another one.
pub(super) struct Socket {
    pub(super) configured: SocketAddr,
    pub(super) listener: TcpListener,
}

/// The sockets of a gateway.
pub(super) struct Sockets {
    /// The admin API's.
    pub(super) admin: Socket,
    /// The listeners', in their order.
    pub(super) listeners: Vec<Socket>,
}

impl Sockets {
    /// Takes each socket from those that a predecessor handed over, or opens it.
    pub(super) fn open(bootstrap: &Bootstrap, mut inherited: Vec<Socket>) -> Result<Self, StartError> {
        let mut open = |configured: SocketAddr, name: &str| match inherited
            .iter()
            .position(|socket| socket.configured == configured)
        {
            Some(at) => Ok(inherited.swap_remove(at)),
            None => Socket::bind(configured, name),
        };
        let admin = open(*bootstrap.admin.address, "admin")?;
        let listeners = bootstrap.listeners.iter().map(|listener| open(*listener.address, &listener.name));
        Ok(Self { admin, listeners: listeners.collect::<Result<_, _>>()? })
    }

    /// Where the listeners really listen.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(Socket::address).collect()
    }

    /// All of them a second time, to be handed over.
    pub(super) fn duplicate(&self) -> std::io::Result<Spare> {
        let all = std::iter::once(&self.admin).chain(&self.listeners);
        let spare: std::io::Result<_> =
            all.map(|socket| Ok((socket.configured, OwnedFd::from(socket.listener.try_clone()?)))).collect();
        Ok(Spare(Mutex::new(spare?)))
    }

    /// The listeners as pingora keeps them: descriptors by their address.
    pub(super) fn into_table(self) -> (TcpListener, Vec<(String, i32)>) {
        let table = self.listeners.into_iter().map(|socket| (socket.address().to_string(), socket.into_raw()));
        (self.admin.listener, table.collect())
    }
}

impl Socket {
    fn bind(configured: SocketAddr, name: &str) -> Result<Self, StartError> {
        let refused = |error| StartError::Listen { address: configured, name: name.to_owned(), error };
        let listener = TcpListener::bind(configured).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        Ok(Self { configured, listener })
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.configured)
    }

    fn into_raw(self) -> i32 {
        self.listener.into_raw_fd()
    }
}

/// Second descriptors of all sockets. For as long as they are open, so are the sockets.
pub(super) struct Spare(Mutex<Vec<(SocketAddr, OwnedFd)>>);

impl Spare {
    #[cfg(test)]
    pub(super) fn of(sockets: Vec<(SocketAddr, OwnedFd)>) -> Self {
        Self(Mutex::new(sockets))
    }

    /// Does something with them.
    pub(super) fn with<R>(&self, act: impl FnOnce(&[(SocketAddr, OwnedFd)]) -> R) -> R {
        act(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes them.
    pub(super) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
