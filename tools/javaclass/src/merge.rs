//! Merges reports of several runs and hosts: which classes are used anywhere, and in how many runs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use libjvmprobe::render::{output::Output, table::RuledTable, units::count};
use serde::Serialize;

use crate::reports::{self, ClassLine, Item, MethodLine};

/// Maximum number of classes merged.
const MAX_CLASSES: usize = 4_000_000;

/// Number of runs in which something was observed, for example that a class was loaded. Each run
/// counts once.
#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    count: u64,
    last: u64,
}

impl Runs {
    /// Counts a run, unless it is the run that was counted last. `run` is its number, from 1.
    fn add(&mut self, run: u64) {
        if self.last != run {
            (self.count, self.last) = (self.count + 1, run);
        }
    }
}

/// Usage of a method in all runs.
#[derive(Clone, Copy, Debug, Default)]
struct Method {
    called: Runs,
    unknown: Runs,
    is_abstract: bool,
}

impl Method {
    fn usage(&self) -> &'static str {
        match self {
            Self { called: Runs { count: 1.., .. }, .. } => "called",
            // A method with unknown usage in any run must not be reported as unused.
            Self { unknown: Runs { count: 1.., .. }, .. } => "unknown",
            Self { is_abstract: true, .. } => "abstract",
            _ => "not called",
        }
    }
}

/// Usage of a class in all runs.
#[derive(Debug, Default)]
struct Class {
    loaded: Runs,
    initialized: Runs,
    called: Runs,
    methods: BTreeMap<(String, String), Method>,
}

/// Contents of all reports.
#[derive(Debug, Default)]
struct Merged {
    /// Classes by origin and name.
    classes: BTreeMap<(String, String), Class>,
    runs: u64,
    incomplete: u64,
    unloaded: u64,
}

/// Record of a class.
#[derive(Debug, Serialize)]
struct MergedClass<'a> {
    r#type: &'static str,
    class: &'a str,
    origin: &'a str,
    runs: u64,
    loaded: u64,
    initialized: u64,
    called: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    method_list: Vec<MergedMethod<'a>>,
}

/// Record of a method.
#[derive(Debug, Serialize)]
struct MergedMethod<'a> {
    name: &'a str,
    descriptor: &'a str,
    usage: &'static str,
    called: u64,
}

/// Record of the totals.
#[derive(Debug, Serialize)]
struct MergedRuns {
    r#type: &'static str,
    version: &'static str,
    runs: u64,
    incomplete: u64,
    classes: usize,
    unloaded: u64,
}

/// Merges reports and prints the result.
pub fn run(files: &[PathBuf], json: bool) -> Result<()> {
    let mut merged = Merged::default();
    reports::read(files, |path, item| merged.add_item(path, item))?;
    if merged.incomplete > 0 {
        let runs = count(merged.incomplete, "run");
        log::warn!(
            "in {runs}, not all classes could be read, so the result may lack classes that \
             were used there"
        );
    }
    let mut out = Output::open(None)?;
    if json { merged.json(&mut out) } else { merged.table(&mut out) }
}

impl Merged {
    fn add_item(&mut self, path: &Path, item: Item) -> Result<()> {
        match item {
            Item::Class(class) => self.add(class)?,
            Item::Jvm(jvm) => {
                self.runs += 1;
                self.incomplete += u64::from(!jvm.is_complete());
                self.unloaded += jvm.unloaded.unwrap_or(0);
            }
            Item::Merged(_) | Item::Runs(_) => {
                bail!(
                    "{} is already merged; specify the reports that it was merged from",
                    path.display()
                )
            }
        }
        Ok(())
    }

    /// Adds a class of the current run, which ends with the next summary.
    fn add(&mut self, line: ClassLine) -> Result<()> {
        let run = self.runs + 1;
        let ClassLine { class, origin, state, called, method_list, .. } = line;
        let key = (origin, class);
        if self.classes.len() >= MAX_CLASSES && !self.classes.contains_key(&key) {
            bail!("too many classes: at most {MAX_CLASSES} are supported");
        }
        let class = self.classes.entry(key).or_default();
        class.loaded.add(run);
        // A later version of javaclass may report a state that this version does not know. A class in such
        // a state may have run, so it counts as initialized.
        if !matches!(state.as_str(), "loaded" | "linked") {
            class.initialized.add(run);
        }
        if called > 0 {
            class.called.add(run);
        }
        for MethodLine { name, descriptor, usage } in method_list {
            let method = class.methods.entry((name, descriptor)).or_default();
            match usage.as_str() {
                "called" => method.called.add(run),
                "not called" => {}
                "abstract" => method.is_abstract = true,
                _ => method.unknown.add(run),
            }
        }
        Ok(())
    }

