//! Naming: maps addresses of a process to frames.

use std::{collections::HashMap, fmt::Write, sync::Arc};

use crate::{
    Addr, FileOffset,
    names::code::{Code, CodeKind, Inlined},
    process::code::{CodeMaps, Mapping},
    stack::{
        Frame, Kind,
        code_log::{CodeId, CodeIndex},
        kernel::KernelSymbols,
        native::{FunctionsAt, Symbol, Symbols},
    },
};

/// Names of code in a JVM's code cache.
#[derive(Debug, Default)]
pub(crate) struct JavaNames {
    index: CodeIndex,
    cache: HashMap<CodeId, Code>,
    signatures: bool,
}

impl JavaNames {
    /// Makes a source from the history of the code cache. With `signatures`, method names include the parameters.
    pub fn new(index: CodeIndex, signatures: bool) -> Self {
        Self { index, cache: HashMap::new(), signatures }
    }

    /// Appends the frames at `addr` in `epoch`, innermost first: more than one if methods are inlined there. Returns
    /// whether the address is known.
    pub fn name(&mut self, addr: Addr, epoch: u64, frames: &mut Vec<Frame>) -> bool {
        let Some(id) = self.index.find(addr, epoch) else {
            return false;
        };
        let (index, signatures) = (&self.index, self.signatures);
        let code = self.cache.entry(id).or_insert_with(|| index.code(id).into_owned());
        frames_of(code, addr, signatures, frames);
        true
    }
}

/// Appends the frames at an address within `code`, innermost first. Returns `false` if inlined frames may be
/// missing.
pub(crate) fn frames_of(
    code: &Code,
    addr: Addr,
    signatures: bool,
    frames: &mut Vec<Frame>,
) -> bool {
    let kind = match code.kind {
        CodeKind::Method => Kind::Java,
        CodeKind::Interpreter => Kind::Interpreted,
        CodeKind::Stub => Kind::Stub,
    };
    let Some(Inlined { chain, is_sure, .. }) = code.inlined_at(addr) else {
        let name = display_name(&code.name, code.signature.as_deref(), signatures);
        frames.push(Frame { origin: code.origin.clone(), ..Frame::new(kind, name) });
        return true;
    };
    frames.extend(chain.iter().enumerate().map(|(i, method)| {
        let is_outermost = i + 1 == chain.len();
        Frame::of_source(method, if is_outermost { kind } else { Kind::Inlined }, signatures)
    }));
    *is_sure
}

/// Returns a method's name, with its parameters if `signatures` is set.
pub(super) fn display_name(name: &Arc<str>, signature: Option<&str>, signatures: bool) -> Arc<str> {
    match signature {
        Some(signature) if signatures => format!("{name}{signature}").into(),
        _ => Arc::clone(name),
    }
}

/// Maximum number of addresses cached with their names. Most programs are sampled at fewer addresses.
const MAX_CACHED: usize = 100_000;
/// Maximum size in bytes of the frames in files that are cached for a process.
const MAX_CACHED_SIZE: usize = 16 << 20;

fn clear_if_full(cache: &mut HashMap<Addr, Vec<Frame>>) {
    if cache.len() >= MAX_CACHED {
        cache.clear();
    }
}

/// Names of code in the files that a process has mapped. Caches results.
#[derive(Debug)]
pub(crate) struct NativeNames {
    maps: CodeMaps,
    symbols: Symbols,
    cache: HashMap<Addr, Vec<Frame>>,
    /// Size of the cached frames in bytes.
    size: usize,
}

impl NativeNames {
    /// Makes a source for these mappings.
    pub fn new(maps: CodeMaps, symbols: Symbols) -> Self {
        Self { maps, symbols, cache: HashMap::new(), size: 0 }
    }

    fn look_up(&self, addr: Addr) -> Vec<Frame> {
        let Some(mapping) = self.maps.find(addr) else {
            return Vec::new();
        };
        let is_jvm = &*mapping.module == "libjvm.so";
        let kind = if is_jvm { Kind::Jvm } else { Kind::Native };
        let offset = mapping.file_offset(addr);
        let file = mapping.file.as_ref();
        let FunctionsAt { symbols, start } =
            file.map(|file| self.symbols.elf(file, offset)).unwrap_or_default();
        let count = symbols.len();
        let frame = |(i, symbol): (usize, Symbol)| {
            let kind = match symbol.is_java {
                true if i + 1 == count => Kind::Java,
                true => Kind::Inlined,
                false => kind,
            };
            let file = symbol.file.map(Into::into);
            Frame::new(kind, symbol.name).of_module(&mapping.module).at(file, symbol.line)
        };
        let mut frames: Vec<_> = symbols.into_iter().enumerate().map(frame).collect();
        if frames.is_empty() && mapping.is_file() {
            frames.push(unknown(mapping, start.unwrap_or(offset)));
        }
        frames
    }

    /// Appends the frames at `addr`, innermost first: more than one if functions are inlined there. Returns whether the
    /// address is known.
    pub fn name(&mut self, addr: Addr, frames: &mut Vec<Frame>) -> bool {
        if !self.cache.contains_key(&addr) {
            if self.cache.len() >= MAX_CACHED || self.size > MAX_CACHED_SIZE {
                self.cache.clear();
                self.size = 0;
            }
            let found = self.look_up(addr);
            self.size += Frame::sum_of_sizes(&found);
            self.cache.insert(addr, found);
        }
        let found = self.cache.get(&addr).map_or(&[][..], Vec::as_slice);
        frames.extend_from_slice(found);
        !found.is_empty()
    }
}

/// Makes the frame of code without a name, at an offset of its file.
fn unknown(mapping: &Mapping, offset: FileOffset) -> Frame {
    let mut name = String::new();
    // Writing to a String does not fail.
    let _ = write!(name, "[unknown {}+{offset}]", mapping.module);
    Frame::new(Kind::Unknown, name).of_module(&mapping.module)
}

/// Names of kernel functions.
#[derive(Debug, Default)]
pub(crate) struct KernelNames {
    symbols: KernelSymbols,
    cache: HashMap<Addr, Vec<Frame>>,
}

impl KernelNames {
    /// Names the frames of a kernel stack, in their order.
    pub(crate) fn stack(&mut self, addresses: impl IntoIterator<Item = Addr>) -> Vec<Frame> {
        let mut frames = Vec::new();
        for addr in addresses {
            clear_if_full(&mut self.cache);
            let symbols = &self.symbols;
            let found = self.cache.entry(addr).or_insert_with(|| {
                let name = symbols.find(addr).unwrap_or_else(|| format!("[unknown {addr}]"));
                vec![Frame::new(Kind::Kernel, name)]
            });
            frames.extend_from_slice(found);
        }
        frames
    }
}
