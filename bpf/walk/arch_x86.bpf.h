/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Decodes instructions of HotSpot's code on x86-64: how far a method's prologue or epilogue has been executed,
 * the target of a call, and where an adapter holds the return address that it moves. Also: where Linux stores the
 * registers of code that a signal interrupts.
 *
 * A prologue is decoded from the method's verified entry on; HotSpot uses only a few instructions there (x86.ad
 * MachPrologNode, C1's build_frame). An epilogue is recognised by the next instruction: HotSpot's compilers emit
 * pop rbp, return polls and ret nowhere else. A disassembler in user space would give the same information,
 * but too late for new code.
 */
#ifndef JVMPROBE_WALK_ARCH_X86_BPF_H
#define JVMPROBE_WALK_ARCH_X86_BPF_H

#include "state.bpf.h"

#define CODE_BYTES 64           /* maximum length of a prologue; a power of two */
#define USER_CS 0x33            /* cs of 64-bit code in user mode: __USER_CS, asm/segment.h */

enum frame_state {
	FRAME_COMPLETE,
	FRAME_RETURN_ADDRESS_ONLY, /* only the return address is on the stack */
	FRAME_FP_PUSHED,    /* the return address and, below it, the caller's fp are on the stack */
	FRAME_NO_FP,        /* sp has its final value, but fp is not saved yet */
};

/* Effects of a prologue instruction. prologue_instruction() returns them in the bits above the length. */
#define PUSHES_FP 0x100     /* push rbp */
#define MOVES_SP 0x200      /* sub rsp, X */
#define STORES_FP 0x400     /* mov [rsp + X], rbp */

/* Decodes the instruction at w->bytes[at]: returns its length and its effect, or 0 if it occurs in no
   prologue. Not inlined, so that the verifier need not follow each path of this function in its caller. */
__noinline int prologue_instruction(struct walker *w, __u32 at)
{
	__u8 *c;

	if (!w)
		return 0;
	/* w->bytes is longer than CODE_BYTES, so the following bytes are in it. */
	c = w->bytes + (at & (CODE_BYTES - 1));
	switch (c[0]) {
	case 0x55:
		return 1 | PUSHES_FP;
	case 0x90: /* nop */
		return 1;
	case 0x66:
		return c[1] == 0x90 ? 2 : 0;
	case 0x0f: /* nop; its addressing form determines its length */
		if (c[1] != 0x1f)
			return 0;
		return c[2] == 0x00 ? 3 : c[2] == 0x40 ? 4 : c[2] == 0x44 ? 5 :
		       c[2] == 0x80 ? 7 : c[2] == 0x84 ? 8 : 0;
	case 0x89: /* mov [rsp - X], eax: stack banging */
		return c[1] == 0x84 && c[2] == 0x24 ? 7 : 0;
	case 0x48:
		if (c[1] == 0x83 && c[2] == 0xec)
			return 4 | MOVES_SP;
		if (c[1] == 0x81 && c[2] == 0xec)
			return 7 | MOVES_SP;
		if (c[1] == 0x89 && c[2] == 0x6c && c[3] == 0x24)
			return 5 | STORES_FP;
		if (c[1] == 0x89 && c[2] == 0xac && c[3] == 0x24)
			return 8 | STORES_FP;
		/* mov rbp, rsp */
		return c[1] == 0x8b && c[2] == 0xec ? 3 : 0;
	}
	return 0;
}

/* Returns how much of its frame the method with this entry has set up so far. */
__noinline int prologue_state(struct walker *w, __u64 entry)
{
	__u32 at = 0, state = FRAME_RETURN_ADDRESS_ONLY, i;
	__u64 reached;

	if (!w)
		return FRAME_COMPLETE;
	/* The code before the verified entry checks the receiver's class and pushes nothing. */
	if (w->ip <= entry)
		return FRAME_RETURN_ADDRESS_ONLY;
	reached = w->ip - entry;
	if (read_user(w->bytes, CODE_BYTES, entry))
		return FRAME_COMPLETE;
	for (i = 0; i < 8; i++) {
		__u32 insn;

		if (at >= reached || at >= CODE_BYTES)
			break;
		insn = prologue_instruction(w, at);
		if (!insn)
			/* This instruction occurs in no prologue, so the result is uncertain.
			   caller_of_compiled() checks whether it leads to a return address. */
			return state == FRAME_RETURN_ADDRESS_ONLY ? FRAME_COMPLETE : state;
		at += insn & 0xff;
		if (insn & PUSHES_FP)
			state = FRAME_FP_PUSHED;
		else if (insn & MOVES_SP)
			state = state == FRAME_FP_PUSHED ? FRAME_COMPLETE : FRAME_NO_FP;
		else if (insn & STORES_FP)
			state = FRAME_COMPLETE;
	}
	return state;
}

