//! Results for vulnerable classes as a VEX document: evidence for a reviewer, without a judgement.
//!
//! Source: the OpenVEX specification 0.2.0 (openvex/spec, OPENVEX-SPEC.md). Each status is
//! `under_investigation`, because a class that was not used so far may be used later, and a class that
//! was used is not necessarily exploitable. The notes contain the observations.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use libjvmprobe::{Pid, bpf::clock, sys::output_file};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::{
    rand::{GetRandomFlags, getrandom},
    system::uname,
};
use serde::Serialize;
use uuid::{Builder, Uuid};

use crate::{args::Args, record::Listed};

/// Maximum number of list lines that a note names.
const MAX_LISTED: usize = 20;

/// A document under construction.
pub struct Vex {
    file: File,
    path: PathBuf,
    /// The product given by the user, if any.
    product: Option<String>,
    host: String,
    statements: Vec<Statement>,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "@context")]
    context: &'static str,
    #[serde(rename = "@id")]
    id: String,
    author: String,
    timestamp: String,
    version: u32,
    tooling: &'static str,
    statements: &'a [Statement],
}

/// Statement about a vulnerability in a process.
#[derive(Serialize)]
struct Statement {
    vulnerability: Vulnerability,
    products: [Product; 1],
    status: &'static str,
    status_notes: String,
    timestamp: String,
}

#[derive(Serialize)]
struct Vulnerability {
    name: String,
}

#[derive(Serialize)]
struct Product {
    #[serde(rename = "@id")]
    id: String,
}

impl Vex {
    /// Creates the file at once, so that an unwritable file is reported before any JVM is read.
    pub fn create(path: &Path, args: &Args) -> Result<Self> {
        let file = output_file::create(path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let host = uname().nodename().to_string_lossy().into_owned();
        let product = args.product.clone();
        Ok(Self { file, path: path.to_owned(), product, host, statements: Vec::new() })
    }

    /// Adds the results of a JVM, whose main class or jar is `main`.
    pub fn add(&mut self, pid: Pid, main: &str, listed: &[Listed]) {
        let mut by_vulnerability: BTreeMap<&str, Vec<&Listed>> = BTreeMap::new();
        for line in listed {
            let name = line.vulnerability.as_deref().unwrap_or_default();
            by_vulnerability.entry(name).or_default().push(line);
        }
        let now = clock::rfc3339(clock::monotonic_ns());
        let product = self.product.clone().unwrap_or_else(|| product_of(main));
        for (name, lines) in by_vulnerability {
            let observed_in = format!("process {pid} ({main}) on {} until {now}", self.host);
            self.statements.push(Statement {
                vulnerability: Vulnerability { name: name.to_owned() },
                products: [Product { id: product.clone() }],
                status: "under_investigation",
                status_notes: notes(&lines, &observed_in),
                timestamp: now.clone(),
            });
        }
    }

    /// Writes the document; removes the file if there are no statements.
    pub fn write(mut self) -> Result<()> {
        let written = if self.statements.is_empty() {
            // A document must have at least one statement.
            std::fs::remove_file(&self.path)
        } else {
            let document = Document {
                context: "https://openvex.dev/ns/v0.2.0",
                id: format!("urn:uuid:{}", uuid()?),
                author: format!("javaclass on {}", self.host),
                timestamp: clock::rfc3339(clock::monotonic_ns()),
                version: 1,
                tooling: concat!("javaclass/", env!("CARGO_PKG_VERSION")),
                statements: &self.statements,
            };
            let text = serde_json::to_string_pretty(&document)?;
            writeln!(self.file, "{text}")
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Returns a random UUID (RFC 9562, version 4).
fn uuid() -> Result<Uuid> {
    let mut bytes = [0; 16];
    let read = getrandom(&mut bytes, GetRandomFlags::empty()).context("cannot get random bytes")?;
    anyhow::ensure!(read == bytes.len(), "the kernel returned too few random bytes");
    Ok(Builder::from_random_bytes(bytes).into_uuid())
}

/// Returns the observations as text.
fn notes(lines: &[&Listed], observed_in: &str) -> String {
    let used: Vec<_> = lines.iter().filter(|line| line.in_use).collect();
    let mut text = match used.is_empty() {
        true => {
            format!(
                "Not seen in use (evidence, not proof) by {observed_in}, since the process started:"
            )
        }
        false => format!("In use, or possibly in use, by {observed_in}:"),
    };
    let shown: Vec<_> = if used.is_empty() { lines.iter().collect() } else { used };
    for (number, line) in shown.iter().take(MAX_LISTED).enumerate() {
        let comma = if number > 0 { "," } else { "" };
        // Writing into a String does not fail.
        let _ = write!(text, "{comma} {} is {}", line.pattern, line.found);
        if let Some(why) = line.why {
            let _ = write!(text, " ({why})");
        }
    }
    if let Some(more @ 1..) = shown.len().checked_sub(MAX_LISTED) {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Bytes that are encoded in a package URL: all but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~');

/// Returns a package URL for a JVM's main class or jar.
fn product_of(main: &str) -> String {
    let name = main.rsplit('/').next().unwrap_or(main);
    format!("pkg:generic/{}", utf8_percent_encode(name, RESERVED))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn products_are_package_urls() {
        assert_eq!(product_of("/opt/my app.jar"), "pkg:generic/my%20app.jar");
        assert_eq!(product_of("com.acme.Main"), "pkg:generic/com.acme.Main");
        assert_eq!(product_of("m/a$B"), "pkg:generic/a%24B");
    }
}
