/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Decodes instructions of HotSpot's code on aarch64: how far a method's prologue or epilogue has been executed, and
 * the target of a call. Also: where Linux stores the registers of code that a signal interrupts.
 *
 * A call stores the return address in the link register and leaves sp unchanged. A function that calls others saves
 * fp and link register side by side (stp x29, x30) and loads them before it returns (ldp x29, x30). Between these, it
 * may use the link register for other values. So the instructions show where the return address is: the prologue is
 * decoded from the method's entry to ip, the epilogue from ip to the return. HotSpot uses only a few instructions
 * there (MacroAssembler::build_frame() and remove_frame(), macroAssembler_aarch64.cpp).
 */
#ifndef JVMPROBE_WALK_ARCH_ARM64_BPF_H
#define JVMPROBE_WALK_ARCH_ARM64_BPF_H

#include "state.bpf.h"

#define CODE_BYTES 64           /* maximum length of a prologue; a power of two */
#define INSN 4                  /* size of an instruction */

#define RET 0xd65f03c0
#define STP_FP_PRE_2 0xa9bf7bfd /* stp x29, x30, [sp, -16]! */
#define LDP_FP_POST_2 0xa8c17bfd /* ldp x29, x30, [sp], 16 */
#define MOV_FP_SP 0x910003fd

/* Return the instruction at w->bytes[4 * i]. */
static __always_inline __u32 insn_at(struct walker *w, __u32 i)
{
	return ((__u32 *)w->bytes)[i & (MAX_BLOB_BYTES / INSN - 1)];
}

/* stp x29, x30, [sp, X] */
static __always_inline bool saves_fp(__u32 insn)
{
	return (insn & 0xffc07fff) == 0xa9007bfd;
}

/* ldp x29, x30, [sp, X] */
static __always_inline bool loads_fp(__u32 insn)
{
	return (insn & 0xffc07fff) == 0xa9407bfd;
}

/* sub sp, sp, X */
static __always_inline bool lowers_sp(__u32 insn)
{
	return (insn & 0xff8003ff) == 0xd10003ff;
}

/* add sp, sp, X */
static __always_inline bool raises_sp(__u32 insn)
{
	return (insn & 0xff8003ff) == 0x910003ff;
}

/* Returns the immediate operand of an add or sub. */
static __always_inline __u32 immediate(__u32 insn)
{
	__u32 value = insn >> 10 & 0xfff;

	return insn & 1 << 22 ? value << 12 : value;
}

/* bl, blr and the variants of blr that authenticate the address */
static __always_inline bool is_call(__u32 insn)
{
	return (insn & 0xfc000000) == 0x94000000 || (insn & 0xfefff000) == 0xd63f0000;
}

/* Returns the number of bytes from `at` to which a branch with 26 bits (b, bl) leads. */
static __always_inline __s64 branch_distance(__u32 insn)
{
	return (__s64)((__u64)insn << 38) >> 36;
}

/* Returns whether an instruction is b and leads out of the current blob. `at` is its address. */
static __always_inline bool leaves_method(struct walker *w, __u64 at, __u32 insn)
{
	return (insn & 0xfc000000) == 0x14000000 &&
	       at + branch_distance(insn) - w->blob.begin >= w->blob.end - w->blob.begin;
}

/*
 * Part of the innermost frame that exists. `end_bytes` of struct walker is the distance from sp to the frame's end if
 * the state is not FRAME_COMPLETE.
 */
enum frame_state {
	FRAME_COMPLETE,
	FRAME_LINK,         /* return address and the caller's fp are in registers */
	FRAME_SAVED,        /* return address and the caller's fp are saved directly below the frame's end */
};

/* Returns how much of its frame the method with this entry has set up so far. */
__noinline int prologue_state(struct walker *w, __u64 entry)
{
	__u32 i, bytes = 0, insn;
	bool is_saved = false;

	if (!w)
		return FRAME_COMPLETE;
	w->end_bytes = 0;
	/* The code before the verified entry checks the receiver's class. */
	if (w->ip <= entry)
		return FRAME_LINK;
	if (w->ip - entry > CODE_BYTES || read_user(w->bytes, CODE_BYTES, entry))
		return FRAME_COMPLETE;
	for (i = 0; i < CODE_BYTES / INSN; i++) {
		if (entry + i * INSN >= w->ip)
			break;
		insn = insn_at(w, i);
		if (insn == STP_FP_PRE_2) {
			bytes += 2 * WORD;
			is_saved = true;
		} else if (lowers_sp(insn)) {
			bytes += immediate(insn);
		} else if (saves_fp(insn)) {
			is_saved = true;
		} else if ((insn & 0xffe0ffff) == 0xcb2063ff) {
			/* sub sp, sp, Xn */
			return FRAME_COMPLETE;
		}
	}
	w->end_bytes = bytes;
	return is_saved ? FRAME_SAVED : FRAME_LINK;
}

/* Returns whether an instruction may occur between the removal of a frame and the return: the return poll (ldr x8,
   [x28, X]; cmp sp, x8; b.hi or, up to JDK 15, ldr wzr, [x8]), the check for an exception at the end of native wrappers
   (ldr x8, [x28, X]; cbnz x8), nop, autiaz. */
