//! Entry points of the fuzzers in `tests/fuzz`. Each function calls a parser of foreign bytes and
//! uses its result as the library does. No parser may panic, hang or need much memory.

use std::{fs::File, os::unix::fs::FileExt};

use procfs::{
    FromRead,
    process::{MemoryMaps, Stat, Status},
};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    Addr, FileOffset, Vaddr,
    attach::{agent_map, jcmd},
    elf::{ElfFile, Probes, core_dump::CoreDump},
    hotspot::{
        self,
        fuzzing::{Fake, Part},
        perfdata::PerfData,
    },
    jvms,
    names::{demangle, perfmap},
    process::{cgroup::Container, context, service::Service},
    trace,
    unwind::UnwindTable,
};

/// Writes a seed to the path in `FUZZ_SEED`, for a fuzzer that uses the fake JVM. The fuzzer replaces a part
/// of the fake JVM's memory; the seed is the original content of this part.
pub fn write_seed(target: &str) {
    let part = match target {
        "methods" | "loaded" => Part::Methods,
        "scopes" => Part::Scopes,
        "code_cache" => Part::CodeCache,
        "objects" => Part::Heap,
        _ => Part::All,
    };
    if let Some(path) = std::env::var_os("FUZZ_SEED") {
        std::fs::write(path, Fake::get().part(part)).unwrap();
    }
}

fn file(parts: &[&[u8]]) -> File {
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).unwrap());
    let mut at = 0;
    for part in parts {
        file.write_all_at(part, at).unwrap();
        at += part.len() as u64;
    }
    file
}

/// Returns an ELF file with one section called `name`, and a string table that the section links to.
fn elf_with(name: &str, content: &[u8], strings: &[u8]) -> Option<ElfFile> {
    let names = [b"\0", name.as_bytes(), b"\0"].concat();
    let sections = [&[][..], &names, content, strings];
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    header.resize(64, 0);
    header[16] = 3;
    header[18] = 62;
    header[40..48].copy_from_slice(&64_u64.to_le_bytes());
    header[58..64].copy_from_slice(&[64, 0, 4, 0, 1, 0]);
    let mut at = 64 + 64 * sections.len() as u64;
    for (i, section) in sections.iter().enumerate() {
        let (name, kind) = if i == 2 { (1_u32, 1_u32) } else { (0, u32::from(i > 0) * 3) };
        let mut head: Vec<u8> = [name, kind].iter().flat_map(|n| n.to_le_bytes()).collect();
        // sh_flags, sh_addr, sh_offset, sh_size; sh_link and sh_info; sh_addralign, sh_entsize.
        for word in [0, 0x1000, at, section.len() as u64, 3, 4, 24] {
            head.extend_from_slice(&u64::to_le_bytes(word));
        }
        header.extend(head);
        at += section.len() as u64;
    }
    let parts: Vec<&[u8]> = [&header[..]].into_iter().chain(sections).collect();
    ElfFile::open(file(&parts)).ok()
}

/// Reads from an ELF file everything that the library reads from a libjvm.so.
pub fn elf_file(bytes: &[u8]) {
    let Ok(elf) = ElfFile::open(file(&[bytes])) else { return };
    let separate_symbols = elf.symbols_in(|_| Ok(file(&[bytes])));
    let elf = elf.with_symbols_of(separate_symbols.as_ref());
    let _ = (elf.begins_function(Vaddr(0x1000)), elf.relocations());
    if let Ok(Some(image)) = crate::native_image::Image::read(&elf) {
        let at = |vaddr| image.at(vaddr).len();
        let _ = image.methods().map(|method| at(method.start) + at(method.end)).max();
    }
    let _ = elf.stapsdt().iter().flat_map(Probes::names).count();
    for symbols in [elf.symbols(), elf.dynamic_symbols()].into_iter().flatten() {
        let _ = (symbols.find("nowhere"), symbols.find_prefix("her"), symbols.is_empty());
    }
    let _ = (elf.vaddr_to_offset(Vaddr(0x1000)), elf.machine(), elf.base());
    let _ = elf.load_bias(Addr(u64::MAX), FileOffset(0x1000));
    let _ = (elf.is_stripped(), UnwindTable::read(&elf));
    let _ = elf.exported_thread_local(&["", "otel_thread_ctx_v1"]);
}

/// Reads a symbol table. The input is the number of symbols (u16, little-endian), the symbols, and
/// their names.
pub fn symbols(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first_chunk::<2>() else { return };
    let entries = usize::from(u16::from_le_bytes(*count)) * 24;
    let (entries, names) = rest.split_at(entries.min(rest.len()));
    let Some(elf) = elf_with(".symtab", entries, names) else { return };
    let Ok(symbols) = elf.symbols() else { return };
    let _ = (symbols.find("gHotSpotVMStructs"), symbols.at(Vaddr(0x1000), "_ZTV"));
    for name in symbols.with_prefixes(&["_Z", "_R", "g"]).keys() {
        let _ = demangle::demangle(name);
    }
}

/// Demangles a name.
pub fn demangle(bytes: &[u8]) {
    let _ = demangle::demangle(&String::from_utf8_lossy(bytes));
}

/// Reads the stapsdt notes of USDT probes.
pub fn notes(bytes: &[u8]) {
    let Some(elf) = elf_with(".note.stapsdt", bytes, &[]) else { return };
    let Ok(probes) = elf.stapsdt() else { return };
    let _ = (probes.names().count(), probes.explain_missing("hotspot", "gc__begin"));
}

