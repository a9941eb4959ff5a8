//! The system call in which a thread waits for input or output, and the file or connection that it waits for.
//!
//! Sources: proc(5), `/proc/PID/task/TID/syscall` and `/proc/PID/fd`; poll(2). The numbers of system calls depend on the
//! processor, and older processors have some calls that newer ones lack.

use std::{
    collections::HashMap,
    fmt::{self, Display},
    fs::read_link,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    time::Instant,
};

use rustix::fs::{Mode, OFlags, getxattr, open};

use crate::{
    Addr, Pid,
    names::clean,
    process::{
        memory::Memory,
        pid::text_of,
        sockets::{Search, Socket, Sockets, State, TCP, TCP6},
    },
};

/// Operation of a thread on a file or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads or receives.
    Read,
    /// Writes or sends.
    Write,
    /// Waits for a connection of a client.
    Accept,
    /// Waits until its connection is established.
    Connect,
}

/// A system call in which a thread waits for input or output. Its text continues a sentence: `reads from 10.0.0.7:5432`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingCall {
    /// The operation.
    pub operation: Operation,
    /// The address of a TCP connection's other end, or of the socket for [`Operation::Accept`]. For other files, the
    /// path or the name that the kernel gives them, such as `pipe:[4711]`. [`NOT_READ`] if the address of a TCP socket
    /// was not read.
    pub file: String,
}

impl Display for BlockingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.operation {
            Operation::Read => "reads from ",
            Operation::Write => "writes to ",
            Operation::Accept => "accepts connections on ",
            Operation::Connect => "connects to ",
        })?;
        f.write_str(&self.file)
    }
}

/// Name of a TCP socket whose address was not read, because its network namespace has too many sockets.
pub const NOT_READ: &str = "TCP socket (address not read)";

/// Returns the call in which a thread waits; `None` if the thread does not wait for exactly one file, or if
/// the data about the call cannot be read.
pub(crate) fn blocking_call(
    pid: Pid,
    tid: u32,
    memory: &Memory,
    files: &mut Files,
) -> Option<BlockingCall> {
    let (number, arguments) = current_call(pid, tid)?;
    let word = || memory.u64(Addr(arguments[0])).ok();
    let (operation, descriptor) = file_of_call(number, arguments, word)?;
    files.call(pid, operation, descriptor)
}

/// Returns the number of the system call in which a thread waits, and its first two arguments; `None` if the thread runs or
/// waits outside of a system call.
pub(crate) fn current_call(pid: Pid, tid: u32) -> Option<(u32, [u64; 2])> {
    call_of_text(&text_of(pid, &format!("task/{tid}/syscall")).ok()?)
}

/// Decodes the text of a `syscall` file.
fn call_of_text(text: &str) -> Option<(u32, [u64; 2])> {
    let mut words = text.split_ascii_whitespace();
    // The text begins with `running` if the thread runs, and with -1 if it waits outside of a system call.
    let number = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    Some((number, [argument()?, argument()?]))
}

