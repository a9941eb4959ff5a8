//! jvmprobed's listeners under clients that are slow, greedy or not allowed in.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::run_beside_others;
use jvmprobed::metrics::{
    Listen, SharedTotals,
    server::{Health, Listeners, Options, Serving, cost::serving_ns},
};
use tempfile::TempDir;

/// bcrypt hash of "hunter2", as `htpasswd -nBC 5` makes it.
const HASH: &str = "$2b$05$ITzq9dTtxlW0lpIpnLPnReOqXZq5kM1OKRS5vzykJ.LuJtBDvZs7u";

/// Listeners on free ports.
struct Served {
    metrics: SocketAddr,
    health: SocketAddr,
    totals: SharedTotals,
    _serving: Serving,
}

impl Served {
    fn start(web_config: Option<&Path>) -> Self {
        // Two ports that are free now. It is unlikely that another process uses one of them before
        // the listeners do.
        let free: Vec<_> =
            (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let [metrics, health] = [0, 1].map(|n: usize| free[n].local_addr().unwrap());
        drop(free);
        let options = Options {
            listen: Some(metrics),
            health: Some(Listen(Some(health))),
            web_config: web_config.map(Path::to_owned),
        };
        let totals = SharedTotals::default();
        let serving = Listeners::open(&options)
            .unwrap()
            .start(&totals, &Arc::new(Health::default()))
            .unwrap();
        Self { metrics, health, totals, _serving: serving }
    }

    fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://localhost:{}{path}", self.metrics.port())
    }
}

/// Sends a hand-written request; returns the status, 0 if there is no answer.
fn status(address: SocketAddr, path: &str) -> u16 {
    let Ok(mut stream) = TcpStream::connect(address) else { return 0 };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Runs curl; returns the status and the body, status 0 if there is no answer.
fn curl(args: &[&str]) -> (u16, String) {
    let output = Command::new("curl")
        .args(["-s", "-m", "20", "--noproxy", "*", "-w", "\n%{http_code}"])
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn health_answers_while_both_listeners_hold_half_sent_requests() {
    run_beside_others();
    let served = Served::start(None);
    let half = |address: SocketAddr| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: ").unwrap();
        stream
    };
    let mut slow = Vec::new();
    for _ in 0..64 {
        slow.push(half(served.metrics));
        slow.push(half(served.health));
    }
    for address in [served.health, served.metrics] {
        let begin = Instant::now();
        assert_eq!(status(address, "/-/healthy"), 200);
        // The half-sent requests above time out after 2 s (health) and 10 s (metrics). An answer
        // within one second has not waited for that.
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    }
    // If all slots are occupied, a new connection replaces the oldest one, which is closed.
    let newest = slow.split_off(slow.len() - 2);
    let mut oldest = slow.swap_remove(0);
    oldest.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let closed = oldest.read(&mut [0; 16]);
    assert!(matches!(closed, Ok(0)) || closed.is_err(), "{closed:?}");
    let mut newest = newest.into_iter().next().unwrap();
    newest.write_all(b"x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    newest.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // The health listener has no metrics.
    assert_eq!(status(served.health, "/metrics"), 404);
    assert_eq!(status(served.health, "/-/ready"), 503);
}

#[test]
fn scraping_loop_is_limited_to_one_exposition_per_second() {
    run_beside_others();
    let served = Served::start(None);
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let before = serving_ns();
    let answers: usize = thread::scope(|scope| {
        let scrape = || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                count += usize::from(status(served.metrics, "/metrics") == 200);
            }
            count
        };
        let loops: Vec<_> = (0..4).map(|_| scope.spawn(scrape)).collect();
        for _ in 0..12 {
            thread::sleep(Duration::from_millis(500));
            let asked = Instant::now();
            assert_eq!(status(served.health, "/-/healthy"), 200);
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        loops.into_iter().map(|one| one.join().unwrap()).sum()
    });
    let seconds = begin.elapsed().as_secs() + 1;
    let written = served.totals.lock().expositions;
    assert!(answers > 100 && written <= seconds + 1, "{written} for {answers} in {seconds} s");
    // A listener may use 2 s of CPU time at once, and a tenth of a processor after that. Twice that
    // is accepted, because other tests in this process use CPU time, too.
    let spent = Duration::from_nanos(serving_ns() - before);
    let most = Duration::from_secs(4) + begin.elapsed() / 5;
    assert!(!spent.is_zero() && spent < most, "{spent:?} of {most:?}");
}

#[test]
fn only_the_right_password_gets_metrics() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    let headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n";
    fs::write(&path, format!("basic_auth_users:\n  alice: {HASH}\n{headers}")).unwrap();
    let served = Served::start(Some(&path));
    let metrics = served.url("http", "/metrics");
    assert_eq!(curl(&[&metrics]).0, 401);
    assert_eq!(curl(&[&served.url("http", "/-/healthy")]).0, 401);
    assert_eq!(status(served.health, "/-/healthy"), 200);
    for wrong in ["alice:hunter3", "bob:hunter2", "alice:", ":hunter2"] {
        assert_eq!(curl(&["-u", wrong, &metrics]).0, 401, "{wrong}");
    }
    let (status, body) = curl(&["-i", "-u", "alice:hunter2", &metrics]);
    assert_eq!(status, 200, "{body}");
    assert!(body.to_lowercase().contains("x-frame-options: deny"), "{body}");
    let (_, refused) = curl(&["-i", &metrics]);
    assert!(refused.to_lowercase().contains("www-authenticate: basic"), "{refused}");
}

