//! Parser for the JVM's unified log of collections and safepoints, which tests use as reference.
//!
//! The log is written with `-Xlog:gc*,safepoint=debug:...:timenanos,tags`, so each line begins with
//! `[CLOCK_MONOTONIC ns][tags]`. JDK 11 logs a stop in several lines, later versions in one.

use std::collections::HashMap;

/// Contents of a log.
#[derive(Debug, Default)]
pub struct Log {
    /// Stops of the application, in order.
    pub stops: Vec<Stop>,
    /// Concurrent cycles, in order of their ends.
    pub cycles: Vec<Cycle>,
}

/// A stop of the application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stop {
    /// The operation's name.
    pub op: String,
    /// Timestamp of the line, which is written at or just after the stop's end.
    pub end_ns: u64,
    /// The log's `Total`.
    pub total_ns: u64,
    /// Collections during the stop.
    pub collections: Vec<Collection>,
}

/// One collection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collection {
    /// The number in `GC(N)`.
    pub id: u64,
    /// ZGC's generation: `y`, `Y` or `O`; empty without generations.
    pub generation: String,
    /// For example `Pause Young (Normal)`.
    pub kind: String,
    /// Cause: the last parenthesis of the kind, if it has one.
    pub cause: Option<String>,
    /// Used heap before and after, if the line has it.
    pub heap: Option<(Size, Size)>,
    /// Used heap at the start of the pause, if ZGC's table has it.
    pub used: Option<Size>,
    /// Duration in nanoseconds, with microsecond resolution.
    pub pause_ns: u64,
}

/// A size as in the log, rounded down to a whole unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The number.
    pub count: u64,
    /// Size of the unit in bytes.
    pub unit: u64,
}

impl Size {
    /// Whether the log shows this number of bytes as this size.
    pub fn is(self, bytes: u64) -> bool {
        bytes / self.unit == self.count
    }
}

/// A concurrent cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Cycle {
    /// The number in `GC(N)`.
    pub id: u64,
    /// For example `Garbage Collection` or `Concurrent Mark Cycle`.
    pub kind: String,
    /// Cause, if the log has it.
    pub cause: Option<String>,
    /// Timestamp of the first line with its number.
    pub begin_ns: u64,
    /// Timestamp of the line that logs its end.
    pub end_ns: u64,
}

impl Collection {
    /// Whether it was a full collection.
    pub fn is_full(&self) -> bool {
        self.kind.starts_with("Pause Full")
    }
}

impl Stop {
    /// Returns the time at which it began.
    pub fn begin_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.total_ns)
    }
}

/// Parses a log.
pub fn parse(text: &str) -> Log {
    let mut log = Log::default();
    let mut current = Stop::default();
    let mut tables = Vec::new();
    let mut begins = HashMap::new();
    for line in text.lines() {
        let Some((ns, tags, message)) = split(line) else {
            continue;
        };
        if let Some((id, _)) = numbered(message) {
            begins.entry(id).or_insert(ns);
        }
        match tags {
            "safepoint" => stop_line(&mut log, &mut current, ns, message),
            "gc" | "gc,phases" => {
                if let Some(collection) = pause(message) {
                    current.collections.push(collection);
                }
                let begin = |id| begins.get(&id).copied().unwrap_or(ns);
                log.cycles.extend(cycle(ns, message).map(|c| Cycle { begin_ns: begin(c.id), ..c }));
            }
            "gc,heap" => tables.extend(table(ns, message)),
            _ => {}
        }
    }
    for stop in &mut log.stops {
        for collection in &mut stop.collections {
            let used = match collection.kind.split(" (").next() {
                Some("Pause Mark Start") => |table: &Table| table.mark_start,
                Some("Pause Relocate Start") => |table: &Table| table.relocate_start,
                _ => continue,
            };
            // System.gc() collects the young generation twice under the same number, so the stop's
            // time selects the table.
            let of = |table: &&Table| {
                table.id == collection.id
                    && table.generation == collection.generation
                    && table.end_ns > stop.end_ns
            };
            collection.used = tables.iter().find(of).map(used);
        }
    }
    log
}

