/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Finds the caller of each kind of HotSpot's frames on aarch64: interpreted and compiled methods, adapters between the
 * two, and stubs. Only the innermost frame can have its return address in the link register; all others have saved it
 * directly above the caller's fp.
 */
#ifndef JVMPROBE_WALK_ARCH_ARM64_FRAMES_BPF_H
#define JVMPROBE_WALK_ARCH_ARM64_FRAMES_BPF_H

#include "frames.bpf.h"

/* Number of instructions that are searched for the end of the interpreter's entry. */
#define ENTRY_INSNS 96
/* Number of instructions in the stub through which a compiled method calls interpreted code. */
#define CALL_STUB_INSNS 9
/* Maximum number of instructions from the removal of the interpreter's frame to the return. */
#define EXIT_INSNS 6

/* Returns the caller's sp, which a register contains during a call of an interpreted method. If the register's value is
   not plausible, returns `sp`. */
static __always_inline __u64 sender_sp(struct walker *w, __u64 sp)
{
	/* JDK 20 has both virtual threads and the other register (r19_sender_sp, register_aarch64.hpp). */
	__u64 sender = w->jvm.cont_return_pc_at ? w->regs.sender_sp : w->regs.sender_sp_17;

	sender &= ~15ULL;
	return sender >= sp && sender - sp <= MAX_ARGUMENT_BYTES ? sender : sp;
}

enum interpreter_state {
	INTERPRETER_RUNS,
	INTERPRETER_ENTERS,     /* the frame does not exist yet */
	INTERPRETER_SAVES,      /* fp is set, but the frame does not contain the caller's sp yet */
	INTERPRETER_LEAVES,     /* the frame was removed */
};

/*
 * Returns whether the innermost frame, which is in the interpreter, has a frame yet or still, judged by the following
 * instructions. A method's entry contains stp x29, x30, [sp, X]; add x29, sp, X; stp xzr, x19, [sp, 64] (x13 up to JDK
 * 19), and no call before them (generate_fixed_frame(), templateInterpreterGenerator_aarch64.cpp). A template ends with
 * br x9; x8 is used for jumps to stubs. The exit contains ldp x29, x30, [sp], 16; ret.
 */
__noinline int interpreter_state(struct walker *w)
{
	__u32 i, insn;

	if (!w || read_user(w->bytes, ENTRY_INSNS * INSN, w->ip))
		return INTERPRETER_RUNS;
	/* A method returns to an entry of the interpreter that no call precedes. So if the link register contains an
	   address in the interpreter after a call, the method has called other code, and nearly always has a frame. */
	if (in_interpreter(w, w->regs.link) && follows_call(w->regs.link))
		return INTERPRETER_RUNS;
	for (i = 0; i < ENTRY_INSNS; i++) {
		insn = insn_at(w, i);
		if (saves_fp(insn))
			return INTERPRETER_ENTERS;
		/* add x29, sp, X */
		if (!i && (insn & 0xffc003ff) == 0x910003fd && insn != MOV_FP_SP)
			return INTERPRETER_ENTERS;
		if (insn == 0xa9044fff || insn == 0xa90437ff)
			return INTERPRETER_SAVES;
		if (insn == RET)
			return i < EXIT_INSNS ? INTERPRETER_LEAVES : INTERPRETER_RUNS;
		/* br x9 */
		if (insn == 0xd61f0120 || insn == LDP_FP_POST_2 || is_call(insn))
			return INTERPRETER_RUNS;
	}
	return INTERPRETER_RUNS;
}

/* Moves from an interpreted method without a frame, which is entered or left, to its caller. Leaves the frame marked as
   innermost if the method has a frame. */
__noinline int caller_of_frameless(struct walker *w)
{
	__u64 const_method;
	int state;

	if (!w || !in_code_cache(w, w->regs.link))
		return 0;
	state = interpreter_state(w);
	if (state == INTERPRETER_ENTERS) {
		if (!read_user(&const_method, WORD, w->regs.method + w->jvm.const_method))
			record_interpreted(w, w->regs.method, 0);
		return caller_by_link(w, sender_sp(w, w->sp));
	}
	if (state == INTERPRETER_LEAVES) {
		const_method = w->regs.left_sp & ~15ULL;
		if (const_method < w->sp || const_method - w->sp > MAX_ARGUMENT_BYTES)
			const_method = w->sp;
		return caller_by_link(w, const_method);
	}
	return 0;
}

