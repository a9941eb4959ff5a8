//! entered: test tool that prints the methods that a JVM entered while this tool was attached. The
//! JVM must run with `-XX:+DTraceMethodProbes`, so that a probe fires on each entry of a method,
//! whether interpreted, compiled or inlined. The flag changes neither bytecodes nor their sizes; the
//! agent in tests/java/agent, which also records entries, changes both.

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use libbpf_rs::{
    MapCore,
    skel::{OpenSkel, SkelBuilder},
};
use libjvmprobe::{
    Result,
    bpf::{
        self,
        probes::{Instant, Plan, resolve},
        records::text,
        session::{self, Attach, Session},
    },
    cli::{self, CommandLine, Common},
    hotspot::HotSpot,
    jvms::{ByKey, Followed, Reading, Tool, Trace, tracing},
    process::Target,
    render::output::Output,
    sys::stop_on_signal,
};
use serde::Serialize;

/// Generated from entered.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/entered.skel.rs"));
}
use skel::{EnteredSkel, EnteredSkelBuilder};

/// Lengths of the name fields, as in entered.bpf.c.
const CLASS: usize = 128;
const NAME: usize = 64;

/// Prints the methods that a JVM enters.
#[derive(Clone, Debug, Parser)]
#[command(name = "entered", version)]
struct Args {
    #[command(flatten)]
    common: Common,
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }
}

const ENTRY: [Instant; 1] = [Instant {
    usdt: ("hotspot", "method__entry"),
    usdt_program: "method_entry",
    functions: &[],
    function_program: "method_entry",
}];

#[derive(Serialize)]
struct Entered {
    class: String,
    method: String,
    descriptor: String,
}

struct Tracer {
    out: Output,
    session: Session<EnteredSkel<'static>, ()>,
}

impl Tracer {
    fn new() -> Result<Self> {
        let open =
            EnteredSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
        let skel = open.load().map_err(bpf::load_error)?;
        Ok(Self { out: Output::open(None)?, session: Session::new(skel, |_| None, false)? })
    }

    fn write(&mut self) -> Result<()> {
        let keys: Vec<_> = self.session.skel.maps.methods.keys().collect();
        for key in keys {
            let part = |range: std::ops::Range<usize>| {
                let bytes = key.get(range).unwrap_or_default();
                let signed: Vec<_> = bytes.iter().map(|&byte| byte.cast_signed()).collect();
                text(&signed)
            };
            self.out.json(&Entered {
                class: part(0..CLASS).replace('/', "."),
                method: part(CLASS..CLASS + NAME),
                descriptor: part(CLASS + NAME..key.len()),
            })?;
        }
        Ok(())
    }
}

impl Tool for Tracer {
    type Jvm = ();
    const TRACES_STARTING_JVMS: bool = false;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&mut self, target: &Target, _: Option<&HotSpot>) -> Result<Vec<Plan>> {
        resolve(&target.libjvm.target_path, &target.libjvm.elf()?, &ENTRY)
    }

    fn admit(&mut self, _: u64, _: &Target, _: &Reading) -> Result<()> {
        Ok(())
    }

    fn take_events(&mut self, _: &mut ByKey<()>, timeout: Duration) -> Result<()> {
        self.session.events(timeout).map(|events| events.for_each(drop))
    }

    fn report(&mut self, _: &mut ByKey<()>) -> Result<()> {
        Ok(())
    }

    fn on_end(&mut self, _: u64, _: Followed<()>) -> Result<()> {
        self.write()
    }

    fn is_closed(&self) -> bool {
        self.out.is_closed()
    }
}

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    bpf::preflight::check()?;
    let stop = stop_on_signal()?;
    let named = tracing::find(&args.common.pids()?)?;
    let mut trace = Trace::start(Tracer::new()?, named, None)?;
    log::info!("Tracing methods... Hit Ctrl-C to end.");
    trace.run(args.common.times(), &stop)?;
    match trace.jvms.is_empty() {
        true => Ok(()),
        false => trace.tool.write(),
    }
}