/* Returns whether the jump at w->bytes[at] leaves the blob. w->bytes contains the code from w->ip on. */
static __always_inline bool leaves_method(struct walker *w, __u32 at)
{
	__s32 rel = 0;

	__builtin_memcpy(&rel, w->bytes + at + 1, sizeof(rel));
	return w->ip + at + 5 + rel - w->blob.begin >= w->blob.end - w->blob.begin;
}

/* Returns how much of a method's frame still exists, judged by the next instruction; FRAME_COMPLETE if the
   method is not about to return. */
__noinline int epilogue_state(struct walker *w)
{
	__u8 *c;

	if (!w)
		return FRAME_COMPLETE;
	c = w->bytes;
	if (read_user(c, 24, w->ip))
		return FRAME_COMPLETE;
	/* ret */
	if (c[0] == 0xc3 || c[0] == 0xc2)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* A jump out of the method, to an exception handler. */
	if (c[0] == 0xe9 && leaves_method(w, 0))
		return FRAME_RETURN_ADDRESS_ONLY;
	/* Slow path of a return poll: lea r10, [rip + X] or mov r10, X; then mov [r15 + X], r10; jmp. Code
	   that calls native code may contain mov r10, X; mov [r15 + X], r10, too, but without the jump. */
	if (c[0] == 0x4c && c[1] == 0x8d && c[2] == 0x15 && c[7] == 0x4d && c[8] == 0x89 &&
	    c[9] == 0x97)
		return FRAME_RETURN_ADDRESS_ONLY;
	if (c[0] == 0x49 && c[1] == 0xba && c[10] == 0x4d && c[11] == 0x89 && c[12] == 0x97 &&
	    c[17] == 0xe9 && leaves_method(w, 17))
		return FRAME_RETURN_ADDRESS_ONLY;
	if (c[0] == 0x4d && c[1] == 0x89 && c[2] == 0x97 && c[7] == 0xe9 && leaves_method(w, 7))
		return FRAME_RETURN_ADDRESS_ONLY;
	/* pop rbp */
	if (c[0] == 0x5d)
		return FRAME_FP_PUSHED;
	/* The return poll up to JDK 15: mov r10, [r15 + X]; test [r10], eax; ret */
	if (c[0] == 0x4d && c[1] == 0x8b && c[2] == 0x97 && c[7] == 0x41 && c[8] == 0x85 &&
	    c[9] == 0x02 && c[10] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	if (c[0] == 0x41 && c[1] == 0x85 && c[2] == 0x02 && c[3] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* The return poll up to JDK 15, with one page for all threads: test eax, [rip + X]; ret */
	if (c[0] == 0x85 && c[1] == 0x05 && c[6] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* The return poll from JDK 16 on: cmp rsp, [r15 + X]; ja; ret */
	if (c[0] == 0x49 && c[1] == 0x3b && (c[2] == 0xa7 || c[2] == 0x67))
		return FRAME_RETURN_ADDRESS_ONLY;
	if (c[0] == 0x0f && c[1] == 0x87 && c[6] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* At the end of native wrappers: cmp qword [r15 + X], 0; jne; ret */
	if (c[0] == 0x49 && c[1] == 0x81 && c[2] == 0x7f && c[8] == 0x0f && c[9] == 0x85 &&
	    c[14] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* At the end of native wrappers, with an immediate of one byte: cmp qword [r15 + X], 0; jne; ret */
	if (c[0] == 0x49 && c[1] == 0x83 && c[2] == 0x7f && c[5] == 0x0f && c[6] == 0x85 &&
	    c[11] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	if (c[0] == 0x0f && c[1] == 0x85 && c[6] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	return FRAME_COMPLETE;
}


/*
 * Returns the target of the call that returns to `addr`; 0 if there is no call before `addr`, or if the
 * call's target is in a register that is not set just before the call. Generated code calls stubs by call
 * rel32 or, if that does not reach, by mov r10, imm64; call r10.
 */
__noinline __u64 call_target(__u64 addr)
{
	__u8 c[16] = {};
	__s32 rel = 0;
	__u64 to = 0;

	if (read_user(c, 13, addr - 13))
		return 0;
	if (c[8] == 0xe8) {
		__builtin_memcpy(&rel, c + 9, sizeof(rel));
		return addr + rel;
	}
	if (c[0] == 0x49 && c[1] == 0xba && c[10] == 0x41 && c[11] == 0xff && c[12] == 0xd2) {
		__builtin_memcpy(&to, c + 2, sizeof(to));
		return to;
	}
	return 0;
}

/* Returns the length of a push (0x50) or pop (0x58) of any register except rbp; 0 for any other instruction. */
static __always_inline __u32 stack_instruction(const __u8 *c, __u8 opcode)
{
	if ((c[0] & 0xf8) == opcode)
		return c[0] != (opcode | 5);
	return c[0] == 0x41 && (c[1] & 0xf8) == opcode ? 2 : 0;
}

/*
 * Returns the number of words below a method's frame that were pushed as arguments of a call, as C1 does to call
 * slow_subtype_check: push, push, call, pop, pop. (emit_typecheck_helper(), c1_LIRAssembler_x86.cpp)
 */
__noinline int pushed_words(struct walker *w)
{
	__u32 at = 0, length, i;
	int words = 0;

	if (!w || read_user(w->bytes, 16, w->ip))
		return 0;
	if (w->is_innermost) {
		at = stack_instruction(w->bytes, 0x50);
		words = at ? -1 : 0;
		if (w->bytes[at & 7] == 0xe8)
			at += 5;
		else if (at)
			return 0;
	}
	for (i = 0; i < 2; i++) {
		length = stack_instruction(w->bytes + (at & 15), 0x58);
		if (!length)
			break;
		at += length;
		words++;
	}
	return words > 0 ? words : 0;
}

/*
 * To call a function such as sin(), compiled code of JDK 8 saves all registers below its frame. Returns the
 * sp from before they were saved; 0 if no registers were saved. One of the saved registers is this sp. It is
 * recognised because its value is five words above the address at which it is stored. Below the general
 * registers, there may be 16 bytes for each floating point register (32 with AVX), an argument, and a word
 * that aligns the stack. (fp_runtime_fallback(), pusha(), macroAssembler_x86.cpp)
 */
__noinline __u64 sp_before_saved_registers(struct walker *w)
{
	__u64 at, sp;
	int i;

	if (!w)
		return 0;
	for (i = 0; i < 9; i++) {
		at = w->sp + i / 3 * 32 * WORD + i % 3 * WORD + 11 * WORD;
		if (!read_stack(w, &sp, 1, at) && sp == at + 5 * WORD)
			return sp;
	}
	return 0;
}

/*
 * If the innermost frame is in the stub through which a compiled method calls interpreted code, returns the
 * target of the stub; else 0. The stub is mov rbx, Method; jmp (emit_to_interp_stub(), compiledIC_x86.cpp).
 */
__noinline __u64 call_stub_target(struct walker *w)
{
	__u64 jump, to;
	__s32 rel = 0;
	__u8 *c;

	if (!w || read_user(w->bytes, 26, w->ip - 10))
		return 0;
	c = w->bytes;
	jump = w->ip;
	if (c[10] == 0x48 && c[11] == 0xbb) {
		c += 10;
		jump += 10;
	}
	if (c[0] != 0x48 || c[1] != 0xbb || c[10] != 0xe9)
		return 0;
	__builtin_memcpy(&rel, c + 11, sizeof(rel));
	to = jump + 5 + rel;
	return to - w->blob.begin < w->blob.end - w->blob.begin ? 0 : to;
}

/*
 * Returns whether an interpreted method is at the instructions that follow a call. These reload sp and the
 * bytecode pointer from the method's frame, so the frame exists. They are mov rsp, [rbp - 16] or, since JDK
 * 22, mov rcx, [rbp - 16]; lea rsp, [rbp + 8 rcx]; then mov qword [rbp - 16], 0; mov r13, [rbp - 64].
 */
static __always_inline bool resumes_own_frame(struct walker *w)
{
	__u8 c[8] = {};

	if (read_user(c, sizeof(c), w->ip))
		return false;
	if (c[0] == 0x4c)
		return c[1] == 0x8b && c[2] == 0x6d && c[3] == 0xc0;
	return c[0] == 0x48 &&
	       ((c[1] == 0x8b && (c[2] == 0x65 || c[2] == 0x4d) && c[3] == 0xf0) ||
		(c[1] == 0x8d && c[2] == 0x64 && c[3] == 0xcd) ||
		(c[1] == 0xc7 && c[2] == 0x45 && c[3] == 0xf0));
}

/* Returns the eight bytes that begin at byte k (0 to 7) of two consecutive words. */
static __always_inline __u64 bytes_from(const __u64 *words, __u32 k)
{
	return k ? words[0] >> 8 * k | words[1] << (64 - 8 * k) : words[0];
}

/* Returns 1 if the masked bits of the code equal `bytes` (lowest byte first), else 0. Contains no branch. */
static __always_inline __u64 begins_with(__u64 code, __u64 mask, __u64 bytes)
{
	__u64 x = ((code & mask) ^ bytes) - 1;

	barrier_var(x);
	return x >> 63;
}

/* jmp rcx */
static __always_inline __u64 leads_to_interpreter(__u64 code)
{
	return begins_with(code, 0xffff, 0xe1ff);
}

/* mov r13, rsp or lea r13, [rsp + 8] */
static __always_inline __u64 sets_sender_sp(__u64 code)
{
	return begins_with(code, 0xffffff, 0xec8b4c) |
	       begins_with(code, 0xffffffff, 0x246c8d4c);
}

/*
 * Returns whether an adapter has set r13 to the caller's sp; before that, r13 may have any value. The code
 * from ip on is searched for the jump to the interpreter (jmp rcx) and for the instruction that sets r13 (mov
 * r13, rsp or, since JDK 20, lea r13, [rsp + 8]). If the jump comes first, r13 is set. If the other
 * instruction comes first, r13 is not set yet. If neither is found within MAX_BLOB_BYTES, ip is in the GC
 * barrier code that precedes both (up to a kilobyte), so r13 is not set yet. (An adapter begins with the code
 * for calls from interpreted to compiled code, which does not need the caller's sp.)
 */
__noinline int has_set_sender_sp(struct walker *w)
{
	__u64 *words, found, at;
	__u32 size, i, k;

	if (!w)
		return 0;
	size = MAX_BLOB_BYTES;
	if (w->blob.end - w->ip < size)
		size = w->blob.end - w->ip;
	if (read_user(w->bytes, size & (2 * MAX_BLOB_BYTES - 1), w->ip))
		return 0;
	words = (__u64 *)w->bytes;
	for (i = 0; i < MAX_BLOB_BYTES / WORD - 1 && i * WORD < size; i++) {
		/* Without branches, because the verifier would follow each. */
		found = 0;
#pragma unroll
		for (k = 0; k < WORD; k++) {
			__u64 c = bytes_from(words + i, k);

			found |= leads_to_interpreter(c) | sets_sender_sp(c);
		}
		if (found)
			break;
	}
	/* The index goes through memory, so that the verifier does not check the following code for each value. */
	w->found_entry = i;
	barrier();
	at = w->found_entry;
	if (at >= MAX_BLOB_BYTES / WORD - 1)
		return 0;
#pragma unroll
	for (k = 0; k < WORD; k++) {
		__u64 c = bytes_from(words + at, k);

		if (sets_sender_sp(c))
			return 0;
		if (leads_to_interpreter(c))
			return 1;
	}
	return 0;
}

/* Returns whether the next instruction is one with which an adapter moves the return address: mov r13, rsp;
   sub rsp, X; and rsp, -16; mov [rsp], rax; pop rbx (a method handle's last argument); push rax. During these, the
   return address is in rax (regs.return_address). */
static __always_inline bool moves_return_address(const __u8 *c)
{
	return (c[0] == 0x4c && c[1] == 0x8b && c[2] == 0xec) ||
	       (c[0] == 0x48 && (c[1] == 0x83 || c[1] == 0x81) &&
		(c[2] == 0xec || c[2] == 0xe4)) ||
	       (c[0] == 0x48 && c[1] == 0x89 && c[2] == 0x04 && c[3] == 0x24) ||
	       c[0] == 0x5b || c[0] == 0x50;
}

/* For an instruction that moves_return_address() accepts: returns whether it is the first of the sequence,
   mov r13, rsp. Until this one is executed, sp is still the caller's. */
static __always_inline bool is_at_sender_sp(const __u8 *c)
{
	return c[0] == 0x4c;
}

/*
 * Reads the caller's sp, fp and return address that an adapter has saved. Before the adapter calls the JVM,
 * which patches the call site, it saves all registers (push_CPU_state(), macroAssembler_x86.cpp). The FPU's
 * registers are saved below the others. Their size depends on the processor, so it is read from the code that
 * restores them: vzeroupper; fxrstor [rsp]; add rsp, X. Returns 0 or an error.
 */
static __always_inline int saved_by_adapter(struct walker *w, __u64 *ip, __u64 *sp, __u64 *fp)
{
	__u8 c[16] = {};
	__u32 bytes;
	__u64 saved;

	if (read_user(c, sizeof(c), w->ip))
		return -1;
	__builtin_memcpy(&bytes, c[0] == 0xc5 ? c + 11 : c + 8, sizeof(bytes));
	saved = w->sp + bytes;
	return read_user(sp, WORD, saved + 2 * WORD) || read_user(fp, WORD, saved + 10 * WORD) ||
	       read_user(ip, WORD, saved + 15 * WORD);
}

/* Returns 0, because a call pushes the return address. */
static __always_inline __u64 return_in_register(struct walker *w)
{
	return 0;
}

/* Never called, because no return address is in a register. */
static __always_inline int caller_by_link(struct walker *w, __u64 sp)
{
	return END_IMPLAUSIBLE;
}

/* Returns false, because the trampoline to which a signal handler returns has an unwind row: ROW_SIGNAL. */
static __always_inline bool is_signal_trampoline(struct walker *w)
{
	return false;
}

/* Moves to the caller of native code of a file without an unwind table. */
static __always_inline int caller_without_table(struct walker *w)
{
	return caller_by_fp(w);
}

/* Moves to the caller of native code whose frame ends at `end` and has this row. */
static __always_inline int caller_by_row(struct walker *w, const struct unwind_row *row, __u64 end)
{
	__u64 ip = 0, fp = w->fp;

	/* The most common case. */
	if (row->fp == -2)
		return caller_below(w, end);
	if (read_stack(w, &ip, 1, end - WORD))
		return END_UNREADABLE;
	if (row->fp == -128)
		fp = 0;
	else if (row->fp && read_stack(w, &fp, 1, end + row->fp * WORD))
		return END_UNREADABLE;
	return go_to(w, ip, end, fp);
}

/* Returns how much of a C-like frame a stub has set up, judged by its next instruction and the byte before
   that. */
static __always_inline int stub_state(struct walker *w)
{
	__u8 *c = w->bytes + 1;
	__u64 ip = 0;

	if (read_user(w->bytes, 8, w->ip - 1))
		return FRAME_COMPLETE;
	/* jmp rax, to the method to which a call was resolved */
	if (c[0] == 0xff && c[1] == 0xe0 && !read_user(&ip, WORD, w->sp) && in_code_cache(w, ip))
		return FRAME_RETURN_ADDRESS_ONLY;
	/* push rbp at the start, or ret at the end */
	if (c[0] == 0x55 || c[0] == 0xc3)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* pop rdx, followed by mov r8, rax or by jmp r10: C2's stubs for exceptions continue in the
	   handler */
	if (c[0] == 0x5a && (c[1] == 0x4c || c[1] == 0x41))
		return FRAME_RETURN_ADDRESS_ONLY;
	/* sub rsp, X after push rdx: the start of C2's stubs for exceptions */
	if (w->bytes[0] == 0x52 && c[0] == 0x48 && c[1] == 0x83 && c[2] == 0xec)
		return FRAME_RETURN_ADDRESS_ONLY;
	/* pop rbp, followed by ret, pop rdx or jmp */
	if (c[0] == 0x5d && (c[1] == 0xc3 || c[1] == 0x5a || c[1] == 0x41))
		return FRAME_FP_PUSHED;
	/* mov rbp, rsp after push rbp */
	if (w->bytes[0] == 0x55 && c[0] == 0x48 &&
	    ((c[1] == 0x8b && c[2] == 0xec) || (c[1] == 0x89 && c[2] == 0xe5)))
		return FRAME_FP_PUSHED;
	return FRAME_COMPLETE;
}

/*
 * Returns whether the innermost stub passes an exception on and has no frame at this instruction. Then rdx
 * contains the address in the method at which the exception was thrown. Before the stub builds its frame, it
 * executes push rdx. After it has removed the frame, it executes mov r8, rax; mov rax, [r15 + X];
 * mov rdx, [r15 + X]; mov qword [r15 + X], 0; jmp r8 or jmp r10. (OptoRuntime::generate_exception_blob(), and
 * TailJump in x86_64.ad)
 */
static __always_inline bool passes_exception_on(struct walker *w)
{
	__u32 first = 0;

	if (read_user(&first, 3, w->ip))
		return false;
	return (first & 0xff) == 0x52 || first == 0xc08b4c || first == 0x878b49 || first == 0x978b49 || first == 0x87c749 ||
	       first == 0xe0ff41 || first == 0xe2ff41;
}

/* Returns whether a stub begins by saving the frame pointer: push rbp. */
static __always_inline bool begins_with_push(__u64 entry)
{
	__u8 first = 0;

	return !read_user(&first, 1, entry) && first == 0x55;
}

/* Returns whether the instruction before this address is a call, so that it may be a return address. */
static __always_inline bool follows_call(__u64 addr)
{
	__u8 c[7];

	if (read_user(c, sizeof(c), addr - sizeof(c)))
		return false;
	/* call rel32; call r/m in its lengths of 2, 3, 4, 6 and 7 bytes */
	return c[2] == 0xe8 || c[5] == 0xff || c[4] == 0xff || c[3] == 0xff || c[1] == 0xff ||
	       c[0] == 0xff;
}

/*
 * Moves from the trampoline to which a signal handler returns, to the code that the signal has interrupted.
 * The trampoline's frame is a struct ucontext, with gregs[REG_RBP], [REG_RSP], [REG_RIP] and [REG_CSGSFS].
 */
static __always_inline int interrupted_by_signal(struct walker *w)
{
	__u64 saved[2], fp;
	__u16 cs = 0;
	int why;

	if (read_user(&fp, WORD, w->sp + 120) || read_user(saved, sizeof(saved), w->sp + 160))
		return END_UNREADABLE;
	/* While the kernel restores the registers, sp is already that of the interrupted code, and these
	   addresses contain unrelated data. The value of cs reveals that. */
	if (read_user(&cs, sizeof(cs), w->sp + 184) || cs != USER_CS)
		return END_IMPLAUSIBLE;
	/* gregs[REG_RAX], [REG_RBX], [REG_R13] and [REG_RDX] */
	if (read_user(&w->regs.return_address, WORD, w->sp + 144) ||
	    read_user(&w->regs.exception_pc, WORD, w->sp + 136) ||
	    read_user(&w->regs.method, WORD, w->sp + 128) ||
	    read_user(&w->regs.bcp, WORD, w->sp + 80))
		return END_UNREADABLE;
	/* User space looks up return addresses minus one. The trampoline is entered at its first byte, so one is
	   added. */
	w->frame++;
	/* A handler on an alternate stack may lie below or above the interrupted stack, so any sp is
	   accepted. */
	w->sp = 0;
	why = go_to(w, saved[1], saved[0], fp);
	w->is_innermost = true;
	return why;
}

#endif
