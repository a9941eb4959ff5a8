/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Finds the caller of each kind of HotSpot's frames on x86-64: interpreted and compiled methods, adapters between the
 * two, and stubs. A call pushes the return address, so each frame has it on the stack.
 */
#ifndef JVMPROBE_WALK_ARCH_X86_FRAMES_BPF_H
#define JVMPROBE_WALK_ARCH_X86_FRAMES_BPF_H

#include "frames.bpf.h"

#define BCP_SLOT_JDK_8 7

/* Moves to the caller of code that has nothing on the stack but its return address. */
static __always_inline int caller_at_sp(struct walker *w)
{
	__u64 ip = 0;

	if (read_stack(w, &ip, 1, w->sp))
		return END_UNREADABLE;
	return go_to(w, ip, w->sp + WORD, w->fp);
}

/* Returns the caller's sp. `sp` is the address just above the return address. During a call to or from an
   interpreted method, arguments may lie between `sp` and the caller's sp, and the register sender_sp contains
   the caller's sp. If the register's value is not plausible, returns `sp`. */
static __always_inline __u64 sender_sp(struct walker *w, __u64 sp)
{
	return w->regs.sender_sp > sp && w->regs.sender_sp - sp <= MAX_ARGUMENT_BYTES ? w->regs.sender_sp : sp;
}

/* Returns whether `end` may be the caller's sp: it is at most MAX_ARGUMENT_BYTES above `sp`, and fp does not
   point between the current sp and `end`. */
static __always_inline bool is_sender_sp(struct walker *w, __u64 end, __u64 sp)
{
	return end >= sp && end - sp <= MAX_ARGUMENT_BYTES && !(w->fp >= w->sp && w->fp < end);
}

/*
 * Finds the caller of an interpreted method that compiled code has called and whose frame is not yet built or
 * already removed. In this state, fp belongs to a frame further out, which may look like the method's own
 * frame. The return address is at sp, one word above sp if fp was pushed, or in a register. It is accepted
 * only if a register also contains a plausible sp of the caller; without this, the address may be left over
 * from an earlier call. If none is accepted, returns 0 and leaves the frame marked as innermost.
 */
__noinline int caller_of_frameless(struct walker *w)
{
	__u64 words[2], ip = w ? w->regs.sender_sp : 0, sp;

	if (!w || read_stack(w, words, 2, w->sp))
		return 0;
	if (in_compiled_code(w, ip) && is_sender_sp(w, w->regs.left_sp, w->sp)) {
		/* The interpreter has removed the frame and is about to jump to the return address. */
		sp = w->regs.left_sp;
	} else {
		sp = w->regs.sender_sp;
		if (in_compiled_code(w, words[0])) {
			ip = words[0];
			if (!is_sender_sp(w, sp, w->sp + WORD))
				sp = w->regs.left_sp;
			if (!is_sender_sp(w, sp, w->sp + WORD))
				return 0;
		} else if (words[0] == w->fp && in_compiled_code(w, words[1])) {
			ip = words[1];
			if (!is_sender_sp(w, sp, w->sp + 2 * WORD))
				return 0;
		} else {
			ip = w->regs.return_address;
			if (!in_compiled_code(w, ip) || !is_sender_sp(w, sp, w->sp))
				return 0;
		}
		if (resumes_own_frame(w))
			return 0;
	}
	/* go_to() accepts only an sp above the current one, but the method may have nothing on the stack. */
	w->sp -= WORD;
	return go_to(w, ip, sp, w->fp);
}

/* Returns the bytecode index that an interpreted frame has saved. `words` is the frame from fp - 8 words on,
   and `base` the address of the method's first bytecode. During a full collection, JDK 8 saves an index
   instead of an address (frame::gc_prologue(), frame.cpp). */
static __always_inline __u64 saved_bci(struct walker *w, const __u64 *words, __u64 base)
{
	if (w->jvm.bcp_slot != BCP_SLOT_JDK_8)
		return words[0] - base;
	return words[1] < NO_BCI ? words[1] : words[1] - base;
}

/* Finds the caller of an interpreted method. Its frame has a frame pointer. The three words below the address
   in fp are the caller's sp, the last sp and the Method (frame_x86.hpp). Further below, JDK versions
   differ. */
