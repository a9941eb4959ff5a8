//! Constants of one chunk: stacks, methods, classes, threads and names, each once. Events refer to them by their keys.
//!
//! Source: hotspot/share/jfr/recorder/checkpoint/, jdk.jfr.internal.consumer.ChunkParser.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use foldhash::fast::RandomState;

use super::{
    encode::Buffer,
    names::{self, MethodName},
    types::{
        CLASS, FRAME_TYPE, METHOD, PACKAGE, STACK_TRACE, SYMBOL, THREAD, THREAD_GROUP,
        THREAD_STATE, TypeId,
    },
};
use crate::stack::{Frame, Kind};

/// Key of the constant that stands for no value.
pub(super) const NONE: u64 = 0;

/// Identifiers of frame types, as async-profiler and HotSpot number them.
const FRAME_TYPES: [(u64, &str); 6] = [
    (INTERPRETED, "Interpreted"),
    (COMPILED, "JIT compiled"),
    (INLINED, "Inlined"),
    (NATIVE, "Native"),
    (CPP, "C++"),
    (KERNEL, "Kernel"),
];
const INTERPRETED: u64 = 0;
const COMPILED: u64 = 1;
const INLINED: u64 = 2;
const NATIVE: u64 = 3;
const CPP: u64 = 4;
const KERNEL: u64 = 5;

/// States of threads, as async-profiler numbers them. Its converter selects samples of CPU time by the state "default"
/// and wall-clock time by the others.
const THREAD_STATES: [(u64, &str); 3] = [
    (STATE_DEFAULT, "STATE_DEFAULT"),
    (STATE_RUNNABLE, "STATE_RUNNABLE"),
    (STATE_SLEEPING, "STATE_SLEEPING"),
];
pub(super) const STATE_DEFAULT: u64 = 0;
pub(super) const STATE_RUNNABLE: u64 = 1;
pub(super) const STATE_SLEEPING: u64 = 2;

/// Constants of one type, with their encoded values.
#[derive(Debug)]
struct Pool<K> {
    keys: HashMap<K, u64, RandomState>,
    values: Buffer,
}

impl<K> Default for Pool<K> {
    fn default() -> Self {
        Self { keys: HashMap::default(), values: Buffer::default() }
    }
}

impl<K: Eq + Hash> Pool<K> {
    /// Adds a constant that is not in the pool, and returns its key.
    fn add(&mut self, constant: K, encode: impl FnOnce(&mut Buffer)) -> u64 {
        let key = self.keys.len() as u64 + 1;
        self.keys.insert(constant, key);
        self.values.number(key);
        encode(&mut self.values);
        key
    }

    fn write(&self, of: TypeId, to: &mut Buffer) {
        to.number(of.0);
        to.number(self.keys.len() as u64);
        to.raw(self.values.bytes());
    }
}

/// Position of a frame in the list of a chunk's frames.
pub(super) type FrameKey = u32;

/// A frame, as it is encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameValue {
    /// Key of the method.
    pub(super) method: u64,
    /// Source line, or 0 if unknown.
    pub(super) line: u32,
    frame_type: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) name: Arc<str>,
    /// Number of the virtual thread that is mounted on it, or 0.
    pub(super) virtual_thread: u64,
}

/// The constants of a chunk.
#[derive(Debug, Default)]
pub(super) struct Pools {
    symbols: Pool<String>,
    packages: Pool<String>,
    classes: Pool<String>,
    methods: Pool<MethodName>,
    stacks: Pool<Box<[FrameKey]>>,
    threads: Pool<Thread>,
    groups: Pool<String>,
    /// Frames that were encoded before, because splitting their names takes time.
    frames: HashMap<Frame, FrameKey, RandomState>,
    frame_values: Vec<FrameValue>,
    /// Names with a type of their own, such as causes of collections.
    names: HashMap<TypeId, Pool<String>>,
}

impl Pools {
    /// Returns the key of a name that has a type of its own.
    pub(super) fn name(&mut self, of: TypeId, name: &str) -> u64 {
        let pool = self.names.entry(of).or_default();
        match pool.keys.get(name) {
            Some(&key) => key,
            None => pool.add(name.to_owned(), |to| to.text(name)),
        }
    }

    fn symbol(&mut self, text: &str) -> u64 {
        match self.symbols.keys.get(text) {
            Some(&key) => key,
            None => self.symbols.add(text.to_owned(), |to| to.text(text)),
        }
    }

    fn package(&mut self, class: &str) -> u64 {
        let Some((package, _)) = class.trim_start_matches('[').rsplit_once('/') else {
            return NONE;
        };
        if let Some(&key) = self.packages.keys.get(package) {
            return key;
        }
        let name = self.symbol(package);
        self.packages.add(package.to_owned(), |to| to.number(name))
    }

    /// Returns the key of a class, given in the form of class files: `java/lang/String`, `[B`.
    pub(super) fn class(&mut self, class: &str) -> u64 {
        if let Some(&key) = self.classes.keys.get(class) {
            return key;
        }
        let (name, package) = (self.symbol(class), self.package(class));
        self.classes.add(class.to_owned(), |to| {
            // The class loader is unknown.
            to.number(NONE);
            to.number(name);
            to.number(package);
            to.number(0);
        })
    }

