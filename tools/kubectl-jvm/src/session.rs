//! Runs the tool in a pod on the node, and receives its output and files.
//!
//! The tool ends when its standard input does, and the plugin holds the writing end of the pipe that leads there. So
//! the tool ends even if the plugin is killed.

use std::{
    io::{self, BufReader, IsTerminal, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};

use crate::{
    archive::{self, Names},
    args::{Args, Tool},
    clean::{self, say},
    debug_pod::random_digits,
    grammar::ObjectName,
    kubectl::{Event, Interrupted, Kubectl},
    requests,
};

/// Signals that follow the first one within this time are ignored: timeout(1) sends a signal twice, to the process and
/// to its group.
const SIGNAL_PAUSE: Duration = Duration::from_secs(2);

/// Runs the tool in the pod. Returns its exit status.
///
/// # Errors
/// If the tool cannot be run, or its files are incomplete; [`Interrupted`].
pub(crate) fn run(
    kubectl: &Kubectl,
    args: &Args,
    pod: &ObjectName,
    tool: Tool,
    tool_args: &[String],
    names: &Names,
) -> Result<u8> {
    let namespace = &args.node_namespace;
    let mark = format!("files-{}", random_digits::<8>()?);
    let mark = (!names.is_empty()).then_some(mark);
    let mut command =
        kubectl.command(&requests::exec(pod, namespace, mark.as_deref(), tool, tool_args));
    // A terminal sends SIGINT to the plugin's process group, but kubectl must wait for the results of the tool.
    command.process_group(0).stdin(Stdio::piped()).stderr(Stdio::piped());
    let is_terminal = io::stdout().is_terminal();
    if is_terminal {
        command.stdout(Stdio::piped());
    }
    let (mut child, number) = kubectl.spawn(&mut command)?;
    let output = child
        .stdout
        .take()
        .map(|pipe| kubectl.read(number, move || clean::copy(pipe, &mut io::stdout())));
    let (stderr, names) = (child.stderr.take().context("no pipe")?, names.clone());
    let messages =
        kubectl.read(number, move || receive(stderr, mark.as_deref(), &names, Path::new(".")));
    let mut open_outputs = 1 + u32::from(output.is_some());
    let (mut input, mut interrupted) = (child.stdin.take(), Instant::now());
    while open_outputs > 0 {
        match kubectl.next_event() {
            Event::OutputEnded(of) => open_outputs -= u32::from(of == number),
            Event::Signal if input.is_some() => {
                input = None;
                interrupted = Instant::now();
            }
            Event::Signal if interrupted.elapsed() < SIGNAL_PAUSE => {}
            Event::Signal => {
                let _ = child.kill();
                let _ = child.wait();
                bail!(Interrupted);
            }
        }
    }
    drop(input);
    let status = child.wait().context("cannot wait for kubectl")?;
    let received = messages.join().map_err(|_| anyhow!("cannot read the messages of the tool"))?;
    if received.is_old {
        bail!(
            "the jvmprobe of pod {pod} is older than this plugin; use --debug-pod with a newer --image"
        );
    }
    if received.is_refused {
        kubectl.explain(
            ("create", "pods/exec"),
            namespace,
            "name another namespace with --node-namespace",
        )?;
    }
    let is_expected = received.files.context("the files are incomplete")?;
    let code = status.code().or_else(|| Some(status.signal()? + 128));
    let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(if is_expected { code } else { 1 })
}

/// What the messages and the archive say.
#[derive(Debug)]
struct Received {
    /// The program on the node does not know `jvmprobed remote`.
    is_old: bool,
    /// kubectl has reported an error.
    is_refused: bool,
    /// Whether all files of the archive were expected.
    files: Result<bool>,
}

/// Prints messages, and receives the archive that follows the mark. kubectl's line about the exit status is dropped,
/// because the tool has printed a message of its own.
fn receive(from: impl Read, mark: Option<&str>, names: &Names, dir: &Path) -> Received {
    let mut from = BufReader::new(from);
    let mut received = Received { is_old: false, is_refused: false, files: Ok(true) };
    // An error is that of a broken connection, about which kubectl has printed a message.
    while let Ok(Some(line)) = clean::next_line(&mut from) {
        let text = String::from_utf8_lossy(&line);
        if mark.is_some_and(|mark| text.trim_end_matches('\n') == mark) {
            received.files = archive::receive(&mut from, names, dir, &mut say);
            let _ = io::copy(&mut from, &mut io::sink());
            break;
        }
        if text.contains("unrecognized subcommand 'remote'") {
            received.is_old = true;
        } else if !text.starts_with("command terminated with exit code ") {
            received.is_refused |=
                text.starts_with("Error from server") || text.starts_with("error:");
            clean::print(&text);
        }
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(text: &[u8]) -> Received {
        let folder = tempfile::tempdir().unwrap();
        let received =
            receive(text, Some("mark"), &Names::new(vec!["a.svg".into()]).unwrap(), folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        received
    }

    #[test]
    fn messages_are_understood() {
        let it = received(b"Tracing...\ncommand terminated with exit code 3\n");
        assert!(!it.is_old && !it.is_refused && it.files.unwrap());
        assert!(received(b"error: unrecognized subcommand 'remote'\n").is_old);
        assert!(received(b"Error from server (Forbidden): pods").is_refused);
        assert!(received(b"mark\n").files.is_err());
        assert!(received(&[&b"mark\n"[..], &[0; 1024]].concat()).files.unwrap());
        // Only a whole line is the mark.
        assert!(received(b"the mark\nmarks\n").files.unwrap());
    }
}