/// Used heap at two instants of a ZGC cycle, from the table at its end.
struct Table {
    id: u64,
    generation: String,
    end_ns: u64,
    mark_start: Size,
    relocate_start: Size,
}

/// Parses `GC(1) y:      Used:       64M (100%)         56M (88%)          48M (75%)  ...`. The columns
/// are Mark Start, Mark End, Relocate Start, Relocate End, High and Low. A similar line with four
/// columns is about one generation and is ignored.
fn table(end_ns: u64, message: &str) -> Option<Table> {
    let (id, text) = numbered(message)?;
    let (generation, text) = generation(text);
    let sizes = text.trim_start().strip_prefix("Used:")?.split_ascii_whitespace();
    let sizes: Vec<_> = sizes.filter_map(size).collect();
    let [mark_start, _, relocate_start, _, _, _] = sizes[..] else { return None };
    Some(Table { id, generation: generation.into(), end_ns, mark_start, relocate_start })
}

/// Splits off the generation: generational ZGC begins a line with `y: `.
fn generation(text: &str) -> (&str, &str) {
    text.split_once(": ").filter(|(generation, _)| generation.len() == 1).unwrap_or(("", text))
}

/// Returns timestamp, tags and message of `[123ns][gc,start   ] text`.
fn split(line: &str) -> Option<(u64, &str, &str)> {
    let (ns, rest) = line.strip_prefix('[')?.split_once("ns]")?;
    let (tags, message) = rest.strip_prefix('[')?.split_once(']')?;
    Some((ns.parse().ok()?, tags.trim_end(), message.trim()))
}

fn stop_line(log: &mut Log, current: &mut Stop, ns: u64, message: &str) {
    if let Some(op) = message.strip_prefix("Entering safepoint region: ") {
        current.op = op.into();
    } else if let Some(rest) =
        message.strip_prefix("Total time for which application threads were stopped: ")
    {
        let seconds = rest.split(' ').next().and_then(|s| s.parse::<f64>().ok()).expect("seconds");
        current.total_ns = (seconds * 1e9).round() as u64;
        current.end_ns = ns;
        log.stops.push(std::mem::take(current));
    } else if let Some((op, rest)) =
        message.strip_prefix("Safepoint \"").and_then(|m| m.split_once('"'))
    {
        let total = rest.split("Total: ").nth(1).and_then(|t| t.split(' ').next());
        current.total_ns = total.and_then(|t| t.parse().ok()).expect("a total");
        current.op = op.into();
        current.end_ns = ns;
        log.stops.push(std::mem::take(current));
    }
}

/// Parses `GC(17) Pause Young (Allocation Failure) 58M->58M(61M) 0.027ms`, with a generation for
/// generational ZGC: `y: Pause Mark Start 0.008ms`.
fn pause(message: &str) -> Option<Collection> {
    let (id, text) = numbered(message)?;
    let (generation, text) = generation(text);
    let (text, ms) = text.strip_suffix("ms")?.rsplit_once(' ')?;
    let pause_ns = (ms.parse::<f64>().ok()? * 1e6).round() as u64;
    let (text, heap) = match text.rsplit_once(' ') {
        Some((rest, text)) if text.contains("->") => (rest, sizes(text)),
        _ => (text, None),
    };
    // If a young collection failed, some versions log `(Evacuation Failure...` or `(to-space exhausted)`
    // after the cause.
    let caused = text.split(" (Evacuation Failure").next().unwrap_or(text);
    let cause = last_parentheses(caused.split(" (to-space exhausted)").next().unwrap_or(caused));
    text.starts_with("Pause ").then(|| Collection {
        id,
        generation: generation.into(),
        kind: text.into(),
        cause: cause.map(str::to_owned),
        heap,
        used: None,
        pause_ns,
    })
}

