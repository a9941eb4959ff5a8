//! The BPF object, as these arguments want it.

use std::collections::HashSet;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libjvmprobe::{
    Result,
    bpf::{
        self, preflight,
        room::{self, Roomy},
        session, walker,
    },
};

use crate::{
    event::Event,
    probes::REQUEST_PROGRAM,
    skel::{JavagcSkel, JavagcSkelBuilder},
};

/// The loaded programs, their maps and their events.
pub type Session = session::Session<JavagcSkel<'static>, Event>;

/// One entry a JVM: 4 MB where they are allocated beforehand.
const ROOMY: [Roomy; 2] = [
    Roomy { name: "stops", most: 1 << 12, allocated: 1 << 12 },
    Roomy { name: "gauges", most: 1 << 12, allocated: 1 << 12 },
];
/// Bytes of the ring buffer where all JVMs send through it: some thousand stops.
const LARGE_RING: u32 = 1 << 22;
/// Stacks from which collections are asked for: few lines of a program do so.
const KNOWN_STACKS: u32 = 1 << 12;
/// Maps with entries by JVM.
const BY_JVM: [&str; 3] = ["gauges", "stops", "known_stacks"];

/// Loads the object; of its programs only those named, or all; the stack walker only if stacks
/// are wanted.
///
/// # Errors
/// [`Error::Permission`](libjvmprobe::Error::Permission) or
/// [`Error::Kernel`](libjvmprobe::Error::Kernel) where the kernel refuses.
pub fn load(programs: Option<&HashSet<&str>>, stacks: bool) -> Result<Session> {
    let mut open =
        JavagcSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    for mut program in open.open_object_mut().progs_mut() {
        let wanted = programs
            .is_none_or(|names| program.name().to_str().is_some_and(|name| names.contains(name)));
        program.set_autoload(wanted && (stacks || program.name() != REQUEST_PROGRAM));
    }
    if stacks {
        preflight::check_walker()?;
        open.maps.known_stacks.set_max_entries(KNOWN_STACKS).map_err(bpf::load_error)?;
    } else {
        walker::leave_out(open.open_object_mut())?;
    }
    room::make(open.open_object_mut(), &ROOMY)?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.know_jvms = stacks;
    }
    if programs.is_none() {
        open.maps.events.set_max_entries(LARGE_RING).map_err(bpf::load_error)?;
    }
    let skel = session::load(open)?;
    Ok(Session::new(skel, Event::decode, stacks)?.with_maps_by_jvm(&BY_JVM))
}
