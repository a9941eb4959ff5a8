//! Addresses of TCP sockets, from the lists of all sockets in a network namespace.
//!
//! The kernel lists sockets by address, not by inode, so finding one means reading a list that grows with the number of
//! connections in its network namespace. Therefore a list is read up to the socket that is looked for and up to
//! [`MAX_LIST`] bytes, is kept for a second, and the time for reading lists is limited for each tenant. A socket that
//! is not found for these reasons is reported as not read, and counted as `sockets`.
//!
//! Source: proc(5), `/proc/PID/net/tcp` and `tcp6`; `get_tcp4_sock` in the kernel's net/ipv4/tcp_ipv4.c and
//! `get_tcp6_sock` in net/ipv6/tcp_ipv6.c.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::File,
    io::{BufRead, BufReader, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::MetadataExt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Pid,
    process::cgroup::tenant_of,
    sys::{
        budget::{Budget, Reservation},
        limited,
        reading_cost::Costs,
        thread_cpu_time,
    },
};

/// Maximum number of bytes read of one list: about 28,000 connections.
const MAX_LIST: u64 = 4 << 20;
/// A list longer than this is read completely at most once per [`KEPT`]: about 7,000 connections.
const LARGE_LIST: u64 = 1 << 20;
/// Time for which a list is kept.
const KEPT: Duration = Duration::from_secs(1);
/// Number of sockets for which memory is reserved at once.
const RESERVED_SOCKETS: usize = 256;
/// Memory for one kept socket, in bytes. While a hash table grows, two tables exist.
const SOCKET_SIZE: usize = 3 * size_of::<(u64, Socket)>();

/// Names of the lists, for [`Sockets::find`].
pub(super) const TCP: &str = "tcp";
pub(super) const TCP6: &str = "tcp6";

/// A TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: State,
}

/// State of a TCP socket, as far as it determines which operation a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It accepts connections.
    Listening,
    /// Its connection is being established. Unlike the others, this state soon changes.
    Connecting,
    /// It is, or was, connected.
    Connected,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Found(Socket),
    /// The list does not contain the socket.
    Absent,
    /// The list was not read up to the socket.
    NotRead,
}

/// Device and inode of a network namespace, and the name of the list.
type Key = (u64, u64, &'static str);

/// Lists of sockets that were read in the last second, and the time that each tenant's lists took to read.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    lists: HashMap<Key, List>,
    costs: Costs,
}

impl Sockets {
    /// Finds a socket in lists of a process's network namespace.
    pub(super) fn find(&mut self, pid: Pid, inode: u64, lists: &[&'static str]) -> Search {
        self.release_old(Instant::now());
        let Ok(namespace) = std::fs::metadata(format!("/proc/{pid}/ns/net")) else {
            return Search::Absent;
        };
        let tenant = tenant_of(pid);
        let mut result = Search::Absent;
        for &name in lists {
            let key = (namespace.dev(), namespace.ino(), name);
            let open = || File::open(format!("/proc/{pid}/net/{name}")).ok();
            match self.find_in(key, &tenant, inode, Instant::now(), open) {
                found @ Search::Found(_) => return found,
                Search::NotRead => result = Search::NotRead,
                Search::Absent => {}
            }
        }
        limited::add("sockets", &tenant, u64::from(result == Search::NotRead));
        result
    }

    /// Finds a socket in one list, which `open` opens if it must be read.
    fn find_in<R: Read>(
        &mut self,
        key: Key,
        tenant: &Arc<str>,
        inode: u64,
        now: Instant,
        open: impl FnOnce() -> Option<R>,
    ) -> Search {
        let known = self.lists.get(&key);
        if let Some(&socket) = known.and_then(|list| list.sockets.get(&inode))
            && socket.state != State::Connecting
        {
            return Search::Found(socket);
        }
        let is_current = known.is_some_and(|list| list.is_large() && list.end != End::Found);
        if is_current || self.costs.wait_until(tenant, now).is_some() {
            return Search::NotRead;
        }
        // If sockets beyond the first one are looked for, too, one complete read costs less than a read for each.
        let is_complete = known.is_some_and(|list| list.is_large());
        let Some(text) = open() else { return Search::Absent };
        let begin = thread_cpu_time();
        // Releases the reservation of the list that is replaced.
        self.lists.remove(&key);
        let space = Reservation::within(&Budget::of_process().share(tenant));
        let (list, found) = List::read(text, inode, is_complete, now, space);
        self.costs.charge(tenant, thread_cpu_time().saturating_sub(begin), now);
        let is_cut = list.end == End::Cut;
        self.lists.insert(key, list);
        match found {
            Some(socket) => Search::Found(socket),
            None if is_cut => Search::NotRead,
            None => Search::Absent,
        }
    }

    /// Releases the lists that were read more than a second ago.
    pub(super) fn release_old(&mut self, now: Instant) {
        self.lists.retain(|_, list| now.saturating_duration_since(list.read) < KEPT);
    }
}

/// How the reading of a list ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// At the socket that was looked for.
    Found,
    /// At [`MAX_LIST`], or with an error.
    Cut,
    /// At the list's end.
    Complete,
}