/// A scraper is accepted for the first time while other clients of its address try wrong passwords, and keeps its access.
#[test]
fn right_password_is_accepted_beside_clients_with_wrong_ones() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    fs::write(&path, format!("basic_auth_users:\n  alice: {HASH}\n")).unwrap();
    let served = Served::start(Some(&path));
    let metrics = served.url("http", "/metrics");
    let (is_over, tried) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (first, second) = thread::scope(|scope| {
        for thread in 0..4 {
            let (metrics, is_over, tried) = (&metrics, &is_over, &tried);
            scope.spawn(move || {
                for number in 0.. {
                    let wrong = format!("alice:{thread}-{number}");
                    let refused = curl(&["-u", &wrong, metrics]).0;
                    tried.fetch_add(1, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    assert!(matches!(refused, 401 | 429), "{refused}");
                }
            });
        }
        // Until the passwords of this address wait for their turn.
        while tried.load(Ordering::Relaxed) < 12 {
            thread::sleep(Duration::from_millis(10));
        }
        let accepted = [(); 2].map(|()| curl(&["-u", "alice:hunter2", &metrics]).0);
        is_over.store(true, Ordering::Relaxed);
        accepted.into()
    });
    assert_eq!((first, second), (200, 200));
}

/// Certificates of a CA, a server and a client.
struct Certificates(TempDir);

impl Certificates {
    fn make() -> Self {
        let certificates = Self(tempfile::tempdir().unwrap());
        let ca = "-x509 -subj /CN=ca -keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE";
        certificates.openssl(&format!("req {ca} {NEW_KEY_OPTIONS}"));
        certificates.issue("server", "ca");
        certificates.issue("client", "ca");
        certificates
    }

    /// Issues a certificate for localhost.
    fn issue(&self, name: &str, ca: &str) {
        let names =
            "-addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE";
        self.openssl(&format!(
            "req -x509 -subj /CN={name} -keyout {name}.key -out {name}.pem -CA {ca}.pem -CAkey {ca}.key \
             {names} {NEW_KEY_OPTIONS}"
        ));
    }

    fn openssl(&self, args: &str) {
        let output =
            Command::new("openssl").args(args.split(' ')).current_dir(&self.0).output().unwrap();
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, text: &str) -> std::path::PathBuf {
        let path = self.0.path().join("web.yml");
        fs::write(&path, text).unwrap();
        path
    }
}

