//! The confined child: reads files and answers requests.

use std::{collections::VecDeque, fs::File, ops::Range, os::fd::OwnedFd};

use crate::{
    FileOffset, Vaddr,
    elf::{Addresses, ElfFile, Segments},
    names::demangle::demangle,
    stack::symbolizer::{
        debug_info::DebugInfo,
        protocol::{Answer, Files, Found, MAX_FRAMES, MAX_NAME, Request, Symbol},
    },
};

/// Maximum number of files kept open.
const MAX_OPEN: usize = 24;
/// Maximum size of all symbol tables together in bytes. Those of one libjvm.so take 1.5 MB. The file opened
/// last stays open even if its tables alone exceed this size.
const MAX_TABLES: usize = 48 << 20;

/// Open files, the most recently used one last.
#[derive(Default)]
pub(super) struct Child(VecDeque<OpenFile>);

struct OpenFile {
    key: u64,
    segments: Segments,
    own: Addresses,
    /// Symbols that this file lacks, from a separate file.
    separate_symbols: Addresses,
    debug_info: Option<DebugInfo>,
}

impl Child {
    /// Answers a request.
    pub(super) fn answer(&mut self, request: &[u8], files: Vec<OwnedFd>) -> Vec<u8> {
        let answer = match Request::decode(request) {
            Some(Request::Open { key, files: present }) => self.open(key, present, files),
            Some(Request::Find { key, offset }) => self.find(key, offset),
            Some(Request::Close { key }) => {
                self.0.retain(|file| file.key != key);
                Answer::Done
            }
            None => Answer::Refused,
        };
        answer.encode()
    }

    fn open(&mut self, key: u64, present: Files, files: Vec<OwnedFd>) -> Answer {
        let Some(file) = OpenFile::open(key, present, files) else { return Answer::Refused };
        self.0.retain(|file| file.key != key);
        self.0.push_back(file);
        let size = |file: &OpenFile| file.own.size() + file.separate_symbols.size();
        while self.0.len() > 1
            && (self.0.len() > MAX_OPEN || self.0.iter().map(size).sum::<usize>() > MAX_TABLES)
        {
            self.0.pop_front();
        }
        Answer::Done
    }

    fn find(&mut self, key: u64, offset: FileOffset) -> Answer {
        let Some(i) = self.0.iter().position(|file| file.key == key) else {
            return Answer::NotOpen;
        };
        // Cannot fail: the index was found just now.
        let Some(file) = self.0.remove(i) else { return Answer::NotOpen };
        let found = file.find(offset);
        self.0.push_back(file);
        Answer::Found(found)
    }
}

impl OpenFile {
    fn open(key: u64, present: Files, files: Vec<OwnedFd>) -> Option<Self> {
        let mut files = files.into_iter().map(File::from);
        let own = ElfFile::open(files.next()?).ok()?;
        let mut next = |is_there: bool| match is_there {
            true => files.next().and_then(|file| ElfFile::open(file).ok()),
            false => None,
        };
        let (separate_symbols, debug, common) =
            (next(present.separate_symbols), next(present.debug), next(present.common));
        let debug_info = match (present.debug_info, &debug) {
            (false, _) => None,
            (true, Some(debug)) => DebugInfo::open(debug, common.as_ref()),
            (true, None) => DebugInfo::open(&own, common.as_ref()),
        };
        let symbols = |elf: &ElfFile| Addresses::read(elf, &[".symtab"]);
        Some(Self {
            key,
            own: Addresses::read(&own, &[".symtab", ".dynsym"]),
            separate_symbols: separate_symbols.or(debug).as_ref().map(symbols).unwrap_or_default(),
            segments: own.into_segments(),
            debug_info,
        })
    }

    /// Returns the symbols at an offset, and the range of offsets that have the same symbols.
    fn find(&self, offset: FileOffset) -> Found {
        let Some(at) = self.segments.vaddr(offset) else {
            return Found::only_at(offset, Vec::new());
        };
        if let Some(info) = &self.debug_info {
            return Found::only_at(offset, self.find_in_debug_info(info, at));
        }
        let (name, range) = self.named(at);
        let symbols: Vec<_> = name.map(|name| symbol(&name, None, 0)).into_iter().collect();
        let start = offset.0.checked_sub(at.0 - range.start.0).map(FileOffset);
        let last = offset.0.checked_add(range.end.0 - at.0 - 1).map(FileOffset);
        // The offsets of another segment have other addresses.
        let is_at = |offset, at| self.segments.vaddr(offset) == Some(at);
        match (start, last) {
            (Some(start), Some(last))
                if is_at(start, range.start) && is_at(last, Vaddr(range.end.0 - 1)) =>
            {
                Found { symbols, start, len: last.0 - start.0 + 1 }
            }
            _ => Found::only_at(offset, symbols),
        }
    }

    /// Returns the name at an address from symbol tables, and the range of addresses with the same name.
    fn named(&self, at: Vaddr) -> (Option<String>, Range<Vaddr>) {
        let (name, range) = self.separate_symbols.name(at);
        if name.is_some() {
            return (name, range);
        }
        let (name, own) = self.own.name(at);
        (name, range.start.max(own.start)..range.end.min(own.end))
    }