__noinline int caller_of_interpreted(struct walker *w)
{
	/* Words from fp - 8 words up to the return address. */
	__u64 words[10], method, saved, const_method, base, bci, sp, top;
	bool is_new;

	if (!w)
		return END_IMPLAUSIBLE;
	if (w->fp >= w->sp && !(w->fp & (WORD - 1)) &&
	    !read_stack(w, words, 10, w->fp - 8 * WORD) && in_code_cache(w, words[9])) {
		/* On entry, the Method is in a register until it is pushed. */
		is_new = w->is_innermost && w->sp > w->fp - 3 * WORD;
		method = is_new ? w->regs.method : words[5];
		bci = NO_BCI;
		if (!read_user(&const_method, WORD, method + w->jvm.const_method)) {
			base = const_method + w->jvm.const_method_size;
			saved = saved_bci(w, words, base);
			/* In the innermost frame, the register bcp is more recent than the value that the
			   frame has saved. */
			if (is_new)
				bci = 0;
			else if (w->is_innermost && w->regs.bcp - base < NO_BCI)
				bci = w->regs.bcp - base;
			else if (saved < NO_BCI)
				bci = saved;
			if (!w->is_deoptimizing)
				record_interpreted(w, method, bci);
		}
		/* On entry, the caller's sp is in a register, too. */
		sp = w->is_innermost && w->sp == w->fp ? w->regs.sender_sp : words[7];
		top = w->fp + 2 * WORD;
		/* If an adapter has moved arguments to the stack, they lie between `top` and the caller's sp.
		   An implausible sp is replaced by `top`. */
		if (sp < top || sp - top > MAX_FRAME_BYTES)
			sp = top;
		return go_to(w, words[9], sp, words[8]);
	}
	/* At a method's entry there is no frame yet. The return address is at sp or, while the interpreter
	   pushes the local variables, in a register. */
	if (w->is_innermost) {
		if (!read_stack(w, &base, 1, w->sp) && in_code_cache(w, base))
			return go_to(w, base, sender_sp(w, w->sp + WORD), w->fp);
		if (in_code_cache(w, w->regs.return_address))
			return go_to(w, w->regs.return_address, sender_sp(w, w->sp + WORD), w->fp);
	}
	return caller_by_fp(w);
}

/* Returns how much of the innermost method's frame is set up. */
static __always_inline int frame_state(struct walker *w)
{
	int state = state_in_prologue(w);

	return state == FRAME_COMPLETE ? epilogue_state(w) : state;
}

__noinline int caller_of_compiled(struct walker *w, bool below_stub)
{
	struct blob *b;
	__u64 frame[2], pc = 0, end, sp;
	int state = FRAME_COMPLETE;

	if (!w)
		return END_IMPLAUSIBLE;
	b = &w->blob;
	if (w->is_innermost) {
		/* If ip is in the stub through which this method calls interpreted code, the call has already
		   been executed. So the stub's target is recorded as the innermost frame, and this method is
		   its caller. The return address is at sp. */
		pc = call_stub_target(w);
		if (pc) {
			w->frame = pc & ADDR_MASK;
			return caller_at_sp(w);
		}
	}
	if (in_handler(b, w->ip)) {
		/* The handler pushes its own address and then jumps to a stub. */
		if (w->is_innermost && !read_stack(w, &pc, 1, w->sp) && in_handler(b, pc))
			w->sp += WORD;
		/* A deoptimised frame returns to the handler; its original pc is saved in the frame. */
		if (!read_stack(w, &pc, 1, w->sp + b->orig_pc_offset) &&
		    pc - b->begin < b->end - b->begin)
			w->frame = (pc - w->is_innermost) | (w->frame & ~ADDR_MASK);
	} else if (w->is_innermost) {
		state = frame_state(w);
	}
	end = w->sp + (state == FRAME_RETURN_ADDRESS_ONLY ? WORD :
		       state == FRAME_FP_PUSHED		  ? 2 * WORD :
							    b->frame_bytes);
	if (state == FRAME_COMPLETE && (w->is_innermost || below_stub))
		end += pushed_words(w) * WORD;
	if (state == FRAME_RETURN_ADDRESS_ONLY || state == FRAME_NO_FP) {
		if (!read_stack(w, &pc, 1, end - WORD) && in_code_cache(w, pc))
			return go_to(w, pc, end, w->fp);
	} else if (!read_stack(w, frame, 2, end - sizeof(frame)) &&
		   in_code_cache(w, frame[1])) {
		return go_to(w, frame[1], end, frame[0]);
	}
	/* HotSpot may have saved all registers below the frame. */
	sp = sp_before_saved_registers(w) + b->frame_bytes;
	if (sp > w->sp && !read_stack(w, frame, 2, sp - sizeof(frame)) &&
	    in_code_cache(w, frame[1]))
		return go_to(w, frame[1], sp, frame[0]);
	/* The method may have executed its epilogue and be about to jump to a handler. */
	if (w->is_innermost && !read_stack(w, &pc, 1, w->sp) && in_code_cache(w, pc)) {
		guess(w);
		return caller_at_sp(w);
	}
	if (caller_near(w, end, &state))
		return state;
	guess(w);
	return caller_by_fp(w);
}