/// Sockets of a list.
#[derive(Debug)]
struct List {
    sockets: HashMap<u64, Socket>,
    /// Number of bytes read.
    bytes: u64,
    end: End,
    /// Time at which it was read.
    read: Instant,
    _space: Reservation,
}

impl List {
    fn is_large(&self) -> bool {
        self.bytes > LARGE_LIST
    }

    /// Reads a list until it ends or, unless `is_complete`, until the socket with this inode. Returns the socket, too.
    /// Without memory for all sockets, the list contains only the first ones.
    fn read(
        text: impl Read,
        inode: u64,
        is_complete: bool,
        now: Instant,
        mut space: Reservation,
    ) -> (Self, Option<Socket>) {
        let (mut sockets, mut found, mut bytes) = (HashMap::new(), None, 0);
        let (mut reserved, mut is_short) = (0, false);
        let mut text = BufReader::new(text.take(MAX_LIST));
        let mut line = Vec::new();
        let end = loop {
            line.clear();
            match text.read_until(b'\n', &mut line) {
                Ok(0) if bytes < MAX_LIST => break End::Complete,
                Ok(0) | Err(_) => break End::Cut,
                Ok(read) => bytes += read as u64,
            }
            // A line without its end was cut.
            let is_line = line.ends_with(b"\n");
            let socket = Some(&line).filter(|_| is_line).and_then(|line| socket_of_line(line));
            let Some((number, socket)) = socket else { continue };
            if number == inode {
                found = Some(socket);
            }
            if sockets.len() == reserved && !is_short {
                is_short = !space.reserve(RESERVED_SOCKETS * SOCKET_SIZE);
                reserved += if is_short { 0 } else { RESERVED_SOCKETS };
            }
            if sockets.len() < reserved
                && let Entry::Vacant(entry) = sockets.entry(number)
            {
                entry.insert(socket);
            }
            if found.is_some() && !is_complete {
                break End::Found;
            }
        };
        (Self { sockets, bytes, end, read: now, _space: space }, found)
    }
}

/// Returns the inode and the socket of a list's line; `None` for the heading and for sockets that no process has open.
fn socket_of_line(line: &[u8]) -> Option<(u64, Socket)> {
    /// `TCP_SYN_SENT` and `TCP_LISTEN` of include/net/tcp_states.h.
    const SYN_SENT: &str = "02";
    const LISTEN: &str = "0A";
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace().skip(1);
    let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
    let state = match words.next()? {
        SYN_SENT => State::Connecting,
        LISTEN => State::Listening,
        _ => State::Connected,
    };
    // Queues, timer, retransmits, user and timeout precede the inode.
    let inode = words.nth(5)?.parse().ok().filter(|&inode| inode != 0)?;
    Some((inode, Socket { local, remote, state }))
}

