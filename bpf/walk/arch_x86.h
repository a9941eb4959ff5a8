/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Registers of x86-64 that the walker uses besides ip, sp and fp, named after what they contain in HotSpot's
 * code.
 *
 * Only files called arch_* mention registers by name.
 */
#ifndef JVMPROBE_WALK_ARCH_X86_H
#define JVMPROBE_WALK_ARCH_X86_H

#include <stdbool.h>
#include <linux/bpf_perf_event.h>
#include <linux/types.h>

#define USER_ADDR_BITS 47
/* int3. After a thread has hit it, ip is the address after it until the kernel corrects ip. */
#define BREAKPOINT 0xcc
#define MAX_INSTRUCTION_BYTES 15

/* Registers of an innermost frame; those of its callers are saved on the stack or lost. */
struct registers {
	/* rax: the return address, while a stub or an adapter moves it */
	__u64 return_address;
	union {
		/* rbx: the Method that is entered, ... */
		__u64 method;
		/* ... or the caller's sp, after the interpreter's frame was removed */
		__u64 left_sp;
	};
	union {
		/* r13: address of the bytecode that is interpreted, ... */
		__u64 bcp;
		/* ... or the caller's sp while the interpreter is entered, or the return address while the
		   interpreter is left */
		__u64 sender_sp;
	};
	/* rdx: address at which an exception was thrown, while a stub passes on the exception */
	__u64 exception_pc;
};

/* Returns a return address without its signature: see arch_arm64.h. */
static __always_inline __u64 without_signature(__u64 addr)
{
	return addr;
}

/* Returns whether these are registers of user mode. */
static __always_inline bool in_user_mode(const bpf_user_pt_regs_t *regs)
{
	return regs->cs & 3;
}

/* Returns whether the registers were saved by an exception or an interrupt, which set orig_rax to -1. A
   system call sets it to its number. */
static __always_inline bool saved_by_exception(const bpf_user_pt_regs_t *regs)
{
	return regs->orig_rax == (__u64)-1;
}

/* The number of futex(2), and where the registers contain the number of the system call with which a thread entered the
   kernel (-1 if it was an exception or an interrupt) and the call's arguments. */
#define CALL_FUTEX 202
#define CALL_NUMBER(regs) (&(regs)->orig_rax)
#define CALL_ARGUMENTS(regs) &(regs)->rdi, &(regs)->rsi, &(regs)->rdx, &(regs)->r10

/* Returns where a thread has the address of its table of blocks of thread-local variables (DTV), as an offset from the thread
   pointer: in the second word of its control block, in musl as well as in glibc. */
static __always_inline int thread_table(bool is_musl)
{
	return sizeof(__u64);
}

/* Returns the address in a reference of generational ZGC: it begins above the one of four bits that is set
   (ZPointerLoadShiftTable, zAddress.hpp). */
static __always_inline __u64 uncolored(__u64 word)
{
	if (word & 1 << 12)
		return word >> 13;
	if (word & 1 << 13)
		return word >> 14;
	if (word & 1 << 14)
		return word >> 15;
	return word >> 16;
}

static __always_inline void copy_registers(struct registers *to, const bpf_user_pt_regs_t *regs)
{
	to->return_address = regs->rax;
	to->method = regs->rbx;
	to->bcp = regs->r13;
	to->exception_pc = regs->rdx;
}

#endif