/*
 * Returns the address to which the innermost method returned when an exception ended it, or 0. C1's stub and the
 * interpreter, which have removed the method's frame, push this address and the exception, call the JVM with two more
 * words pushed, and pop them: ldp x8, x12, [sp], 16; mov x1, x0; then ldp x30, x0, [sp], 16 (generate_unwind_exception(),
 * c1_Runtime1_aarch64.cpp) or ldp x0, x30, [sp], 16 (generate_throw_exception(),
 * templateInterpreterGenerator_aarch64.cpp). `end` becomes the caller's sp.
 */
static __always_inline __u64 pushed_return(struct walker *w, __u64 *end)
{
	__u32 c[3] = {}, pop;
	__u64 to = 0;

	if (read_user(c, sizeof(c), w->ip))
		return 0;
	*end = w->sp + (c[0] == 0xa8c133e8 ? 4 : 2) * WORD;
	pop = c[0] == 0xa8c133e8 && c[1] == 0xaa0003e1 ? c[2] : c[0] == 0xaa0003e1 ? c[1] : c[0];
	if ((pop != 0xa8c103fe && pop != 0xa8c17be0) ||
	    read_stack(w, &to, 1, *end - (pop == 0xa8c103fe ? 2 : 1) * WORD))
		return 0;
	to = without_signature(to);
	return in_code_cache(w, to) ? to : 0;
}

#define BCP_SLOT 9

/* Finds the caller of an interpreted method. Its frame has a frame pointer. The three words below the address
   in fp are the caller's sp, the last sp and the Method. The bytecode pointer is at fp - BCP_SLOT words
   (frame_aarch64.hpp). */
__noinline int caller_of_interpreted(struct walker *w)
{
	/* Words from fp - 8 words up to the return address. */
	__u64 words[10], saved, const_method, base, bci = NO_BCI, sp, top;

	if (!w)
		return END_IMPLAUSIBLE;
	/* The method's frame was removed, and fp is a caller's. */
	saved = pushed_return(w, &sp);
	if (saved)
		return go_to(w, saved, sp, w->fp);
	if (w->fp < w->sp || w->fp & (WORD - 1) || read_stack(w, words, 10, w->fp - 8 * WORD) ||
	    !in_code_cache(w, without_signature(words[9])))
		return caller_by_fp(w);
	sp = words[7];
	if (!read_user(&const_method, WORD, words[5] + w->jvm.const_method)) {
		base = const_method + w->jvm.const_method_size;
		saved = read_stack(w, words, 1, w->fp - BCP_SLOT * WORD) ? NO_BCI : words[0] - base;
		/* In the innermost frame, the register bcp is more recent than the value that the frame has saved. */
		if (w->is_innermost && w->regs.bcp - base < NO_BCI)
			bci = w->regs.bcp - base;
		else if (saved < NO_BCI)
			bci = saved;
		if (!w->is_deoptimizing)
			record_interpreted(w, words[5], bci);
	}
	top = w->fp + 2 * WORD;
	/* Until the frame contains the caller's sp, a register contains it. */
	if (w->is_innermost && interpreter_state(w) == INTERPRETER_SAVES)
		sp = sender_sp(w, top);
	/* If an adapter has moved arguments to the stack, they lie between `top` and the caller's sp. An implausible sp
	   is replaced by `top`. */
	if (sp < top || sp - top > MAX_FRAME_BYTES)
		sp = top;
	return go_to(w, words[9], sp, words[8]);
}

/*
 * If the innermost frame is in the stub through which a compiled method calls interpreted code, returns the target of
 * the stub; else 0. The stub sets x12 to the Method and x8 to the target by movz and movk, and ends with br x8
 * (emit_to_interp_stub(), compiledIC_aarch64.cpp). The link register is a return address in the same method.
 */
__noinline __u64 call_stub_target(struct walker *w)
{
	__u32 i, insn, code[CALL_STUB_INSNS];
	__u64 to = 0;

	if (!w || w->regs.link - w->blob.begin >= w->blob.end - w->blob.begin ||
	    read_user(code, sizeof(code), w->ip))
		return 0;
#pragma unroll
	for (i = 0; i < CALL_STUB_INSNS; i++) {
		insn = code[i];
		/* br x8 */
		if (insn == 0xd61f0100)
			return to ? to : w->blob.end;
		/* movz and movk of x8 or x12 */
		if ((insn & 0xdf80001f) == 0xd2800008) {
			__u32 shift = 16 * (insn >> 21 & 3);

			to = (insn & 1 << 29 ? to & ~(0xffffULL << shift) : 0) |
			     (__u64)(insn >> 5 & 0xffff) << shift;
		} else if ((insn & 0xdf80001f) != 0xd280000c && insn != 0xd5033fdf) {
			return 0;
		}
	}
	return 0;
}

