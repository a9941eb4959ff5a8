//! perf-PID.map files: names of generated code, for `perf`.
//!
//! Source: Linux, tools/perf/Documentation/jit-interface.txt: `START SIZE NAME`, numbers in hexadecimal. Inlined code
//! can be unfolded into separate entries, as perf-map-agent does.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use clap::ValueEnum;

use crate::{
    Addr,
    names::{
        clean,
        code::{Code, CodeKind, SourceFrame},
    },
};

/// Treatment of inlined code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Unfold {
    /// Inlined code has no entries of its own
    #[default]
    None,
    /// Entries named by the innermost method
    Simple,
    /// Entries named by the call chain, outer->inner
    All,
}

/// Format of names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Treatment of inlined code.
    pub unfold: Unfold,
    /// Add the parameters of methods.
    pub signatures: bool,
    /// Add `(File.java:LINE)` to methods, if known.
    pub lines: bool,
    /// Write `java/lang/String::hashCode` instead of `java.lang.String.hashCode`.
    pub slashes: bool,
    /// Append `_[j]` to compiled and `_[i]` to inlined methods.
    pub annotate: bool,
}

/// Writes a map.
///
/// # Errors
/// Returns the errors of the writer.
pub fn write(
    entries: &[(Addr, u64, Code)],
    options: Options,
    mut to: impl Write,
) -> io::Result<()> {
    for (start, size, code) in entries {
        let end = start.0.saturating_add(*size);
        let mut at = start.0;
        let whole = whole_name(code, options);
        if options.unfold != Unfold::None {
            for range in code.inlined.iter().filter(|range| range.chain.len() > 1) {
                let (from, until) = (range.start.0.max(at), range.end.0.min(end));
                if from < until {
                    line(&mut to, at, from, &whole)?;
                    line(&mut to, from, until, &unfolded(&range.chain, options))?;
                    at = until;
                }
            }
        }
        line(&mut to, at, end, &whole)?;
    }
    to.flush()
}

fn line(to: &mut impl Write, start: u64, end: u64, name: &str) -> io::Result<()> {
    if start >= end {
        return Ok(());
    }
    let name = clean::name(name);
    writeln!(to, "{start:x} {:x} {name}", end - start)
}

fn whole_name(code: &Code, options: Options) -> String {
    if code.kind != CodeKind::Method {
        return code.name.to_string();
    }
    let first = code.inlined.first().and_then(|range| range.chain.last());
    let frame = SourceFrame {
        name: code.name.clone(),
        signature: code.signature.clone(),
        file: first.and_then(|frame| frame.file.clone()),
        line: first.map_or(0, |frame| frame.line),
        origin: None,
    };
    let mark = if options.annotate { "_[j]" } else { "" };
    method(&frame, options) + mark
}

fn unfolded(chain: &[SourceFrame], options: Options) -> String {
    let mark = if options.annotate { "_[i]" } else { "" };
    let names: Vec<_> = match options.unfold {
        Unfold::All => chain.iter().rev().map(|frame| method(frame, options)).collect(),
        _ => chain.iter().take(1).map(|frame| method(frame, options)).collect(),
    };
    names.join("->") + mark
}

fn method(frame: &SourceFrame, options: Options) -> String {
    let mut name = match frame.name.rsplit_once('.') {
        Some((class, method)) if options.slashes => {
            format!("{}::{method}", class.replace('.', "/"))
        }
        _ => frame.name.to_string(),
    };
    if let Some(signature) = frame.signature.as_deref().filter(|_| options.signatures) {
        name.push_str(signature);
    }
    if let Some(file) = frame.file.as_deref().filter(|_| options.lines && frame.line > 0) {
        // Writing to a String does not fail.
        let _ = write!(name, " ({file}:{})", frame.line);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{code::Inlined, perfmap};

    fn entries() -> Vec<(Addr, u64, Code)> {
        let frame = |name: &str, line| SourceFrame {
            name: name.into(),
            signature: Some("(int)".into()),
            file: Some("A.java".into()),
            line,
            origin: None,
        };
        let range = Inlined {
            start: Addr(0x110),
            end: Addr(0x120),
            chain: vec![frame("a.B.in", 9), frame("a.A.out", 4)],
            is_sure: true,
        };
        let method = Code { inlined: [range].into(), ..Code::method("a.A.out", Some("(int)")) };
        vec![(Addr(0x100), 0x40, method), (Addr(0x200), 8, Code::new(CodeKind::Stub, "a stub"))]
    }

    fn text(options: Options) -> String {
        let mut bytes = Vec::new();
        write(&entries(), options, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn written_map_parses_to_the_same_names() {
        let text = text(Options::default());
        assert_eq!(text, "100 40 a.A.out\n200 8 a stub\n");
        let names: Vec<_> = perfmap::parse(&text).map(|e| e.name).collect();
        assert_eq!(names, ["a.A.out", "a stub"]);
    }

    #[test]
    fn inlined_ranges_are_unfolded() {
        let unfold = |unfold| text(Options { unfold, ..Options::default() });
        assert_eq!(
            unfold(Unfold::Simple),
            "100 10 a.A.out\n110 10 a.B.in\n120 20 a.A.out\n200 8 a stub\n"
        );
        assert!(unfold(Unfold::All).contains("110 10 a.A.out->a.B.in\n"));
    }

    #[test]
    fn names_follow_the_options() {
        let options = Options {
            unfold: Unfold::Simple,
            signatures: true,
            lines: true,
            slashes: true,
            annotate: true,
        };
        assert!(
            text(options).contains("110 10 a/B::in(int) (A.java:9)_[i]\n"),
            "{}",
            text(options)
        );
        assert!(text(options).contains("120 20 a/A::out(int) (A.java:4)_[j]\n"));
    }
}