/// Numbers of the calls that wait for an array of `pollfd`, and of the other calls that wait for several files.
#[cfg(target_arch = "x86_64")]
const POLL: [i64; 2] = [libc::SYS_poll, libc::SYS_ppoll];
#[cfg(target_arch = "x86_64")]
const SELECT: [i64; 5] = [
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];
#[cfg(not(target_arch = "x86_64"))]
const POLL: [i64; 1] = [libc::SYS_ppoll];
#[cfg(not(target_arch = "x86_64"))]
const SELECT: [i64; 3] = [libc::SYS_pselect6, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

/// Returns whether a system call with this number waits until one of several files is ready.
pub(crate) fn waits_for_files(number: u32) -> bool {
    let number = i64::from(number);
    POLL.contains(&number) || SELECT.contains(&number)
}

/// Returns the operation of a system call and the descriptor of its file, if the call waits for exactly one file. `word`
/// reads the first 8 bytes at the address that is its first argument.
pub(crate) fn file_of_call(
    number: u32,
    [first, second]: [u64; 2],
    word: impl Fn() -> Option<u64>,
) -> Option<(Operation, u32)> {
    /// `POLLIN` of poll(2).
    const POLLIN: u64 = 1;
    let operation = match i64::from(number) {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg => Operation::Read,
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_fsync
        | libc::SYS_fdatasync => Operation::Write,
        libc::SYS_accept | libc::SYS_accept4 => Operation::Accept,
        libc::SYS_connect => Operation::Connect,
        // A poll of one descriptor. The low 32 bits of the pollfd are the descriptor, and the events follow.
        number if POLL.contains(&number) && second == 1 => {
            let pollfd = word()?;
            let reads = pollfd >> 32 & POLLIN != 0;
            let operation = if reads { Operation::Read } else { Operation::Write };
            return Some((operation, pollfd as u32));
        }
        _ => return None,
    };
    Some((operation, u32::try_from(first).ok()?))
}

/// Maximum number of connections whose addresses are cached.
const MAX_CONNECTIONS: usize = 1 << 12;

/// Names the files and connections of processes. Keeps the addresses of connections, because they are constant and are
/// found only by reading the list of all connections.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Connections and listening sockets, by PID and inode.
    connections: HashMap<(Pid, u64), Socket>,
    sockets: Sockets,
}

impl Files {
    /// Describes an operation on an open file; `None` if the file is not open any more.
    pub(crate) fn call(
        &mut self,
        pid: Pid,
        operation: Operation,
        descriptor: u32,
    ) -> Option<BlockingCall> {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let link = clean::name(&read_link(&path).ok()?.to_string_lossy()).into_owned();
        let inode =
            link.strip_prefix("socket:[").and_then(|text| text.strip_suffix(']')?.parse().ok());
        let search = inode.map_or(Search::Absent, |inode| self.connection(pid, inode, &path));
        let socket = match search {
            Search::Found(socket) => socket,
            Search::Absent => return Some(BlockingCall { operation, file: link }),
            Search::NotRead => return Some(BlockingCall { operation, file: NOT_READ.into() }),
        };
        let (operation, address) = match socket.state {
            State::Listening => (Operation::Accept, socket.local),
            State::Connecting => (Operation::Connect, socket.remote),
            State::Connected => (operation, socket.remote),
        };
        Some(BlockingCall { operation, file: address.to_string() })
    }

    /// Releases lists of connections that are out of date.
    pub(crate) fn release_old(&mut self) {
        self.sockets.release_old(Instant::now());
    }

    fn connection(&mut self, pid: Pid, inode: u64, path: &str) -> Search {
        if let Some(&found) = self.connections.get(&(pid, inode)) {
            return Search::Found(found);
        }
        // Otherwise, each wait for a socket of another kind would read the list of all connections.
        let search = self.sockets.find(pid, inode, lists_of(path));
        if let Search::Found(socket) = search
            && socket.state != State::Connecting
        {
            if self.connections.len() >= MAX_CONNECTIONS {
                self.connections.clear();
            }
            self.connections.insert((pid, inode), socket);
        }
        search
    }
}