    /// Returns the key of a method.
    pub(super) fn method(&mut self, method: MethodName) -> u64 {
        if let Some(&key) = self.methods.keys.get(&method) {
            return key;
        }
        let class = self.class(&method.class);
        let (name, descriptor) = (self.symbol(&method.name), self.symbol(&method.descriptor));
        let modifiers = if method.is_native { names::NATIVE_MODIFIER } else { 0 };
        self.methods.add(method, |to| {
            to.number(class);
            to.number(name);
            to.number(descriptor);
            to.number(modifiers);
            to.boolean(false);
        })
    }

    /// Returns the position of a frame, which is encoded if it is new.
    pub(super) fn frame(&mut self, frame: &Frame) -> FrameKey {
        if let Some(&key) = self.frames.get(frame) {
            return key;
        }
        let frame_type = match frame.kind {
            Kind::Java => COMPILED,
            Kind::Inlined => INLINED,
            Kind::Interpreted => INTERPRETED,
            Kind::Jvm => CPP,
            Kind::Kernel => KERNEL,
            Kind::Stub | Kind::Native | Kind::Class | Kind::Unknown => NATIVE,
        };
        let method = self.method(MethodName::of(frame));
        // Lines are signed in the format.
        let line = if i32::try_from(frame.line).is_ok() { frame.line } else { 0 };
        // A chunk ends long before it has 2^32 frames.
        let key = FrameKey::try_from(self.frame_values.len()).unwrap_or(FrameKey::MAX);
        self.frame_values.push(FrameValue { method, line, frame_type });
        self.frames.insert(frame.clone(), key);
        key
    }

    /// Returns the encoded form of the frame at a position.
    pub(super) fn frame_value(&self, key: FrameKey) -> FrameValue {
        self.frame_values[key as usize]
    }

    /// Returns the key of a stack, given innermost frame first.
    pub(super) fn stack(&mut self, frames: &[FrameKey]) -> u64 {
        if let Some(&key) = self.stacks.keys.get(frames) {
            return key;
        }
        let values = &self.frame_values;
        self.stacks.add(frames.into(), |to| {
            to.boolean(false);
            to.number(frames.len() as u64);
            for &key in frames {
                let FrameValue { method, line, frame_type } = values[key as usize];
                to.number(method);
                to.number(line.into());
                // The bytecode index is unknown.
                to.number(0);
                to.number(frame_type);
            }
        })
    }

    /// Returns the key of a thread of a process with this command name.
    pub(super) fn thread(&mut self, thread: Thread, command: &str) -> u64 {
        if let Some(&key) = self.threads.keys.get(&thread) {
            return key;
        }
        let process = format!("{command} {}", thread.pid);
        let group = match self.groups.keys.get(&process) {
            Some(&key) => key,
            None => self.groups.add(process.clone(), |to| {
                to.number(NONE);
                to.text(&process);
            }),
        };
        let (name, tid, number) = (Arc::clone(&thread.name), thread.tid, thread.virtual_thread);
        self.threads.add(thread, |to| {
            to.text(&name);
            to.number(tid.into());
            // Name and number of a platform thread as a Java thread are unknown.
            to.no_text();
            to.number(number);
            to.number(group);
        })
    }

    /// Returns the approximate size of the constants in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        let values = [
            self.symbols.values.len(),
            self.packages.values.len(),
            self.classes.values.len(),
            self.methods.values.len(),
            self.stacks.values.len(),
            self.threads.values.len(),
        ];
        // Each constant is stored twice: as its value, and as the key by which it is looked up.
        let constants = self.stacks.keys.len() + self.methods.keys.len() + self.frames.len();
        2 * values.iter().sum::<usize>() + 100 * constants
    }

    /// Writes the event with all constants of a chunk that begins at `start`, in ticks.
    pub(super) fn write(&self, start: u64, to: &mut Buffer) {
        let mut pools = Buffer::default();
        let mut count = 2;
        let fixed =
            [(FRAME_TYPE, &FRAME_TYPES[..]), (THREAD_STATE, &THREAD_STATES[..])].into_iter();
        for (of, constants) in fixed {
            pools.number(of.0);
            pools.number(constants.len() as u64);
            for (key, name) in constants {
                pools.number(*key);
                pools.text(name);
            }
        }
        // The JDK's reader rejects pools without constants.
        let mut add = |is_empty: bool, write: &dyn Fn(&mut Buffer)| {
            if !is_empty {
                count += 1;
                write(&mut pools);
            }
        };
        add(self.groups.keys.is_empty(), &|to| self.groups.write(THREAD_GROUP, to));
        add(self.threads.keys.is_empty(), &|to| self.threads.write(THREAD, to));
        add(self.stacks.keys.is_empty(), &|to| self.stacks.write(STACK_TRACE, to));
        add(self.methods.keys.is_empty(), &|to| self.methods.write(METHOD, to));
        add(self.classes.keys.is_empty(), &|to| self.classes.write(CLASS, to));
        add(self.packages.keys.is_empty(), &|to| self.packages.write(PACKAGE, to));
        add(self.symbols.keys.is_empty(), &|to| self.symbols.write(SYMBOL, to));
        for (of, names) in &self.names {
            add(names.keys.is_empty(), &|to| names.write(*of, to));
        }
        to.event(|to| {
            // The type of this event, its duration, and the distance to an earlier event of this type: there is none.
            to.number(1);
            to.number(start);
            to.number(0);
            to.number(0);
            // Kind of the event: constants that are not known before the end of the chunk.
            to.number(0);
            to.number(count);
            to.raw(pools.bytes());
        });
    }
}
