//! Events that can be sampled: `--event EVENT[/RATE]`.
//!
//! | module | contents |
//! |---|---|
//! | [`java`] | named events of Java programs |
//! | `attach` | attaching to events of the kernel and of files |
//! | `labels` | labels, which samples carry beside their stacks |

pub(super) mod attach;
pub mod java;
pub(super) mod labels;

use std::{str::FromStr, sync::Arc};

use java::JavaEvent;

use crate::{
    bpf::perf::{Event, Rate},
    names::near,
    stack::profile::Measure,
};

/// Maximum number of events sampled at once: `MAX_EVENTS` of bpf/javaprof.h.
pub const MAX_EVENTS: usize = 16;

/// Maximum frequency. Above it, sampling would slow down the programs that it measures.
pub const MAX_HERTZ: u64 = 10_000;

/// An event to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Its name, without the rate.
    pub name: Arc<str>,
    /// The kind of event.
    pub what: EventKind,
    /// The rate at which samples are taken, if one was given.
    pub rate: Option<Rate>,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// CPU time.
    Cpu,
    /// An event that the kernel counts in software.
    Software(Event),
    /// An event that processors count in hardware.
    Hardware(Event),
    /// A tracepoint of the kernel.
    Tracepoint {
        /// The group of the tracepoint.
        category: String,
        /// Its name in the group.
        name: String,
    },
    /// A function of the kernel.
    Kprobe(String),
    /// A function of a file that the process has mapped.
    Uprobe {
        /// The file's name without its directory, or the beginning of that name: `libjvm.so`, `libc`.
        library: String,
        /// The function's name in the file's symbol table.
        symbol: String,
    },
    /// A USDT probe of a file that the process has mapped.
    Usdt {
        /// The provider, for example `hotspot`.
        provider: String,
        /// The probe, for example `thread__start`.
        name: String,
    },
    /// A named event of Java programs.
    Java(JavaEvent),
    /// Time in which threads do not run.
    OffCpu,
    /// Wall-clock time: the time in which threads run and the time in which they do not.
    Wall,
}

const SOFTWARE: u32 = 1;
const HARDWARE: u32 = 0;

/// Counted events with their type and config for perf_event_open(2).
const COUNTED: [(&str, u32, u64); 9] = [
    ("page-faults", SOFTWARE, 2),
    ("context-switches", SOFTWARE, 3),
    ("minor-faults", SOFTWARE, 5),
    ("major-faults", SOFTWARE, 6),
    ("cpu-migrations", SOFTWARE, 4),
    ("cycles", HARDWARE, 0),
    ("instructions", HARDWARE, 1),
    ("cache-misses", HARDWARE, 3),
    ("branch-misses", HARDWARE, 5),
];

const CPU: &str = "cpu";
const WALL: &str = "wall";
const OFF_CPU: &str = "off-cpu";

/// Kinds of events that need arguments, with their syntax.
const WITH_ARGUMENTS: [(&str, &str); 4] = [
    ("tracepoint", "tracepoint:CATEGORY:NAME"),
    ("usdt", "usdt:PROVIDER:NAME"),
    ("uprobe", "uprobe:LIBRARY:FUNCTION"),
    ("kprobe", "kprobe:FUNCTION"),
];

/// Returns the names of all events, as they are written in the option.
pub fn names() -> impl Iterator<Item = &'static str> {
    let counted = COUNTED.iter().map(|(name, ..)| *name);
    let java = JavaEvent::ALL.iter().map(|event| event.name());
    let open = WITH_ARGUMENTS.iter().map(|(_, how)| *how);
    [CPU, WALL, OFF_CPU].into_iter().chain(counted).chain(java).chain(open)
}

impl FromStr for EventSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rate) = match text.rsplit_once('/') {
            Some((name, rate)) => (name, Some(parse_rate(rate)?)),
            None => (text, None),
        };
        let what = EventKind::from_str(name)?;
        let spec = Self { name: name.into(), what, rate };
        match (&spec.what, spec.rate) {
            (EventKind::Cpu | EventKind::Software(_) | EventKind::Hardware(_), _) | (_, None) => {}
            (EventKind::Wall | EventKind::OffCpu, _) => {
                return Err(format!("{name} cannot have a rate of its own: omit the rate"));
            }
            (_, Some(_)) => {
                return Err(format!("{name} counts every event: omit the rate"));
            }
        }
        if let (EventKind::Cpu, Some(Rate::Each(_))) = (&spec.what, spec.rate) {
            return Err("cpu needs a rate per second, for example cpu/99hz".into());
        }
        Ok(spec)
    }
}