/// Parses the stops in the log of JDK 8 (`-XX:+PrintGC -XX:+PrintGCApplicationStoppedTime`). Their
/// end times are in nanoseconds since the JVM's start, with millisecond resolution. Concurrent GC
/// threads may write into the middle of another line:
///
/// ```text
/// 2.224: [GC pause (G1 Evacuation Pause) (young)2.225: [GC concurrent-mark-end, 0.0100675 secs]
///  64275K->64275K(65536K), 0.0013379 secs]
/// 2.226: Total time for which application threads were stopped: 0.0015 seconds, Stopping ...
/// ```
pub fn stops_of_jdk_8(text: &str) -> Vec<Stop> {
    const END: &str = "Total time for which application threads were stopped: ";
    let nanoseconds = |text: &str| {
        let seconds: f64 = text.split(' ').next()?.parse().ok()?;
        Some((seconds * 1e9).round() as u64)
    };
    let collections = |text: &str| {
        let kinds = [("[Full GC (", "Pause Full"), ("[GC pause (", "Pause"), ("[GC (", "Pause")];
        let begun = kinds.iter().flat_map(|&(word, kind)| {
            text.match_indices(word).map(move |(at, _)| (at, kind, &text[at + word.len()..]))
        });
        let mut begun: Vec<_> = begun.collect();
        begun.sort_by_key(|&(at, ..)| at);
        let collection = |(_, kind, rest): (usize, &str, &str)| {
            let cause = rest.split_once(") ").map(|(cause, _)| cause.to_owned());
            // The duration is the last number before the closing bracket. A line that a concurrent
            // thread wrote into this one is before that number.
            let end = rest.split("[GC (").next().and_then(|own| own.split("[Full GC (").next());
            let took = end.and_then(|own| own.rsplit_once(" secs]")?.0.rsplit_once(", "));
            let pause_ns = took.and_then(|(_, seconds)| nanoseconds(seconds)).unwrap_or(0);
            Collection { kind: kind.into(), cause, pause_ns, ..Collection::default() }
        };
        begun.into_iter().map(collection).collect()
    };
    let ends: Vec<_> = text.match_indices(END).map(|(at, _)| at).collect();
    let begins = [0].into_iter().chain(ends.iter().map(|end| end + END.len()));
    let stop = |(begin, &end): (usize, &usize)| {
        let total_ns = nanoseconds(&text[end + END.len()..])?;
        let is_stamp = |c: char| c.is_ascii_digit() || c == '.';
        // The last timestamp before the text. If another line was written between this line's
        // timestamp and its text, the timestamp of the other line is used.
        let before = text[..end].rsplit(": ").skip(1);
        let mut stamps = before.filter_map(|before| before.rsplit(|c| !is_stamp(c)).next());
        let end_ns = stamps.find_map(nanoseconds)?;
        let collections = collections(&text[begin..end]);
        Some(Stop { end_ns, total_ns, collections, ..Stop::default() })
    };
    begins.zip(&ends).filter_map(stop).collect()
}

/// A collection in the log of JDK 8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldCollection {
    /// For example `GC (Allocation Failure)`.
    pub kind: String,
    /// Used heap before.
    pub before: Size,
    /// Used heap after. The same as before for CMS's marking pauses, which free nothing.
    pub after: Size,
}

/// Parses the collections in the log of JDK 8 (`-XX:+PrintGC`) that have heap sizes: `0.512: [GC
/// (Allocation Failure)  17472K->2624K(60352K), 0.0034 secs]`.
pub fn sizes_of_jdk_8(text: &str) -> Vec<OldCollection> {
    let collection = |line: &str| {
        let text = line.split_once(": [")?.1.rsplit_once(", ")?.0;
        let (kind, heap) = text.rsplit_once(' ')?;
        let (before, after) = sizes(heap).or_else(|| {
            let used = size(heap.split_once('(')?.0)?;
            Some((used, used))
        })?;
        Some(OldCollection { kind: kind.trim_end().into(), before, after })
    };
    text.lines().filter_map(collection).collect()
}

/// Parses `58M->10M(61M)`.
fn sizes(text: &str) -> Option<(Size, Size)> {
    let (before, rest) = text.split_once("->")?;
    Some((size(before)?, size(rest.split_once('(')?.0)?))
}

/// Parses `58M`.
fn size(text: &str) -> Option<Size> {
    let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "B" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    Some(Size { count: count.parse().ok()?, unit })
}

