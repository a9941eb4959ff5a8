//! What javagc does with JVMs that are followed: gauges and stacks for them, records of them.

use std::{collections::HashSet, time::Duration};

use libjvmprobe::{
    Pid, Result,
    bpf::{
        clock,
        probes::Plan,
        session::{self, Attach},
    },
    follow::{ByKey, Followed, Named, Tool},
    hotspot::HotSpot,
    own::note,
    process::Target,
    render::table::Lost,
};

use crate::{
    args::Args,
    event::Event,
    model::Jvm,
    probes,
    record::Record,
    report::Reports,
    requests::Requests,
    session::{Session, load},
    summary::Totals,
};

/// A trace of collections.
pub struct Tracer<'a> {
    args: &'a Args,
    reports: Reports,
    session: Session,
    requests: Requests,
}

impl<'a> Tracer<'a> {
    /// Loads what those that are named need; JVMs still to come may need any of the programs.
    pub fn new(args: &'a Args, reports: Reports, named: &[Named]) -> Result<Self> {
        let plan =
            |(target, hotspot): &Named| probes::plan(&target.libjvm, hotspot.as_ref().ok(), args);
        let plans = named.iter().map(plan).collect::<Result<Vec<_>>>()?;
        let programs: HashSet<_> = plans.iter().flatten().map(|plan| plan.program).collect();
        let session = load((!args.common.all).then_some(&programs), args.stacks)?;
        Ok(Self { args, reports, session, requests: Requests::default() })
    }
}

impl Tool for Tracer<'_> {
    type Jvm = Jvm;
    const TAKES_YOUNG: bool = true;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&self, target: &Target, hotspot: Option<&HotSpot>) -> Result<Vec<Plan>> {
        probes::plan(&target.libjvm, hotspot, self.args)
    }

    /// The first stop wants to know the heap already, and the first stack to be walked.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        let Some(hotspot) = hotspot else { return };
        let gauges = &self.session.skel.maps.gauges;
        let what = "tell the kernel about the heap";
        if let Err(error) = session::tell(gauges, key, &hotspot.gauge.to_bytes(), what) {
            note(&error.to_string());
        }
        if let Some(walker) = self.session.walker().filter(|_| hotspot.is_set_up)
            && let Err(error) = self.requests.add(key, pid, hotspot, walker)
        {
            note(&format!("stacks of process {pid} are not shown: {error}"));
        }
    }

    fn admit(&mut self, _: u64, target: &Target, hotspot: &Result<HotSpot>) -> Result<Jvm> {
        let pid = target.pid();
        if let Err(error) = hotspot {
            let what = "collector, heap and causes are not known yet";
            note(&format!("process {pid}: {what}: {error}"));
        }
        let now = clock::monotonic_ns();
        Ok(Jvm::new(pid.0, Totals::new(now, self.args.histogram), now, self.args.pools))
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            let key = event.target();
            // What happened in a JVM before it was known is not told.
            let Some(Followed { jvm, hotspot, .. }) = jvms.get_mut(&key) else { continue };
            let hotspot = hotspot.as_ref().ok();
            match (&event, self.session.walker()) {
                (Event::Request(request), _) => self.requests.take(request),
                (Event::Stack(number, stack), Some(walker)) => {
                    self.requests.take_stack(*number, stack, hotspot, walker)?;
                }
                _ => {}
            }
            if let Some(mut record) = jvm.take(&event, hotspot) {
                if let Record::Pause(stop) = &mut record {
                    self.requests.settle(key, stop);
                }
                self.reports.record(&record)?;
            }
        }
        Ok(())
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.requests.let_go(self.session.walker());
        self.take_events(jvms, Duration::ZERO)
    }

    fn lost(&mut self, followed: &mut Followed<Jvm>, events: u64) -> Result<()> {
        followed.jvm.lost(events);
        self.reports.record(&Record::Lost(Lost::now(followed.target.pid().0, events)))
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        let now = clock::monotonic_ns();
        for followed in jvms.values_mut() {
            self.reports.record(&followed.jvm.summary(followed.hotspot.as_ref().ok(), now))?;
            followed.tell_stops();
            followed.jvm.next_interval(now);
        }
        Ok(())
    }

    fn gone(&mut self, key: u64, followed: Followed<Jvm>) -> Result<()> {
        self.requests.forget(key);
        let now = clock::monotonic_ns();
        self.reports.record(&followed.jvm.summary(followed.hotspot(), now))
    }

    fn is_closed(&self) -> bool {
        self.reports.are_closed()
    }
}