    /// Returns the symbols at an address, innermost first.
    fn find_in_debug_info(&self, info: &DebugInfo, at: Vaddr) -> Vec<Symbol> {
        let named = || self.named(at).0;
        let functions = info.functions(at);
        // Debug information is preferred over symbols, because it has inlined functions and lines.
        if functions.iter().any(|function| function.file.is_some()) {
            let symbols = functions.into_iter().filter_map(|function| {
                let name = function.name.or_else(named)?;
                Some(symbol(&name, function.file, function.line))
            });
            let symbols: Vec<_> = symbols.take(MAX_FRAMES).collect();
            if !symbols.is_empty() {
                return symbols;
            }
        }
        named().map(|name| symbol(&name, None, 0)).into_iter().collect()
    }
}

fn symbol(mangled: &str, file: Option<String>, line: u32) -> Symbol {
    let name = truncate(demangle(mangled));
    let file = file.map(truncate).filter(|file| !file.is_empty());
    Symbol { name, file, line, is_java: false }
}

/// Cuts a text after the last complete character within the first [`MAX_NAME`] bytes.
fn truncate(mut text: String) -> String {
    let end = (0..=MAX_NAME.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::elf::testing::Library;

    const ASSEMBLY: &str = "
        .text
        .globl _ZN1a1bEv
        .type _ZN1a1bEv, @function
        _ZN1a1bEv: nop
        .size _ZN1a1bEv, 1
    ";

    fn names(child: &mut Child, key: u64, offset: FileOffset) -> Option<Vec<String>> {
        match Answer::decode(&child.answer(&Request::Find { key, offset }.encode(), Vec::new())) {
            Some(Answer::Found(found)) => {
                assert!(found.contains(offset));
                Some(found.symbols.into_iter().map(|symbol| symbol.name).collect())
            }
            Some(Answer::NotOpen) => None,
            other => panic!("{other:?}"),
        }
    }

    fn open(
        child: &mut Child,
        key: u64,
        files: Files,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Answer> {
        Answer::decode(&child.answer(&Request::Open { key, files }.encode(), descriptors))
    }

    #[test]
    fn files_are_opened_looked_up_and_closed() {
        let library = Library::build(ASSEMBLY, &[]);
        let elf = library.elf();
        let at = elf.vaddr_to_offset(elf.symbols().unwrap().find("_ZN1a1bEv").unwrap().value);
        let at = at.unwrap();
        let file = || OwnedFd::from(File::open(library.path()).unwrap());
        let mut child = Child::default();
        assert_eq!(names(&mut child, 1, at), None);
        let files = Files::default();
        assert_eq!(open(&mut child, 1, files, Vec::new()), Some(Answer::Refused));
        assert_eq!(open(&mut child, 1, files, vec![file()]), Some(Answer::Done));
        assert_eq!(names(&mut child, 1, at), Some(vec!["a::b".to_owned()]));
        assert_eq!(names(&mut child, 1, FileOffset(u64::MAX)), Some(Vec::new()));
        let done = child.answer(&Request::Close { key: 1 }.encode(), Vec::new());
        assert_eq!(Answer::decode(&done), Some(Answer::Done));
        assert_eq!(names(&mut child, 1, at), None);
        assert_eq!(Answer::decode(&child.answer(b"nonsense", Vec::new())), Some(Answer::Refused));
        // The least recently used file is closed first.
        for key in 0..=MAX_OPEN as u64 {
            assert_eq!(open(&mut child, key, files, vec![file()]), Some(Answer::Done));
            assert!(names(&mut child, 0, at).is_some());
        }
        assert_eq!(names(&mut child, 1, at), None);
        // Not an ELF file.
        let status = File::open("/proc/self/status").unwrap().into();
        assert_eq!(open(&mut child, 1, files, vec![status]), Some(Answer::Refused));
    }

    /// Inlined functions and lines are found, also in sections that are compressed with zlib or zstd.
    #[test]
    fn debug_information_yields_inlined_functions_and_lines() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("inlined.c");
        std::fs::write(
            &source,
            "static inline __attribute__((always_inline)) int inner(int *p) {\n  return *p / 3;\n}\n\
             int outer(int *p) {\n  return inner(p);\n}\n",
        )
        .unwrap();
        for packing in ["none", "zlib", "zstd"] {
            let library = dir.path().join("inlined.so");
            let mut command = Command::new("cc");
            command.args(["-g", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
            command.arg(format!("-Wl,--compress-debug-sections={packing}"));
            if !command.output().unwrap().status.success() {
                println!("skipped: the linker does not support {packing} compression");
                continue;
            }
            let elf = ElfFile::open(File::open(&library).unwrap()).unwrap();
            let outer = elf.symbols().unwrap().find("outer").unwrap().value;
            let at = elf.vaddr_to_offset(outer).unwrap();
            let mut child = Child::default();
            let present = |debug_info| Files { debug_info, ..Files::default() };
            let file = || vec![OwnedFd::from(File::open(&library).unwrap())];
            assert_eq!(open(&mut child, 1, present(false), file()), Some(Answer::Done));
            assert_eq!(names(&mut child, 1, at), Some(vec!["outer".to_owned()]));
            assert_eq!(open(&mut child, 1, present(true), file()), Some(Answer::Done));
            // At least one instruction of `outer` belongs to the inlined function.
            let mut all = (0..8).map(|i| child.0[0].find(FileOffset(at.0 + i)));
            let found = all.find(|found| found.symbols.len() == 2).expect("inlined");
            // Another offset may have another line.
            assert_eq!(found.len, 1);
            let found: Vec<_> = found
                .symbols
                .iter()
                .map(|symbol| (symbol.name.as_str(), symbol.file.as_deref(), symbol.line))
                .collect();
            let expected = [("inner", Some("inlined.c"), 2), ("outer", Some("inlined.c"), 5)];
            assert_eq!(found, expected, "{packing}");
        }
    }
}
