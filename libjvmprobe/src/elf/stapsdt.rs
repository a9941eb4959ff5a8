//! USDT probes: the notes that `sys/sdt.h` adds to a file.
//!
//! Source: SystemTap's UserSpaceProbeImplementation (format version 3). Each
//! note of type 3 and owner `stapsdt` holds three addresses (location, base,
//! semaphore) and three NUL-terminated strings (provider, name, arguments). The
//! base is the address that the section `.stapsdt.base` had when the file was
//! linked. Tools that move sections afterwards (prelink) do not edit notes, so
//! location and semaphore are corrected by the section's present address minus
//! the base.

use std::collections::{BTreeMap, BTreeSet};

use goblin::elf::note::NoteDataIterator;

use crate::{
    Error, FileOffset, Result, Vaddr,
    elf::{
        ElfFile,
        file::{MAX_NAME, malformed},
    },
};

const NT_STAPSDT: u32 = 3;

/// Maximum number of notes; HotSpot has about 570.
const MAX_PROBES: usize = 65_536;

/// Maximum size in bytes of all sections with notes, of which HotSpot has one with 50 KB. A hostile file may have many
/// sections with the same bytes.
const MAX_NOTES: u64 = 8 << 20;

/// Maximum number of locations of a probe to attach to; HotSpot's probes have at most four.
const MAX_LOCATIONS: usize = 64;
/// Maximum number of different argument specifications of a probe's locations. Each takes an entry of a table that all
/// files share (`BPF_USDT_MAX_SPEC_CNT` in `bpf/jvm.bpf.h`); HotSpot's probes have at most three.
const MAX_ARG_SPECS: usize = 16;

/// One location of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Provider, for example `hotspot`.
    pub(crate) provider: String,
    /// Name, for example `gc__begin`.
    pub(crate) name: String,
    /// Address of its instruction, corrected by the base.
    pub(crate) location: Vaddr,
    /// File offset of its instruction; `None` outside of the loaded segments.
    pub(crate) offset: Option<FileOffset>,
    /// Address of the counter that a tracer has to increment; HotSpot's probes have none.
    pub(crate) semaphore: Option<Vaddr>,
    /// Argument specification as in the note.
    pub raw_args: String,
}

/// All probes of a file.
#[derive(Clone, Debug, Default)]
pub struct Probes(Vec<Probe>);

impl ElfFile {
    /// Reads the USDT probes. A file without probes is not an error.
    ///
    /// # Errors
    /// [`Error::Elf`] if the notes are malformed.
    pub fn stapsdt(&self) -> Result<Probes> {
        let base = self.section(".stapsdt.base").map(|section| section.vaddr().0);
        let mut probes = Vec::new();
        let mut free_bytes = MAX_NOTES;
        for section in self.sections(".note.stapsdt") {
            free_bytes = free_bytes.checked_sub(section.size()).ok_or_else(|| {
                Error::elf(format!("its stapsdt notes have more than {MAX_NOTES} bytes"))
            })?;
            let data = section.data()?;
            // Notes have an alignment of 4 or 8. Any other value is treated as 4.
            let alignment = if section.alignment() == 8 { 8 } else { 4 };
            let notes = NoteDataIterator {
                data: &data,
                size: data.len(),
                offset: 0,
                ctx: (alignment, self.ctx()),
            };
            for note in notes {
                let note = note.map_err(malformed)?;
                if note.n_type != NT_STAPSDT || note.name != "stapsdt" {
                    continue;
                }
                if probes.len() == MAX_PROBES {
                    return Err(Error::elf(format!("more than {MAX_PROBES} probes")));
                }
                probes.push(self.probe(note.desc, base)?);
            }
        }
        Ok(Probes(probes))
    }

    fn probe(&self, desc: &[u8], base: Option<u64>) -> Result<Probe> {
        let short = || Error::elf("a stapsdt note is too short");
        let long = || Error::elf("a string of a stapsdt note is too long");
        let width = if self.ctx().is_big() { 8 } else { 4 };
        let (addresses, strings) = desc.split_at_checked(3 * width).ok_or_else(short)?;
        let little = self.ctx().is_little_endian();
        let mut addresses = addresses.chunks_exact(width).map(|bytes| {
            let fold = |n: u64, b: &u8| n << 8 | u64::from(*b);
            if little { bytes.iter().rev().fold(0, fold) } else { bytes.iter().fold(0, fold) }
        });
        let (Some(location), Some(noted_base), Some(semaphore)) =
            (addresses.next(), addresses.next(), addresses.next())
        else {
            return Err(short());
        };
        let moved = base.map_or(0, |base| base.wrapping_sub(noted_base));
        let location = Vaddr(location.wrapping_add(moved));
        let mut strings = strings.split(|&b| b == 0).map(String::from_utf8_lossy);
        let mut string = || {
            let string = strings.next().ok_or_else(short)?;
            (string.len() <= MAX_NAME).then(|| string.into_owned()).ok_or_else(long)
        };
        Ok(Probe {
            provider: string()?,
            name: string()?,
            raw_args: string()?,
            location,
            offset: self.vaddr_to_offset(location),
            semaphore: (semaphore != 0).then(|| Vaddr(semaphore.wrapping_add(moved))),
        })
    }
}

