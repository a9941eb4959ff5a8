//! Allocation profile of all traced JVMs together, for the output files.

use libjvmprobe::{
    bpf::stops::{Stop, StopLog},
    hotspot::description::Description,
    render::units::{bytes, span},
    stack::{
        profile::{Measure, Profile},
        timeline::Band,
    },
    trace::allocations::AllocationReport,
};

/// Allocation profile, and the stops of JVMs during the trace.
pub struct Flames {
    profile: Profile,
    stops: StopLog,
    jvms: Vec<Description>,
    /// Maximum size of the profile in bytes.
    max_memory: usize,
    /// Begin of the profile on `CLOCK_MONOTONIC`, in nanoseconds.
    begin_ns: u64,
}

impl Flames {
    /// Creates an empty profile. `slot_ns` is the length of the kernel side's time slots in
    /// nanoseconds, 0 if no output shows times.
    pub fn new(max_memory: usize, slot_ns: u64) -> Self {
        let mut profile = Profile::of(Measure::Allocation);
        profile.slot_ns = slot_ns;
        let stops = StopLog::default();
        Self { profile, stops, jvms: Vec::new(), max_memory, begin_ns: 0 }
    }

    /// Adds a stop of a JVM, for the timeline.
    pub fn add_stop(&mut self, stop: Stop) {
        self.stops.push(stop);
    }

    /// Adds the description of a JVM.
    pub fn add_jvm(&mut self, jvm: Description) {
        self.jvms.push(jvm);
    }

    /// Returns the descriptions of all JVMs.
    pub fn jvms(&self) -> &[Description] {
        &self.jvms
    }

    /// Adds the allocations of a JVM in the complete trace.
    pub fn add(&mut self, report: &AllocationReport<'_>) {
        let Some(profile) = report.profile() else { return };
        self.begin_ns = report.begin.ns;
        let duration_ns = self.profile.duration_ns.max(profile.duration_ns);
        let lost = self.profile.lost + profile.lost;
        self.profile.absorb(profile);
        (self.profile.duration_ns, self.profile.lost) = (duration_ns, lost);
        // The profile shrinks to half the limit, so that it need not shrink again for every further JVM.
        if self.profile.size() > self.max_memory {
            self.profile.shrink(self.max_memory / 2);
        }
    }

    /// Returns the profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the stops on the profile's time axis.
    pub fn bands(&self) -> Vec<Band> {
        self.stops.iter().map(|stop| Band::of(stop, self.begin_ns)).collect()
    }

    /// Returns one line with the total bytes, the duration and the allocation rate.
    pub fn describe(&self) -> String {
        let (total, duration_ns) = (self.profile.total(), self.profile.duration_ns.max(1));
        let rate = total as f64 / (duration_ns as f64 / 1e9);
        format!("{} in {}, {}/s", bytes(total), span(duration_ns), bytes(rate as u64))
    }
}