static __always_inline bool precedes_return(__u32 insn)
{
	return (insn & 0xffc003ff) == 0xf9400388 || (insn & 0xffffffe0) == 0xeb2863e0 ||
	       insn == 0xeb2863ff || (insn & 0xff00001f) == 0x54000008 || insn == 0xb940011f ||
	       (insn & 0xff00001f) == 0xb5000008 || insn == 0xd503201f || insn == 0xd503239f ||
	       insn == 0xd50323bf;
}

/* Returns how much of a frame still exists, judged by the next instructions; FRAME_COMPLETE if the function is not
   about to return. */
__noinline int epilogue_state(struct walker *w)
{
	__u32 i, insn, before = 0, bytes = 0;

	if (!w)
		return FRAME_COMPLETE;
	w->end_bytes = 0;
	if (read_user(w->bytes, 9 * INSN, w->ip))
		return FRAME_COMPLETE;
	/* A method that passes an exception on removes its frame and jumps to a stub (RethrowException, aarch64.ad). */
	if (leaves_method(w, w->ip, insn_at(w, 0)) && !read_user(&before, INSN, w->ip - INSN) &&
	    (raises_sp(before) || before == LDP_FP_POST_2))
		return FRAME_LINK;
	/* Slow path of a return poll: adr x8, X; str x8, [x28, X]; then b or adrp, add, br x8. Code that calls native
	   code contains the same first two instructions. */
	i = (insn_at(w, 0) & 0x9f00001f) == 0x10000008;
	if ((insn_at(w, i) & 0xffc003ff) == 0xf9000388 &&
	    (leaves_method(w, w->ip + (i + 1) * INSN, insn_at(w, i + 1)) ||
	     ((insn_at(w, i + 1) & 0x9f00001f) == 0x90000008 && insn_at(w, i + 3) == 0xd61f0100)))
		return FRAME_LINK;
	for (i = 0; i < 8; i++) {
		insn = insn_at(w, i);
		if (insn == RET || leaves_method(w, w->ip + i * INSN, insn)) {
			/* A jump out of the method is an epilogue only after instructions that belong to one. */
			w->end_bytes = bytes;
			return i || insn == RET ? FRAME_LINK : FRAME_COMPLETE;
		}
		if (raises_sp(insn)) {
			bytes += immediate(insn);
		} else if (insn == LDP_FP_POST_2) {
			w->end_bytes = bytes + 2 * WORD;
			return FRAME_SAVED;
		} else if ((insn & 0xff00001f) == 0x54000003 && insn_at(w, i + 1) == STP_FP_PRE_2) {
			/* A method that may use the reserved zone of the stack removes its frame and checks whether the
			   zone must be enabled: cmp sp, x8; b.lo (MacroAssembler::reserved_stack_check()). The code that
			   enables it, which begins with stp, is not recognised. */
			w->end_bytes = bytes;
			return FRAME_LINK;
		} else if (insn == 0x36000088) {
			/* tbz x8, 0, 16: in code of JDK 25, jumps over the slow path of a return poll: adr, str, b. */
			i += 3;
		} else if (!precedes_return(insn)) {
			return FRAME_COMPLETE;
		}
	}
	return FRAME_COMPLETE;
}

/* Returns the address to which adrp leads, which is at `at`. */
static __always_inline __u64 page_address(__u64 at, __u32 insn)
{
	__s64 pages = (__s64)(((__u64)(insn >> 5 & 0x7ffff) << 2 | (insn >> 29 & 3)) << 43) >> 43;

	return (at & ~0xfffULL) + pages * 4096;
}

/*
 * Returns the target of the call that returns to `addr`; 0 if there is no call before `addr`, or if the call's target
 * is in a register that is not set just before the call. Generated code calls by bl or, if that does not reach, by bl
 * to a trampoline in the same method (ldr x8, 8; br x8; address), by adrp, add, blr, or by movz, movk, movk, blr.
 */
__noinline __u64 call_target(__u64 addr)
{
	__u32 c[4] = {}, far[2] = {};
	__u64 to = 0;

	if (read_user(c, sizeof(c), addr - sizeof(c)))
		return 0;
	if ((c[3] & 0xfc000000) == 0x94000000) {
		to = addr - INSN + branch_distance(c[3]);
		if (!read_user(far, sizeof(far), to) && far[0] == 0x58000048 && far[1] == 0xd61f0100 &&
		    read_user(&to, sizeof(to), to + 2 * INSN))
			return 0;
		return to;
	}
	if ((c[3] & 0xfffffc1f) != 0xd63f0000)
		return 0;
	if ((c[1] & 0x9f000000) == 0x90000000 && (c[2] & 0xffc00000) == 0x91000000)
		return page_address(addr - 3 * INSN, c[1]) + immediate(c[2]);
	if ((c[0] & 0xffe00000) == 0xd2800000 && (c[1] & 0xffe00000) == 0xf2a00000 &&
	    (c[2] & 0xffe00000) == 0xf2c00000)
		return (c[0] >> 5 & 0xffff) | (__u64)(c[1] >> 5 & 0xffff) << 16 |
		       (__u64)(c[2] >> 5 & 0xffff) << 32;
	return 0;
}