impl Probes {
    /// Returns all locations of all probes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Probe> {
        self.0.iter()
    }

    /// Returns all locations of a probe.
    pub fn find<'a>(&'a self, provider: &'a str, name: &'a str) -> impl Iterator<Item = &'a Probe> {
        self.0.iter().filter(move |p| p.provider == provider && p.name == name)
    }

    /// Returns whether the file has the probe with this name.
    ///
    /// # Errors
    /// [`Error::Elf`] if the probe has more locations or argument specifications than the probes of any JVM:
    /// attaching to such a probe would exhaust the tracer's tables.
    pub fn has(&self, provider: &str, name: &str) -> Result<bool> {
        let locations = self.find(provider, name).count();
        let arg_specs: BTreeSet<_> = self.find(provider, name).map(|p| &p.raw_args).collect();
        let too_many = |what: String| Error::elf(format!("its probe {provider}:{name} has {what}"));
        if locations > MAX_LOCATIONS {
            return Err(too_many(format!("{locations} locations, more than {MAX_LOCATIONS}")));
        }
        if arg_specs.len() > MAX_ARG_SPECS {
            return Err(too_many(format!(
                "{} different argument specifications, more than {MAX_ARG_SPECS}",
                arg_specs.len()
            )));
        }
        Ok(locations > 0)
    }

    /// Returns whether the file has no probes at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns provider, name and number of locations of each probe, sorted.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        let mut names = BTreeMap::new();
        for probe in &self.0 {
            *names.entry((probe.provider.as_str(), probe.name.as_str())).or_insert(0) += 1;
        }
        names.into_iter().map(|((provider, name), locations)| (provider, name, locations))
    }

    /// Returns a clause with the reason why a probe is missing.
    pub(crate) fn explain_missing(&self, provider: &str, name: &str) -> String {
        if self.is_empty() {
            return "it has no probes at all: it was built without --enable-dtrace".into();
        }
        let mut providers: Vec<_> = self.0.iter().map(|p| p.provider.as_str()).collect();
        providers.sort_unstable();
        providers.dedup();
        if !providers.contains(&provider) {
            return format!("it has no provider {provider}, only {}", list(&providers));
        }
        let family = name.split("__").next().unwrap_or(name);
        let near: Vec<_> = self
            .names()
            .filter(|(p, n, _)| *p == provider && n.split("__").next() == Some(family))
            .map(|(_, n, _)| n)
            .collect();
        if near.is_empty() {
            format!("its provider {provider} has no {family} probes")
        } else {
            format!("its provider {provider} has only {}", list(&near))
        }
    }
}

