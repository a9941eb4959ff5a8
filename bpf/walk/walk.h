/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What user space tells the stack walker (walk.bpf.h), what the walker answers, and how stacks are
 * sent (intern.bpf.h). Rust has mirrors of these layouts, which tests compare with this file.
 */
#ifndef JVMPROBE_WALK_WALK_H
#define JVMPROBE_WALK_WALK_H

#include <linux/types.h>

#define MAX_FRAMES 1024      /* of user code; a power of two */
#define MAX_KERNEL_FRAMES 127
#define MAX_CODE_HEAPS 4
#define MAX_TABLES 4096      /* files with unwind tables */
#define MAX_PROCESSES 4096   /* that are walked by more than frame pointers */

/* Why a walk ended. */
enum walk_end {
	END_NONE = 0,       /* nothing to walk: a kernel thread, or not wanted */
	END_OUTERMOST = 1,  /* a frame without a caller */
	END_UNREADABLE = 2, /* memory that is not there */
	END_IMPLAUSIBLE = 3,/* a caller that does not lie up the stack */
	END_TOO_DEEP = 4,
	END_ENTRY = 5,      /* where the thread begins, as its unwind table says */
};

/*
 * Above the reason: how many frames come before the first step that was a guess; 0 where all
 * were known.
 */
#define KNOWN_SHIFT 8

/*
 * A frame is an address of code of 47 bits; above it are the low 16 bits of the compile
 * id, if it is a compiled method's. With the highest bit set it is an interpreted
 * method: its bytecode index (NO_BCI where it is not known) above the Method's address.
 */
#define INTERPRETED (1ULL << 63)
#define ADDR_BITS 47
#define ADDR_MASK ((1ULL << ADDR_BITS) - 1)
#define NO_BCI 0xffff

/* A stack; innermost frame first. */
struct walked {
	__u64 target;               /* the key of its process */
	__u64 unloads;              /* classes that the JVM had unloaded, see struct jvm */
	__u64 end;                  /* enum walk_end, and what was known: KNOWN_SHIFT */
	__u64 count;
	__u64 frames[MAX_FRAMES];
};

/* Numbers of stacks are odd, save these. */
#define STACK_NONE 0            /* not asked for, or it could not be walked */
#define STACK_OTHER 2           /* there were too many to keep them apart */

/* A stack that is new to user space. */
struct stack_event {
	__u64 kind;                 /* the tool's EVENT_STACK */
	__u64 id;
	struct walked stack;
};

/* One of HotSpot's code heaps, as far as memory is reserved for it. */
struct code_heap {
	__u64 low;
	__u64 high;
	__u64 segmap;
	__u64 segment_log;
};

/* In which form a blob says where its code and the entries into it are. */
enum blob_form {
	FORM_ADDRESSES = 0,         /* JDK 9 to 22 */
	FORM_OFFSETS = 1,           /* JDK 23 and later: some of 16 bits */
	FORM_JDK_8 = 2,             /* offsets of code and handlers, addresses of entries */
};

/* How to find one's way through a JVM's code cache: addresses, and offsets of fields. */
struct jvm {
	struct code_heap heaps[MAX_CODE_HEAPS];
	__u64 interpreter_low;
	__u64 interpreter_high;
	/* The name of compiled methods, "nmethod", as every one of them points to it. */
	__u64 nmethod_name;
	/* Where a stack ends whose outer frames wait in the heap, and where it goes on. */
	__u64 return_barrier;
	__u64 cont_return_pc_at;
	/* How many classes were unloaded; 0 where nothing counts them. */
	__u64 unloads_at;
	/* No other process's; 0 where nothing is to be remembered (found.bpf.h). */
	__u64 stamp;
	__u32 heap_count;
	__u32 block_header;
	__u32 blob_bytes;           /* so much of a blob has all that is looked at */
	__u32 blob_form;            /* enum blob_form */
	__u32 name;
	__u32 code_begin;
	__u32 data_offset;
	__u32 frame_size;           /* of the blob, in words */
	__u32 frame_complete;
	__u32 verified_entry;
	__u32 osr_entry;
	__u32 deopt_handler;
	__u32 deopt_mh_handler;
	__u32 orig_pc_offset;
	__u32 const_method;         /* of the Method */
	__u32 const_method_size;
	__u32 bcp_slot;             /* words below the frame pointer */
	__u32 compile_id;
};

/* A range of mapped code. The first entry of a process holds their number in start, and in bias a
   number that no other list of mappings has had (found.bpf.h), or 0. */
struct mapping {
	__u64 start;
	__u64 end;
	__u64 bias;                 /* what to take from an address to look it up */
	__u32 table;                /* the number of its file's table */
	__u32 rows;                 /* and how long that is */
};

enum row_kind {
	ROW_UNKNOWN = 0,
	ROW_SP = 1,                 /* the frame ends at sp + cfa words */
	ROW_FP = 2,                 /* ... at fp + cfa words */
	ROW_PLT = 3,                /* ... one word above sp, or two from ip % 16 == cfa on */
	ROW_SIGNAL = 4,             /* all registers are in the signal's ucontext */
	ROW_DEREF_FP = 5,           /* ... where fp + cfa words points to */
	ROW_DEREF_SP = 6,
	ROW_END = 7,                /* there is no caller */
	ROW_DEREF_FP_PLUS_8 = 8,    /* ... one word above where fp + cfa words points to */
	ROW_DEREF_SP_PLUS_8 = 9,
};

/* What holds from an address of a file on: one row of .eh_frame. */
struct unwind_row {
	__u32 pc;
	__u16 cfa;
	__u8 kind;
	__s8 fp;                    /* the caller's fp is so many words from the frame's end;
				       0: unchanged; -128: lost */
};

#endif
