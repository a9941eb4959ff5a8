//! Writes records as tables, a tree, comma-separated values or JSON lines.

use libjvmprobe::{
    Pid, Result,
    bpf::clock,
    render::{
        output::Output,
        table::{RuledTable, Times},
        units::{bytes, count, span},
    },
};

use crate::{
    args::Args,
    jars::{Jar, NOT_LOADED},
    record::{Changed, Class, Listed, LoaderGrowth, Method, Rates, Record, Summary, Unused},
    tally::{Sum, Tally},
};

/// Writes records in the selected format.
pub struct Report {
    out: Output,
    format: Format,
    quiet: bool,
    methods: bool,
    top: usize,
    group_column: &'static str,
    has_head: bool,
    times: Times,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Table,
    Tree,
    Csv,
    Json,
}

impl Report {
    /// Opens the output.
    pub fn open(args: &Args) -> Result<Self> {
        let format = match (args.common.json, args.csv, args.tree) {
            (true, _, _) => Format::Json,
            (_, true, _) => Format::Csv,
            (_, _, true) => Format::Tree,
            _ => Format::Table,
        };
        Ok(Self {
            out: Output::open(None)?,
            format,
            quiet: args.common.quiet,
            methods: args.methods,
            top: args.top,
            group_column: if args.by_loader { "LOADER" } else { "ORIGIN" },
            has_head: false,
            times: Times { dates: args.common.timestamps },
        })
    }

    /// Writes a class.
    pub fn class(&mut self, class: &Class) -> Result<()> {
        match self.format {
            Format::Json if !self.quiet => self.out.json(&Record::Class(class.clone())),
            Format::Csv => self.csv(class),
            Format::Table if self.methods => self.class_with_methods(class, 0),
            _ => Ok(()),
        }
    }

    /// Writes the results for the lines of a list.
    pub fn listed(&mut self, listed: &[Listed]) -> Result<()> {
        if self.format == Format::Json {
            return listed.iter().try_for_each(|line| self.out.json(&Record::Listed(line.clone())));
        }
        let quiet = self.quiet;
        let shown = listed.iter().filter(|line| !quiet || line.in_use);
        for listed in shown {
            let Listed { pid, pattern, found, example, why, classes, origin, .. } = listed;
            let mut line = format!("{pid:>7} {found:<11} {pattern}");
            if let Some(why) = why {
                line += &format!(" ({why})");
            }
            if *classes > 1 {
                line += &format!(": {}", count(*classes, "class"));
            }
            if let Some(example) = example.as_ref().filter(|example| *example != pattern) {
                line += &format!(": {example}");
            }
            if let Some(origin) = origin {
                line += &format!(" from {origin}");
            }
            if let Some(vulnerability) = &listed.vulnerability {
                line += &format!(" [{vulnerability}]");
            }
            self.out.line(&line)?;
            for first in [&listed.first_loaded, &listed.first_initialized].into_iter().flatten() {
                self.first(first)?;
            }
        }
        Ok(())
    }

    fn first(&mut self, first: &Changed) -> Result<()> {
        let Changed { ts_ns, event, class, thread, tid, stack, .. } = first;
        let time = self.times.show(*ts_ns);
        self.out.line(&format!("        {time} {class} {event} by {thread} ({tid})"))?;
        let mut frames = stack.iter().flatten();
        frames.try_for_each(|frame| self.out.line(&format!("            at {frame}")))
    }

    /// Whether the reader of the output has closed it.
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Writes an event of a class.
    pub fn changed(&mut self, changed: &Changed) -> Result<()> {
        if self.format == Format::Json {
            return self.out.json(&Record::Change(changed.clone()));
        }
        let Changed { ts_ns, pid, tid, thread, event, class, duration_ns, stack, .. } = changed;
        let time = self.times.show(*ts_ns);
        let took = duration_ns.map_or_else(String::new, |ns| format!(" {}", span(ns)));
        self.out
            .line(&format!("{time} {pid:>7} {thread:<16} {tid:>7} {event:<11} {class}{took}"))?;
        let mut frames = stack.iter().flatten();
        frames.try_for_each(|frame| self.out.line(&format!("    at {frame}")))
    }

