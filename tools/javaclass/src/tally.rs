//! The classes of one JVM, and their totals.

use std::{collections::BTreeMap, time::Instant};

use anyhow::Result;
use libjvmprobe::{
    Pid,
    hotspot::{
        HotSpot,
        loaded::{Loaded, LoadedClass, Loader, State, Usage},
    },
    process::Target,
};

use crate::{
    args::Args,
    fold::Folded,
    jars::{self, JvmClasses, index::Index},
    list::Hits,
    list_check::ListCheck,
    origin::{Kind, Origin, package},
    record::{Class, Method, MethodCounts, Summary},
    report::Report,
};

/// Maximum number of groups, and of packages, that are counted. Classes of further groups and packages are
/// counted only in the JVM's totals.
const MAX_GROUPS: usize = 100_000;

/// Totals of the classes of a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Number of classes.
    pub classes: u64,
    /// Number of classes that are linked, or in a later state.
    pub linked: u64,
    /// Number of classes whose initialisation has begun or ended.
    pub initialized: u64,
    /// Number of classes with a called method.
    pub called: u64,
    /// Numbers of the methods of all classes in the group.
    pub counts: MethodCounts,
    /// Metaspace that all classes in the group use, in bytes.
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, class: &Class, state: State) {
        self.classes += class.classes;
        self.linked += u64::from(state >= State::Linked);
        self.initialized += u64::from(state >= State::Initializing);
        self.called += u64::from(class.counts.called > 0);
        self.counts.methods += class.counts.methods;
        self.counts.called += class.counts.called;
        self.counts.unknown += class.counts.unknown;
        self.counts.not_called += class.counts.not_called;
        self.bytes += class.bytes;
    }
}

/// Totals and classes of one JVM.
#[derive(Debug, Default)]
pub struct Tally {
    /// Totals by origin or loader.
    pub groups: BTreeMap<String, Sum>,
    /// Totals by package and group.
    pub packages: BTreeMap<(String, String), Sum>,
    /// Classes by group and package, with `--tree` only.
    pub classes: BTreeMap<(String, String), Vec<Class>>,
}

/// Reads a JVM's classes and reports them.
pub fn report_jvm(
    target: &Target,
    hotspot: &HotSpot,
    args: &Args,
    list_check: Option<&mut ListCheck>,
    report: &mut Report,
) -> Result<()> {
    let begin = Instant::now();
    let pid = target.pid();
    let mut seen = args.unused.then(JvmClasses::default);
    let mut tally = Tally::default();
    let mut total = Sum::default();
    let mut hidden = 0;
    let mut index = None;
    let mut hits = list_check.as_ref().map(|list_check| Hits::new(&list_check.listing));
    let mut folded = Folded::default();
    let emit = |class: Class, tally: &mut Tally, report: &mut Report| {
        if args.tree {
            let group = group(&class, args);
            tally.classes.entry((group, named_package(&class.class))).or_default().push(class);
            return Ok(());
        }
        report.class(&class)
    };
    let loaded = hotspot.loaded(|loaded, class| {
        let loader = loaded.loaders.get(class.loader).cloned().unwrap_or_default();
        let mut origin = Origin::of(&class, loader.is_boot);
        let is_guessed = origin.kind == Kind::Unknown;
        if is_guessed {
            let index = index.get_or_insert_with(|| Index::read(target));
            origin = index.find(&class.name).unwrap_or(origin);
        }
        if let (Some(hits), Some(list_check)) = (&mut hits, &list_check) {
            hits.match_class(&list_check.listing, &class, &origin);
            return Ok(());
        }
        let state = class.state;
        hidden += u64::from(class.is_hidden);
        let mut record = record(pid, class, &loader, origin, args.methods);
        record.origin_by_name = is_guessed && record.origin_kind != Kind::Unknown;
        total.add(&record, state);
        if let Some(seen) = &mut seen {
            seen.add(&record, state >= State::Initializing);
            return Ok(());
        }
        let group = group(&record, args);
        let package = (named_package(&record.class), group.clone());
        add(&mut tally.groups, group, &record, state);
        add(&mut tally.packages, package, &record, state);
        match record.hidden {
            true => folded.add(record),
            false => emit(record, &mut tally, report)?,
        }
        Ok(())
    })?;
    for class in folded.into_classes() {
        emit(class, &mut tally, report)?;
    }
    let duration = begin.elapsed();
    warn(pid, &loaded);
    // A user who asks which classes are unused must know about unloaded ones, which may have been used.
    if list_check.is_some() || args.unused {
        warn_of_unloaded(pid, &loaded);
    }
    if let (Some(hits), Some(list_check)) = (hits, list_check) {
        list_check.report_jvm(target, hits, report)?;
        // A class that could not be read may be in use.
        anyhow::ensure!(loaded.is_complete && loaded.unreadable == 0, "not all classes were read");
        return Ok(());
    }
    if let Some(seen) = seen {
        // A class that could not be read would be reported as not loaded.
        anyhow::ensure!(loaded.is_complete && loaded.unreadable == 0, "not all classes were read");
        return Ok(report.unused(pid, &jars::read_jars(target, &seen, args.jdk)?)?);
    }
    let Sum { classes, linked, initialized, called, counts, bytes } = total;
    report.tally(
        &tally,
        Summary {
            pid: pid.0,
            version: env!("CARGO_PKG_VERSION"),
            jvm: hotspot.version.clone(),
            classes,
            hidden,
            linked,
            initialized,
            classes_called: called,
            counts,
            bytes,
            loaders: loaded.loaders.len() as u64,
            unloaded: loaded.unloaded,
            unreadable: loaded.unreadable,
            complete: loaded.is_complete,
            not_counted: loaded.not_counted.map(|why| why.name()),
            duration_ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
        },
    )?;
    Ok(())
}

