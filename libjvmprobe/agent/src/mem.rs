//! The memory functions that compiled Rust calls by name.
//!
//! The compiler may turn any copy, fill or comparison into a call of `memcpy`,
//! `memmove`, `memset`, `memcmp`, `bcmp` or `strlen` (see the documentation of
//! the `core` crate), and without a libc no other library provides them. They
//! are written in assembly for two reasons: the compiler could turn a Rust
//! version into a call of itself, and only assembly can hide the symbols in the
//! library, so that they never replace those of the JVM's libc. Sources: the C
//! standard for the functions; the psABI of each processor for the registers.
//! Simple loops are fast enough, because most calls handle only a few bytes.
//! `memmove` also does the work of `memcpy`, and `memcmp` that of `bcmp`.

use core::arch::global_asm;

/// Defines a function under one or more weak, hidden symbols, which no other library sees. The
/// function has its own section, so that the linker can drop it if it is unused.
macro_rules! hidden {
    ([$($name:literal),+], $($line:literal),+ $(,)?) => {
        global_asm!(
            concat!(".pushsection .text", $(".", $name,)+ ",\"ax\",@progbits"),
            $(
                concat!(".weak ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ",@function"),
                concat!($name, ":"),
            )+
            $($line,)+
            $(concat!(".size ", $name, ", . - ", $name),)+
            ".popsection",
        );
    };
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::global_asm;

    hidden!(
        ["memset"],
        "mov r8, rdi",
        "mov eax, esi",
        "mov rcx, rdx",
        "rep stosb",
        "mov rax, r8",
        "ret",
    );

    // Copies backwards only if the destination begins inside the source.
    hidden!(
        ["memmove", "memcpy"],
        "mov rax, rdi",
        "mov rcx, rdx",
        "mov r8, rdi",
        "sub r8, rsi",
        "cmp r8, rdx",
        "jae 2f",
        "lea rdi, [rdi + rdx - 1]",
        "lea rsi, [rsi + rdx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
        "2: rep movsb",
        "ret",
    );

    hidden!(
        ["memcmp", "bcmp"],
        "xor r8d, r8d",
        "2: cmp r8, rdx",
        "je 3f",
        "movzx eax, byte ptr [rdi + r8]",
        "movzx ecx, byte ptr [rsi + r8]",
        "inc r8",
        "sub eax, ecx",
        "je 2b",
        "ret",
        "3: xor eax, eax",
        "ret",
    );

    hidden!(
        ["strlen"],
        "xor eax, eax",
        "2: cmp byte ptr [rdi + rax], 0",
        "je 3f",
        "inc rax",
        "jmp 2b",
        "3: ret",
    );
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::global_asm;

    hidden!(
        ["memset"],
        "mov x3, x0",
        "2: cbz x2, 3f",
        "strb w1, [x3], #1",
        "sub x2, x2, #1",
        "b 2b",
        "3: ret",
    );

    // Copies backwards only if the destination begins inside the source.
    hidden!(
        ["memmove", "memcpy"],
        "mov x3, x0",
        "sub x5, x0, x1",
        "cmp x5, x2",
        "b.hs 3f",
        "2: cbz x2, 4f",
        "sub x2, x2, #1",
        "ldrb w4, [x1, x2]",
        "strb w4, [x0, x2]",
        "b 2b",
        "3: cbz x2, 4f",
        "ldrb w4, [x1], #1",
        "strb w4, [x3], #1",
        "sub x2, x2, #1",
        "b 3b",
        "4: ret",
    );

    hidden!(
        ["memcmp", "bcmp"],
        "2: cbz x2, 3f",
        "ldrb w3, [x0], #1",
        "ldrb w4, [x1], #1",
        "sub x2, x2, #1",
        "subs w3, w3, w4",
        "b.eq 2b",
        "mov w0, w3",
        "ret",
        "3: mov w0, #0",
        "ret",
    );

    hidden!(
        ["strlen"],
        "mov x1, x0",
        "2: ldrb w2, [x0], #1",
        "cbnz w2, 2b",
        "sub x0, x0, x1",
        "sub x0, x0, #1",
        "ret",
    );
}
