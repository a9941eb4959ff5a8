//! Fuzzes the decoder of profiles in jvmprobed's store, on uncompressed data.
#![no_main]

#[path = "../../../tools/jvmprobed/src/store/profiles.rs"]
#[allow(dead_code)]
mod profiles;

use libjvmprobe::stack::{
    Frame, Kind,
    merging::join,
    profile::{Measure, Profile, Sample},
    span::SpanContext,
};

/// Writes the fuzzer's seed, a file with two profiles, to the path in `FUZZ_SEED`.
fn write_seed() {
    let Some(path) = std::env::var_os("FUZZ_SEED") else { return };
    let mut profile = Profile::default();
    (profile.hertz, profile.slot_ns) = (19, 1 << 30);
    let native = Frame::new(Kind::Native, "read")
        .of_module(&"libc.so.6".into())
        .at(Some("read.c".into()), 7);
    let stack = [Frame::new(Kind::Java, "a.Main.main"), native].map(|f| profile.intern(f)).to_vec();
    profile.samples.push(Sample {
        pid: 7,
        command: "java".into(),
        thread: "main".into(),
        tid: 8,
        cpu: Some(1),
        stack,
        complete: true,
        guessed: false,
        unsure: true,
        count: 3,
        occurrences: 0,
        times: vec![(1, 2), (5, 1)],
        span: SpanContext::new([1; 16], [2; 8]),
    });
    let alloc = Profile::of(Measure::Allocation);
    std::fs::write(path, profiles::encode(&[(0, &profile), (0, &alloc)]).unwrap()).unwrap();
}

libfuzzer_sys::fuzz_target!(
    init: write_seed(),
    |bytes: &[u8]| {
        let Some(all) = profiles::decode(bytes) else { return };
        // Every profile that was decoded can be encoded, joined and cut.
        let written: Vec<_> = all.iter().map(|(jvm, profile)| (*jvm, profile)).collect();
        profiles::encode(&written).unwrap();
        let mut joined = join(all.into_iter().map(|(_, profile)| profile).collect(), 0);
        joined.merge(false);
        joined.restrict_to(joined.begin_unix_ns, joined.begin_unix_ns.saturating_add(1 << 34));
    }
);