/* Finds the caller of an adapter, which moves arguments between interpreted and compiled code: gen_i2c_adapter() and
   gen_c2i_adapter(), sharedRuntime_x86_64.cpp. */
__noinline int caller_of_adapter(struct walker *w)
{
	__u64 ip = 0, sp = 0, fp = 0, pushed;
	__u8 c[16] = {};

	if (!w)
		return END_IMPLAUSIBLE;
	if (!w->is_innermost) {
		/* The adapter has saved all registers and called the JVM, which patches the call site. */
		if (saved_by_adapter(w, &ip, &sp, &fp) || read_user(&pushed, WORD, sp) ||
		    pushed != ip || !in_code_cache(w, ip)) {
			guess(w);
			return caller_by_fp(w);
		}
		return go_to(w, ip, sp + WORD, fp);
	}
	if (read_user(c, sizeof(c), w->ip) || read_stack(w, &ip, 1, w->sp))
		return END_UNREADABLE;
	/* The adapter may be saving all registers before it calls the JVM, which patches the call site. In
	   this case, regs.sender_sp is the sp from before the registers were pushed, and regs.return_address
	   is the return address that is stored at this sp. */
	sp = w->regs.sender_sp;
	if (sp > w->sp && sp - w->sp <= MAX_FRAME_BYTES && !read_stack(w, &pushed, 1, sp) &&
	    pushed == w->regs.return_address && in_code_cache(w, pushed))
		return go_to(w, pushed, sp + WORD, w->fp);
	if (moves_return_address(c) && in_code_cache(w, w->regs.return_address)) {
		sp = is_at_sender_sp(c) ? w->sp : sender_sp(w, w->sp);
		/* go_to() accepts only an sp above the current one, but the adapter may have nothing on the
		   stack. */
		w->sp -= WORD;
		return go_to(w, w->regs.return_address, sp, w->fp);
	}
	sp = w->sp + WORD;
	return go_to(w, ip, has_set_sender_sp(w) ? sender_sp(w, sp) : sp, w->fp);
}

/*
 * Searches the stack for the innermost stub's return address. Returns its position in words above sp, or
 * STUB_WORDS if it is not found. Usually the return address is the one after a call whose target is the stub.
 * C2's compiled code jumps to the stubs that pass on an exception, so no call leads to them. The stubs of
 * C2 copy their return address to the top of the stack. So if no call is found, the word at the position that
 * the frame size gives is accepted if it equals the return address nearest to sp.
 */
__noinline int scan_stub(struct walker *w)
{
	__u64 *words, entry, at;
	__u32 i;

	if (!w)
		return STUB_WORDS;
	words = (__u64 *)w->bytes;
	if (read_user(words, STUB_WORDS * WORD, w->sp))
		return STUB_WORDS;
	for (i = 0; i < STUB_WORDS; i++) {
		entry = entry_by_caller(w, words[i]);
		if (entry) {
			w->found_ip = words[i];
			w->found_entry = entry;
			return i;
		}
	}
	for (i = 0; i < STUB_WORDS; i++) {
		if (!in_code_cache(w, words[i]) || !follows_call(words[i]))
			continue;
		at = w->blob.frame_bytes / WORD - 1;
		if (at >= STUB_WORDS || words[at] != words[i])
			break;
		w->found_ip = words[i];
		w->found_entry = 0;
		return at;
	}
	return STUB_WORDS;
}

/*
 * Finds the caller of a stub that was interrupted at any instruction. For this, it searches for a return
 * address whose call leads to the stub, or uses the stub's frame size. Many stubs set up rbp as C code does.
 * Others push arbitrary words and leave rbp unchanged, so rbp may belong to any frame further out. Returns 0
 * and makes no step if it finds no caller.
 */
