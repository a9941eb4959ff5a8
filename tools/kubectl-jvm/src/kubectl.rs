//! Runs kubectl, and watches for signals meanwhile.

use std::{
    cell::Cell,
    fmt,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

use crate::{args::Args, clean, grammar::Namespace, requests};

/// Maximum size of an answer in bytes. A pod has at most about 1 MB.
const MAX_ANSWER: u64 = 64 << 20;
/// Maximum size of an error of kubectl in bytes.
const MAX_ERROR: u64 = 64 << 10;

/// A signal has ended the plugin.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// What the main thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// SIGINT, SIGTERM or SIGHUP has arrived.
    Signal,
    /// An output of the process with this number has ended.
    OutputEnded(u64),
}

/// kubectl with the user's context.
#[derive(Debug)]
pub(crate) struct Kubectl {
    context: Vec<String>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    started: Cell<u64>,
}

/// Output of kubectl.
#[derive(Debug)]
pub(crate) struct Answer {
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub is_success: bool,
    /// Whether a signal has arrived meanwhile.
    pub is_interrupted: bool,
}

impl Kubectl {
    /// Handles signals from now on.
    ///
    /// # Errors
    /// If this is not possible.
    pub(crate) fn new(args: &Args) -> Result<Self> {
        let options =
            [("context", &args.context), ("kubeconfig", &args.kubeconfig), ("as", &args.user)];
        let options = options
            .iter()
            .filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?)));
        let (sender, events) = mpsc::channel();
        let signals = sender.clone();
        ctrlc::set_handler(move || {
            // Fails when the main thread has ended.
            let _ = signals.send(Event::Signal);
        })
        .context("cannot handle signals")?;
        Ok(Self { context: options.collect(), events, sender, started: Cell::new(0) })
    }

    /// Returns a command that runs kubectl.
    pub(crate) fn command(&self, args: &[String]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(&self.context).args(args);
        command
    }

    /// Starts a command. Returns the number of the process for [`read`](Self::read).
    ///
    /// # Errors
    /// If kubectl is not in PATH.
    pub(crate) fn spawn(&self, command: &mut Command) -> Result<(Child, u64)> {
        let child = command.spawn().context("cannot run kubectl")?;
        self.started.set(self.started.get() + 1);
        Ok((child, self.started.get()))
    }

    /// Starts a thread that reads an output of a process. Its end is an event.
    pub(crate) fn read<T: Send + 'static>(
        &self,
        number: u64,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let sender = self.sender.clone();
        thread::spawn(move || {
            let result = read();
            let _ = sender.send(Event::OutputEnded(number));
            result
        })
    }

    /// Waits for the next event.
    pub(crate) fn next_event(&self) -> Event {
        // There is always a sender.
        self.events.recv().unwrap_or(Event::Signal)
    }

    /// Waits for this time.
    ///
    /// # Errors
    /// [`Interrupted`] if a signal arrives.
    pub(crate) fn sleep(&self, time: Duration) -> Result<()> {
        match self.events.recv_timeout(time) {
            Ok(Event::Signal) => bail!(Interrupted),
            Ok(Event::OutputEnded(_))
            | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    /// Runs kubectl, and ends it when a signal arrives.
    ///
    /// # Errors
    /// If it cannot be run, or if the answer is too large; [`Interrupted`].
    pub(crate) fn call(&self, args: &[String]) -> Result<Answer> {
        let mut command = self.command(args);
        self.run(command.stdin(Stdio::inherit()), None)
    }

    /// Runs kubectl to its end, even if signals arrive. They do not reach it, because it has a process group of its
    /// own.
    ///
    /// # Errors
    /// If it cannot be run, or if the answer is too large.
    pub(crate) fn complete(&self, args: &[String], input: &[u8]) -> Result<Answer> {
        let mut command = self.command(args);
        self.run(command.process_group(0).stdin(Stdio::piped()), Some(input))
    }

    fn run(&self, command: &mut Command, input: Option<&[u8]>) -> Result<Answer> {
        let (mut child, number) =
            self.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let read = |from: Option<Box<dyn Read + Send>>, limit: u64| {
            self.read(number, move || {
                let mut data = Vec::new();
                let Some(mut from) = from else { return Ok(data) };
                // If there is more, kubectl ends, because nobody reads it.
                from.as_mut().take(limit).read_to_end(&mut data)?;
                Ok::<_, io::Error>(data)
            })
        };
        let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _), MAX_ANSWER + 1);
        let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _), MAX_ERROR);
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            // If kubectl does not read it, its error says why.
            let _ = pipe.write_all(input);
        }
        let mut open_outputs = 2;
        let mut is_interrupted = false;
        while open_outputs > 0 {
            match self.next_event() {
                Event::OutputEnded(of) => open_outputs -= u32::from(of == number),
                Event::Signal if input.is_some() => is_interrupted = true,
                Event::Signal => {
                    // Fails if it has ended.
                    let _ = child.kill();
                    let _ = child.wait();
                    bail!(Interrupted);
                }
            }
        }
        let status = child.wait().context("cannot wait for kubectl")?;
        let lost = |_| anyhow!("cannot read the output of kubectl");
        let stdout = stdout.join().map_err(lost)?.context("cannot read the output of kubectl")?;
        let stderr = stderr.join().map_err(lost)?.context("cannot read the output of kubectl")?;
        if stdout.len() as u64 > MAX_ANSWER {
            bail!("the answer of the API server is larger than {} MiB", MAX_ANSWER >> 20);
        }
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Ok(Answer { stdout, stderr, is_success: status.success(), is_interrupted })
    }

    /// Reads from the API server. `right` is a verb and a resource, for a message.
    ///
    /// # Errors
    /// A message that explains the failure; [`Interrupted`].
    pub(crate) fn get(
        &self,
        args: &[String],
        right: (&str, &str),
        namespace: Option<&Namespace>,
        remedy: &str,
    ) -> Result<Vec<u8>> {
        let answer = self.call(args)?;
        if answer.is_success {
            return Ok(answer.stdout);
        }
        clean::print(&answer.stderr);
        let namespace = match namespace {
            Some(namespace) => namespace.clone(),
            None => self.current_namespace()?,
        };
        self.explain(right, &namespace, remedy)?;
        bail!("cannot {} {} in namespace {namespace}", right.0, right.1)
    }

    /// Returns the namespace of the current context.
    fn current_namespace(&self) -> Result<Namespace> {
        let answer = self.call(&requests::current_namespace())?.stdout;
        let name = String::from_utf8_lossy(&answer);
        Namespace::new(
            "the namespace of the context",
            if name.is_empty() { "default" } else { &name },
        )
    }

    /// Explains a failed request, if the user has no right for it.
    ///
    /// # Errors
    /// A message that names the right; [`Interrupted`].
    pub(crate) fn explain(
        &self,
        right: (&str, &str),
        namespace: &Namespace,
        remedy: &str,
    ) -> Result<()> {
        let (verb, resource) = right;
        let answer = self.call(&requests::can_i(verb, resource, namespace))?;
        if answer.stdout.trim_ascii() == b"no" {
            let or = if remedy.is_empty() { "" } else { ", or " };
            bail!(
                "you may not {verb} {resource} in namespace {namespace}; ask for this right{or}{remedy}"
            );
        }
        Ok(())
    }
}
