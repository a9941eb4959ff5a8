//! classload: prints each class that a JVM loads, with the stack that caused it. This is a minimal
//! tool on top of the library; ARCHITECTURE.md explains it.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use clap::Parser;
use libbpf_rs::skel::SkelBuilder;
use libjvmprobe::{
    Pid, Result,
    bpf::{
        self, clock,
        probes::{Instant, Plan, resolve},
        records::{copy, text, word},
        session::{self, Attach, Session},
    },
    cli::{self, CommandLine, Common, describe},
    hotspot::HotSpot,
    jvms::{ByKey, Followed, Reading, Tool, Trace, tracing},
    process::Target,
    render::{output::Output, table::Times},
    stack::{StackFrame, namer::Namers, raw::RawStack},
    sys::stop_on_signal,
};
use plain::Plain;
use serde::Serialize;

/// Generated from classload.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/classload.skel.rs"));
}
use skel::{ClassloadSkel, ClassloadSkelBuilder, types::class_event};

/// Shows every class that a running JVM loads, with the stack that loads it.
#[derive(Clone, Debug, Parser)]
#[command(name = "classload", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    common: Common,
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }
}

/// The probe that classload attaches to.
const LOADED: [Instant; 1] = [Instant {
    usdt: ("hotspot", "class__loaded"),
    usdt_program: "class_loaded",
    functions: &[],
    function_program: "class_loaded",
}];

// SAFETY: class_event is a generated #[repr(C)] struct that has only integers and byte arrays, so
// any bit pattern is a valid value.
unsafe impl Plain for class_event {}

/// Records that the kernel side sends.
enum Event {
    Class(Box<class_event>),
    Stack(u64, RawStack),
}

impl Event {
    fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            1 => copy(record).map(|event| Self::Class(Box::new(event))),
            2 => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            _ => None,
        }
    }
}

/// State of one JVM, with the stacks received so far, by ID.
struct Jvm {
    stacks: HashMap<u64, Vec<StackFrame>>,
    classes: u64,
}

/// Output record of a loaded class.
#[derive(Serialize)]
struct Loaded {
    time: String,
    pid: u32,
    tid: u64,
    thread: String,
    class: String,
    stack: Vec<StackFrame>,
}

/// The tool: handles the JVMs that the library follows.
struct Tracer<'a> {
    args: &'a Args,
    out: Output,
    session: Session<ClassloadSkel<'static>, Event>,
    namers: Namers,
}

impl<'a> Tracer<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let mut open =
            ClassloadSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            data.uses_walk_data = true;
        }
        let skel = session::load(open)?;
        let session = Session::new(skel, Event::decode, true)?.with_maps_by_jvm(&["known_stacks"]);
        Ok(Self { args, out: Output::open(None)?, session, namers: Namers::default() })
    }

    fn show(&mut self, event: &class_event, jvm: &mut Jvm, pid: Pid) -> Result<()> {
        jvm.classes += 1;
        if self.args.common.quiet {
            return Ok(());
        }
        let loaded = Loaded {
            time: clock::rfc3339(event.ts_ns),
            pid: pid.0,
            tid: event.tid,
            thread: text(&event.comm),
            class: text(&event.name).replace('/', "."),
            stack: jvm.stacks.get(&event.stack).cloned().unwrap_or_default(),
        };
        if self.args.common.json {
            return self.out.json(&loaded);
        }
        let time = Times { dates: self.args.common.timestamps }.show(event.ts_ns);
        let Loaded { tid, thread, class, stack, .. } = loaded;
        self.out.line(&format!("{time} {:>7} {thread} ({tid}) {class}", pid.0))?;
        stack.iter().try_for_each(|frame| self.out.line(&format!("    at {frame}")))
    }
}

impl Tool for Tracer<'_> {
    type Jvm = Jvm;
    const TRACES_STARTING_JVMS: bool = false;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&mut self, target: &Target, _: Option<&HotSpot>) -> Result<Vec<Plan>> {
        resolve(&target.libjvm.target_path, &target.libjvm.elf()?, &LOADED)
    }

    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        if let (Some(hotspot), Some(walker)) = (hotspot, self.session.walker()) {
            self.namers.add(key, pid, hotspot, walker);
        }
    }

    fn admit(&mut self, _: u64, _: &Target, _: &Reading) -> Result<Jvm> {
        Ok(Jvm { stacks: HashMap::new(), classes: 0 })
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            let key = match &event {
                Event::Class(class) => class.target,
                Event::Stack(_, raw) => raw.target,
            };
            let Some(Followed { jvm, hotspot: Ok(hotspot), target, .. }) = jvms.get_mut(&key)
            else {
                continue;
            };
            match event {
                Event::Class(class) => self.show(&class, jvm, target.pid())?,
                Event::Stack(number, raw) => {
                    if let Some(walker) = self.session.walker()
                        && let Some(frames) = self.namers.name(hotspot, walker, &raw)?
                    {
                        let frames = frames.iter().rev().map(StackFrame::from).collect();
                        jvm.stacks.insert(number, frames);
                    }
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        for followed in jvms.values_mut() {
            let (pid, classes) = (followed.target.pid(), followed.jvm.classes);
            log::info!("process {pid} has loaded {classes} classes");
        }
        Ok(())
    }

    fn forget(&mut self, key: u64) {
        self.namers.forget(key);
    }

    fn is_closed(&self) -> bool {
        self.out.is_closed()
    }
}

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    let common = &args.common;
    bpf::preflight::check()?;
    bpf::preflight::check_walker()?;
    let stop = stop_on_signal()?;
    let named = tracing::find(&common.pids()?)?;
    let mut trace = Trace::start(Tracer::new(args)?, named, common.arrivals()?)?;
    let what = describe(common.all, trace.names());
    log::info!("Tracing classes that {what} loads... Hit Ctrl-C to end.");
    trace.run(common.times(), &stop)?;
    trace.tool.report(&mut trace.jvms)
}
