//! Merges windows into a coarser one. Counts stay the same, and time slots become longer.
//!
//! The size of a window is bounded. Space is divided among tenants first, and then among the JVMs of a
//! tenant: see [`bound`].

use std::{collections::HashMap, mem::take, sync::Arc};

use libjvmprobe::{
    stack::{
        merging::join,
        profile::{Measure, Profile},
    },
    trace::pauses::record::Record,
};

use crate::{
    stops::{AllStops, Lost, share_of, shrink_fairly},
    store::file::Stored,
    thread_dump::{self, ThreadDump},
    window::{HostTicks, JvmData, Window},
};

/// Approximate maximum memory for the profiles of a merged window, in bytes. On disk, they take about a tenth
/// of that, so the merged windows of 24 hours fit into the default size of the store.
const MAX_MERGED: usize = 48 << 20;
/// Approximate maximum memory for the profiles of a window that is not merged yet, in bytes.
pub const MAX_UNMERGED: usize = 16 << 20;

/// Maximum memory for the records of stops in a merged window, in bytes: about 40,000 records. The longest
/// stops of each JVM keep their records, and the others are added up.
const MAX_STOPS: usize = 16 << 20;

/// Maximum memory for the thread dumps of a merged window, in bytes.
const MAX_MERGED_DUMPS: usize = 16 << 20;
/// Maximum memory for the thread dumps of a window that is not merged yet, in bytes.
pub const MAX_UNMERGED_DUMPS: usize = 4 << 20;

/// Maximum length of the identities of all JVMs of a window as JSON, in bytes.
pub const MAX_IDENTITIES: usize = 64 << 20;

/// Successive windows that are to be merged. Records of stops are bounded as windows are added, so that the
/// records of a host with many stops are never all in memory at once.
#[derive(Debug)]
pub struct Parts {
    windows: Vec<Stored>,
    /// Memory for the profiles of the windows, in bytes.
    bytes: usize,
    stops: AllStops<(u32, u64)>,
    slot_ns: u64,
    limited: Lost,
}

impl Parts {
    /// Starts without windows. Time slots of the result are at least this long, in nanoseconds.
    pub fn new(slot_ns: u64) -> Self {
        let stops = AllStops::new(MAX_STOPS);
        Self { windows: Vec::new(), bytes: 0, stops, slot_ns, limited: Lost::new() }
    }

    /// Adds a window. If the windows take too much memory, they are merged at once.
    pub fn add(&mut self, mut stored: Stored) {
        for jvm_data in &mut stored.window.jvms {
            let (key, tenant) =
                ((jvm_data.identity.pid, jvm_data.identity.started_ns), jvm_data.identity.tenant());
            for record in take(&mut jvm_data.pauses) {
                self.stops.add(&key, &tenant, record.into());
            }
        }
        self.bytes += memory(&stored.window.jvms);
        self.windows.push(stored);
        if self.bytes > MAX_MERGED && self.windows.len() > 1 {
            let merged = self.merge_windows();
            self.bytes = memory(&merged.window.jvms);
            self.windows.push(merged);
        }
    }

    fn merge_windows(&mut self) -> Stored {
        let mut merged = merge(take(&mut self.windows), self.slot_ns);
        let stacks = bound(&mut merged.window.jvms, MAX_MERGED);
        let dumps = thread_dump::bound(&mut merged.window.jvms, MAX_MERGED_DUMPS);
        let attributes = bound_identities(&mut merged.window.jvms, MAX_IDENTITIES);
        for (tenant, lost) in stacks.into_iter().chain(dumps).chain(attributes) {
            *self.limited.entry(tenant).or_default() += lost;
        }
        merged
    }

