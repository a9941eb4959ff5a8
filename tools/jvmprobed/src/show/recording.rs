//! Writes stored data as a recording of JDK Flight Recorder: profiles of all measures, and stops.
//!
//! Windows are converted one after the other, so that a day takes no more memory than a window.

use std::path::PathBuf;

use anyhow::{Result, bail};
use libjvmprobe::render::formats::jfr::{facts::Jvm, file::RecordingFile};

use crate::{
    show::{
        jvm_filter::JvmFilter,
        selection::{cut_out, time_of},
        time_arg::span,
    },
    store::reader::{Span, StoreReader},
    window::JvmData,
};

/// Writes the data of a period to files, and returns their paths.
///
/// # Errors
/// A line for the user.
pub fn write(
    store_reader: &StoreReader,
    period: Span,
    jvm: Option<&JvmFilter>,
    paths: &[&PathBuf],
) -> Result<Vec<PathBuf>> {
    let files = paths.iter().map(|path| RecordingFile::create(path));
    let mut files = files.collect::<Result<Vec<_>, _>>()?;
    store_reader.visit(period, |mut stored, part| {
        // Samples and pauses outside of the period are removed.
        cut_out(&mut stored, part);
        let jvms = &mut stored.window.jvms;
        jvms.retain(|jvm_data| jvm.is_none_or(|jvm| jvm.includes(&jvm_data.identity)));
        let begin_ns = stored.window.begin_ns.max(part.0);
        for jvm_data in jvms {
            // Waits have no sampling rate. With that of CPU time, numbers of samples of both are comparable.
            let mut rates = jvm_data.profiles.iter().map(|profile| profile.hertz);
            let hertz = rates.find(|&hertz| hertz > 0).unwrap_or(0);
            let all = jvm_data.profiles.iter_mut();
            all.filter(|profile| profile.hertz == 0).for_each(|profile| profile.hertz = hertz);
            // Threads are grouped by the process's name and number.
            let name: std::sync::Arc<str> = jvm_data.identity.name.as_str().into();
            let samples = jvm_data.profiles.iter_mut().flat_map(|profile| &mut profile.samples);
            samples.for_each(|sample| sample.command = name.clone());
            files.iter_mut().try_for_each(|file| add(jvm_data, begin_ns, file))?;
        }
        Ok(())
    })?;
    let mut written = Vec::new();
    for file in files {
        match file.finish()? {
            Some(path) => written.push(path),
            None => {
                let of = jvm.map(|jvm| format!(" of JVMs that match `{jvm}`")).unwrap_or_default();
                bail!("nothing is stored for {}{of}", span(period.0, period.1))
            }
        }
    }
    Ok(written)
}

/// Adds the data of a JVM in one window.
fn add(jvm_data: &JvmData, begin_ns: u64, file: &mut RecordingFile) -> Result<()> {
    let identity = &jvm_data.identity;
    let attribute = |key: &str| identity.attributes.get(key).map(String::as_str);
    let jvm = Jvm {
        pid: identity.pid,
        version: attribute("process.runtime.description"),
        program: Some(&identity.name),
        started_ns: Some(identity.started_ns),
    };
    file.add(|to| {
        to.jvm(jvm, begin_ns)?;
        jvm_data.profiles.iter().try_for_each(|profile| to.profile(profile))?;
        jvm_data.pauses.iter().try_for_each(|record| match time_of(record) {
            Some(time) => to.pause(record, time),
            None => Ok(()),
        })
    })?;
    Ok(())
}
