/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Data that user space gives to the stack walker (walk.bpf.h), the walker's results, and the events that carry
 * stacks (intern.bpf.h). Rust has mirrors of these layouts, which tests compare with this file.
 */
#ifndef JVMPROBE_WALK_WALK_H
#define JVMPROBE_WALK_WALK_H

#include <linux/types.h>

#define MAX_FRAMES 1024      /* of user code in one stack; a power of two */
#define MAX_KERNEL_FRAMES 127
#define MAX_CODE_HEAPS 4
#define MAX_TABLES 4096      /* files with unwind tables */
#define MAX_PROCESSES 4096   /* processes that are walked by unwind tables or as JVMs, not by frame pointers alone */

/* Why a walk ended. */
enum walk_end {
	END_NONE = 0,       /* there is nothing to walk: a kernel thread, or no walk was requested */
	END_OUTERMOST = 1,  /* a frame without a caller */
	END_UNREADABLE = 2, /* memory could not be read */
	END_IMPLAUSIBLE = 3,/* the caller is implausible: for example, it does not lie further up the stack */
	END_TOO_DEEP = 4,
	END_ENTRY = 5,      /* the thread's entry function, as its unwind table says */
};

/*
 * In walked.end, the bits from GUESS_SHIFT on hold the number of frames before the first frame that is a
 * guess. They are 0 if no frame is a guess.
 */
#define GUESS_SHIFT 8

/*
 * A frame is a code address of 48 bits. For a compiled method, the bits above contain the low 15 bits of the
 * compile id. If the highest bit is set, the frame is that of an interpreted method: the low 45 bits contain
 * the address of its Method in words, and the 16 bits above contain the bytecode index (NO_BCI if unknown).
 */
#define INTERPRETED (1ULL << 63)
#define ADDR_BITS 48
#define ADDR_MASK ((1ULL << ADDR_BITS) - 1)
#define COMPILE_ID_MASK 0x7fffULL
#define METHOD_SHIFT 3
#define METHOD_BITS (ADDR_BITS - METHOD_SHIFT)
#define NO_BCI 0xffff

/* Number of registers, besides ip, sp and fp, that have space in events with registers: struct registers. */
#define OTHER_REGISTERS 6

/* A stack; innermost frame first. */
struct walked {
	__u64 target;               /* the key of its process */
	__u64 unloads;              /* number of classes that the JVM had unloaded, see struct jvm */
	__u64 end;                  /* enum walk_end, and a number of frames: see GUESS_SHIFT */
	__u64 count;
	__u64 frames[MAX_FRAMES];
};

/* Ids of stacks are odd, except these. */
#define STACK_NONE 0            /* not requested, or it could not be walked */
#define STACK_OTHER 2           /* represents all stacks for which there was no free entry or memory */

/* Event that sends a stack which user space does not know yet. */
struct stack_event {
	__u64 kind;                 /* the tool's EVENT_STACK */
	__u64 id;
	struct walked stack;
};

/* One of HotSpot's code heaps, with the bounds of its reserved memory. */
struct code_heap {
	__u64 low;
	__u64 high;
	__u64 segmap;
	__u64 segment_log;
};

/* Form in which a blob stores the addresses of its code and of the entries into it. */
enum blob_form {
	FORM_ADDRESSES = 0,         /* JDK 9 to 22 */
	FORM_OFFSETS = 1,           /* JDK 23 and later: offsets, some of 16 bits */
	FORM_JDK_8 = 2,             /* offsets of code and handlers, addresses of entries */
};

/* Description of a JVM's code cache: addresses, and offsets of fields. */
struct jvm {
	struct code_heap heaps[MAX_CODE_HEAPS];
	__u64 interpreter_low;
	__u64 interpreter_high;
	/* Address of the string "nmethod" that every nmethod has as its name. */
	__u64 nmethod_name;
	/* If the outer frames of a virtual thread are frozen in the heap, the outermost of its frames on the
	   stack returns to return_barrier. There, the walk continues at the return address that is stored at
	   cont_return_pc_at. */
	__u64 return_barrier;
	__u64 cont_return_pc_at;
	/* Address of the JVM's counter of unloaded classes; 0 if it has none. */
	__u64 unloads_at;
	/* Stamp for cache entries, which no other process has; 0 disables the cache (address_cache.bpf.h). */
	__u64 stamp;
	__u32 heap_count;
	__u32 block_header;
	__u32 blob_bytes;           /* size of the part of a blob that contains all fields needed */
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

/* A range of mapped code. The first entry of a process is a header: its start is the number of mappings, and its
   bias is a stamp that no other list of mappings has had (address_cache.bpf.h), or 0. */
struct mapping {
	__u64 start;
	__u64 end;
	__u64 bias;                 /* subtracted from an address to look it up in the table */
	__u32 table;                /* index of its file's table */
	__u32 rows;                 /* number of rows in the table */
};

enum row_kind {
	ROW_UNKNOWN = 0,
	ROW_SP = 1,                 /* the frame ends at sp + cfa words */
	ROW_FP = 2,                 /* the frame ends at fp + cfa words */
	ROW_PLT = 3,                /* the frame ends one word above sp, or two if ip % 16 >= cfa */
	ROW_SIGNAL = 4,             /* all registers are in the signal frame's ucontext */
	ROW_DEREF_FP = 5,           /* the frame ends at the address that is stored at fp + cfa words */
	ROW_DEREF_SP = 6,           /* the frame ends at the address that is stored at sp + cfa words */
	ROW_END = 7,                /* there is no caller */
	ROW_DEREF_FP_PLUS_8 = 8,    /* as ROW_DEREF_FP, but one word above that address */
	ROW_DEREF_SP_PLUS_8 = 9,    /* as ROW_DEREF_SP, but one word above that address */
};

/* Where the return address is. A call pushes it on x86-64; on aarch64, it is in a register until the function saves
   it. */
enum row_return {
	RETURN_BELOW_END = 0,       /* one word below the frame's end */
	RETURN_IN_REGISTER = 1,     /* still in the link register */
	RETURN_ABOVE_FP = 2,        /* one word above the location of the saved fp */
	RETURN_ALONE = 3,           /* at the location that `fp` describes; fp itself is unchanged */
	RETURN_IN_PAIR = 4,         /* fp and, above it, the return address are saved; `fp` is the location of the pair
				       in words above the address in fp (ROW_FP) or sp (ROW_SP) */
};

#define ROW_KIND_BITS 4
#define ROW_KIND_MASK ((1 << ROW_KIND_BITS) - 1)

/* Unwind rule for the code of a file from address `pc` to that of the next row: one row of .eh_frame. */
struct unwind_row {
	__u32 pc;
	__u16 cfa;
	__u8 kind;                  /* enum row_kind; in the bits from ROW_KIND_BITS on, enum row_return */
	__s8 fp;                    /* where the caller's fp is saved, in words from the frame's end;
				       0: unchanged; -128: lost */
};

#endif