/// Reads a `.eh_frame` section.
pub fn unwind(bytes: &[u8]) {
    for base in [0, 0x1000] {
        let bases = gimli::BaseAddresses::default().set_eh_frame(0x2000).set_text(0x1000);
        if let Ok(table) = UnwindTable::from_section(bytes, &bases, Vaddr(base)) {
            assert!(table.rows().is_sorted_by_key(|row| row.pc));
            let _ = (table.rows().len(), table.base());
        }
    }
}

/// Reads symbols and lines of a file as the confined child does.
pub fn native(bytes: &[u8]) {
    crate::stack::native::fuzz(file(&[bytes]));
}

/// Reads the JVM's performance data (hsperfdata).
pub fn perf_data(bytes: &[u8]) {
    let Ok(data) = PerfData::parse(bytes) else { return };
    for name in data.names() {
        let _ = (data.string(name), data.offset(name));
        assert!(data.offset(name).is_some());
    }
}

/// Reads a perf-PID.map, which HotSpot or any other program may have written.
pub fn perf_map(bytes: &[u8]) {
    for entry in perfmap::parse(&String::from_utf8_lossy(bytes)) {
        let _ = perfmap::hotspot_code(entry.name);
    }
}

/// Reads the map of the project's JVMTI agent.
pub fn agent_map(bytes: &[u8]) {
    for (addr, size, code) in agent_map::parse(&String::from_utf8_lossy(bytes)) {
        let _ = (code.inlined_at(addr), code.inlined_at(Addr(addr.0.wrapping_add(size / 2))));
    }
}

/// Reads vmStructs, flags, threads, and everything reachable from them.
pub fn vm_structs(bytes: &[u8]) {
    hotspot::fuzzing::everything(bytes);
}

/// Reads debug information of compiled methods: scopes and PcDescs.
pub fn scopes(bytes: &[u8]) {
    hotspot::fuzzing::code(Part::Scopes, bytes);
}

/// Reads the code cache.
pub fn code_cache(bytes: &[u8]) {
    hotspot::fuzzing::code(Part::CodeCache, bytes);
}

/// Reads a method's line table.
pub fn lines(bytes: &[u8]) {
    hotspot::fuzzing::lines(bytes);
}

/// Reads methods.
pub fn methods(bytes: &[u8]) {
    hotspot::fuzzing::methods(bytes);
}

/// Reads loaded classes with their methods.
pub fn loaded(bytes: &[u8]) {
    hotspot::fuzzing::loaded(bytes);
}

/// Reads the objects in a part of the Java heap, such as a TLAB.
pub fn objects(bytes: &[u8]) {
    hotspot::fuzzing::objects(bytes);
}

/// Parses a JVM's answer to a jcmd command.
pub fn attach(bytes: &[u8]) {
    let _ = jcmd::text_of("jcmd", bytes);
}

/// Parses files of /proc that contain text from other processes: a command name, the name of a mapped
/// file, and an ID map, which a process may write itself.
pub fn proc_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = jcmd::is_mapped(&text, 1000);
    // The kernel escapes command names and paths like this.
    let name = text.split('\0').next().unwrap_or_default();
    let comm: String = name.chars().take(15).collect();
    let comm = comm.replace('\\', "\\\\").replace('\n', "\\n");
    let path = name.replace('\n', "\\012");
    let stat = format!("7 ({comm}) S 1 7 7 0 -1 4194560{}", " 5".repeat(43));
    assert_eq!(Stat::from_read(stat.as_bytes()).unwrap().comm, comm);
    let status = include_str!("../../tests/fuzz/status").replace("COMM", &comm);
    let _ = Status::from_read(status.as_bytes());
    let map = |path: &str| format!("1000-2000 r-xp 00000000 fe:01 77    /{path}\n");
    let maps = MemoryMaps::from_read((map(&path) + &map("libjvm.so")).as_bytes());
    assert_eq!(maps.unwrap().0.len(), 2);
}

/// Decodes a record of javagc's ring buffer.
pub fn javagc_events(bytes: &[u8]) {
    let _ = trace::pauses::event::Event::decode(bytes);
}

/// Decodes a record of javaobjnew's ring buffer.
pub fn javaobjnew_events(bytes: &[u8]) {
    let _ = trace::allocations::event::Event::decode(bytes);
}

/// Decodes a record of javaprof's ring buffer.
pub fn javaprof_events(bytes: &[u8]) {
    let _ = trace::samples::event::Event::decode(bytes);
}

/// Derives a service name from a command line and an environment, and parses a process's control groups.
pub fn service(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let args: Vec<_> = text.split('\n').map(str::to_owned).collect();
    let service = Service::of(&args, bytes);
    assert!(!service.name.is_empty() && service.attributes.len() <= 256);
    let _ = Container::parse(&text).to_string();
}

/// Decodes a process context.
pub fn process_context(bytes: &[u8]) {
    if let Ok(attributes) = context::decode(bytes) {
        assert!(attributes.len() <= 128 && attributes.keys().all(|key| !key.is_empty()));
    }
}

/// Reads a core file.
pub fn core_file(bytes: &[u8]) {
    let Ok(core) = CoreDump::open(file(&[bytes])) else { return };
    let starts = core.files.iter().map(|mapping| mapping.start).chain(core.vdso);
    for start in starts.take(64) {
        let _ = (core.build_id(start), core.segment(start.0));
        core.read(start.0.wrapping_sub(32), &mut [0; 64], |_, _| true);
    }
    assert!(core.files.iter().all(|mapping| mapping.start < mapping.end));
}

/// Reads perf records of new mappings.
pub fn mappings(bytes: &[u8]) {
    jvms::mappings::fuzz(bytes);
}