const NEW_KEY_OPTIONS: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

#[test]
fn metrics_are_served_by_tls_to_clients_with_a_certificate() {
    run_beside_others();
    let made = Certificates::make();
    let client = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n";
    let path = made.write(&format!("{TLS}{client}basic_auth_users:\n  alice: {HASH}\n"));
    let served = Served::start(Some(&path));
    let metrics = served.url("https", "/metrics");
    let ca = made.path("ca.pem");
    let get = |name: Option<&str>, more: &[&str]| {
        let mut args: Vec<String> = ["--cacert", &ca].map(str::to_owned).into();
        if let Some(name) = name {
            args.extend(["--cert".into(), made.path(&format!("{name}.pem"))]);
            args.extend(["--key".into(), made.path(&format!("{name}.key"))]);
        }
        let args: Vec<&str> = args.iter().map(|arg| &**arg).chain(more.iter().copied()).collect();
        curl(&[&args[..], &[&metrics]].concat())
    };
    let right = ["-u", "alice:hunter2"];
    let (status_, body) = get(Some("client"), &right);
    assert_eq!(status_, 200);
    assert!(body.contains("# HELP jvmprobed_memory_bytes"), "{body}");
    assert_eq!(get(Some("client"), &[]).0, 401);
    // No certificate, and one of another CA.
    assert_eq!(get(None, &right).0, 0);
    made.openssl(&format!(
        "req -x509 -subj /CN=other -keyout other.key -out other.pem {NEW_KEY_OPTIONS}"
    ));
    assert_eq!(get(Some("other"), &right).0, 0);
    // Plain HTTP to that port gets an explanation; the health port speaks plain HTTP.
    let (status_, body) = curl(&[&served.url("http", "/metrics")]);
    assert_eq!((status_, body.contains("https")), (400, true), "{body}");
    assert_eq!(status(served.health, "/-/healthy"), 200);
    // Connections that begin no handshake give way to a client that does.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(served.metrics).unwrap()).collect();
    assert_eq!(get(Some("client"), &right).0, 200);
    drop(silent);
}

#[test]
fn changed_certificates_are_served_and_broken_ones_are_not() {
    run_beside_others();
    let made = Certificates::make();
    let path = made.write(&format!("{TLS}  min_version: TLS13\n"));
    let served = Served::start(Some(&path));
    let peer = || {
        let address = served.metrics.to_string();
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &address, "-CAfile", &made.path("ca.pem"), "-brief"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let first = peer();
    assert!(first.contains("TLSv1.3") && first.contains("CN = server"), "{first}");
    let old = Command::new("openssl")
        .args(["s_client", "-tls1_2", "-connect", &served.metrics.to_string()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!old.status.success());
    // A broken certificate file changes nothing.
    fs::write(made.path("server.pem"), "nothing").unwrap();
    thread::sleep(Duration::from_millis(1200));
    assert!(peer().contains("CN = server"));
    made.issue("renewed", "ca");
    for kind in ["pem", "key"] {
        fs::rename(made.path(&format!("renewed.{kind}")), made.path(&format!("server.{kind}")))
            .unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    while !peer().contains("CN = renewed") {
        assert!(Instant::now() < until, "{}", peer());
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn invalid_web_configuration_is_reported_in_one_line() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    let refused = |text: &str| {
        fs::write(&path, text).unwrap();
        let options = Options {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            health: Some(Listen(None)),
            web_config: Some(path.clone()),
        };
        let error = format!("{:#}", Listeners::open(&options).unwrap_err());
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
        error
    };
    assert!(refused("basic_auth_user: {}\n").contains("line 1"));
    assert!(refused("rate_limit: {}\n").contains("rate_limit is not supported"));
    assert!(refused(TLS).contains("server.pem"));
    assert!(refused(&"#".repeat(2 << 20)).contains("longer than"));
    let none = Options { listen: None, health: None, web_config: Some(path.clone()) };
    assert!(Listeners::open(&none).unwrap_err().to_string().contains("--web-config"));
}
