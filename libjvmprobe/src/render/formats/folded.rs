//! Folded stacks: one line per stack. Frames from the outermost to the innermost, separated by semicolons, are followed
//! by a space and a count, as in Brendan Gregg's flame graph scripts and bcc's `profile -f`. The command's name comes
//! first.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use crate::render::formats::{Format, FormatOptions, TitledProfile, wrong_profile_count};
use crate::{
    names::clean,
    stack::{
        Frame,
        profile::{Profile, Sample},
    },
};

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".folded",
    name: "folded stacks",
    draws_differences: false,
    holds_several: false,
    shows_times: false,
    has_span_labels: false,
    write: |profiles, format_options, to| {
        let [TitledProfile { profile, .. }] = profiles else { return Err(wrong_profile_count()) };
        let FormatOptions { threads, by_second, .. } = *format_options;
        let options = Options { threads, by_second };
        write(profile, options, to)
    },
};

/// Format of lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Add `THREAD-TID` after the command's name.
    pub threads: bool,
    /// Write separate lines for each second of the profile, which begin with the number of that second.
    pub by_second: bool,
}

/// Returns the lines, sorted and without line breaks.
pub fn lines(profile: &Profile, options: Options) -> Vec<String> {
    let names: Vec<_> = profile.frames().iter().map(Frame::folded).collect();
    let mut counts: BTreeMap<(u64, String), u64> = BTreeMap::new();
    for sample in &profile.samples {
        let mut line = head(sample, options);
        for &id in &sample.stack {
            line.push(';');
            line.push_str(&names[id as usize]);
        }
        let mut add = |second, line, count| {
            let sum = counts.entry((second, line)).or_default();
            *sum = sum.saturating_add(count);
        };
        if options.by_second {
            for &(slot, count) in &sample.times {
                add(u64::from(slot).saturating_mul(profile.slot_ns) / SECOND, line.clone(), count);
            }
        } else {
            add(0, line, sample.count);
        }
    }
    let line = |((second, stack), count): ((u64, String), u64)| match options.by_second {
        true => format!("{second};{stack} {count}"),
        false => format!("{stack} {count}"),
    };
    counts.into_iter().map(line).collect()
}

/// One second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Writes the lines.
///
/// # Errors
/// Returns the errors of the writer.
pub fn write(profile: &Profile, options: Options, mut to: impl Write) -> io::Result<()> {
    for line in lines(profile, options) {
        writeln!(to, "{line}")?;
    }
    to.flush()
}

/// Returns the beginning of a line: the command and, with `threads`, the thread.
pub(in crate::render) fn head(sample: &Sample, options: Options) -> String {
    // Names must not contain the format's separator.
    let part = |name: &str| clean::name(name).replace(';', "_");
    let command = part(&sample.command);
    if options.threads {
        format!("{command};{}-{}", part(&sample.thread), sample.tid)
    } else {
        command
    }
}

#[cfg(test)]
pub(in crate::render) mod tests {
    use super::*;
    use crate::stack::Kind;

    /// A profile with samples of one stack in two threads, and one sample in the kernel.
    pub(crate) fn profile() -> Profile {
        let mut profile = Profile::default();
        profile.hertz = 99;
        let main = profile.intern(Frame::new(Kind::Java, "a.Main.main"));
        let run = profile.intern(Frame {
            file: Some("Main.java".into()),
            line: 7,
            ..Frame::new(Kind::Inlined, "a.Main.run")
        });
        let read = profile.intern(Frame::new(Kind::Kernel, "vfs_read"));
        let sample = |tid, stack: &[u32], count| Sample {
            count,
            ..Sample::of(12, "worker;1".into(), tid, stack.to_vec())
        };
        profile.samples = vec![
            sample(13, &[main, run], 2),
            sample(14, &[main, run], 3),
            sample(14, &[main, read], 1),
        ];
        profile
    }

    #[test]
    fn equal_stacks_merge_into_one_line() {
        assert_eq!(
            lines(&profile(), Options::default()),
            ["java;a.Main.main;a.Main.run 5", "java;a.Main.main;vfs_read_[k] 1"]
        );
    }

    #[test]
    fn by_second_option_writes_separate_lines_per_second() {
        let mut profile = profile();
        profile.slot_ns = 500_000_000;
        for sample in &mut profile.samples {
            // In seconds 1 and 10, counted from 0.
            sample.times = vec![(3, 1), (21, sample.count.saturating_sub(1))];
            sample.times.retain(|(_, count)| *count > 0);
        }
        let lines = lines(&profile, Options { by_second: true, ..Options::default() });
        let seconds: Vec<_> = lines.iter().map(|line| line.split_once(';').unwrap().0).collect();
        assert!(seconds.is_sorted_by_key(|second| second.parse::<u64>().unwrap()), "{lines:?}");
        assert!(seconds.contains(&"1"), "{lines:?}");
        let count = |line: &String| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        assert_eq!(lines.iter().map(count).sum::<u64>(), profile.total());
    }

    #[test]
    fn threads_option_writes_separate_lines_per_thread() {
        let options = Options { threads: true, by_second: false };
        assert_eq!(
            lines(&profile(), options),
            [
                "java;worker_1-13;a.Main.main;a.Main.run 2",
                "java;worker_1-14;a.Main.main;a.Main.run 3",
                "java;worker_1-14;a.Main.main;vfs_read_[k] 1"
            ]
        );
    }
}
