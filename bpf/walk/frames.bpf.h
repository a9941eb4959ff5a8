/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Parts of HotSpot's frames that do not depend on the processor. arch_NAME_frames.bpf.h contains the other parts.
 */
#ifndef JVMPROBE_WALK_FRAMES_BPF_H
#define JVMPROBE_WALK_FRAMES_BPF_H

#include "arch.bpf.h"
#include "blob.bpf.h"
#include "native.bpf.h"

/* Maximum number of words that stubs and slow paths push in addition to the frame's size. */
#define MAX_EXTRA_WORDS 8
#define MAX_ARGUMENT_BYTES (256 * WORD)
#define HANDLER_BYTES 32        /* size of a deoptimisation handler */
#define STUB_WORDS 32           /* maximum number of words pushed by a stub; a power of two */

/* Records the current frame as that of an interpreted method. */
static __always_inline void record_interpreted(struct walker *w, __u64 method, __u64 bci)
{
	w->frame = INTERPRETED | bci << METHOD_BITS |
		   (method >> METHOD_SHIFT & ((1ULL << METHOD_BITS) - 1));
}

static __always_inline bool in_compiled_code(struct walker *w, __u64 addr)
{
	return in_code_cache(w, addr) && !in_interpreter(w, addr);
}

/* Returns the target of the call before `addr` if `addr` is a return address of generated code and the call leads to
   the current blob; else 0. */
static __always_inline __u64 entry_by_caller(struct walker *w, __u64 addr)
{
	__u64 to;

	if (!in_code_cache(w, addr))
		return 0;
	to = call_target(addr);
	return to - w->blob.begin < w->blob.end - w->blob.begin ? to : 0;
}

/*
 * Searches upwards from the expected end of a frame for its actual end. The word below the end must be a
 * return address in the code cache, because nearly all generated code is called from generated code. If there is
 * no such word within MAX_EXTRA_WORDS words, returns 0.
 */
__noinline __u64 frame_end(struct walker *w, __u64 end)
{
	__u64 ip = 0;
	int i;

	if (!w)
		return 0;
	for (i = 0; i <= MAX_EXTRA_WORDS; i++) {
		if (read_stack(w, &ip, 1, end - WORD))
			return 0;
		if (in_code_cache(w, ip))
			return end;
		end += WORD;
	}
	return 0;
}

/*
 * Returns whether the current blob was called by the frame that begins at `end`. This is so if the call
 * before the return address leads to this blob, or if the return address is in the interpreter and the saved
 * fp points to a frame.
 */
__noinline int is_called_from(struct walker *w, __u64 end)
{
	__u64 frame[2];

	if (!w || read_stack(w, frame, 2, end - sizeof(frame)))
		return 0;
	return entry_by_caller(w, frame[1]) || (in_interpreter(w, frame[1]) && is_frame(frame[0], end));
}

/* Moves to the caller of a frame that should end at `expected`: stores the result of the step in `why` and
   returns 1. If no frame ends at or near `expected`, makes no step and returns 0. */
static __always_inline int caller_near(struct walker *w, __u64 expected, int *why)
{
	__u64 end = frame_end(w, expected);

	if (!end)
		return 0;
	if (end != expected && !is_called_from(w, end))
		guess(w);
	*why = caller_below(w, end);
	return 1;
}

/* Returns how much of the innermost method's frame its prologue has set up; FRAME_COMPLETE if ip is not in a prologue. */
static __always_inline int state_in_prologue(struct walker *w)
{
	struct blob *b = &w->blob;
	__u64 osr = b->osr_entry;

	/* A method compiled for on-stack replacement is entered in a loop; its prologue is at the OSR entry. */
	if (osr > b->begin && w->ip - osr < CODE_BYTES)
		return prologue_state(w, osr);
	if (w->ip < b->begin + b->frame_complete)
		return prologue_state(w, b->verified_entry);
	return FRAME_COMPLETE;
}

static __always_inline bool in_handler(struct blob *b, __u64 addr)
{
	return addr - b->deopt_handler < HANDLER_BYTES ||
	       addr - b->deopt_mh_handler < HANDLER_BYTES;
}

#endif