    /// Writes the numbers of classes loaded, unloaded and initialised.
    pub fn rates(&mut self, rates: &Rates) -> Result<()> {
        if self.format == Format::Json {
            return self.out.json(&Record::Rates(rates.clone()));
        }
        let Rates { pid, scope, duration_ns, loaded, unloaded, initialized, failed, .. } = rates;
        let time = match *scope {
            "interval" => self.times.show(clock::monotonic_ns()),
            _ => format!("traced for {}", span(*duration_ns)),
        };
        self.out.line(&format!(
            "PID {pid}  {time}: {loaded} classes loaded, {unloaded} unloaded, {initialized} \
             initialized, {failed} failed"
        ))
    }

    /// Writes the growth of a JVM's loaders, at most `top` rows.
    pub fn growth(&mut self, rows: &[LoaderGrowth], top: usize) -> Result<()> {
        if self.format == Format::Json {
            return rows.iter().try_for_each(|row| self.out.json(&Record::Loader(row.clone())));
        }
        let Some(LoaderGrowth { pid, reads, .. }) = rows.first() else { return Ok(()) };
        let time = self.times.show(clock::monotonic_ns());
        self.out.line(&format!("PID {pid}  {time}: {}", count(*reads, "read")))?;
        let head = ["LOADERS", "MORE", "CLASSES", "MORE", "ROSE", "FELL", "", "LOADER"];
        let mut table = RuledTable::new(&head, 0..6);
        for row in rows.iter().take(top) {
            table.row(vec![
                row.loaders.to_string(),
                format!("{:+}", row.loaders_more),
                row.classes.to_string(),
                format!("{:+}", row.classes_more),
                row.rises.to_string(),
                row.falls.to_string(),
                if row.only_grows { "only grows".into() } else { String::new() },
                row.loader.clone(),
            ]);
        }
        self.out.lines(&table.text())
    }

    /// Writes the unused classes of a JVM's jars.
    pub fn unused(&mut self, pid: Pid, jars: &[Jar]) -> Result<()> {
        let all = || jars.iter().flat_map(|jar| &jar.unused);
        if self.format == Format::Json {
            return all().try_for_each(|unused| self.out.json(&Record::Unused(unused.clone())));
        }
        let head = ["CLASSES", "LOADED", "INIT", "NOT LOADED", "JAR"];
        let mut table = RuledTable::new(&head, 0..4);
        for Jar { path, classes, unused } in jars {
            let missing = unused.iter().filter(|one| one.state == NOT_LOADED).count() as u64;
            table.row(vec![
                classes.to_string(),
                (classes - missing).to_string(),
                (classes - unused.len() as u64).to_string(),
                missing.to_string(),
                path.to_string(),
            ]);
        }
        self.out.line(&format!("PID {pid}: jars and their loaded classes"))?;
        self.out.lines(&table.text())?;
        if self.quiet {
            return Ok(());
        }
        all().try_for_each(|Unused { jar, class, state, .. }| {
            self.out.line(&format!("{state:<15} {class}  {jar}"))
        })
    }