static __always_inline int caller_of_innermost_stub(struct walker *w)
{
	__u64 words[3], end;
	__u32 found;

	if (w->fp >= w->sp && w->fp - w->sp < MAX_FRAME_BYTES &&
	    !read_stack(w, words, 3, w->fp)) {
		if (entry_by_caller(w, words[1]))
			return go_to(w, words[1], w->fp + 2 * WORD, words[0]);
		/* The stub of nmethod entry barriers reserves a word between the saved fp and the return
		   address. It contains -1 or, if the method is deoptimised, an sp. */
		if (words[1] == -1ULL && entry_by_caller(w, words[2]))
			return go_to(w, words[2], w->fp + 3 * WORD, words[0]);
	}
	if (w->blob.frame_bytes) {
		end = w->sp + w->blob.frame_bytes;
		if (!read_stack(w, words, 2, end - 2 * WORD) && entry_by_caller(w, words[1]))
			return go_to(w, words[1], end, words[0]);
	}
	found = scan_stub(w);
	if (found >= STUB_WORDS) {
		if (!in_code_cache(w, w->regs.exception_pc) || !passes_exception_on(w))
			return 0;
		end = w->sp;
		/* go_to() accepts only an sp above the current one, but the stub has nothing on the stack. */
		w->sp -= WORD;
		return go_to(w, w->regs.exception_pc, end, w->fp);
	}
	end = w->sp + (found + 1) * WORD;
	if (found && (!w->found_entry || begins_with_push(w->found_entry)))
		return caller_below(w, end);
	return go_to(w, w->found_ip, end, w->fp);
}

/* Finds the caller of a stub at its start or end, when only the return address is on the stack and, if
   `has_pushed_fp`, the caller's fp below it. The stub of entry barriers may also have pushed -1 directly
   below the return address. */
static __always_inline int caller_of_frameless_stub(struct walker *w, bool has_pushed_fp)
{
	__u64 words[3], end = w->sp + WORD, fp = w->fp;

	if (read_stack(w, words, 3, w->sp))
		return END_UNREADABLE;
	if (has_pushed_fp) {
		fp = words[0];
		words[0] = words[1];
		words[1] = words[2];
		end += WORD;
	}
	if (words[0] == -1ULL)
		return go_to(w, words[1], end + WORD, fp);
	return go_to(w, words[0], end, fp);
}

/* Finds the caller of a stub: many have a frame pointer, some a frame of a known size, some neither. */
__noinline int caller_of_stub(struct walker *w)
{
	__u64 words[3], ip = 0, end;
	int why = 0;

	if (!w)
		return END_IMPLAUSIBLE;
	if (w->is_innermost) {
		int state = stub_state(w);

		if (state != FRAME_COMPLETE)
			return caller_of_frameless_stub(w, state == FRAME_FP_PUSHED);
		why = caller_of_innermost_stub(w);
		if (why || !w->is_innermost)
			return why;
		/* Some stubs that native code calls push nothing, such as flush_icache_stub. */
		if (!read_stack(w, &ip, 1, w->sp) && !in_code_cache(w, ip) && follows_call(ip) &&
		    find_mapping(w, ip))
			return go_to(w, ip, w->sp + WORD, w->fp);
	}
	if (w->blob.frame_bytes && !w->is_innermost &&
	    caller_near(w, w->sp + w->blob.frame_bytes, &why))
		return why;
	/* The other stubs that native code calls have a frame pointer. If generated code has called an
	   innermost stub, this step is a guess. */
	if (w->fp >= w->sp && w->fp - w->sp < MAX_FRAME_BYTES &&
	    !read_stack(w, words, 3, w->fp)) {
		if (words[1] == -1ULL && in_code_cache(w, words[2]))
			return go_to(w, words[2], w->fp + 3 * WORD, words[0]);
		if (words[1] > 0xffff) {
			if (w->is_innermost && in_code_cache(w, words[1]))
				guess(w);
			return go_to(w, words[1], w->fp + 2 * WORD, words[0]);
		}
	}
	guess(w);
	end = frame_end(w, w->sp + WORD);
	if (end && !read_stack(w, &ip, 1, end - WORD))
		return go_to(w, ip, end, w->fp);
	return END_IMPLAUSIBLE;
}

/* Finds the caller of code that jumps to a method and pushes nothing. */
static __always_inline int caller_of_dispatch(struct walker *w)
{
	return caller_at_sp(w);
}

#endif