/// Returns the text in the parentheses at the end of a line. Parentheses may nest: `(System.gc())`.
fn last_parentheses(text: &str) -> Option<&str> {
    let inner = text.strip_suffix(')')?;
    let mut depth = 1;
    for (at, c) in inner.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inner[at + 1..]);
        }
    }
    None
}

fn cycle(end_ns: u64, message: &str) -> Option<Cycle> {
    let (id, text) = numbered(message)?;
    const G1: [&str; 3] = ["Concurrent Mark Cycle", "Concurrent Undo Cycle", "Concurrent Cycle"];
    const Z: [&str; 3] = ["Garbage Collection (", "Minor Collection (", "Major Collection ("];
    if let Some(kind) =
        G1.iter().find(|kind| text.strip_prefix(**kind).is_some_and(|r| r.ends_with("ms")))
    {
        return Some(Cycle { id, kind: (*kind).into(), cause: None, begin_ns: end_ns, end_ns });
    }
    // The line at the cycle's end has sizes: `Garbage Collection (Warmup) 8M(12%)->6M(9%)`.
    let kind = Z.iter().find(|kind| text.starts_with(**kind) && text.contains("%)->"))?;
    let cause = text[kind.len()..].split_once(") ").map(|(cause, _)| cause.to_owned());
    Some(Cycle { id, kind: kind.trim_end_matches(" (").into(), cause, begin_ns: end_ns, end_ns })
}

fn numbered(message: &str) -> Option<(u64, &str)> {
    let (id, text) = message.strip_prefix("GC(")?.split_once(") ")?;
    Some((id.parse().ok()?, text))
}

