/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the walker knows while it walks one stack, and the few steps that every kind of frame
 * needs: to read the walked process's memory, to move on to a caller whose place is known, and to
 * say that a caller is only likely.
 *
 * All of it lies in one per-CPU array, because the BPF stack (512 bytes for all functions that
 * call each other) has no room for it.
 */
#ifndef JVMPROBE_WALK_STATE_BPF_H
#define JVMPROBE_WALK_STATE_BPF_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "walk.h"

#if defined(__TARGET_ARCH_x86)
#include "arch_x86.h"
#elif defined(__TARGET_ARCH_arm64)
#include "arch_arm64.h"
#else
#error "the stack walker does not know the registers of this machine"
#endif

#define WORD 8
#define MAX_BLOB_BYTES 512      /* a power of two; JDK 8 to 25 need up to 360 */
#define MAX_FRAME_BYTES (1 << 20)
/* So much of the stack is read at once; a power of two. */
#define WINDOW_BYTES 2048
#define PAGE_BYTES 4096
#define MAX_WINDOW_WORDS 16     /* of one read */

enum blob_kind {
	BLOB_NONE = 0,
	BLOB_METHOD = 1,    /* compiled, or a wrapper around native code */
	BLOB_DISPATCH = 2,  /* jumps to a method: vtable and itable stubs, inline caches */
	BLOB_ADAPTER = 3,   /* moves arguments between compiled and interpreted code */
	BLOB_STUB = 4,
	BLOB_DEOPT = 5,     /* makes interpreted frames of compiled ones */
};

struct blob {
	__u64 begin;        /* of code */
	__u64 end;
	__u64 verified_entry;
	__u64 osr_entry;
	__u64 deopt_handler;
	__u64 deopt_mh_handler;
	__u64 frame_bytes;
	__u32 frame_complete;
	__u32 orig_pc_offset;
	__u32 compile_id;
	__u32 kind;
	/* Where its compile id is, or its name for what was not compiled, and what that was: no
	   other piece of code in its place would have the same. */
	__u32 identity;
	__u64 identity_at;
};

struct walker {
	__u64 key;
	/* Of the programs that walk: see WALK_LEVELS. */
	__u32 level;
	/* What is remembered of native code is remembered with this; 0 for nothing. */
	__u64 mappings_stamp;
	/* The frame that is looked at; walk() begins with the sampled registers. */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	/* The others, as long as it is innermost. */
	struct registers regs;
	/* What it is recorded as. */
	__u64 frame;
	/* Whether nothing was called from it: its address is that of an instruction, and
	   the registers are its own. */
	bool is_innermost;
	bool is_first;
	bool is_jvm;
	bool by_tables;
	/* Whether interpreted frames may be there that have no content yet. */
	bool is_deoptimizing;
#ifdef WALKS_PROBED
	/* Whether an exception of a thread that has hit probes led into the kernel; whether ip is at the
	   breakpoint of a probe. */
	bool by_exception;
	bool is_at_breakpoint;
#endif
	/* How many frames there are, and how many there were when a step to the caller was a
	   guess for the first time. */
	__u32 depth;
	__u32 known;
	__u64 code_low;
	__u64 code_high;
	__u64 found_ip;     /* by scan() and scan_stub() */
	__u64 found_entry;  /* of the stub, by scan_stub() */
	/* What was found last: callers are often next to it. */
	struct mapping mapping;
	struct blob blob;
	struct jvm jvm;
	__u8 bytes[MAX_BLOB_BYTES];
	/* A piece of the stack, where it lies, and how long it is; and room for the verifier, to
	   whom whatever begins in the window may end behind it. */
	__u64 window_at;
	__u64 window_bytes;
	__u64 window[WINDOW_BYTES / WORD + MAX_WINDOW_WORDS];
};

/*
 * Programs that interrupt each other on one processor walk at levels of their own; the tool says
 * how many it has. Those of one level never do, or take turns.
 */
#ifndef WALK_LEVELS
#define WALK_LEVELS 1
#endif

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WALK_LEVELS);
	__type(key, __u32);
	__type(value, struct walker);
} walkers SEC(".maps");

static __always_inline int read_user(void *to, __u32 size, __u64 addr)
{
	return bpf_probe_read_user(to, size, (void *)addr);
}