/// Returns the lists that may contain the socket to which `path` in /proc leads: none if it is not a TCP socket. Source:
/// `sockfs_xattr_get` in the kernel's net/socket.c. If the kernel does not return the protocol, returns all lists.
fn lists_of(path: &str) -> &'static [&'static str] {
    let Ok(socket) = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return &[];
    };
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
    // The descriptor may refer to another file by now, and the file system of that file may never answer.
    if !read_link(&path).is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"socket:[")) {
        return &[];
    }
    let mut name = [0; 32];
    // The names are TCP, TCPv6, MPTCP and MPTCPv6, and end with a null byte.
    match getxattr(&path, "system.sockprotoname", &mut name) {
        Ok(len) if name[..len].starts_with(b"TCPv6") => &[TCP6],
        Ok(len) if name[..len].starts_with(b"TCP") => &[TCP],
        Ok(len) if !name[..len].windows(3).any(|part| part == b"TCP") => &[],
        _ => &[TCP, TCP6],
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream, UdpSocket},
        os::unix::net::UnixStream,
        thread,
    };

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_are_decoded_to_operation_and_descriptor() {
        let decode = |text: &str| {
            let (number, arguments) = call_of_text(text)?;
            file_of_call(number, arguments, || None)
        };
        let call = |number: i64, arguments: &str| decode(&format!("{number} {arguments}"));
        assert_eq!(
            call(libc::SYS_read, "0x5 0x7ffd 0x10 0x0 0x0 0x0 0x7ffe 0x7fff"),
            Some((Operation::Read, 5))
        );
        assert_eq!(call(libc::SYS_sendto, "0x9 0x7ffd 0x10"), Some((Operation::Write, 9)));
        assert_eq!(call(libc::SYS_accept4, "0x7 0x0"), Some((Operation::Accept, 7)));
        for other in ["running", "-1 0x7ffe 0x7fff", ""] {
            assert_eq!(decode(other), None, "{other}");
        }
        assert_eq!(call(libc::SYS_futex, "0x1 0x2"), None);
        // A poll of two descriptors, and one whose descriptor cannot be read.
        assert_eq!(call(libc::SYS_ppoll, "0x10 0x2"), None);
        assert_eq!(call(libc::SYS_ppoll, "0x10 0x1"), None);
        let poll = libc::SYS_ppoll as u32;
        let poll = file_of_call(poll, [0x1000, 1], || Some(POLLIN_OF_DESCRIPTOR_12));
        assert_eq!(poll, Some((Operation::Read, 12)));
    }

    const POLLIN_OF_DESCRIPTOR_12: u64 = 1 << 32 | 12;

    /// Waits until the thread of this process that has this name waits in a call, and returns the call.
    fn call_of(name: &str) -> BlockingCall {
        let pid = Pid(std::process::id());
        let memory = Memory::open(pid).unwrap();
        loop {
            let threads = crate::process::os_threads::os_threads(pid).unwrap();
            let thread = threads.iter().find(|thread| thread.name == name);
            let files = &mut Files::default();
            let call = thread.and_then(|thread| blocking_call(pid, thread.tid, &memory, files));
            if let Some(call) = call {
                return call;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn reads_name_the_other_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        let reader = thread::Builder::new().name("tcp-reader".into());
        let reader = reader.spawn(move || std::io::Read::read(&mut client, &mut [0; 8])).unwrap();
        assert_eq!(call_of("tcp-reader").to_string(), format!("reads from {address}"));
        drop(server);
        reader.join().unwrap().unwrap();
        let accepting = thread::Builder::new().name("tcp-accepting".into());
        let accepting = accepting.spawn(move || listener.accept().is_ok()).unwrap();
        assert_eq!(
            call_of("tcp-accepting").to_string(),
            format!("accepts connections on {address}")
        );
        drop(TcpStream::connect(address).unwrap());
        assert!(accepting.join().unwrap());
    }

    #[test]
    fn other_files_have_the_name_that_the_kernel_gives_them() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let reader = thread::Builder::new().name("unix-reader".into());
        let reader = reader.spawn(move || std::io::Read::read(&mut near, &mut [0; 8])).unwrap();
        let call = call_of("unix-reader").to_string();
        assert!(call.starts_with("reads from socket:["), "{call}");
        drop(far);
        reader.join().unwrap().unwrap();
    }

    #[test]
    fn only_tcp_sockets_are_searched_in_the_list_of_connections() {
        let lists =
            |socket: &dyn AsRawFd| lists_of(&format!("/proc/self/fd/{}", socket.as_raw_fd()));
        let address = "127.0.0.1:0";
        assert!(lists(&TcpListener::bind(address).unwrap()).contains(&TCP));
        assert_eq!(lists(&UdpSocket::bind(address).unwrap()), [""; 0]);
        assert_eq!(lists(&UnixStream::pair().unwrap().0), [""; 0]);
        assert_eq!(lists(&std::fs::File::open("/dev/null").unwrap()), [""; 0]);
    }

    proptest! {
        #[test]
        fn hostile_text_does_not_panic(text in "\\PC{0,60}", word in any::<u64>()) {
            if let Some((number, arguments)) = call_of_text(&text) {
                let _ = file_of_call(number, arguments, || Some(word));
            }
        }
    }
}
