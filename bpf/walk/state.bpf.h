/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * State of the walker while it walks one stack, and the steps that every kind of frame needs: reading the
 * walked process's memory, moving to a caller whose location is known, and marking a step as a guess.
 *
 * The state lies in a per-CPU array, because the BPF stack (512 bytes for a function and all that it calls)
 * has no space for it.
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

#include "arch.h"

#if defined(WALKS_PROBED) && defined(BREAKPOINT)
#define FINDS_BREAKPOINTS
#endif

#define WORD 8
#define MAX_BLOB_BYTES 512      /* a power of two; blobs of JDK 8 to 25 need up to 360 */
#define MAX_FRAME_BYTES (1 << 20)
/* Number of bytes of the stack that are read at once; a power of two. */
#define WINDOW_BYTES 2048
#define PAGE_BYTES 4096
#define MAX_WINDOW_WORDS 16     /* maximum number of words of one read_stack() */

enum blob_kind {
	BLOB_NONE = 0,
	BLOB_METHOD = 1,    /* compiled method, or a wrapper of a native method */
	BLOB_DISPATCH = 2,  /* jumps to a method: vtable and itable stubs, inline caches */
	BLOB_ADAPTER = 3,   /* moves arguments between compiled and interpreted code */
	BLOB_STUB = 4,
	BLOB_DEOPT = 5,     /* replaces compiled frames by interpreted ones */
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
	/* Identity: the compile id of a method or, for other blobs, the low half of the name's address. It
	   distinguishes the blob from a later one at the same location. identity_at is the address in the
	   blob at which the identity is stored. */
	__u32 identity;
	__u64 identity_at;
};

struct walker {
	__u64 key;
	/* Level of the program that walks: see WALK_LEVELS. */
	__u32 level;
	/* Stamp of the process's list of mappings, which marks its entries for native code in the cache
	   (address_cache.bpf.h); 0 if native code is not cached. */
	__u64 mappings_stamp;
	/* Registers of the current frame; walk() starts with the sampled ones. */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	/* The other registers, valid while the current frame is innermost. */
	struct registers regs;
	/* The current frame as it is recorded. */
	__u64 frame;
	/* Whether the current frame was interrupted. Then ip is the next instruction and not a return
	   address, and `regs` belongs to this frame. */
	bool is_innermost;
	bool is_first;
	bool is_jvm;
	bool by_tables;
	/* Whether the next frames may be interpreted ones that deoptimisation has not filled in yet. */
	bool is_deoptimizing;
#ifdef FINDS_BREAKPOINTS
	/* Whether the task entered the kernel by an exception or an interrupt, not by a system call, and has
	   hit a probe at any time, now or earlier. */
	bool by_exception;
	/* Whether ip is at the breakpoint of a probe. */
	bool is_at_breakpoint;
#endif
	/* Number of frames so far, and the value of this number at the first guess; 0 if there was no
	   guess. */
	__u32 depth;
	__u32 frames_before_guess;
	__u64 code_low;
	__u64 code_high;
	__u64 found_ip;     /* result of scan() and scan_stub() */
	__u64 found_entry;  /* entry of the stub, result of scan_stub() */
	__u64 end_bytes;    /* distance from sp to the end of an incomplete frame; used on aarch64 */
	/* The mapping and the blob found last: callers are often in the same ones. */
	struct mapping mapping;
	struct blob blob;
	struct jvm jvm;
	__u8 bytes[MAX_BLOB_BYTES];
	/* The part of the stack that was read last: address, length and content. The additional words are for
	   the verifier, which does not know that a read that begins in the window also ends there. */
	__u64 window_at;
	__u64 window_bytes;
	__u64 window[WINDOW_BYTES / WORD + MAX_WINDOW_WORDS];
};

/*
 * Number of levels; the tool defines it. Each level has memory of its own. Programs that may interrupt each
 * other on one processor must walk at different levels, or share a level and lock its memory (lock.bpf.h).
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

/* Reads a new window of the stack that begins at `to`: WINDOW_BYTES or, if that fails, up to the end of the
   page. */
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
		/* This may be the stack's last page. */
		barrier_var(rest);
		if (rest < WINDOW_BYTES && !read_user(w->window, rest, to))
			w->window_bytes = rest;
	}
	return 0;
}

/* Returns whether `size` bytes from an address on are in the window. */
static __always_inline bool in_window(const struct walker *w, __u64 addr, __u32 size)
{
	__u64 at = addr - w->window_at;

	return at < w->window_bytes && w->window_bytes - at >= size;
}

/*
 * Reads words of the stack by way of the window. A walk reads most of the stack, and one kernel call for
 * every two words would cost more than all other work for a frame. The stack does not change meanwhile,
 * because its thread runs no user code.
 */
static __always_inline int read_stack(struct walker *w, __u64 *to, const __u32 words, __u64 addr)
{
	__u64 *from;
	__u32 i;

	if (!in_window(w, addr, words * WORD)) {
		/* Words below sp are read directly: they matter only for a frame that is being set up. */
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

/* Moves to the caller that has these registers. Returns 0, or an enum walk_end if there is none or it is
   implausible. */
static __always_inline int go_to(struct walker *w, __u64 ip, __u64 sp, __u64 fp)
{
	bool moved = sp > w->sp;

	ip = without_signature(ip);
	w->ip = ip;
	w->sp = sp;
	w->fp = fp;
	w->is_innermost = false;
	if (!ip)
		return END_OUTERMOST;
	if (ip >> USER_ADDR_BITS || !moved || sp & (WORD - 1))
		return END_IMPLAUSIBLE;
	return 0;
}

/* Marks the step to the caller as a guess. */
static __always_inline void guess(struct walker *w)
{
	if (!w->frames_before_guess)
		w->frames_before_guess = w->depth;
}

/* Moves to the caller by the frame pointer convention, which is the same on x86-64 and aarch64. */
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

/* Moves to the caller of a frame that ends at `end`, with the saved fp and the return address below `end`. */
static __always_inline int caller_below(struct walker *w, __u64 end)
{
	__u64 frame[2];

	if (read_stack(w, frame, 2, end - sizeof(frame)))
		return END_UNREADABLE;
	return go_to(w, frame[1], end, frame[0]);
}

#endif
