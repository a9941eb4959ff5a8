//! Computes how much BPF stack the programs need, as Linux before 6.12 counts it.
//!
//! Newer kernels give these programs a larger stack, so on a newer kernel no test would notice a program that
//! exceeds the limit of older ones. Sources: `check_max_stack_depth()` of kernel/bpf/verifier.c; the
//! instruction set in the kernel's Documentation/bpf/standardization/instruction-set.rst.

use std::collections::{BTreeMap, HashSet};

use goblin::elf::{Elf, section_header::SHF_EXECINSTR, sym::STT_SECTION};

/// `MAX_BPF_STACK`: maximum for a chain of a program and the functions that it calls, in bytes.
const MAX_STACK: u64 = 512;
/// The stack of each function is rounded up to a multiple of this.
const ROUNDED_TO: u64 = 32;

const CALL: u8 = 0x85;
/// Value of the source register in a call of a function of the object.
const PSEUDO_CALL: u8 = 1;
const FRAME_POINTER: u8 = 10;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_NUMBER: u8 = 0x07;
/// Opcode of an instruction of two slots, which loads a 64-bit number.
const LOAD_NUMBER: u8 = 0x18;
const CLASS: u8 = 0x07;
const LOAD: u8 = 0x01;
const STORE: [u8; 2] = [0x02, 0x03];

/// Location of a function of an object, by section and offset.
type FunctionLocation = (usize, u64);

#[derive(Debug, Default)]
struct Function {
    name: String,
    /// Bytes of its own stack frame.
    stack: u64,
    calls: HashSet<FunctionLocation>,
}

/// Reads all functions of an object.
fn functions(bytes: &[u8]) -> BTreeMap<FunctionLocation, Function> {
    let elf = Elf::parse(bytes).unwrap();
    let mut functions = BTreeMap::new();
    for symbol in elf.syms.iter().filter(|symbol| symbol.is_function()) {
        let section = &elf.section_headers[symbol.st_shndx];
        let start = (section.sh_offset + symbol.st_value) as usize;
        let code = &bytes[start..start + symbol.st_size as usize];
        let name = elf.strtab.get_at(symbol.st_name).unwrap().to_owned();
        let mut function = Function { name, ..Function::default() };
        let mut frame_pointers = HashSet::from([FRAME_POINTER]);
        for (i, instruction) in code.as_chunks::<8>().0.iter().enumerate() {
            let [op, registers, low, high, number @ ..] = *instruction;
            let (to, from) = (registers & 15, registers >> 4);
            let (offset, number) = (i16::from_le_bytes([low, high]), i32::from_le_bytes(number));
            let (class, is_frame) = (op & CLASS, |register| register == FRAME_POINTER);
            let below = |down: i64| u64::try_from(-down).unwrap_or(0);
            if op == CALL && from == PSEUDO_CALL {
                let at = symbol.st_value + 8 * i as u64;
                function.calls.insert(callee(&elf, symbol.st_shndx, at, number));
            } else if class == LOAD && is_frame(from) || STORE.contains(&class) && is_frame(to) {
                function.stack = function.stack.max(below(offset.into()));
            } else if op == ADD_NUMBER && frame_pointers.contains(&to) {
                function.stack = function.stack.max(below(number.into()));
            }
            if op == MOVE_REGISTER && is_frame(from) {
                frame_pointers.insert(to);
            } else if !is_frame(to) && !STORE.contains(&class) && op != LOAD_NUMBER {
                frame_pointers.remove(&to);
            }
        }
        functions.insert((symbol.st_shndx, symbol.st_value), function);
    }
    functions
}

/// Returns the function that a call leads to. If the call has a relocation, that gives the function.
/// Otherwise, the function is in the call's own section.
fn callee(elf: &Elf<'_>, section: usize, at: u64, number: i32) -> FunctionLocation {
    let relocations = elf
        .shdr_relocs
        .iter()
        .filter(|(index, _)| elf.section_headers[*index].sh_info as usize == section);
    let relocation =
        relocations.flat_map(|(_, found)| found.iter()).find(|found| found.r_offset == at);
    let Some(relocation) = relocation else {
        return (section, at.wrapping_add_signed(8 * (i64::from(number) + 1)));
    };
    let symbol = elf.syms.get(relocation.r_sym).unwrap();
    let inside = if symbol.st_type() == STT_SECTION { 8 * (i64::from(number) + 1) } else { 0 };
    (symbol.st_shndx, symbol.st_value.wrapping_add_signed(inside))
}

/// Returns the chain of calls from a function on that needs the most BPF stack: the number of bytes that it
/// needs, and the names of its functions.
fn deepest(
    functions: &BTreeMap<FunctionLocation, Function>,
    location: FunctionLocation,
) -> (u64, Vec<&str>) {
    let function = &functions[&location];
    let callees = function.calls.iter().map(|&callee| deepest(functions, callee));
    let (below, mut chain) = callees.max().unwrap_or_default();
    chain.insert(0, &function.name);
    (below + function.stack.max(1).next_multiple_of(ROUNDED_TO), chain)
}

fn check(object: &[u8]) {
    let functions = functions(object);
    let elf = Elf::parse(object).unwrap();
    let is_program = |section: usize| {
        let header = &elf.section_headers[section];
        let is_code = header.sh_flags & u64::from(SHF_EXECINSTR) != 0;
        is_code && elf.shdr_strtab.get_at(header.sh_name) != Some(".text")
    };
    let programs: Vec<_> = functions.keys().filter(|(section, _)| is_program(*section)).collect();
    assert!(programs.len() > 1);
    let mut largest = 0;
    for &&program in &programs {
        let (bytes, chain) = deepest(&functions, program);
        assert!(bytes <= MAX_STACK, "{bytes} bytes of BPF stack: {chain:?}");
        largest = largest.max(bytes);
    }
    // Programs that walk stacks need more than this; a smaller result means that calls were not followed.
    assert!(largest > 300, "{largest}");
}

#[test]
fn bpf_programs_fit_the_older_kernels_stack_limit() {
    check(include_bytes!(concat!(env!("OUT_DIR"), "/javagc.o")));
    check(include_bytes!(concat!(env!("OUT_DIR"), "/javaobjnew.o")));
    check(include_bytes!(concat!(env!("OUT_DIR"), "/javaprof.o")));
    check(include_bytes!(concat!(env!("OUT_DIR"), "/javastack.o")));
    check(include_bytes!(concat!(env!("OUT_DIR"), "/javawait.o")));
}
