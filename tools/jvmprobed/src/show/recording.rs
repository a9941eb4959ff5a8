//! Writes stored data as a recording of JDK Flight Recorder: profiles of all measures, and stops.
//!
//! Windows are converted one after the other, so that a day takes no more memory than a window.

use std::path::PathBuf;

use anyhow::{Result, bail};
use libjvmprobe::{
    hotspot::description::{self, Description},
    render::formats::jfr::file::RecordingFiles,
};

use crate::{
    show::{
        jvm_filter::JvmFilter,
        selection::{cut_out, time_of},
        time_arg::span,
    },
    store::reader::{Span, StoreReader},
    window::{HostTicks, JvmData},
};

/// Writes the data of a period to files.
///
/// # Errors
/// A line for the user.
pub fn write(
    store_reader: &StoreReader,
    period: Span,
    jvm: Option<&JvmFilter>,
    paths: &[&PathBuf],
) -> Result<()> {
    let mut files = RecordingFiles::create(paths)?;
    store_reader.visit(period, |mut stored, part| {
        // Samples and pauses outside of the period are removed.
        cut_out(&mut stored, part);
        let jvms = &mut stored.window.jvms;
        jvms.retain(|jvm_data| jvm.is_none_or(|jvm| jvm.includes(&jvm_data.identity)));
        let (begin_ns, end_ns) = (stored.window.begin_ns.max(part.0), stored.window.end_ns);
        let host_ticks = stored.window.host_ticks;
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
            add(jvm_data, begin_ns, &mut files)?;
            if let Some(load) = cpu_load(jvm_data, host_ticks) {
                files.add(|to| {
                    to.cpu_load(load, end_ns);
                    Ok(())
                })?;
            }
        }
        Ok(())
    })?;
    if !files.finish()? {
        let of = jvm.map(|jvm| format!(" of JVMs that match `{jvm}`")).unwrap_or_default();
        bail!("nothing is stored for {}{of}", span(period.0, period.1))
    }
    Ok(())
}

/// Returns the shares of the host's CPU time that a JVM used in user mode and in the kernel, and that all processes used;
/// `None` if one of them is unknown.
fn cpu_load(jvm_data: &JvmData, host_ticks: Option<HostTicks>) -> Option<[f32; 3]> {
    let HostTicks { busy, total } = host_ticks.filter(|ticks| ticks.total > 0)?;
    let (cpu_ns, system_ns) = (jvm_data.cpu_ns?, jvm_data.system_cpu_ns?);
    let tick_ns = 1e9 / procfs::ticks_per_second() as f64;
    let share = |ns: u64| (ns as f64 / (total as f64 * tick_ns)).min(1.0) as f32;
    let all = (busy as f64 / total as f64) as f32;
    Some([share(cpu_ns.saturating_sub(system_ns)), share(system_ns), all])
}

/// Adds the data of a JVM in one window.
fn add(jvm_data: &JvmData, begin_ns: u64, files: &mut RecordingFiles) -> Result<()> {
    let identity = &jvm_data.identity;
    let attribute = |key: &str| identity.attributes.get(key).map(String::as_str);
    let product = attribute("process.runtime.description").map(description::product);
    let jvm = Description {
        pid: identity.pid,
        command: Some(identity.name.clone()),
        started_ms: Some(identity.started_ns / 1_000_000),
        ..product.unwrap_or_default()
    };
    files.add(|to| {
        to.jvm(&jvm, begin_ns)?;
        jvm_data.profiles.iter().try_for_each(|profile| to.profile(profile))?;
        jvm_data.pauses.iter().try_for_each(|record| match time_of(record) {
            Some(time) => to.pause(record, time),
            None => Ok(()),
        })
    })?;
    Ok(())
}