/// Returns the durations in nanoseconds of all stops with collections, in order.
pub fn collecting_stops(log: &str) -> Vec<u64> {
    let stops = parse(log).stops.into_iter();
    stops.filter(|stop| !stop.collections.is_empty()).map(|stop| stop.total_ns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_with_two_collections_is_parsed() {
        let log = parse(
            "[269720568ns][safepoint      ] Safepoint synchronization initiated using futex wait barrier. (11 threads)\n\
             [269753216ns][gc,start       ] GC(17) Pause Young (Allocation Failure)\n\
             [281520128ns][gc             ] GC(17) Pause Young (Allocation Failure) 58M->58M(61M) 0.027ms\n\
             [286720725ns][gc             ] GC(18) Pause Full (System.gc()) 58M->10M(61M) 5.192ms\n\
             [286731801ns][safepoint      ] Safepoint \"GenCollectForAllocation\", Time since last: 9605463 ns, \
             Reaching safepoint: 23916 ns, Cleanup: 2694 ns, At safepoint: 5250291 ns, Total: 5276901 ns\n",
        );
        let [stop] = &log.stops[..] else { panic!("{log:?}") };
        assert_eq!((stop.op.as_str(), stop.total_ns), ("GenCollectForAllocation", 5_276_901));
        let [young, full] = &stop.collections[..] else { panic!("{stop:?}") };
        assert_eq!(young.cause.as_deref(), Some("Allocation Failure"));
        let mib = |count| Size { count, unit: 1 << 20 };
        assert_eq!((young.pause_ns, young.is_full()), (27_000, false));
        assert_eq!((young.heap, full.heap), (Some((mib(58), mib(58))), Some((mib(58), mib(10)))));
        assert_eq!((full.cause.as_deref(), full.is_full()), (Some("System.gc()"), true));
    }

    #[test]
    fn jdk_11_safepoint_log_is_parsed() {
        let log = parse(
            "[65313560ns][safepoint    ] Entering safepoint region: GenCollectForAllocation\n\
             [75207262ns][safepoint    ] Leaving safepoint region\n\
             [75210376ns][safepoint    ] Total time for which application threads were stopped: 0.0098976 seconds, \
             Stopping threads took: 0.0000038 seconds\n",
        );
        assert_eq!(log.stops[0].total_ns, 9_897_600);
        assert_eq!(log.stops[0].op, "GenCollectForAllocation");
    }

    #[test]
    fn jdk_8_heap_sizes_are_parsed() {
        let kib = |count| Size { count, unit: 1 << 10 };
        let of = |kind: &str, before, after| OldCollection {
            kind: kind.into(),
            before: kib(before),
            after: kib(after),
        };
        let log = sizes_of_jdk_8(
            "1.947: [Full GC (Allocation Failure)  64835K->30021K(65536K), 0.0257858 secs]\n\
             1.975: [GC concurrent-mark-abort]\n\
             1.976: [GC remark, 0.0055745 secs]\n\
             2.024: [GC cleanup 57157K->57157K(65536K), 0.0002290 secs]\n\
             2.1: [GC (CMS Initial Mark)  45320K(63360K), 0.0002290 secs]\n",
        );
        let expected = [
            of("Full GC (Allocation Failure)", 64_835, 30_021),
            of("GC cleanup", 57_157, 57_157),
            of("GC (CMS Initial Mark)", 45_320, 45_320),
        ];
        assert_eq!(log, expected);
    }

    #[test]
    fn jdk_8_stops_are_parsed() {
        let stops = stops_of_jdk_8(
            "1.203: Total time for which application threads were stopped: 0.0154471 seconds, Stopping threads took: 0.0023592 seconds\n\
             2.224: [GC pause (G1 Evacuation Pause) (young)2.225: [GC concurrent-mark-end, 0.0100675 secs]\n \
             64275K->64275K(65536K), 0.0013379 secs]\n\
             2.226: [Full GC (System.gc())  30133K->16261K(63360K), 0.0101912 secs]\n\
             2.226: 2.227: [GC concurrent-mark-start]\n\
             Total time for which application threads were stopped: 0.0120000 seconds, Stopping threads took: 0.0000010 seconds\n",
        );
        let [other, stop] = &stops[..] else { panic!("{stops:?}") };
        assert_eq!((other.total_ns, other.collections.len()), (15_447_100, 0));
        assert_eq!((other.end_ns, stop.end_ns), (1_203_000_000, 2_227_000_000));
        let collections: Vec<_> = stop
            .collections
            .iter()
            .map(|c| (c.cause.as_deref(), c.is_full(), c.pause_ns))
            .collect();
        assert_eq!(
            collections,
            [
                (Some("G1 Evacuation Pause"), false, 1_337_900),
                (Some("System.gc()"), true, 10_191_200)
            ]
        );
        assert_eq!(stop.total_ns, 12_000_000);
    }

    #[test]
    fn cycles_and_zgc_generations_are_parsed() {
        let log = parse(
            "[1ns][gc          ] GC(6) Garbage Collection (Allocation Stall)\n\
             [2ns][gc,phases   ] GC(6) y: Pause Mark Start 0.008ms\n\
             [3ns][gc          ] GC(6) Garbage Collection (Allocation Stall) 64M(100%)->14M(22%)\n\
             [4ns][gc          ] GC(7) Minor Collection (Allocation Rate) 54M(84%)->16M(25%) 0.001s\n\
             [5ns][gc          ] GC(12) Concurrent Mark Cycle\n\
             [6ns][gc          ] GC(12) Concurrent Mark Cycle 2.400ms\n\
             [7ns][safepoint   ] Safepoint \"ZMarkStart\", Total: 9 ns\n\
             [8ns][gc,heap     ] GC(6) y:      Used:    0M (0%)     0M (0%)    0M (0%)    0M (0%)\n\
             [8ns][gc,heap     ] GC(6) y:      Used:   64M (100%)  56M (88%)  48M (75%)  14M (22%)  64M (100%)  14M (22%)\n",
        );
        let kinds: Vec<_> = log.cycles.iter().map(|c| (c.id, c.kind.as_str())).collect();
        assert_eq!(
            kinds,
            [(6, "Garbage Collection"), (7, "Minor Collection"), (12, "Concurrent Mark Cycle")]
        );
        let times: Vec<_> = log.cycles.iter().map(|c| (c.begin_ns, c.end_ns)).collect();
        assert_eq!(times, [(1, 3), (4, 4), (5, 6)]);
        assert_eq!(log.cycles[0].cause.as_deref(), Some("Allocation Stall"));
        let collection = &log.stops[0].collections[0];
        assert_eq!((collection.kind.as_str(), collection.id), ("Pause Mark Start", 6));
        assert_eq!(collection.used, Some(Size { count: 64, unit: 1 << 20 }));
    }
}