/* Returns how much of the innermost method's frame is set up. */
static __always_inline int frame_state(struct walker *w)
{
	int state = state_in_prologue(w);

	/* If all of the frame's size is allocated, the prologue has ended. */
	if (state == FRAME_SAVED && w->end_bytes == w->blob.frame_bytes)
		state = FRAME_COMPLETE;
	return state == FRAME_COMPLETE ? epilogue_state(w) : state;
}

/* Returns the number of bytes below a method's frame that hold the arguments of the stub that it calls: stp or str with
   [sp, -16]! before the call, ldp or ldr with [sp], 16 after it (emit_typecheck_helper(),
   c1_LIRAssembler_aarch64.cpp). */
static __always_inline __u32 pushed_bytes(struct walker *w)
{
	__u32 insn = 0;

	if (read_user(&insn, INSN, w->ip))
		return 0;
	return (insn & 0xffffffe0) == 0xf84107e0 || (insn & 0xffff83e0) == 0xa8c103e0 ? 2 * WORD : 0;
}

__noinline int caller_of_compiled(struct walker *w, bool below_stub)
{
	struct blob *b;
	__u64 frame[2], pc = 0, end;
	int state = FRAME_COMPLETE;

	if (!w)
		return END_IMPLAUSIBLE;
	b = &w->blob;
	if (w->is_innermost) {
		/* If ip is in the stub through which this method calls interpreted code, the call has already been
		   executed. So the stub's target is recorded as the innermost frame, and this method is its caller. */
		pc = call_stub_target(w);
		if (pc) {
			w->frame = pc & ADDR_MASK;
			return caller_by_link(w, w->sp);
		}
	}
	if (in_handler(b, w->ip)) {
		/* A deoptimised frame returns to the handler; its original pc is saved in the frame. */
		if (!read_stack(w, &pc, 1, w->sp + b->orig_pc_offset) &&
		    pc - b->begin < b->end - b->begin)
			w->frame = (pc - w->is_innermost) | (w->frame & ~ADDR_MASK);
	} else if (w->is_innermost) {
		state = frame_state(w);
	}
	if (state == FRAME_LINK && in_code_cache(w, w->regs.link))
		return caller_by_link(w, w->sp + w->end_bytes);
	end = w->sp + (state == FRAME_SAVED ? w->end_bytes : b->frame_bytes);
	if (state == FRAME_COMPLETE && (w->is_innermost || below_stub))
		end += pushed_bytes(w);
	if (!read_stack(w, frame, 2, end - sizeof(frame)) &&
	    in_code_cache(w, without_signature(frame[1])))
		return go_to(w, frame[1], end, frame[0]);
	if (caller_near(w, end, &state))
		return state;
	guess(w);
	return caller_by_fp(w);
}

/* Returns whether the link register contains an address in the current blob, because the innermost code has called
   other code. */
static __always_inline bool has_called(struct walker *w)
{
	return w->regs.link - w->blob.begin < w->blob.end - w->blob.begin && follows_call(w->regs.link) &&
	       !entry_by_caller(w, w->regs.link);
}

/* Returns whether fp is that of the innermost code itself, not of a caller: the return address that is saved above fp
   is still in the link register, or the code has called other code. */
static __always_inline bool has_own_fp(struct walker *w)
{
	__u64 frame[2];

	if (w->fp < w->sp || w->fp - w->sp >= MAX_FRAME_BYTES || read_stack(w, frame, 2, w->fp))
		return false;
	return without_signature(frame[1]) == w->regs.link || has_called(w);
}

/*
 * Returns the caller's sp while ip is in an adapter that has no frame. An adapter to the interpreter copies sp to x19 or
 * x13 after its checks, and lowers sp. So if this mov is still ahead, sp is the caller's; if the br that ends the adapter
 * comes first, the register contains it. If neither is near, the mov is assumed to be ahead. One of the checks pushes x10
 * and pops it (BarrierSetAssembler::c2i_entry_barrier()).
 */
__noinline __u64 sp_before_adapter(struct walker *w)
{
	__u32 i, insn;

	if (!w)
		return 0;
	if (read_user(w->bytes, MAX_BLOB_BYTES, w->ip - INSN))
		return w->sp;
	for (i = 1; i < MAX_BLOB_BYTES / INSN; i++) {
		insn = insn_at(w, i);
		/* mov x19, sp; mov x13, sp; stp x10, xzr, [sp, -16]! */
		if (insn == 0x910003f3 || insn == 0x910003ed || insn == 0xa9bf7fea)
			break;
		/* ldp x10, xzr, [sp], 16 */
		if (insn == 0xa8c17fea)
			return w->sp + 2 * WORD;
		/* br, unless add x8, x8, X precedes it: that is a jump to a stub. */
		if ((insn & 0xfffffc1f) == 0xd61f0000 && (insn_at(w, i - 1) & 0xffc003ff) != 0x91000108)
			return sender_sp(w, w->sp);
	}
	return w->sp;
}