fn warn(pid: Pid, loaded: &Loaded) {
    if !loaded.is_complete {
        log::warn!(
            "process {pid} unloaded classes during each attempt to read them, so the report \
             lacks some classes"
        );
    }
    if loaded.unreadable > 0 {
        log::warn!("process {pid}: {} classes could not be read", loaded.unreadable);
    }
    if let Some(why) = loaded.not_counted {
        let why = why.name();
        log::warn!("process {pid} does not record which methods were called: {why}");
    }
}

fn warn_of_unloaded(pid: Pid, loaded: &Loaded) {
    match loaded.unloaded {
        Some(0) => {}
        Some(n) => {
            let classes = if n == 1 { "class" } else { "classes" };
            log::warn!(
                "process {pid} has unloaded {n} {classes} since it started, which may have been \
                 used"
            );
        }
        None => log::warn!("process {pid} does not record whether it has unloaded classes"),
    }
}

fn add<K: Ord>(sums: &mut BTreeMap<K, Sum>, key: K, class: &Class, state: State) {
    // A JVM that invents names must not exhaust memory.
    if sums.len() < MAX_GROUPS || sums.contains_key(&key) {
        sums.entry(key).or_default().add(class, state);
    }
}

/// Returns the group in which a class is counted.
fn group(class: &Class, args: &Args) -> String {
    if !args.by_loader {
        return class.origin.clone();
    }
    let id = class.loader_id.as_ref().or(class.loader.as_ref());
    id.cloned().unwrap_or_else(|| "bootstrap".into())
}

/// Returns the package of a class for display.
fn named_package(class: &str) -> String {
    package(class).unwrap_or("(no package)").into()
}

fn record(pid: Pid, class: LoadedClass, loader: &Loader, origin: Origin, methods: bool) -> Class {
    let mut counts = MethodCounts::default();
    for method in &class.methods {
        match method.usage {
            Usage::Called => counts.called += 1,
            Usage::NotCalled => counts.not_called += 1,
            Usage::Unknown(_) => counts.unknown += 1,
            Usage::Abstract => continue,
        }
        counts.methods += 1;
    }
    let list = if methods { &class.methods[..] } else { &[] };
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
    Class {
        pid: pid.0,
        class: class.name.to_string(),
        classes: 1,
        hidden: class.is_hidden,
        origin_kind: origin.kind,
        origin: origin.name,
        origin_by_name: false,
        module: text(&class.module),
        loader: text(&loader.class),
        loader_name: text(&loader.name),
        loader_id: text(&loader.identity),
        state: class.state.name(),
        initializer: class.initializer,
        archived: class.is_archived,
        redefined: class.is_redefined,
        bytes: class.bytes,
        counts,
        list: list
            .iter()
            .map(|method| Method {
                name: method.name.to_string(),
                descriptor: method.descriptor.to_string(),
                usage: method.usage.name(),
                why: match method.usage {
                    Usage::Unknown(why) => Some(why.name()),
                    _ => None,
                },
                counted: method.counted,
                compiled: method.is_compiled,
            })
            .collect(),
    }
}
