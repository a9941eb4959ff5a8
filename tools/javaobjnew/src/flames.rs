//! What was allocated as a profile for files, of all JVMs together.

use libjvmprobe::{
    bpf::stops::{Stop, StopLog},
    render::units::{bytes, span},
    stack::{
        profile::{Measure, Profile},
        timeline::{Band, Timeline},
    },
    take::allocations::Told,
};

/// The profile, and when JVMs were stopped meanwhile.
pub struct Flames {
    profile: Profile,
    stops: StopLog,
    /// How many bytes the profile may take.
    max_memory: usize,
    /// When it began, on the kernel's clock.
    begin_ns: u64,
}

impl Flames {
    /// Nothing yet; `slot_ns` is how long slots of time are on the kernel side, 0 where nobody wants
    /// to know when something was allocated.
    pub fn new(max_memory: usize, slot_ns: u64) -> Self {
        let mut profile = Profile::of(Measure::Allocation);
        profile.slot_ns = slot_ns;
        Self { profile, stops: StopLog::default(), max_memory, begin_ns: 0 }
    }

    /// Takes a stop of a JVM.
    pub fn take_stop(&mut self, stop: Stop) {
        self.stops.push(stop);
    }

    /// Adds what a JVM has allocated in the whole trace.
    pub fn add(&mut self, told: &Told<'_>) {
        let Some(profile) = told.profile() else { return };
        self.begin_ns = told.begin.ns;
        let duration_ns = self.profile.duration_ns.max(profile.duration_ns);
        let lost = self.profile.lost + profile.lost;
        self.profile.absorb(profile);
        (self.profile.duration_ns, self.profile.lost) = (duration_ns, lost);
        // With room for more, or it would be done with each JVM.
        if self.profile.size() > self.max_memory {
            self.profile.shrink(self.max_memory / 2);
        }
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// When that was, where it is wanted.
    pub fn timeline(&self) -> Option<Timeline> {
        let mut timeline = Timeline::of(&self.profile)?;
        timeline.bands = self.stops.iter().map(|stop| Band::of(stop, self.begin_ns)).collect();
        Some(timeline)
    }

    /// One line about all of it.
    pub fn describe(&self) -> String {
        let (total, duration_ns) = (self.profile.total(), self.profile.duration_ns.max(1));
        let rate = total as f64 / (duration_ns as f64 / 1e9);
        format!("{} in {}, {}/s", bytes(total), span(duration_ns), bytes(rate as u64))
    }
}
