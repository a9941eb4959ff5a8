//! Writes a jar without its unused classes, which are those that [`keep`] does not select.
//!
//! | module | contents |
//! |---|---|
//! | [`jar`] | the entries of a jar, and writing a jar with some of them |
//! | [`constants`] | the texts in a class file |
//! | [`names`] | the classes that a text names |
//! | [`keep`] | the classes that stay, and the reasons |
//! | [`class_file_readers`] | libraries that read class files as data |

mod class_file_readers;
mod constants;
mod jar;
mod keep;
mod names;

use std::{
    collections::HashSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
};

use anyhow::{Context, Result, bail};
use libjvmprobe::render::{
    output::Output,
    units::{bytes, count},
};
use serde::Serialize;

use crate::{
    args::Strip,
    list_line,
    reports::{self, Item},
};
use jar::Jar;
use keep::Class;

/// Maximum number of classes in the reports.
const MAX_SEEN: usize = 4_000_000;

/// Record of a class of the jar.
#[derive(Debug, Serialize)]
struct Stripped<'a> {
    r#type: &'static str,
    class: &'a str,
    kept: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    bytes: u64,
}

/// Record of the jar's totals.
#[derive(Debug, Default, Serialize)]
struct Total {
    r#type: &'static str,
    jar: String,
    out: Option<String>,
    classes: u64,
    seen: u64,
    listed: u64,
    named: u64,
    referred: u64,
    removed: u64,
    removed_bytes: u64,
    bytes: u64,
    bytes_out: Option<u64>,
    inner: u64,
    /// Classes in the reports that belong to libraries which read class files as data.
    readers: Vec<String>,
}

/// Strips a jar.
pub fn run(args: &Strip) -> Result<()> {
    let seen = seen(args)?;
    let list = match &args.keep {
        Some(path) => list_line::read(path)?.into_iter().map(|line| line.selector).collect(),
        None => Vec::new(),
    };
    let name = args.jar.display();
    let file = File::open(&args.jar).with_context(|| format!("cannot open {name}"))?;
    let meta = file.metadata().with_context(|| format!("cannot inspect {name}"))?;
    let refused = || format!("cannot strip {name}");
    if let Some(out) = &args.out
        && fs::metadata(out).is_ok_and(|to| (to.dev(), to.ino()) == (meta.dev(), meta.ino()))
    {
        bail!("{} is {name} itself: specify another output file", out.display());
    }
    let jar = Jar::open(file).with_context(refused)?;
    if let Some(path) = jar.signature() {
        bail!(
            "{name} is signed ({path}), and stripping would break the signature: strip the \
             unsigned jar, then sign it"
        );
    }
    let classes = keep::decide(&jar, &seen, &list).with_context(refused)?;
    let mut total = sum(&jar, &classes);
    total.jar = name.to_string();
    total.bytes = meta.len();
    total.readers = class_file_readers::readers(&seen).into_iter().map(str::to_owned).collect();
    if let Some(out) = &args.out {
        let removable: HashSet<usize> =
            removable(&classes).flat_map(|class| &class.entries).copied().collect();
        let written = jar::write_atomically(out, |file| {
            jar.write(|number| !removable.contains(&number), file)
        });
        written.with_context(|| format!("cannot write {}", out.display()))?;
        total.out = Some(out.display().to_string());
        total.bytes_out = fs::metadata(out).ok().map(|meta| meta.len());
    }
    print_report(args, &jar, &classes, &total)
}

/// Returns the classes in the reports, regardless of loader and origin.
fn seen(args: &Strip) -> Result<HashSet<String>> {
    let mut seen = HashSet::new();
    let mut unloaded = 0;
    let incomplete = |path: &Path| {
        bail!(
            "{} is incomplete: it lacks classes that could not be read and may be in use",
            path.display()
        )
    };
    reports::read(&args.reports, |path, item| {
        match item {
            Item::Class(reports::ClassLine { class, .. })
            | Item::Merged(reports::MergedLine { class }) => _ = seen.insert(class),
            Item::Jvm(jvm) if !jvm.is_complete() => return incomplete(path),
            Item::Runs(runs) if runs.incomplete > 0 => return incomplete(path),
            Item::Jvm(jvm) => unloaded += jvm.unloaded.unwrap_or(0),
            Item::Runs(runs) => unloaded += runs.unloaded,
        }
        if seen.len() > MAX_SEEN {
            bail!("too many classes: at most {MAX_SEEN} are supported");
        }
        Ok(())
    })?;
    if unloaded > 0 {
        log::warn!(
            "{unloaded} classes were unloaded before the reports were made: specify those that are \
             needed with --keep"
        );
    }
    Ok(seen)
}

fn removable(classes: &[Class]) -> impl Iterator<Item = &Class> {
    classes.iter().filter(|class| class.why.is_none())
}

/// Returns the size of a class in the jar, in all its versions.
fn packed(jar: &Jar, class: &Class) -> u64 {
    class.entries.iter().filter_map(|&entry| jar.entries.get(entry)).map(|e| e.packed).sum()
}

fn sum(jar: &Jar, classes: &[Class]) -> Total {
    let of = |why| {
        let is_it = |class: &&Class| class.why.as_ref().map(keep::KeepReason::name) == why;
        classes.iter().filter(is_it).count() as u64
    };
    let is_inner = |entry: &&jar::Entry| entry.path.ends_with(".jar");
    Total {
        r#type: "strip",
        classes: classes.len() as u64,
        seen: of(Some("seen")),
        listed: of(Some("listed")),
        named: of(Some("named")),
        referred: of(Some("referred to")),
        removed: of(None),
        removed_bytes: removable(classes).map(|class| packed(jar, class)).sum(),
        inner: jar.entries.iter().filter(is_inner).count() as u64,
        ..Total::default()
    }
}

fn print_report(args: &Strip, jar: &Jar, classes: &[Class], total: &Total) -> Result<()> {
    let mut out = Output::open(None)?;
    let shown = classes.iter().filter(|_| !args.quiet);
    if args.json {
        for class in shown {
            out.json(&Stripped {
                r#type: "stripped",
                class: &class.name,
                kept: class.why.is_some(),
                why: class.why.as_ref().map(keep::KeepReason::name),
                by: class.why.as_ref().and_then(keep::KeepReason::by),
                bytes: packed(jar, class),
            })?;
        }
        out.json(total)?;
    } else {
        for class in shown.filter(|class| class.why.is_none()) {
            let word = if args.warn_only { "not needed" } else { "removed" };
            out.line(&format!("{word} {}", class.name))?;
        }
        let Total { classes, seen, listed, named, referred, removed, .. } = total;
        out.line(&format!(
            "{}: {}: {seen} seen, {listed} listed, {named} named by its files, {referred} referred \
             to by kept classes; {removed} not needed ({})",
            total.jar,
            count(*classes, "class"),
            bytes(total.removed_bytes),
        ))?;
    }
    if total.removed > 0 && !total.readers.is_empty() {
        log::warn!(
            "the program reads class files as data, by {}; the reports lack classes that it reads \
             but never loads: specify those that it needs with --keep, and test it with the \
             stripped jar",
            total.readers.join(", ")
        );
    }
    if total.inner > 0 {
        log::warn!("{}: jars inside it are not stripped: {}", total.jar, total.inner);
    }
    if let (Some(path), Some(to)) = (&total.out, total.bytes_out) {
        log::info!("wrote {path}: {} of {}", bytes(to), bytes(total.bytes));
    }
    Ok(())
}