/// Parses an address: 32-bit numbers in the processor's byte order, and the port. An IPv4 address that is
/// mapped to IPv6, as Java uses them by default, is converted into its usual form.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(words.get(8 * at..8 * at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match words.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fmt::Write};

    use proptest::prelude::*;

    use super::*;

    const HEADING: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// A list of sockets with the inodes 1 to `count`, whose remote port is the inode.
    fn list(count: u64) -> String {
        let mut text = String::from(HEADING);
        let host = u32::from_ne_bytes([10, 0, 0, 7]);
        for inode in 1..=count {
            let port = inode % 0x1_0000;
            let queues = "00000000:00000000 00:00000000 00000000  1000        0";
            let line = format!(
                "{inode:4}: 0100007F:0050 {host:08X}:{port:04X} 01 {queues} {inode} 1 ffff888 20 4 30 10 -1"
            );
            writeln!(text, "{line:<149}").unwrap();
        }
        text
    }

    /// Looks for sockets in a list, and counts how often it is read.
    struct Searcher {
        sockets: Sockets,
        text: String,
        reads: Cell<u32>,
    }

    impl Searcher {
        fn of(count: u64) -> Self {
            Self { sockets: Sockets::default(), text: list(count), reads: Cell::new(0) }
        }

        fn find(&mut self, inode: u64, now: Instant) -> Search {
            let open = || {
                self.reads.set(self.reads.get() + 1);
                Some(self.text.as_bytes())
            };
            self.sockets.find_in((1, 2, TCP), &"test".into(), inode, now, open)
        }
    }

    fn is_found(search: Search, inode: u16) -> bool {
        matches!(search, Search::Found(socket) if socket.remote == ([10, 0, 0, 7], inode).into())
    }

    #[test]
    fn lines_are_decoded() {
        assert_eq!(socket_of_line(HEADING.as_bytes()), None);
        let word = |bytes| u32::from_ne_bytes(bytes);
        let rest = "00000000:00000000 00:00000000 00000000 0 0";
        let (zero, ipv4) = (0, word([10, 1, 2, 3]));
        let mapped = format!("{zero:08X}{zero:08X}{:08X}{ipv4:08X}", word([0, 0, 0xff, 0xff]));
        let line = format!("  1: {mapped}:1F90 {mapped}:C350 02 {rest} 4711 1 0\n");
        let local = ([10, 1, 2, 3], 8080).into();
        let expected =
            Socket { local, remote: ([10, 1, 2, 3], 50000).into(), state: State::Connecting };
        assert_eq!(socket_of_line(line.as_bytes()), Some((4711, expected)));
        let line = format!("  1: {ipv4:08X}:1F90 {zero:08X}:0000 0A {rest} 12 1 0\n");
        let expected = Socket { local, remote: ([0, 0, 0, 0], 0).into(), state: State::Listening };
        assert_eq!(socket_of_line(line.as_bytes()), Some((12, expected)));
        // No process has it open.
        let line = format!("  1: {ipv4:08X}:1F90 {zero:08X}:0000 06 {rest} 0 1 0\n");
        assert_eq!(socket_of_line(line.as_bytes()), None);
    }

    #[test]
    fn new_connections_of_an_ordinary_process_are_found_at_once() {
        let (mut searcher, now) = (Searcher::of(1000), Instant::now());
        assert!(is_found(searcher.find(500, now), 500));
        assert!(is_found(searcher.find(400, now), 400), "read before");
        assert_eq!(searcher.reads.get(), 1);
        assert!(is_found(searcher.find(1000, now), 1000));
        assert_eq!(searcher.find(1001, now), Search::Absent);
        searcher.text = list(1001);
        assert!(is_found(searcher.find(1001, now), 1001));
    }

    #[test]
    fn a_large_list_is_read_completely_once_per_second() {
        let (mut searcher, now) = (Searcher::of(20_000), Instant::now());
        for inode in [10_000, 20_000, 15_000, 1] {
            assert!(is_found(searcher.find(inode.into(), now), inode));
        }
        assert_eq!(searcher.reads.get(), 2, "once up to the first socket, once completely");
        for inode in 20_001..20_100 {
            assert_eq!(searcher.find(inode, now), Search::NotRead);
        }
        assert_eq!(searcher.reads.get(), 2);
        searcher.sockets.release_old(now + KEPT);
        assert!(searcher.sockets.lists.is_empty());
        assert_eq!(searcher.find(20_001, now + KEPT), Search::Absent);
    }

    #[test]
    fn sockets_beyond_the_limit_are_not_read() {
        let (mut searcher, now) = (Searcher::of(40_000), Instant::now());
        assert_eq!(searcher.find(40_000, now), Search::NotRead);
        assert!(is_found(searcher.find(20_000, now), 20_000));
        let list = searcher.sockets.lists.values().next().unwrap();
        assert_eq!((list.bytes, searcher.reads.get()), (MAX_LIST, 1));
    }

    #[test]
    fn a_tenant_whose_lists_took_long_to_read_waits() {
        let (mut searcher, now) = (Searcher::of(10), Instant::now());
        searcher.sockets.costs.charge(&"test".into(), Duration::from_secs(2), now);
        assert_eq!(searcher.find(5, now), Search::NotRead);
        assert!(is_found(searcher.find(5, now + Duration::from_secs(10)), 5));
    }

    #[test]
    fn without_memory_sockets_are_found_but_not_kept() {
        let space = Reservation::within(&Budget::of(0).share(&"test".into()));
        let text = list(100);
        let (list, found) = List::read(text.as_bytes(), 50, false, Instant::now(), space);
        assert!(found.is_some() && list.sockets.is_empty());
    }

    proptest! {
        #[test]
        fn hostile_lines_do_not_panic(line in "( ?[0-9A-F:é]{0,40}){0,12}") {
            socket_of_line(line.as_bytes());
        }
    }
}
