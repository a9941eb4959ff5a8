//! Windows put together to a coarser one: what was counted stays, when it was is told less finely.

use std::{collections::HashMap, sync::Arc};

use libjvmprobe::stack::{
    joined::join,
    profile::{Measure, Profile},
};

use crate::{
    stops::AllStops,
    store::file::Stored,
    window::{Taken, Window},
};

/// So many bytes the profiles of a window take in memory, about: of more, the rarest stacks are given
/// up. As a file, it is a tenth of that.
const MAX_SIZE: usize = 48 << 20;

/// Maximum memory that the lines of stops take in a window that was put together: some 40,000 lines. The
/// longest stops of each JVM keep their lines, the others are added up.
const MAX_STOPS: usize = 16 << 20;

/// Windows to be put together, which were taken one after the other. Lines of stops are bounded as windows
/// come, so that a host with many stops does not need all of them at once.
#[derive(Debug)]
pub struct Parts {
    windows: Vec<Stored>,
    stops: AllStops<(u32, u64)>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { windows: Vec::new(), stops: AllStops::new(MAX_STOPS) }
    }
}

impl Parts {
    /// Adds a window.
    pub fn add(&mut self, mut stored: Stored) {
        for taken in &mut stored.window.jvms {
            let (key, tenant) = ((taken.who.pid, taken.who.started_ns), taken.who.tenant());
            for line in std::mem::take(&mut taken.pauses) {
                self.stops.add(&key, &tenant, line);
            }
        }
        self.windows.push(stored);
    }

    /// Puts them together. Slots of time become as long as this at least.
    pub fn merge(mut self, slot_ns: u64) -> Stored {
        let mut merged = merge(self.windows, slot_ns);
        for taken in &mut merged.window.jvms {
            if let Some(stops) = self.stops.take(&(taken.who.pid, taken.who.started_ns)) {
                taken.pauses = stops.into_lines(taken.who.pid);
            }
        }
        merged
    }
}

fn merge(windows: Vec<Stored>, slot_ns: u64) -> Stored {
    let mut merged = Stored::default();
    merged.window.begin_ns = windows.iter().map(|w| w.window.begin_ns).min().unwrap_or(0);
    merged.window.end_ns = windows.iter().map(|w| w.window.end_ns).max().unwrap_or(0);
    merged.covered_ns = windows.iter().map(|w| w.covered_ns).fold(0, u64::saturating_add);
    for stored in &windows {
        for (what, ns) in &stored.window.left_out {
            let sum = merged.window.left_out.entry(what.clone()).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    merged.window.jvms = put_together(windows.into_iter().map(|stored| stored.window));
    let all = merged.window.jvms.iter_mut().flat_map(|taken| &mut taken.profiles);
    for profile in all {
        let one = vec![std::mem::take(profile)];
        *profile = join(one, slot_ns);
        profile.merge(false);
    }
    bound(&mut merged.window.jvms);
    merged
}

/// What was taken of each JVM in some windows, in one place: its profiles of each measure as one, and
/// its pauses in their order.
pub fn put_together(windows: impl Iterator<Item = Window>) -> Vec<Taken> {
    let mut jvms: Vec<Gathered> = Vec::new();
    let mut known: HashMap<(u32, u64), usize> = HashMap::new();
    for taken in windows.flat_map(|window| window.jvms) {
        let at = *known.entry((taken.who.pid, taken.who.started_ns)).or_insert_with(|| {
            jvms.push(Gathered::default());
            jvms.len() - 1
        });
        let gathered = &mut jvms[at];
        // What is known of it may have become more.
        gathered.who = Arc::clone(&taken.who);
        gathered.pauses.extend(taken.pauses);
        for profile in taken.profiles {
            let of = gathered.profiles.iter_mut().find(|(measure, _)| *measure == profile.measure);
            match of {
                Some((_, all)) => all.push(profile),
                None => gathered.profiles.push((profile.measure.clone(), vec![profile])),
            }
        }
    }
    let one = |gathered: Gathered| Taken {
        who: gathered.who,
        profiles: gathered.profiles.into_iter().map(|(_, all)| joined(all)).collect(),
        pauses: gathered.pauses,
    };
    jvms.into_iter().map(one).collect()
}

/// What is known of a JVM from several windows.
#[derive(Default)]
struct Gathered {
    who: Arc<crate::window::Identity>,
    profiles: Vec<(Measure, Vec<Profile>)>,
    pauses: Vec<String>,
}

/// Of profiles that do not tell when samples were taken, one does not either if it is alone: else the
/// begin of each tells.
fn joined(mut profiles: Vec<Profile>) -> Profile {
    match (profiles.pop(), profiles.is_empty()) {
        (Some(one), true) => one,
        (last, _) => {
            profiles.extend(last);
            let least =
                if profiles.iter().all(|profile| profile.slot_ns == 0) { WINDOW } else { 0 };
            join(profiles, least)
        }
    }
}

/// Where nothing else is known, samples are told by the window that they are of.
const WINDOW: u64 = 5_000_000_000;

/// Sees to it that what is written can be read again.
fn bound(jvms: &mut [Taken]) {
    let sizes = |jvms: &[Taken]| -> usize {
        jvms.iter().flat_map(|taken| &taken.profiles).map(Profile::size).sum()
    };
    let all = sizes(jvms);
    if all <= MAX_SIZE {
        return;
    }
    for profile in jvms.iter_mut().flat_map(|taken| &mut taken.profiles) {
        // Each gives up the same share.
        let share = profile.size() as f64 / all as f64 * MAX_SIZE as f64;
        profile.shrink(share as usize);
    }
}