/// Returns a list of names for a message, with at most six of them.
fn list(names: &[&str]) -> String {
    match names.split_at_checked(6) {
        Some((first, [_, ..])) => format!("{}, ...", first.join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::elf::testing::{Library, note, open, probe};

    fn library() -> Library {
        let assembly = [
            probe("here", 0, "0", ["hotspot", "gc__begin", "1@%dil"]),
            probe("there", 0, "0", ["hotspot", "gc__end", ""]),
            probe("elsewhere", 0, "counter", ["hotspot", "gc__end", "8@%rax -4@$-2"]),
            probe("moved", -0x1000, "counter - 0x1000", ["hs_private", "safepoint__end", ""]),
            note("other", 3, "a", 0, "0", ["hotspot", "not__ours", ""]),
            note("stapsdt", 4, "b", 0, "0", ["hotspot", "not__ours", ""]),
            ".data\n.globl counter\ncounter: .2byte 0\n".into(),
        ];
        Library::build(&assembly.concat(), &[])
    }

    #[test]
    fn stapsdt_returns_every_probe_location() {
        let elf = library().elf();
        let symbols = elf.symbols().unwrap();
        let at = |name| symbols.find(name).unwrap().value;
        let probes = elf.stapsdt().unwrap();
        let expected = [
            ("hotspot", "gc__begin", "here", "1@%dil", None),
            ("hotspot", "gc__end", "there", "", None),
            ("hotspot", "gc__end", "elsewhere", "8@%rax -4@$-2", Some("counter")),
            ("hs_private", "safepoint__end", "moved", "", Some("counter")),
        ]
        .map(|(provider, name, location, raw_args, semaphore)| Probe {
            provider: provider.into(),
            name: name.into(),
            location: at(location),
            offset: elf.vaddr_to_offset(at(location)),
            semaphore: semaphore.map(at),
            raw_args: raw_args.into(),
        });
        assert_eq!(probes.0, expected);
        assert!(expected.iter().all(|probe| probe.offset.is_some()));
        assert_eq!(probes.find("hotspot", "gc__end").count(), 2);
        assert_eq!(
            probes.names().collect::<Vec<_>>(),
            [
                ("hotspot", "gc__begin", 1),
                ("hotspot", "gc__end", 2),
                ("hs_private", "safepoint__end", 1)
            ]
        );
    }

    #[test]
    fn explain_missing_names_the_absent_provider_or_probe() {
        let probes = library().elf().stapsdt().unwrap();
        for (provider, name, part) in [
            ("hotspot_jni", "x", "no provider hotspot_jni, only hotspot, hs_private"),
            ("hotspot", "gc__pause", "only gc__begin, gc__end"),
            ("hotspot", "vmops__begin", "no vmops probes"),
        ] {
            let why = probes.explain_missing(provider, name);
            assert!(why.contains(part), "{why}");
        }
        let none = Library::build(".text\nnop\n", &[]).elf().stapsdt().unwrap();
        assert!(none.is_empty());
        assert!(none.explain_missing("hotspot", "gc__begin").contains("--enable-dtrace"));
    }

    #[test]
    fn probe_with_too_many_locations_or_argument_specifications_is_rejected() {
        let library = |count: usize, arg_specs: usize| {
            let probes = (0..count).map(|i| {
                let args = format!("8@${}", i % arg_specs);
                probe(&format!("l{i}"), 0, "0", ["hotspot", "gc__begin", &args])
            });
            Library::build(&probes.collect::<String>(), &[]).elf().stapsdt().unwrap()
        };
        let has = |count, arg_specs| library(count, arg_specs).has("hotspot", "gc__begin");
        assert!(has(MAX_LOCATIONS, MAX_ARG_SPECS).unwrap());
        let why = |count, arg_specs| has(count, arg_specs).unwrap_err().to_string();
        assert!(why(MAX_LOCATIONS + 1, 1).contains("65 locations"));
        assert!(
            why(MAX_ARG_SPECS + 1, MAX_ARG_SPECS + 1)
                .contains("17 different argument specifications")
        );
        assert!(!library(1, 1).has("hotspot", "gc__end").unwrap());
    }

    #[test]
    fn truncated_notes_are_rejected() {
        for desc in [".8byte 1, 2", ".8byte 1, 2, 3", ".8byte 1, 2, 3\n.asciz \"hotspot\""] {
            let elf = Library::build(
                &format!(
                    ".section .note.stapsdt,\"\",\"note\"\n.4byte 8, 2f-1f, 3\n\
                     .asciz \"stapsdt\"\n1: {desc}\n2: .balign 4\n"
                ),
                &[],
            )
            .elf();
            let error = elf.stapsdt().unwrap_err().to_string();
            assert!(error.contains("too short"), "{desc}: {error}");
        }
    }

    #[test]
    fn notes_beyond_the_limits_are_rejected() {
        let long = "x".repeat(MAX_NAME + 1);
        let error =
            |assembly: &str| Library::build(assembly, &[]).elf().stapsdt().unwrap_err().to_string();
        let why = error(&probe("here", 0, "0", ["hotspot", "gc__begin", &long]));
        assert!(why.contains("too long"), "{why}");
        let large = format!(".section .note.stapsdt,\"\",\"note\"\n.skip {MAX_NOTES}\n.byte 0\n");
        let why = error(&large);
        assert!(why.contains("more than 8388608 bytes"), "{why}");
    }

    /// Reads everything that a tracer reads of a libjvm.so. Must terminate without a panic.
    fn read_all(bytes: &[u8]) {
        let Ok(elf) = open(bytes) else {
            return;
        };
        let _ = elf.stapsdt().iter().flat_map(Probes::names).count();
        for symbols in [elf.symbols(), elf.dynamic_symbols()].into_iter().flatten() {
            let _ = (symbols.find("nowhere"), symbols.find_prefix("her"), symbols.is_empty());
        }
        let _ = (elf.vaddr_to_offset(Vaddr(0x1000)), elf.machine());
        let _ = elf.load_bias(crate::Addr(u64::MAX), FileOffset(0x1000));
    }

    #[test]
    fn hostile_files_do_not_panic() {
        let whole = library().bytes();
        let at = 0..whole.len();
        let bytes = prop::collection::vec((at.clone(), any::<u8>()), 1..40);
        // Changed bytes have the greatest effect in the header at the file's start and in the tables at its
        // end, so additional bytes are changed there.
        let head = prop::collection::vec((0..64_usize, any::<u8>()), 0..3);
        let tail = prop::collection::vec((1..2048_usize, any::<u8>()), 0..8);
        proptest!(ProptestConfig::with_cases(3000), |(cut in at, bytes in bytes, head in head, tail in tail)| {
            read_all(&whole[..cut]);
            let mut flipped = whole.clone();
            for (at, byte) in bytes.into_iter().chain(head) {
                flipped[at] = byte;
            }
            for (from_end, byte) in tail {
                let at = flipped.len() - from_end;
                flipped[at] = byte;
            }
            read_all(&flipped);
        });
    }
}