/* Reads the stack from an address on: as far as a window goes, or its page. */
__noinline int move_window(struct walker *w, __u64 to)
{
	__u64 rest;

	if (!w)
		return 0;
	to &= ~(__u64)(WORD - 1);
	rest = PAGE_BYTES - (to & (PAGE_BYTES - 1));
	w->window_at = to;
	w->window_bytes = 0;
	if (!read_user(w->window, WINDOW_BYTES, to)) {
		w->window_bytes = WINDOW_BYTES;
	} else if (rest < WINDOW_BYTES) {
		/* The stack's last page, perhaps. */
		barrier_var(rest);
		if (rest < WINDOW_BYTES && !read_user(w->window, rest, to))
			w->window_bytes = rest;
	}
	return 0;
}

/* Whether so many bytes of an address are in the window. */
static __always_inline bool in_window(const struct walker *w, __u64 addr, __u32 size)
{
	__u64 at = addr - w->window_at;

	return at < w->window_bytes && w->window_bytes - at >= size;
}

/*
 * Reads words of the stack, which is read in large pieces: a walk looks at most of it, and to ask
 * the kernel for each two words costs more than all else that is done for a frame. The thread
 * whose stack this is stands still meanwhile.
 */
static __always_inline int read_stack(struct walker *w, __u64 *to, const __u32 words, __u64 addr)
{
	__u64 *from;
	__u32 i;

	if (!in_window(w, addr, words * WORD)) {
		/* Below it is only what is on its way to become a frame. */
		if (addr < w->sp || addr & (WORD - 1))
			return read_user(to, words * WORD, addr);
		move_window(w, addr - w->sp < WINDOW_BYTES / 4 ? w->sp : addr);
		if (!in_window(w, addr, words * WORD))
			return read_user(to, words * WORD, addr);
	}
	from = w->window + ((addr - w->window_at) / WORD & (WINDOW_BYTES / WORD - 1));
#pragma unroll
	for (i = 0; i < words; i++)
		to[i] = from[i];
	return 0;
}

static __always_inline bool in_code_cache(struct walker *w, __u64 addr)
{
	return addr - w->code_low < w->code_high - w->code_low;
}

static __always_inline bool in_interpreter(struct walker *w, __u64 addr)
{
	return addr - w->jvm.interpreter_low <
	       w->jvm.interpreter_high - w->jvm.interpreter_low;
}

/* The caller is known: 0 to go on, or why that makes no sense. */
static __always_inline int go_to(struct walker *w, __u64 ip, __u64 sp, __u64 fp)
{
	bool moved = sp > w->sp;

	w->ip = ip;
	w->sp = sp;
	w->fp = fp;
	w->is_innermost = false;
	if (!ip)
		return END_OUTERMOST;
	if (ip & ~ADDR_MASK || !moved || sp & (WORD - 1))
		return END_IMPLAUSIBLE;
	return 0;
}

/* The step to the caller is not known, but likely. */
static __always_inline void guess(struct walker *w)
{
	if (!w->known)
		w->known = w->depth;
}

/* By the convention for frame pointers, which is the same on x86-64 and aarch64. */
static __always_inline int caller_by_fp(struct walker *w)
{
	__u64 frame[2];

	if (!w->fp)
		return END_OUTERMOST;
	if (w->fp < w->sp || w->fp & (WORD - 1))
		return END_IMPLAUSIBLE;
	if (read_stack(w, frame, 2, w->fp))
		return END_UNREADABLE;
	return go_to(w, frame[1], w->fp + sizeof(frame), frame[0]);
}

/* To the caller of a frame that ends at `end`, with fp and return address below it. */
static __always_inline int caller_below(struct walker *w, __u64 end)
{
	__u64 frame[2];

	if (read_stack(w, frame, 2, end - sizeof(frame)))
		return END_UNREADABLE;
	return go_to(w, frame[1], end, frame[0]);
}

/* To the caller of code that has put nothing below its return address. */
static __always_inline int caller_at_sp(struct walker *w)
{
	__u64 ip = 0;

	if (read_stack(w, &ip, 1, w->sp))
		return END_UNREADABLE;
	return go_to(w, ip, w->sp + WORD, w->fp);
}

#endif