/* Returns whether the instruction before this address is a call, so that it may be a return address. */
static __always_inline bool follows_call(__u64 addr)
{
	__u32 insn = 0;

	return !(addr & (INSN - 1)) && !read_user(&insn, INSN, addr - INSN) && is_call(insn);
}

/* Returns the innermost frame's return address if it may be in a register; else 0. */
static __always_inline __u64 return_in_register(struct walker *w)
{
	return w->is_innermost ? w->regs.link : 0;
}

/* Moves to the caller whose return address is in the link register and whose frame begins at `sp`. */
static __always_inline int caller_by_link(struct walker *w, __u64 sp)
{
	if (!w->is_innermost || sp < w->sp)
		return END_IMPLAUSIBLE;
	/* go_to() accepts only an sp above the current one, but a function may have nothing on the stack. */
	w->sp = sp - WORD;
	return go_to(w, w->regs.link, sp, w->fp);
}

/* Moves to the caller of native code of a file without an unwind table, such as the vDSO. Such code has a frame pointer,
   except at its beginning and end, and if it calls nothing. */
static __always_inline int caller_without_table(struct walker *w)
{
	__u64 frame[2], link = w->is_innermost ? w->regs.link : 0;

	if (!link || !follows_call(link) ||
	    (!read_stack(w, frame, 2, w->fp) && without_signature(frame[1]) == link))
		return caller_by_fp(w);
	return caller_by_link(w, w->sp);
}

/* Moves to the caller of native code whose frame ends at `end` and has this row. */
static __always_inline int caller_by_row(struct walker *w, const struct unwind_row *row, __u64 end)
{
	__u64 frame[2], fp = w->fp, ip = 0, at;

	switch (row->kind >> ROW_KIND_BITS) {
	case RETURN_IN_REGISTER:
		if (row->fp == -128)
			w->fp = 0;
		else if (row->fp && read_stack(w, &w->fp, 1, end + row->fp * WORD))
			return END_UNREADABLE;
		return caller_by_link(w, end);
	case RETURN_IN_PAIR:
	case RETURN_ABOVE_FP:
		at = end;
		if (row->kind >> ROW_KIND_BITS == RETURN_IN_PAIR)
			at = (row->kind & ROW_KIND_MASK) == ROW_FP ? w->fp : w->sp;
		at += row->fp * WORD;
		if (read_stack(w, frame, 2, at))
			return END_UNREADABLE;
		return go_to(w, frame[1], end, frame[0]);
	case RETURN_ALONE:
		if (read_stack(w, &ip, 1, end + row->fp * WORD))
			return END_UNREADABLE;
		return go_to(w, ip, end, fp);
	}
	return END_IMPLAUSIBLE;
}

/* Returns whether ip is the trampoline to which a signal handler returns, which is in the vDSO or in musl: mov x8, 139;
   svc 0 (arch/arm64/kernel/vdso/sigreturn.S). */
static __always_inline bool is_signal_trampoline(struct walker *w)
{
	__u32 c[2] = {};

	return !read_user(c, sizeof(c), w->ip) && c[0] == 0xd2801168 && c[1] == 0xd4000001;
}

/* Offset of uc_mcontext.regs[n] in the frame of a signal, which begins with siginfo_t (arch/arm64/kernel/signal.c,
   uapi/asm/ucontext.h, uapi/asm/sigcontext.h); of sp (n = 31) and pc (n = 32), too. */
#define SAVED_REGISTER(n) (128 + 176 + WORD + (n) * WORD)

/* Moves from the trampoline to which a signal handler returns, to the code that the signal has interrupted. */
static __always_inline int interrupted_by_signal(struct walker *w)
{
	__u64 saved[4], pair[2];
	int why;

	/* x29, x30, sp, pc */
	if (read_user(saved, sizeof(saved), w->sp + SAVED_REGISTER(29)) ||
	    read_user(&w->regs.method, WORD, w->sp + SAVED_REGISTER(12)) ||
	    read_user(&w->regs.sender_sp_17, WORD, w->sp + SAVED_REGISTER(13)) ||
	    read_user(pair, sizeof(pair), w->sp + SAVED_REGISTER(19)) ||
	    read_user(&w->regs.bcp, WORD, w->sp + SAVED_REGISTER(22)))
		return END_UNREADABLE;
	w->regs.sender_sp = pair[0];
	w->regs.left_sp = pair[1];
	w->regs.link = without_signature(saved[1]);
	/* User space looks up return addresses minus one. The trampoline is entered at its first byte, so one is
	   added. */
	w->frame++;
	/* A handler on an alternate stack may lie below or above the interrupted stack, so any sp is accepted. */
	w->sp = 0;
	why = go_to(w, saved[3], saved[2], saved[0]);
	w->is_innermost = true;
	return why;
}

#endif
