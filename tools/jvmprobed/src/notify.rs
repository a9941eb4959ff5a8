//! Notifications to systemd: the daemon is ready, reloads, stops, and is alive.
//!
//! Source: sd_notify(3). A notification is a datagram of `NAME=VALUE` lines, sent to the socket whose address
//! is in the environment variable `NOTIFY_SOCKET`. If the address begins with `@`, the socket is abstract. If
//! the variable is not set, nothing is sent.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    process,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// Connection to systemd, if the daemon runs as a service.
#[derive(Debug)]
pub struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    last_report: Option<Instant>,
}

impl Notify {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` from the environment.
    ///
    /// # Errors
    /// `NOTIFY_SOCKET` is not a valid socket address, or no socket can be created.
    pub fn from_env() -> io::Result<Self> {
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        // The watchdog may be meant for another process of the service.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|&us| us > 0 && is_ours);
        Self::to(env::var_os("NOTIFY_SOCKET").as_deref(), watchdog.map(Duration::from_micros))
    }

    fn to(path: Option<&OsStr>, watchdog: Option<Duration>) -> io::Result<Self> {
        let socket = match path {
            None => None,
            Some(path) => {
                let address = match path.as_bytes().strip_prefix(b"@") {
                    Some(name) => SocketAddr::from_abstract_name(name)?,
                    None => SocketAddr::from_pathname(path)?,
                };
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                Some((socket, address))
            }
        };
        Ok(Self { socket, watchdog, last_report: None })
    }

    /// Reports that the daemon has started or reloaded.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Sets the text that `systemctl status` shows.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// Reports that the daemon has begun to read its configuration again. [`Self::ready`] reports the end.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// Reports that the daemon stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Reports that the daemon is alive. The main loop calls this method about once a second. The method
    /// sends a message only if a third of systemd's watchdog timeout has passed since the last message.
    pub fn report_alive(&mut self) {
        let Some(watchdog) = self.watchdog else { return };
        if self.last_report.is_none_or(|at| at.elapsed() >= watchdog / 3) {
            self.send("WATCHDOG=1");
            self.last_report = Some(Instant::now());
        }
    }

    /// Sends a message. Errors are ignored, because the daemon works without systemd.
    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\0'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn systemd_receives_ready_watchdog_reload_and_stop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let watchdog = Duration::from_secs(3600);
        let mut notify = Notify::to(Some(path.as_os_str()), Some(watchdog)).unwrap();
        notify.ready("3 JVMs\nREADY=0");
        assert_eq!(receive(&socket), "READY=1\nSTATUS=3 JVMs READY=0");
        notify.report_alive();
        assert_eq!(receive(&socket), "WATCHDOG=1");
        notify.report_alive();
        notify.reloading();
        // The second call of `report_alive` was too soon for another message.
        assert!(receive(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        notify.stopping();
        assert_eq!(receive(&socket), "STOPPING=1");
        // A closed socket is not an error.
        drop(socket);
        notify.status("ends");
    }

    #[test]
    fn abstract_socket_receives_notifications() {
        let name = format!("jvmprobed-test-{}", process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let path = format!("@{name}");
        let notify = Notify::to(Some(OsStr::new(&path)), None).unwrap();
        notify.status("x");
        assert_eq!(receive(&socket), "STATUS=x");
        assert!(Notify::to(None, None).unwrap().socket.is_none());
    }
}
