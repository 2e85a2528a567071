//! Hands the listening sockets over to the process that comes next, so that no connection is refused while one binary
//! replaces another. The two talk over a Unix socket in the state directory:
//!
//! 1. The new process connects, and gets the descriptors with a line that says which is which.
//! 2. It starts. Both accept connections now, from the same queues.
//! 3. It says `ready`, and the old one drains, from the second step on.
//!
//! A new process that fails before it is ready leaves the old one as it was.

use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use super::sockets::{Socket, Spare};

/// Name of the socket in the state directory.
pub(super) const SOCKET: &str = "upgrade.sock";
/// How long a new process may take from its first word until it is ready.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long an old process may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Sockets that fit into one message (the kernel's `SCM_MAX_FD`).
const MOST: usize = 253;

const READY: &[u8] = b"ready\n";
const YOURS: &[u8] = b"yours\n";

/// What a new process talks to the old one through.
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Asks the gateway of a state directory for its sockets.
    pub(super) fn ask(directory: &Path) -> io::Result<(Self, Vec<Socket>)> {
        let stream = UnixStream::connect(directory.join(SOCKET))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let (addresses, descriptors) = receive(&stream)?;
        if addresses.len() != descriptors.len() {
            return Err(io::Error::other("as many sockets as addresses were expected"));
        }
        let sockets = addresses.into_iter().zip(descriptors);
        let sockets =
            sockets.map(|(configured, socket)| Socket { configured, listener: TcpListener::from(socket) }).collect();
        Ok((Self(stream), sockets))
    }

    /// Says that this process serves. Returns when the old one has left.
    pub(super) fn relieve(mut self) -> io::Result<()> {
        self.0.write_all(READY)?;
        let mut answer = [0; YOURS.len()];
        self.0.read_exact(&mut answer)
    }
}

/// Where a new process can ask for the sockets.
pub(super) struct Offer(UnixListener);

impl Offer {
    /// Begins to listen in a state directory, in the place of whoever did before.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self(listener))
    }

    /// Waits until a new process has the sockets and serves; its process id is the answer. `last` is called before it
    /// is told that everything is its own. Blocks.
    pub(super) fn accept(&self, spare: &Spare, last: impl Fn()) -> io::Result<u32> {
        loop {
            let (stream, _) = self.0.accept()?;
            match serve(stream, spare, &last) {
                Ok(pid) => return Ok(pid),
                Err(error) => tracing::error!(%error, "a process that wanted to take over did not; this one goes on"),
            }
        }
    }
}

fn serve(mut stream: UnixStream, spare: &Spare, last: impl Fn()) -> io::Result<u32> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if ![rustix::process::geteuid(), rustix::process::Uid::ROOT].contains(&peer.uid) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it runs as another user"));
    }
    tracing::info!(pid = peer.pid.as_raw_nonzero().get(), "another process asks for the sockets");
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(ANSWER))?;
    spare.with(|sockets| send(&stream, sockets))?;
    let mut word = [0; READY.len()];
    stream.read_exact(&mut word)?;
    if word != READY {
        return Err(io::Error::other("it said something else than that it is ready"));
    }
    last();
    // If it is gone by now, so is the service: there is nobody to go on for.
    let _ = stream.write_all(YOURS);
    Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
}

/// Sends a line with the addresses, and the sockets with its first byte.
fn send(mut stream: &UnixStream, sockets: &[(SocketAddr, OwnedFd)]) -> io::Result<()> {
    if sockets.len() > MOST {
        return Err(io::Error::other(format!("more than {MOST} sockets cannot be handed over")));
    }
    let addresses: Vec<_> = sockets.iter().map(|(address, _)| address.to_string()).collect();
    let line = format!("{}\n", addresses.join(" "));
    let descriptors: Vec<_> = sockets.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("the sockets do not fit into a message"));
    }
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&line.as_bytes()[sent..])
}

fn receive(stream: &UnixStream) -> io::Result<(Vec<SocketAddr>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut first = [0; 1];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut first)], &mut control, flags)?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    let mut line = String::from_utf8_lossy(&first[..got.bytes]).into_owned();
    BufReader::new(stream).read_line(&mut line)?;
    let address = |word: &str| word.parse().map_err(|_| io::Error::other(format!("{word:?} is no address")));
    Ok((line.split_whitespace().map(address).collect::<Result<_, _>>()?, descriptors))
}

/// Starts the binary that is now where this one was started from, with the same arguments, as the process that comes
/// next. It is not waited for: it asks for the sockets by itself.
pub(super) fn start_successor() -> io::Result<()> {
    const FLAG: &str = "--upgrade";
    let own = std::env::current_exe()?;
    // A file that was replaced is called so.
    let path = own.to_string_lossy();
    let binary = path.strip_suffix(" (deleted)").unwrap_or(&path);
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != FLAG);
    let mut successor =
        std::process::Command::new(binary).args(arguments).arg(FLAG).stdin(std::process::Stdio::null()).spawn()?;
    tracing::info!(pid = successor.id(), binary, "started the next process");
    std::thread::Builder::new().name("successor".to_owned()).spawn(move || match successor.wait() {
        Ok(status) => tracing::error!(%status, "the next process ended"),
        Err(error) => tracing::error!(%error, "the next process cannot be waited for"),
    })?;
    Ok(())
}

/// Waits for a successor on a thread of its own and tells its process id.
pub(super) fn wait_for_successor(
    offer: Offer,
    spare: Arc<Spare>,
    last: impl Fn() + Send + 'static,
) -> io::Result<tokio::sync::oneshot::Receiver<u32>> {
    let (told, successor) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("upgrade".to_owned()).spawn(move || match offer.accept(&spare, last) {
        // The other side lives as long as the process.
        Ok(pid) => drop(told.send(pid)),
        Err(error) => tracing::error!(%error, "no process can take over any more"),
    })?;
    Ok(successor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_go_over_with_their_addresses_and_connections_wait_for_whoever_accepts() {
        let dir = tempfile::tempdir().unwrap();
        let offer = Offer::open(dir.path()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let configured = "127.0.0.1:80".parse().unwrap();
        let spare = Spare::of(vec![(configured, listener.into())]);
        let old = std::thread::spawn(move || {
            let pid = offer.accept(&spare, || spare.close()).unwrap();
            (pid, spare.with(<[_]>::len))
        });
        // Somebody who gives up.
        drop(Predecessor::ask(dir.path()).unwrap());
        let (predecessor, sockets) = Predecessor::ask(dir.path()).unwrap();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        predecessor.relieve().unwrap();
        assert_eq!(old.join().unwrap(), (std::process::id(), 0));
        assert_eq!(sockets.len(), 1);
        assert_eq!(sockets[0].configured, configured);
        let (mut accepted, _) = sockets[0].listener.accept().unwrap();
        client.write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn nobody_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Predecessor::ask(dir.path()).is_err());
        drop(Offer::open(dir.path()).unwrap());
        assert!(Predecessor::ask(dir.path()).is_err(), "the socket of a process that ended");
        assert!(Offer::open(dir.path()).is_ok(), "and it is in nobody's way");
    }
}