    /// Writes the totals of a JVM's classes.
    pub fn tally(&mut self, tally: &Tally, summary: Summary) -> Result<()> {
        match self.format {
            Format::Json => return self.out.json(&Record::Summary(summary)),
            Format::Csv => return Ok(()),
            Format::Table | Format::Tree => {}
        }
        let Summary { pid, jvm, classes, hidden, linked, initialized, classes_called, .. } =
            &summary;
        let jvm = if jvm.is_empty() { "JVM" } else { jvm };
        self.out.line(&format!(
            "PID {pid}  {jvm}: {classes} classes in {} loaders, {linked} linked, {initialized} \
             initialized, {classes_called} with a method called",
            summary.loaders,
        ))?;
        if self.format == Format::Tree {
            return self.tree(tally);
        }
        if self.quiet {
            return Ok(());
        }
        let mut groups: Vec<_> = tally.groups.iter().collect();
        groups.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.classes));
        self.sums(self.group_column, groups.into_iter().map(|(name, sum)| (name.as_str(), sum)))?;
        let mut packages: Vec<_> = tally.packages.iter().collect();
        packages.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.classes));
        let hidden_rows = packages.len().saturating_sub(self.top);
        packages.truncate(self.top);
        self.out.line("")?;
        self.sums("PACKAGE", packages.into_iter().map(|((name, _), sum)| (name.as_str(), sum)))?;
        if hidden_rows > 0 {
            self.out.line(&format!("{hidden_rows} more packages; --top shows more"))?;
        }
        let counts = summary.counts;
        self.out.line(&format!(
            "{}: {} called, {} not called, {} unknown; {hidden} hidden classes",
            count(counts.methods, "method"),
            counts.called,
            counts.not_called,
            counts.unknown,
        ))
    }

    fn sums<'a>(
        &mut self,
        name: &str,
        sums: impl Iterator<Item = (&'a str, &'a Sum)>,
    ) -> Result<()> {
        let head =
            ["CLASSES", "LINKED", "INIT", "CALLED", "METHODS", "CALLED", "UNKNOWN", "BYTES", name];
        let mut table = RuledTable::new(&head, 0..8);
        for (name, sum) in sums {
            table.row(vec![
                sum.classes.to_string(),
                sum.linked.to_string(),
                sum.initialized.to_string(),
                sum.called.to_string(),
                sum.counts.methods.to_string(),
                sum.counts.called.to_string(),
                sum.counts.unknown.to_string(),
                bytes(sum.bytes),
                name.into(),
            ]);
        }
        self.out.lines(&table.text())
    }

    fn tree(&mut self, tally: &Tally) -> Result<()> {
        let mut last = None;
        for ((group, package), classes) in &tally.classes {
            if last != Some(group) {
                let sum = tally.groups.get(group).copied().unwrap_or_default();
                let Sum { classes, initialized, called, .. } = sum;
                let size = bytes(sum.bytes);
                self.out.line(&format!(
                    "{group}: {classes} classes, {initialized} initialized, {called} called, {size}"
                ))?;
                last = Some(group);
            }
            self.out.line(&format!("  {package}"))?;
            let mut classes: Vec<_> = classes.iter().collect();
            classes.sort_by(|a, b| a.class.cmp(&b.class));
            for class in classes {
                self.class_with_methods(class, 4)?;
            }
        }
        Ok(())
    }

    fn class_with_methods(&mut self, class: &Class, indent: usize) -> Result<()> {
        let Class { class: name, state, counts, classes, .. } = class;
        let times = if *classes > 1 { format!(" ({classes} classes)") } else { String::new() };
        let thread = match class.initializer {
            Some(tid) => format!(" by thread {tid}"),
            None => String::new(),
        };
        self.out.line(&format!(
            "{:indent$}{name}{times}: {state}{thread}, {} of {} methods called, {} unknown",
            "", counts.called, counts.methods, counts.unknown,
        ))?;
        for Method { name, descriptor, usage, why, counted, .. } in &class.list {
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let times = if *counted > 0 { format!(" {counted}+ times") } else { String::new() };
            self.out.line(&format!("{:indent$}  {name}{descriptor} {usage}{why}{times}", ""))?;
        }
        Ok(())
    }

    fn csv(&mut self, class: &Class) -> Result<()> {
        if !std::mem::replace(&mut self.has_head, true) {
            let head = "pid,class,classes,state,origin_kind,origin,loader,archived,bytes,methods,\
                        called,unknown,not_called";
            let methods = if self.methods { ",method,descriptor,usage,why,counted" } else { "" };
            self.out.line(&format!("{head}{methods}"))?;
        }
        let Class { pid, counts, .. } = class;
        let loader = class.loader_id.as_deref().unwrap_or("bootstrap");
        let kind = format!("{:?}", class.origin_kind).to_lowercase();
        let line = format!(
            "{pid},{},{},{},{kind},{},{},{},{},{},{},{},{}",
            quoted(&class.class),
            class.classes,
            class.state,
            quoted(&class.origin),
            quoted(loader),
            class.archived,
            class.bytes,
            counts.methods,
            counts.called,
            counts.unknown,
            counts.not_called,
        );
        if !self.methods {
            return self.out.line(&line);
        }
        for Method { name, descriptor, usage, why, counted, .. } in &class.list {
            let (name, descriptor) = (quoted(name), quoted(descriptor));
            let why = why.unwrap_or_default();
            self.out.line(&format!("{line},{name},{descriptor},{usage},{why},{counted}"))?;
        }
        Ok(())
    }
}

/// Quotes a value according to RFC 4180.
fn quoted(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", value.replace('"', "\"\""));
    }
    value.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_commas_are_quoted() {
        assert_eq!(quoted("a.B"), "a.B");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
