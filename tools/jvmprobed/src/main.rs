//! jvmprobed: continuously records profiles, allocation and pauses of all JVMs of a host, stores them, and
//! pushes them to other systems.
//!
//! [`settings`] combines arguments and configuration. [`collect`](jvmprobed::collect) records data in windows
//! ([`jvmprobed::window`]). It passes each window to the [`store`](jvmprobed::store), to the totals for
//! scrapers ([`jvmprobed::metrics`]) and to push targets ([`jvmprobed::push`]). [`show`] prints stored data.

use std::process::ExitCode;

use anyhow::Result;
use jvmprobed::{
    args::{Args, Command},
    collect::daemon,
    config::Config,
    remote, settings, show, suspects,
};
use libjvmprobe::cli;

fn main() -> ExitCode {
    cli::run_plain(|args: &Args| (args.completions, args.verbose > 0), start)
}

fn start(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Show(args)) => show::run(args)?,
        Some(Command::List(args)) => show::list::run(args)?,
        Some(Command::Remote(args)) => return remote::run(args),
        None => run_daemon(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_daemon(args: &Args) -> Result<()> {
    settings::log(args.daemon.log);
    let config = Config::read(args.daemon.config.as_deref())?;
    settings::log(args.daemon.log.or(config.log));
    let store = settings::store(&args.daemon, &config)?;
    let _marks = suspects::begin(store.path());
    let options = settings::options(&args.daemon, config, args.verbose);
    daemon::run(options, store, || settings::read_again(&args.daemon))
}
