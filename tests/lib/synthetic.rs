//! Deterministic synthetic profiles, of any size or with unusual content.

use std::collections::HashMap;

use libjvmprobe::stack::{
    Frame, Kind,
    profile::{FrameId, Profile, Sample},
    timeline::{Band, BandKind},
};

/// Length of a time slot of the synthetic profiles.
pub const SLOT_NS: u64 = 20_000_000;

/// Deterministic pseudo-random number generator, with its state.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number from 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// A synthetic sample: time, thread, stack and count.
#[derive(Clone, Debug)]
pub struct SyntheticSample {
    /// Time slot, counted from the start of the profile.
    pub slot: u32,
    /// Thread ID.
    pub tid: u32,
    /// Its frames, outermost first.
    pub stack: Vec<FrameId>,
    /// Number of samples that this one represents.
    pub count: u64,
}

/// A profile, and the samples that it was made from.
#[derive(Debug)]
pub struct SyntheticProfile {
    /// The profile, with time slots.
    pub profile: Profile,
    /// Stops of the application.
    pub bands: Vec<Band>,
    /// The samples.
    pub samples: Vec<SyntheticSample>,
}

impl SyntheticProfile {
    /// Makes a profile of these samples. `profile` contains their frames.
    pub fn of(mut profile: Profile, samples: Vec<SyntheticSample>) -> Self {
        profile.samples = samples.iter().map(sample).collect();
        (profile.begin_unix_ns, profile.slot_ns) = (1_790_000_000_250_000_000, SLOT_NS);
        profile.shrink(usize::MAX);
        let slots = samples.iter().map(|sample| u64::from(sample.slot) + 1).max().unwrap_or(0);
        profile.duration_ns = slots * SLOT_NS;
        profile.hertz = 99;
        Self { profile, bands: Vec::new(), samples }
    }

    /// Returns a profile of the selected samples.
    pub fn part(&self, is_selected: impl Fn(&SyntheticSample) -> bool) -> Profile {
        let mut part = Profile::of(self.profile.measure.clone());
        for synthetic in self.samples.iter().filter(|sample| is_selected(sample)) {
            let frames = synthetic.stack.iter().map(|&id| self.profile.frame(id).clone());
            let stack = frames.map(|frame| part.intern(frame)).collect();
            part.samples.push(Sample { stack, ..sample(synthetic) });
        }
        part
    }
}

fn sample(synthetic: &SyntheticSample) -> Sample {
    Sample {
        count: synthetic.count,
        times: vec![(synthetic.slot, synthetic.count)],
        ..Sample::of(
            100,
            format!("worker-{}", synthetic.tid % 1000).into(),
            synthetic.tid,
            synthetic.stack.clone(),
        )
    }
}

const PACKAGES: [&str; 12] = [
    "org.jetbrains.kotlin.fir.resolve.transformers",
    "org.jetbrains.kotlin.fir.declarations.impl",
    "org.jetbrains.kotlin.backend.jvm.lower",
    "org.jetbrains.kotlin.ir.visitors",
    "org.jetbrains.kotlin.codegen.optimization.common",
    "org.jetbrains.kotlin.com.intellij.psi.impl.source.tree",
    "org.jetbrains.org.objectweb.asm.tree.analysis",
    "java.util.concurrent",
    "java.util.stream",
    "java.lang.invoke",
    "kotlin.collections",
    "com.example.shop.checkout",
];
const CLASSES: [&str; 10] = [
    "FirExpressionsResolveTransformer",
    "FirDefaultVisitor",
    "IrElementTransformerVoid",
    "ReferencePipeline$Head",
    "MethodAnalyzer",
    "HashMap",
    "CompositeElement",
    "LazyClassReceiverParameterDescriptor",
    "Frame",
    "PriceCalculator",
];
const METHODS: [&str; 10] = [
    "transformFunctionCall",
    "accept",
    "visitElement",
    "forEachRemaining",
    "analyze",
    "getNode",
    "execute",
    "lambda$resolve$0",
    "merge",
    "compute",
];