    /// Merges the windows. Also returns the number of stacks, thread dumps and attributes that each tenant lost because
    /// space ran out.
    pub fn merge(mut self) -> (Stored, Lost) {
        let mut merged = self.merge_windows();
        for jvm_data in &mut merged.window.jvms {
            if let Some(stops) =
                self.stops.take(&(jvm_data.identity.pid, jvm_data.identity.started_ns))
            {
                jvm_data.pauses = stops.into_records(jvm_data.identity.pid);
            }
        }
        (merged, self.limited)
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
    merged.window.host_ticks = windows
        .iter()
        .map(|stored| stored.window.host_ticks)
        .reduce(|a, b| sum(a, b, HostTicks::plus))
        .flatten();
    let join_profiles = |profiles| {
        let mut profile = join(profiles, slot_ns);
        // In a merged window, almost every sample would have a context of its own.
        profile.limit_spans(0);
        profile.merge(false);
        profile
    };
    merged.window.jvms = combine(windows.into_iter().map(|stored| stored.window), join_profiles);
    merged
}

/// Combines windows by JVM: joins the profiles of each measure into one, and appends the pauses in order.
pub fn combine_by_jvm(windows: impl Iterator<Item = Window>) -> Vec<JvmData> {
    combine(windows, joined)
}

fn combine(
    windows: impl Iterator<Item = Window>,
    join_profiles: impl Fn(Vec<Profile>) -> Profile,
) -> Vec<JvmData> {
    let mut jvms: Vec<MergedJvm> = Vec::new();
    let mut positions: HashMap<(u32, u64), usize> = HashMap::new();
    for jvm_data in windows.flat_map(|window| window.jvms) {
        let at = *positions
            .entry((jvm_data.identity.pid, jvm_data.identity.started_ns))
            .or_insert_with(|| {
                jvms.push(MergedJvm::default());
                jvms.len() - 1
            });
        let merged_jvm = &mut jvms[at];
        // A later window may contain more attributes of the JVM, or fewer if they exceeded a limit.
        if jvm_data.identity.attributes.len() >= merged_jvm.identity.attributes.len() {
            merged_jvm.identity = Arc::clone(&jvm_data.identity);
        }
        merged_jvm.pauses.extend(jvm_data.pauses);
        merged_jvm.dumps.extend(jvm_data.dumps);
        let more = [jvm_data.cpu_ns, jvm_data.system_cpu_ns];
        merged_jvm.cpu_ns = match merged_jvm.cpu_ns {
            None => Some(more),
            Some([all, system]) => Some([
                sum(all, more[0], u64::saturating_add),
                sum(system, more[1], u64::saturating_add),
            ]),
        };
        for profile in jvm_data.profiles {
            let of =
                merged_jvm.profiles.iter_mut().find(|(measure, _)| *measure == profile.measure);
            match of {
                Some((_, all)) => all.push(profile),
                None => merged_jvm.profiles.push((profile.measure.clone(), vec![profile])),
            }
        }
    }
    let one = |merged_jvm: MergedJvm| JvmData {
        identity: merged_jvm.identity,
        profiles: merged_jvm.profiles.into_iter().map(|(_, all)| join_profiles(all)).collect(),
        pauses: merged_jvm.pauses,
        dumps: merged_jvm.dumps,
        cpu_ns: merged_jvm.cpu_ns.and_then(|[all, _]| all),
        system_cpu_ns: merged_jvm.cpu_ns.and_then(|[_, system]| system),
    };
    jvms.into_iter().map(one).collect()
}

/// Data of one JVM from several windows.
#[derive(Default)]
struct MergedJvm {
    identity: Arc<crate::window::Identity>,
    profiles: Vec<(Measure, Vec<Profile>)>,
    pauses: Vec<Record>,
    dumps: Vec<ThreadDump>,
    /// CPU time of all windows so far, and its part in the kernel. The outer option is `None` before the first window, and
    /// an inner one is `None` if the time is unknown for a window.
    cpu_ns: Option<[Option<u64>; 2]>,
}

/// Adds two values. The sum is known only if both are.
fn sum<T>(a: Option<T>, b: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    a.zip(b).map(|(a, b)| add(a, b))
}

/// Joins profiles of one measure. A single profile stays as it is. If none of several profiles has time
/// slots, the samples of each profile are dated to the profile's begin.
fn joined(mut profiles: Vec<Profile>) -> Profile {
    match (profiles.pop(), profiles.is_empty()) {
        (Some(one), true) => one,
        (last, _) => {
            profiles.extend(last);
            let least = if profiles.iter().all(|profile| profile.slot_ns == 0) {
                DEFAULT_SLOT_NS
            } else {
                0
            };
            join(profiles, least)
        }
    }
}

/// Length of a time slot when profiles have none, in nanoseconds. It is shorter than a window, so samples of
/// different windows stay apart.
const DEFAULT_SLOT_NS: u64 = 5_000_000_000;

/// Shrinks profiles until all of them together take at most about `max` bytes of memory. Space is divided
/// among tenants, then among JVMs, then among profiles. A tenant with many distinct stacks loses its own
/// rarest stacks, and a tenant within its share loses nothing. Returns the number of lost stacks by tenant.
pub fn bound(jvms: &mut [JvmData], max: usize) -> Lost {
    let all = jvms.iter_mut().map(|jvm_data| (jvm_data.identity.tenant(), jvm_data));
    shrink_fairly(
        all,
        max,
        |jvm_data| size_of(jvm_data),
        |jvm_data, share| {
            let share = share_of(jvm_data.profiles.iter().map(Profile::size), share);
            let mut lost = 0;
            for profile in jvm_data.profiles.iter_mut().filter(|profile| profile.size() > share) {
                // Samples that differ only in the processor or the trace context are merged first. That does not lose
                // a stack.
                profile.merge(false);
                if profile.size() > share {
                    profile.limit_spans(0);
                }
                let before = profile.samples.len();
                profile.shrink(share);
                lost += before.saturating_sub(profile.samples.len()) as u64;
            }
            lost
        },
    )
}

/// Drops attributes until the identities of all JVMs have at most about `max` bytes as JSON, so that one tenant's JVMs
/// cannot make the window too large for the reader. An identity that exceeds its share keeps only the attributes that
/// determine the tenant. Returns the number of lost attributes by tenant.
pub fn bound_identities(jvms: &mut [JvmData], max: usize) -> Lost {
    let identities = jvms.iter_mut().map(|jvm| (jvm.identity.tenant(), &mut jvm.identity));
    shrink_fairly(
        identities,
        max,
        |identity| identity.json_size(),
        |identity, _| {
            let before = identity.attributes.len();
            *identity = Arc::new(identity.without_details());
            (before - identity.attributes.len()) as u64
        },
    )
}

/// Returns the memory that the data of some JVMs take, without stops, in bytes.
fn memory(jvms: &[JvmData]) -> usize {
    let identities: usize = jvms.iter().map(|jvm_data| jvm_data.identity.json_size()).sum();
    size(jvms) + thread_dump::size(jvms) + identities
}

/// Returns the memory that the profiles of some JVMs take, in bytes.
fn size(jvms: &[JvmData]) -> usize {
    jvms.iter().map(size_of).sum()
}

fn size_of(jvm_data: &JvmData) -> usize {
    jvm_data.profiles.iter().map(Profile::size).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libjvmprobe::stack::{Frame, Kind, profile::Sample};

    use super::*;
    use crate::window::{Identity, Window};

    /// Returns data of a JVM in a container, with this number of distinct stacks, each sampled once.
    fn jvm_data(pid: u32, container: &str, stacks: u32) -> JvmData {
        let attributes = BTreeMap::from([("container.id".to_owned(), container.to_owned())]);
        let identity = Identity { pid, attributes, ..Identity::default() };
        let mut profile = Profile::default();
        (profile.hertz, profile.slot_ns) = (20, 1_000_000_000);
        for number in 0..stacks {
            let frame = Frame::new(Kind::Java, &*format!("app{pid}.Storm.call{number}"));
            let stack = vec![profile.intern(frame)];
            profile.samples.push(Sample {
                count: 1,
                times: vec![(0, 1)],
                ..Sample::of(pid, "main".into(), pid, stack)
            });
        }
        JvmData { identity: identity.into(), profiles: vec![profile], ..JvmData::default() }
    }

    fn stacks(jvm_data: &JvmData) -> usize {
        jvm_data.profiles.iter().map(|profile| profile.samples.len()).sum()
    }

    fn total_samples(jvm_data: &JvmData) -> u64 {
        jvm_data.profiles.iter().map(Profile::total).sum()
    }

    #[test]
    fn tenant_with_excessive_attributes_loses_only_its_own() {
        let jvm = |container: &str, bytes: usize| {
            let mut jvm_data = jvm_data(1, container, 0);
            let identity = Arc::make_mut(&mut jvm_data.identity);
            identity.attributes.insert("a".into(), "x".repeat(bytes));
            jvm_data
        };
        let mut jvms: Vec<_> = (0..20).map(|_| jvm("noisy", 1000)).collect();
        jvms.push(jvm("quiet", 2000));
        let limited = bound_identities(&mut jvms, 10_000);
        assert_eq!(limited, Lost::from([("container/noisy".into(), 20)]));
        assert!(jvms[..20].iter().all(|jvm| &*jvm.identity.tenant() == "container/noisy"));
        assert_eq!(jvms[20].identity.attributes.len(), 2);
        assert!(bound_identities(&mut jvms, 10_000).is_empty());
    }

    #[test]
    fn merged_cpu_time_requires_cpu_time_of_each_window() {
        let sum = |all: &[Option<u64>]| {
            let window = |&cpu_ns: &Option<u64>| {
                let jvms = vec![JvmData { cpu_ns, ..JvmData::default() }];
                Window { jvms, ..Window::default() }
            };
            combine_by_jvm(all.iter().map(window))[0].cpu_ns
        };
        assert_eq!(sum(&[Some(1), Some(2), Some(4)]), Some(7));
        assert_eq!(sum(&[Some(1), None, Some(4)]), None);
    }

    #[test]
    fn noisy_tenant_loses_only_its_own_stacks() {
        let mut jvms = vec![
            jvm_data(1, "quiet", 300),
            jvm_data(2, "noisy", 20_000),
            jvm_data(3, "noisy", 200),
            jvm_data(4, "other", 500),
        ];
        let max = 2 << 20;
        assert!(size(&jvms) > max);
        let limited = bound(&mut jvms, max);
        assert!(size(&jvms) <= max, "{}", size(&jvms));
        assert_eq!([0, 2, 3].map(|at: usize| stacks(&jvms[at])), [300, 200, 500]);
        let noisy = stacks(&jvms[1]);
        assert!(noisy < 20_000, "{noisy}");
        // The sum of samples is unchanged, and lost stacks are reported.
        assert_eq!(total_samples(&jvms[1]), 20_000);
        assert_eq!(limited, Lost::from([("container/noisy".into(), (20_000 - noisy) as u64)]));
        assert!(bound(&mut jvms, max).is_empty());
    }

    #[test]
    fn tenants_over_the_limit_get_equal_shares() {
        let mut jvms: Vec<_> = (1..=4).map(|pid| jvm_data(pid, &format!("c{pid}"), 5000)).collect();
        jvms.push(jvm_data(5, "quiet", 10));
        // Stacks that were sampled more often than others are kept.
        for jvm_data in &mut jvms[..4] {
            jvm_data.profiles[0].samples.iter_mut().take(100).for_each(|sample| sample.count = 9);
        }
        let max = 1 << 20;
        let limited = bound(&mut jvms, max);
        assert!(size(&jvms) <= max);
        assert_eq!((limited.len(), stacks(&jvms[4])), (4, 10));
        let left: Vec<_> = jvms[..4].iter().map(stacks).collect();
        assert!(left.iter().all(|&stacks| stacks == left[0] && stacks > 100), "{left:?}");
    }

    #[test]
    fn merge_memory_is_bounded_and_quiet_tenant_is_complete() {
        let mut parts = Parts::new(10_000_000_000);
        let mut peak = 0;
        for number in 0..6_u64 {
            // A class storm: each window has different stacks.
            let mut noisy = jvm_data(2, "noisy", 40_000);
            let samples = noisy.profiles.remove(0).samples;
            let mut profile = Profile::default();
            (profile.hertz, profile.slot_ns) = (20, 1_000_000_000);
            for (at, mut sample) in samples.into_iter().enumerate() {
                let name = format!("storm.Made{number}.call{at}");
                sample.stack = vec![profile.intern(Frame::new(Kind::Java, &*name))];
                profile.samples.push(sample);
            }
            noisy.profiles.push(profile);
            let jvms = vec![jvm_data(1, "quiet", 300), noisy];
            let begin_ns = number * 15_000_000_000;
            let window =
                Window { begin_ns, end_ns: begin_ns + 15_000_000_000, jvms, ..Window::default() };
            parts.add(Stored { window, covered_ns: 15_000_000_000, of: Vec::new() });
            peak = peak.max(parts.bytes);
        }
        assert!(peak <= MAX_MERGED, "{peak}");
        let (merged, limited) = parts.merge();
        assert!(size(&merged.window.jvms) <= MAX_MERGED);
        assert_eq!(limited.keys().map(|tenant| &**tenant).collect::<Vec<_>>(), ["container/noisy"]);
        let [quiet, noisy] = &merged.window.jvms[..] else { panic!("two JVMs") };
        assert_eq!((stacks(quiet), total_samples(quiet)), (300, 1800));
        assert_eq!(total_samples(noisy), 240_000);
        assert_eq!(merged.covered_ns, 90_000_000_000);
    }
}