    fn json(&self, out: &mut Output) -> Result<()> {
        for ((origin, name), class) in &self.classes {
            let methods = class.methods.iter().map(|((name, descriptor), method)| MergedMethod {
                name,
                descriptor,
                usage: method.usage(),
                called: method.called.count,
            });
            out.json(&MergedClass {
                r#type: "merged",
                class: name,
                origin,
                runs: self.runs,
                loaded: class.loaded.count,
                initialized: class.initialized.count,
                called: class.called.count,
                method_list: methods.collect(),
            })?;
        }
        Ok(out.json(&MergedRuns {
            r#type: "runs",
            version: env!("CARGO_PKG_VERSION"),
            runs: self.runs,
            incomplete: self.incomplete,
            classes: self.classes.len(),
            unloaded: self.unloaded,
        })?)
    }

    fn table(&self, out: &mut Output) -> Result<()> {
        #[derive(Default)]
        struct Sum {
            classes: u64,
            everywhere: u64,
            initialized: u64,
            called: u64,
        }
        let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
        for ((origin, _), class) in &self.classes {
            let sum = sums.entry(origin).or_default();
            sum.classes += 1;
            sum.everywhere += u64::from(class.loaded.count == self.runs);
            sum.initialized += u64::from(class.initialized.count > 0);
            sum.called += u64::from(class.called.count > 0);
        }
        let runs = count(self.runs, "run");
        out.line(&format!("Classes that were loaded in at least one of {runs}"))?;
        let head = ["CLASSES", "IN ALL", "INIT", "CALLED", "ORIGIN"];
        let mut table = RuledTable::new(&head, 0..4);
        for (origin, Sum { classes, everywhere, initialized, called }) in sums {
            let numbers = [classes, everywhere, initialized, called].map(|n| n.to_string());
            table.row(numbers.into_iter().chain([origin.to_owned()]).collect());
        }
        out.lines(&table.text())?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(name: &str, state: &str, usage: &str) -> String {
        let called = u64::from(usage == "called");
        format!(
            r#"{{"type":"class","pid":1,"class":"{name}","origin":"/a.jar","state":"{state}","called":{called},"method_list":[{{"name":"run","descriptor":"()V","usage":"{usage}"}}]}}"#
        ) + "\n"
    }

    fn summary_line(classes: u64, complete: bool) -> String {
        format!(r#"{{"type":"summary","classes":{classes},"complete":{complete},"unreadable":0}}"#)
            + "\n"
    }

    fn read(merged: &mut Merged, text: &str) -> Result<()> {
        let path = Path::new("report");
        reports::read_one(path, text.as_bytes(), |item| merged.add_item(path, item))
    }

    #[test]
    fn merged_class_is_used_if_any_report_uses_it() {
        let mut merged = Merged::default();
        // One class loaded by two loaders, then the same class in another JVM.
        let first = class("A", "loaded", "not called")
            + &class("A", "initialized", "called")
            + &summary_line(2, true);
        let second = class("A", "linked", "not called")
            + &class("B", "linked", "unknown")
            + &summary_line(2, true);
        read(&mut merged, &(first + &second)).unwrap();
        assert_eq!(merged.runs, 2);
        let of = |name: &str| &merged.classes[&("/a.jar".to_owned(), name.to_owned())];
        let counts = |name: &str| {
            let class = of(name);
            [class.loaded.count, class.initialized.count, class.called.count]
        };
        assert_eq!(counts("A"), [2, 1, 1]);
        assert_eq!(counts("B"), [1, 0, 0]);
        let usage = |name: &str| of(name).methods.values().next().unwrap().usage();
        assert_eq!((usage("A"), usage("B")), ("called", "unknown"));
    }

    #[test]
    fn malformed_or_truncated_reports_are_rejected() {
        let cut = class("A", "loaded", "called");
        let lacks = cut.clone() + &summary_line(2, true);
        let merged = r#"{"type":"merged","class":"A"}"#;
        for bad in ["x\n", "{}\n", "{\"type\":\"class\"}\n", "", &cut, &lacks, merged] {
            assert!(read(&mut Merged::default(), bad).is_err(), "{bad}");
        }
        // A record type of a later version is ignored.
        let mut merged = Merged::default();
        read(
            &mut merged,
            &(r#"{"type":"novelty","x":1}"#.to_owned() + "\n" + &summary_line(0, true)),
        )
        .unwrap();
        assert_eq!(merged.runs, 1);
        read(&mut merged, &summary_line(0, false)).unwrap();
        assert_eq!((merged.runs, merged.incomplete), (2, 1));
    }

    proptest! {
        #[test]
        fn random_report_text_causes_no_panic(text in "\\PC{0,200}") {
            let _ = read(&mut Merged::default(), &text);
        }
    }
}
