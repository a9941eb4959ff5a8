//! State of `--list` for all JVMs: the exit status, and the document for `--vex`.

use anyhow::{Result, bail};
use libjvmprobe::process::{Target, launcher::main_of};

use crate::{
    args::Args,
    list::{Hits, Listing},
    report::Report,
    vex::Vex,
};

/// A list, and its results so far.
pub struct ListCheck {
    /// The list.
    pub listing: Listing,
    vex: Option<Vex>,
    in_use: bool,
}

impl ListCheck {
    /// Reads the list, if the user gave one.
    pub fn open(args: &Args) -> Result<Option<Self>> {
        let Some(path) = &args.list else { return Ok(None) };
        let listing = Listing::read(path)?;
        if let (Some(_), Some(line)) = (&args.vex, listing.without_vulnerability()) {
            bail!(
                "{}: `{line}` has no vulnerability; add a line `[CVE-...]` above it",
                path.display()
            );
        }
        let vex = args.vex.as_deref().map(|path| Vex::create(path, args)).transpose()?;
        Ok(Some(Self { listing, vex, in_use: false }))
    }

    /// Prints the results for a JVM.
    pub fn report_jvm(&mut self, target: &Target, hits: Hits, report: &mut Report) -> Result<()> {
        let listed = hits.into_listed(&self.listing, target.pid().0);
        self.in_use |= listed.iter().any(|line| line.in_use);
        if let Some(vex) = &mut self.vex {
            vex.add(target.pid(), &main_of(&target.process), &listed);
        }
        Ok(report.listed(&listed)?)
    }

    /// Writes the VEX document, and returns whether anything on the list was in use in any JVM, or may
    /// have been.
    pub fn finish(self) -> Result<bool> {
        self.vex.map(Vex::write).transpose()?;
        Ok(self.in_use)
    }
}
