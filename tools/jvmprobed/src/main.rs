//! jvmprobed: all JVMs of a host, all the time: profiles, allocation and pauses to look back into
//! and to push on.
//!
//! Arguments and configuration say what is [`wanted`]; [`collect`](jvmprobed::collect) takes it,
//! window by window ([`jvmprobed::window`]), for the [`store`](jvmprobed::store), for scrapers
//! ([`jvmprobed::metrics`]) and for others ([`jvmprobed::push`]). [`show`] looks back into the store.

use std::process::ExitCode;

use anyhow::Result;
use jvmprobed::{
    args::{Args, Command},
    collect::daemon,
    config::Config,
    show, wanted,
};
use libjvmprobe::cli;

fn main() -> ExitCode {
    cli::run_plain(|args: &Args| (args.completions, args.verbose > 0), start)
}

fn start(args: &Args) -> Result<()> {
    match &args.command {
        Some(Command::Show(args)) => return show::run(args),
        Some(Command::List(args)) => return show::list::run(args),
        None => {}
    }
    wanted::log(args.daemon.log);
    let config = Config::read(args.daemon.config.as_deref())?;
    wanted::log(args.daemon.log.or(config.log));
    let store = wanted::store(&args.daemon, &config)?;
    let options = wanted::options(&args.daemon, config, args.verbose);
    daemon::run(options, store, || wanted::read_again(&args.daemon))
}