impl FromStr for EventKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            CPU => return Ok(Self::Cpu),
            WALL => return Ok(Self::Wall),
            OFF_CPU => return Ok(Self::OffCpu),
            _ => {}
        }
        if let Some(&(_, kind, config)) = COUNTED.iter().find(|(known, ..)| *known == name) {
            let event = Event { kind, config };
            return Ok(if kind == HARDWARE {
                Self::Hardware(event)
            } else {
                Self::Software(event)
            });
        }
        if let Some(event) = JavaEvent::ALL.into_iter().find(|event| event.name() == name) {
            return Ok(Self::Java(event));
        }
        let parts: Vec<_> = name.split(':').collect();
        let has_all_parts = parts.iter().all(|part| !part.is_empty());
        match parts[..] {
            ["tracepoint", category, name] if has_all_parts => {
                Ok(Self::Tracepoint { category: category.into(), name: name.into() })
            }
            ["usdt", provider, name] if has_all_parts => {
                Ok(Self::Usdt { provider: provider.into(), name: name.into() })
            }
            ["uprobe", library, symbol] if has_all_parts => {
                Ok(Self::Uprobe { library: library.into(), symbol: symbol.into() })
            }
            ["kprobe", function] if has_all_parts => Ok(Self::Kprobe(function.into())),
            [kind, ..] => Err(match WITH_ARGUMENTS.iter().find(|(known, _)| *known == kind) {
                Some((_, how)) => format!("expected {how}"),
                None => unknown(name),
            }),
            [] => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> String {
    let all = names().map(|name| name.split(':').next().unwrap_or(name).to_owned());
    match near(name, all) {
        near if near.is_empty() => {
            format!("unknown event; known events: {}", names().collect::<Vec<_>>().join(", "))
        }
        near => format!("unknown event; similar names: {}", near.join(", ")),
    }
}

/// Parses `N` (each N-th event) or `Nhz` (N times per second).
fn parse_rate(text: &str) -> Result<Rate, String> {
    let lower = text.to_ascii_lowercase();
    let rate = match lower.strip_suffix("hz") {
        Some(hertz) => hertz.parse().ok().filter(|h| (1..=MAX_HERTZ).contains(h)).map(Rate::Hertz),
        None => lower.parse().ok().filter(|n| (1..=1_000_000_000_000).contains(n)).map(Rate::Each),
    };
    rate.ok_or_else(|| {
        format!(
            "invalid rate {text}: use N for every N-th event, or Nhz for N samples per second, 1 \
             to {MAX_HERTZ}"
        )
    })
}

impl EventSpec {
    /// CPU time, at the frequency of `-F`.
    pub fn cpu() -> Self {
        Self { name: CPU.into(), what: EventKind::Cpu, rate: None }
    }

    /// Time that threads spend off the processor.
    pub fn off_cpu() -> Self {
        Self { name: OFF_CPU.into(), what: EventKind::OffCpu, rate: None }
    }

    /// Returns whether the event is CPU time.
    pub(crate) fn is_cpu(&self) -> bool {
        self.what == EventKind::Cpu
    }

    /// Returns the samples per second and processor: the event's rate, or `frequency` if it has none.
    pub fn hertz(&self, frequency: u64) -> u64 {
        match self.rate {
            Some(Rate::Hertz(hertz)) => hertz,
            _ => frequency,
        }
    }

    /// Returns the measure of the event's profile.
    pub fn measure(&self) -> Measure {
        match &self.what {
            EventKind::Cpu => Measure::Time,
            EventKind::Java(event) if event.has_duration() => {
                Measure::Elapsed(Arc::clone(&self.name))
            }
            EventKind::Wall | EventKind::OffCpu => Measure::Elapsed(Arc::clone(&self.name)),
            _ => Measure::Events(Arc::clone(&self.name)),
        }
    }

    /// Returns the programs of bpf/javaprof.bpf.c that record the event, without those that record waits.
    pub fn programs(&self) -> Vec<&'static str> {
        match &self.what {
            EventKind::Cpu | EventKind::Wall | EventKind::Software(_) | EventKind::Hardware(_) => {
                vec!["sample"]
            }
            EventKind::OffCpu => Vec::new(),
            EventKind::Tracepoint { .. } => vec!["any_tracepoint"],
            EventKind::Kprobe(_) => vec!["any_kprobe"],
            EventKind::Uprobe { .. } => vec!["any_uprobe"],
            EventKind::Usdt { .. } => vec!["any_usdt"],
            EventKind::Java(event) => event.programs().collect(),
        }
    }

    /// Returns whether the event includes the waits of threads.
    pub fn has_waits(&self) -> bool {
        matches!(self.what, EventKind::Wall | EventKind::OffCpu)
    }

    /// Returns whether the event is thinned if it occurs too often: all events except those sampled at a rate and
    /// those that measure time.
    pub(crate) fn is_thinned(&self) -> bool {
        match self.what {
            EventKind::Cpu | EventKind::Hardware(_) | EventKind::Wall | EventKind::OffCpu => false,
            EventKind::Software(_) => self.rate.is_none(),
            EventKind::Java(event) => !event.has_duration(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_event_specs_are_parsed() {
        let what = |text: &str| text.parse::<EventSpec>().map(|spec| (spec.what, spec.rate));
        let faults = EventKind::Software(Event { kind: 1, config: 2 });
        assert_eq!(what("page-faults/100"), Ok((faults, Some(Rate::Each(100)))));
        assert_eq!(what("cpu/49Hz"), Ok((EventKind::Cpu, Some(Rate::Hertz(49)))));
        assert_eq!(what("exceptions"), Ok((EventKind::Java(JavaEvent::Exceptions), None)));
        let tracepoint =
            EventKind::Tracepoint { category: "sched".into(), name: "sched_switch".into() };
        assert_eq!(what("tracepoint:sched:sched_switch"), Ok((tracepoint, None)));
        let uprobe = EventKind::Uprobe { library: "libc.so.6".into(), symbol: "malloc".into() };
        assert_eq!(what("uprobe:libc.so.6:malloc"), Ok((uprobe, None)));
    }

    #[test]
    fn invalid_event_spec_error_lists_similar_names() {
        let error = |text: &str| text.parse::<EventSpec>().unwrap_err();
        assert!(error("pagefaults").contains("page-faults"), "{}", error("pagefaults"));
        assert!(error("exception").contains("exceptions"));
        assert!(error("zzz").contains("known events: cpu, wall"), "{}", error("zzz"));
        assert!(error("usdt:hotspot").contains("usdt:PROVIDER:NAME"));
        assert!(error("tracepoint::x").contains("CATEGORY"));
        for rate in ["page-faults/0", "cpu/1000000000hz", "cpu/7", "cycles/x", "deopt/9"] {
            assert!(!error(rate).is_empty(), "{rate}");
        }
    }
}
