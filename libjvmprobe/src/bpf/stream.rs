//! Reads events from a ring buffer, decodes each once, and returns them in order.

use std::{
    cell::RefCell,
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{Error, Result};

/// A BPF ring buffer as a queue of typed events.
pub(crate) struct EventStream<T> {
    ring: RingBuffer<'static>,
    /// The ring buffer's map, which `ring` waits for by its descriptor.
    _map: MapHandle,
    queue: Rc<RefCell<VecDeque<T>>>,
    /// Descriptor that also ends a wait for events when it is readable.
    waker: Option<OwnedFd>,
}

impl<T: 'static> EventStream<T> {
    /// Opens a ring buffer map. `decode` converts a record into an event; records that it does not recognise are
    /// dropped.
    pub(crate) fn open(map: MapHandle, decode: fn(&[u8]) -> Option<T>) -> Result<Self> {
        let bpf = |source| Error::Bpf { what: "open the event ring buffer".into(), source };
        let queue = Rc::new(RefCell::new(VecDeque::new()));
        let sink = Rc::clone(&queue);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&map, move |record| {
                sink.borrow_mut().extend(decode(record));
                0
            })
            .map_err(bpf)?;
        let ring = builder.build().map_err(bpf)?;
        Ok(Self { ring, _map: map, queue, waker: None })
    }

    /// Makes [`EventStream::wait`] return also when this descriptor is readable.
    pub(crate) fn wake_on(&mut self, waker: OwnedFd) {
        self.waker = Some(waker);
    }

    /// Moves all events from the ring buffer, which is small, to the queue that the next [`EventStream::wait`] returns.
    /// Called during work that takes a while.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(crate) fn drain_ring(&self) -> Result<()> {
        let failed = |source| Error::Bpf { what: "read the event ring buffer".into(), source };
        self.ring.consume().map_err(failed)
    }

    /// Waits up to `timeout` for events and returns all that are available, including those that were sent without a
    /// wake-up.
    ///
    /// # Errors
    /// [`Error::Bpf`], [`Error::Io`]; an interruption of the wait by a signal is no error.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<VecDeque<T>> {
        // SAFETY: the ring buffer owns the descriptor and lives as long as `self`.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) };
        let fds = std::iter::once(ring).chain(self.waker.as_ref().map(AsFd::as_fd));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("wait for events", error.into())),
        }
        self.drain_ring()?;
        Ok(self.queue.take())
    }
}