/* Finds the caller of an adapter, which moves arguments between interpreted and compiled code: gen_i2c_adapter() and
   gen_c2i_adapter(), sharedRuntime_aarch64.cpp. */
__noinline int caller_of_adapter(struct walker *w)
{
	__u32 before = 0;

	if (!w)
		return END_IMPLAUSIBLE;
	/* The adapter calls the JVM, which patches the call site, with a frame. */
	if (!w->is_innermost || has_own_fp(w))
		return caller_by_fp(w);
	if (!in_code_cache(w, w->regs.link)) {
		guess(w);
		return caller_by_fp(w);
	}
	if (!read_user(&before, INSN, w->ip - INSN) && before == STP_FP_PRE_2)
		return caller_below(w, w->sp + 2 * WORD);
	/* The interpreter sets the register before it calls. */
	if (in_interpreter(w, w->regs.link))
		return caller_by_link(w, sender_sp(w, w->sp));
	return caller_by_link(w, sp_before_adapter(w));
}

/* Finds the caller of a stub that was interrupted at any instruction. Returns 0 and makes no step if it finds none. */
static __always_inline int caller_of_innermost_stub(struct walker *w)
{
	__u64 link = w->regs.link, frame[2], end = w->sp + w->blob.frame_bytes;
	__u32 c[3] = {};
	int state;

	if (!read_user(c, sizeof(c), w->ip - INSN)) {
		/* Before and after the frame is created */
		if (c[0] == STP_FP_PRE_2)
			return caller_below(w, w->sp + 2 * WORD);
		if (c[1] == STP_FP_PRE_2 || (lowers_sp(c[1]) && saves_fp(c[2])))
			return caller_by_link(w, w->sp);
		if (lowers_sp(c[0]) && saves_fp(c[1]))
			return caller_by_link(w, w->sp + immediate(c[0]));
	}
	if (in_code_cache(w, link) || (follows_call(link) && find_mapping(w, link))) {
		state = epilogue_state(w);
		if (state == FRAME_SAVED)
			return caller_below(w, w->sp + w->end_bytes);
		if (state == FRAME_LINK)
			return caller_by_link(w, w->sp + w->end_bytes);
	}
	/* The stubs of C2 and that of uncommon traps have a frame, but leave fp unchanged. If fp is within the frame, it
	   is the stub's own, and sp may have been raised already. */
	if (w->blob.frame_bytes && !read_stack(w, frame, 2, end - sizeof(frame)) &&
	    in_code_cache(w, without_signature(frame[1])) &&
	    (without_signature(frame[1]) == link ||
	     (has_called(w) && (w->fp < w->sp || w->fp >= end - sizeof(frame)))))
		return go_to(w, frame[1], end, frame[0]);
	if (has_own_fp(w))
		return caller_by_fp(w);
	if (entry_by_caller(w, link) || (!in_code_cache(w, link) && follows_call(link) && find_mapping(w, link)))
		return caller_by_link(w, w->sp);
	return 0;
}

/* Finds the caller of a stub: nearly all that call other code have a frame pointer. */
__noinline int caller_of_stub(struct walker *w)
{
	__u64 frame[2], end, to;
	int why;

	if (!w)
		return END_IMPLAUSIBLE;
	to = pushed_return(w, &end);
	if (to)
		return go_to(w, to, end, w->fp);
	if (w->is_innermost) {
		why = caller_of_innermost_stub(w);
		if (why || !w->is_innermost)
			return why;
		guess(w);
		if (in_code_cache(w, w->regs.link) && follows_call(w->regs.link))
			return caller_by_link(w, w->sp);
		return caller_by_fp(w);
	}
	if (w->blob.frame_bytes && !read_stack(w, frame, 2, w->sp + w->blob.frame_bytes - 2 * WORD) &&
	    in_code_cache(w, without_signature(frame[1])))
		return go_to(w, frame[1], w->sp + w->blob.frame_bytes, frame[0]);
	return caller_by_fp(w);
}

/* Finds the caller of code that jumps to a method and saves nothing. */
static __always_inline int caller_of_dispatch(struct walker *w)
{
	return caller_by_link(w, w->sp);
}

#endif