/// Profile that resembles a compiler's: `count` samples with mostly deep stacks, each of which
/// shares its outer frames with the one before.
pub fn compiler(count: usize, seconds: u64, threads: u64) -> SyntheticProfile {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut profile = Profile::default();
    let names: Vec<String> = (0..6000)
        .map(|i| {
            let [package, class, method] =
                [dice.below(12), dice.below(10), dice.below(10)].map(|at| at as usize);
            format!(
                "{}.{}{}.{}{}",
                PACKAGES[package],
                CLASSES[class],
                i % 7,
                METHODS[method],
                i % 11
            )
        })
        .collect();
    let native = ["clone3", "start_thread", "thread_native_entry", "JavaThread::run"];
    let roots: Vec<_> = native
        .iter()
        .zip([Kind::Native, Kind::Native, Kind::Jvm, Kind::Jvm])
        .map(|(name, kind)| profile.intern(Frame::new(kind, *name)))
        .collect();
    let ends = [
        ("memset_avx2", Kind::Native),
        ("InstanceKlass::allocate_instance", Kind::Jvm),
        ("do_syscall_64", Kind::Kernel),
        ("StubRoutines::jbyte_arraycopy", Kind::Stub),
        ("G1ParScanThreadState::trim_queue", Kind::Jvm),
    ]
    .map(|(name, kind)| profile.intern(Frame::new(kind, name)));
    let mut stack: Vec<FrameId> = roots.clone();
    let mut samples = Vec::new();
    for i in 0..count {
        // As in a running program: return from some frames, then call others.
        let keep = roots.len() as u64 + dice.below(stack.len() as u64 - 3);
        stack.truncate(keep as usize);
        for _ in 0..dice.below(60).min(160 - stack.len() as u64 % 160) {
            // Repeated draws favour low indexes, so a few methods are called often.
            let at = (0..4).fold(6000, |end, _| dice.below(end + 1).min(5999)) as usize;
            let kind = match dice.below(10) {
                0..=3 => Kind::Java,
                4..=8 => Kind::Inlined,
                _ => Kind::Interpreted,
            };
            stack.push(profile.intern(Frame::new(kind, names[at].as_str())));
        }
        stack.dedup();
        let mut complete = stack.clone();
        if dice.below(4) == 0 {
            complete.push(ends[dice.below(5) as usize]);
        }
        // In bursts: a third of the time is almost idle.
        let end = seconds * 50;
        let at = i as u64 * end / count.max(1) as u64;
        let is_idle = (at / 37).is_multiple_of(3) && dice.below(10) > 1;
        let slot = (if is_idle { (at + 37).min(end - 1) } else { at }) as u32;
        let tid = 101 + dice.below(threads) as u32;
        samples.push(SyntheticSample { slot, tid, stack: complete, count: 1 + dice.below(2) });
    }
    let mut synthetic = SyntheticProfile::of(profile, samples);
    for i in 0..seconds / 2 {
        let begin_ns = i * 2_000_000_000 + dice.below(1_500_000_000);
        let (kind, label) = match i % 5 {
            0 => (BandKind::Safepoint, "ICBufferFull"),
            _ => (BandKind::Collection, "G1 Evacuation Pause"),
        };
        let end_ns = begin_ns + 4_000_000 + dice.below(60_000_000);
        synthetic.bands.push(Band { begin_ns, end_ns, kind, label: label.into() });
    }
    synthetic
}

/// Profile of `count` samples over 24 hours, of a program in a steady state: it has at most 5,000
/// different stacks.
pub fn day(count: u32) -> SyntheticProfile {
    let mut steady = compiler(5000, 100, 16);
    steady.samples.iter_mut().for_each(|sample| sample.stack.truncate(20));
    let mut dice = Dice(11);
    let samples = (0..count).map(|i| SyntheticSample {
        slot: (u64::from(i) * 24 * 3600 * 50 / u64::from(count.max(1))) as u32,
        ..steady.samples[dice.below(5000) as usize].clone()
    });
    let samples = samples.collect();
    SyntheticProfile::of(steady.profile, samples)
}

/// Small profile of a few methods. `a.Main.run` is compiled, inlined and interpreted, so that tests
/// can check that the page shows it as one tower.
pub fn small() -> SyntheticProfile {
    let mut profile = Profile::default();
    let mut frames = HashMap::new();
    let mut frame = |kind, name: &'static str| {
        *frames.entry((kind, name)).or_insert_with(|| profile.intern(Frame::new(kind, name)))
    };
    let main = frame(Kind::Interpreted, "a.Main.main");
    let [run, run_inlined, run_slow] =
        [Kind::Java, Kind::Inlined, Kind::Interpreted].map(|kind| frame(kind, "a.Main.run"));
    let (read, write) = (frame(Kind::Kernel, "vfs_read"), frame(Kind::Native, "write"));
    let stacks = [
        vec![main, run],
        vec![main, run_inlined],
        vec![main, run_slow, read],
        vec![main, run, write],
        vec![main, run, run_inlined],
        vec![main, write],
    ];
    let counts = [40, 20, 10, 15, 5, 10];
    let samples = (0..6_u32).zip(stacks).zip(counts).map(|((i, stack), count)| SyntheticSample {
        slot: i * 13,
        tid: 101 + i % 3,
        stack,
        count,
    });
    let samples = samples.collect();
    SyntheticProfile::of(profile, samples)
}
