//! Messages with descriptors between a parent and its child processes.
//!
//! Both ends are Unix sockets that keep message boundaries. The parent's end is non-blocking, and the parent
//! waits for a message with poll(2) and a deadline. No function of this module allocates, so a child of
//! fork(2) may call them.
//!
//! Sources: unix(7), recvmsg(2), poll(2).

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionbio},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};

/// Maximum number of bytes in a message, apart from a short head. A message of this size fits into the
/// default socket buffer of Linux, which has 208 KiB.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;
/// Maximum number of descriptors in a message.
pub(crate) const MAX_FILES: usize = 16;

/// Descriptors that came with a message.
pub(crate) type Files = [Option<OwnedFd>; MAX_FILES];

/// Creates a channel: the parent's end and the child's.
///
/// # Errors
/// The errors of socketpair(2).
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends a message of several parts, with descriptors.
///
/// # Errors
/// EINVAL for more than [`MAX_FILES`] descriptors, EPIPE and ECONNRESET if the other end is closed, EAGAIN
/// if the parent would have to wait.
pub(crate) fn send(
    to: impl AsFd,
    parts: &[IoSlice<'_>],
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // Checked explicitly, because alignment leaves some space for more descriptors.
    if files.len() > MAX_FILES {
        return Err(Errno::INVAL);
    }
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    sendmsg(to, parts, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message in several parts, and returns its length. Descriptors that come with it are closed by the kernel.
///
/// # Errors
/// Returns the errors of [`receive_files`].
pub(crate) fn receive(from: impl AsFd, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    receive_into(from, parts, &mut RecvAncillaryBuffer::default())
}

/// Receives a message in several parts, and returns its length and its descriptors.
///
/// # Errors
/// EPIPE if the other end is closed, EAGAIN if the parent would have to wait.
pub(crate) fn receive_files(
    from: impl AsFd,
    parts: &mut [IoSliceMut<'_>],
) -> Result<(usize, Files), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let bytes = receive_into(from, parts, &mut control)?;
    let mut files = Files::default();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.iter_mut().zip(received).for_each(|(file, new)| *file = Some(new));
        }
    }
    Ok((bytes, files))
}

fn receive_into(
    from: impl AsFd,
    parts: &mut [IoSliceMut<'_>],
    control: &mut RecvAncillaryBuffer<'_>,
) -> Result<usize, Errno> {
    loop {
        match recvmsg(&from, parts, control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // Messages are never empty, so this is the end of the stream.
            Ok(message) if message.bytes == 0 => return Err(Errno::PIPE),
            other => return other.map(|message| message.bytes),
        }
    }
}

/// Waits until a message is available or the other end is closed. Returns `false` if neither happens before `until`.
///
/// # Errors
/// The errors of poll(2).
pub(crate) fn wait(on: impl AsFd, until: Instant) -> Result<bool, Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&on, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            other => return other.map(|ready| ready > 0),
        }
    }
}

/// Returns whether a message is available or the other end is closed.
pub(crate) fn is_ready(on: impl AsFd) -> bool {
    wait(on, Instant::now()) == Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn messages_keep_their_boundaries_and_descriptors() {
        let (ours, theirs) = pair().unwrap();
        assert!(!is_ready(&ours));
        let file = tempfile::tempfile().unwrap();
        let fds = [file.as_fd(), file.as_fd()];
        send(&theirs, &[IoSlice::new(b"one"), IoSlice::new(b"two")], &fds).unwrap();
        send(&theirs, &[IoSlice::new(b"three")], &fds).unwrap();
        assert!(wait(&ours, Instant::now() + Duration::from_secs(60)).unwrap());
        let (mut head, mut body) = ([0; 2], [0; 20]);
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut body)];
        let (bytes, files) = receive_files(&ours, &mut parts).unwrap();
        assert_eq!((bytes, files.iter().flatten().count()), (6, 2));
        assert_eq!((&head[..], &body[..4]), (&b"on"[..], &b"etwo"[..]));
        assert_eq!(receive(&ours, &mut [IoSliceMut::new(&mut body)]), Ok(5));
        assert_eq!(receive(&ours, &mut [IoSliceMut::new(&mut body)]), Err(Errno::AGAIN));
        drop(theirs);
        assert!(is_ready(&ours));
        assert_eq!(receive(&ours, &mut [IoSliceMut::new(&mut body)]), Err(Errno::PIPE));
    }

    #[test]
    fn too_many_descriptors_are_rejected() {
        let (ours, theirs) = pair().unwrap();
        let fds = [theirs.as_fd(); MAX_FILES + 1];
        assert_eq!(send(&ours, &[IoSlice::new(b"x")], &fds), Err(Errno::INVAL));
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let (ours, _theirs) = pair().unwrap();
        assert_eq!(wait(&ours, Instant::now() + Duration::from_millis(5)), Ok(false));
    }
}
