/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Walks user stacks of a JVM that was started without any flag: native frames by
 * unwind tables, Java frames by what HotSpot's code cache says of itself.
 *
 * walk() is a loop over step(), which knows one frame's caller. step() and what it
 * calls are global functions: the verifier looks at each once, whatever the number of
 * frames, so that no BPF loops of newer kernels are needed. They take pointers to memory,
 * which Linux does not verify before 5.12.
 *
 * Java frames (x86-64). The code cache's segment map leads from an address to its blob,
 * as in hotspot/share/memory/heap.cpp (CodeHeap::find_block_for), and the blob's frame
 * size to the caller: it is read from the JVM as it is at the moment of the sample, so
 * that code compiled a microsecond ago is no special case. Only the innermost frame can
 * be incomplete. A prologue is decoded from the method's verified entry on, of
 * the few instructions that HotSpot writes there (x86.ad MachPrologNode, C1's
 * build_frame); an epilogue by the instruction that comes next: HotSpot's compilers
 * write pop, return poll and ret nowhere else. A disassembler in user space could
 * not know more, and would know it too late for code that is new.
 */
#ifndef JVMPROBE_WALK_BPF_H
#define JVMPROBE_WALK_BPF_H

#include "jvm.bpf.h"
#include "walk.h"

#define WORD 8
#define MAX_BLOB_BYTES 512      /* a power of two; JDK 8 to 25 need up to 360 */
#define CODE_BYTES 64           /* of a prologue; a power of two */
#define MAX_FRAME_BYTES (1 << 20)
/* Some stubs and slow paths push a few words that the frame's size does not count. */
#define MAX_EXTRA_WORDS 8
/* A method of 8 MB is as far as one gets. */
#define MAX_SEGMENT_HOPS 64
#define SCAN_WORDS 32           /* a power of two */
#define MAX_MAPPING_STEPS 14
#define MAX_ROW_STEPS 23
#define MAX_ARGUMENT_BYTES (256 * WORD)
#define HANDLER_BYTES 32        /* of deoptimisation */
#define STUB_WORDS 32           /* pushed by a stub, at most; a power of two */
#define USER_CS 0x33            /* of 64-bit code: __USER_CS, asm/segment.h */

const volatile bool know_jvms = false;

/* By target_key(). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u64);
	__type(value, struct jvm);
} jvms SEC(".maps");

/*
 * Templates of inner maps give sizes, no types, just as user space makes the maps themselves.
 * Linux 5.15 to 6.1 keep "no BTF" and "a BTF type without a timer" apart, and refuse an inner
 * map that differs in that from its template (kernel/bpf/map_in_map.c, bpf_map_meta_equal).
 */
struct mapping_array {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct mapping));
};

/* By target_key(), sorted by address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, MAX_PROCESSES);
	__type(key, __u64);
	__array(values, struct mapping_array);
} mappings SEC(".maps");

struct row_array {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct unwind_row));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_TABLES);
	__type(key, __u32);
	__array(values, struct row_array);
} tables SEC(".maps");

/* The compiler describes whole what is the type of a variable. */
struct unwind_row unused_row;
struct mapping unused_mapping;
struct jvm unused_jvm;

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
};

struct walker {
	__u64 key;
	/* The frame that is looked at; walk() begins with the sampled registers. */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 ax;
	__u64 bx;
	__u64 r13;
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
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walker);
} walkers SEC(".maps");

static __always_inline int read_user(void *to, __u32 size, __u64 addr)
{
	return bpf_probe_read_user(to, size, (void *)addr);
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
	if (read_user(frame, sizeof(frame), w->fp))
		return END_UNREADABLE;
	return go_to(w, frame[1], w->fp + sizeof(frame), frame[0]);
}

#if defined(__TARGET_ARCH_x86)

/* Fields of the blob in w->bytes. */
static __always_inline __u64 field64(struct walker *w, __u32 offset)
{
	return *(__u64 *)(w->bytes + (offset & (MAX_BLOB_BYTES - WORD)));
}

static __always_inline __u32 field32(struct walker *w, __u32 offset)
{
	return *(__u32 *)(w->bytes + (offset & (MAX_BLOB_BYTES - 4)));
}

static __always_inline __u16 field16(struct walker *w, __u32 offset)
{
	return *(__u16 *)(w->bytes + (offset & (MAX_BLOB_BYTES - 2)));
}

static __always_inline __u32 kind_of_name(struct walker *w, __u64 name)
{
	char text[8] = {};

	if (name == w->jvm.nmethod_name)
		return BLOB_METHOD;
	if (read_user(text, sizeof(text), name))
		return BLOB_NONE;
	if (!__builtin_memcmp(text, "nmethod", 8) || !__builtin_memcmp(text, "native n", 8))
		return BLOB_METHOD;
	if (!__builtin_memcmp(text, "vtable c", 8) || !__builtin_memcmp(text, "InlineCa", 8))
		return BLOB_DISPATCH;
	if (!__builtin_memcmp(text, "I2C/C2I ", 8) || !__builtin_memcmp(text, "MethodHa", 8))
		return BLOB_ADAPTER;
	if (!__builtin_memcmp(text, "Deoptimi", 8) || !__builtin_memcmp(text, "Uncommon", 8))
		return BLOB_DEOPT;
	return BLOB_STUB;
}

/* Where the block begins in which an address of a heap lies; 0 for none. */
static __always_inline __u64 find_block(struct walker *w, struct code_heap *heap, __u64 addr)
{
	__u64 segment = (addr - heap->low) >> (heap->segment_log & 31);
	__u8 back = 0;
	int i;

	for (i = 0; i < MAX_SEGMENT_HOPS; i++) {
		if (read_user(&back, 1, heap->segmap + segment) || back == 0xff)
			return 0;
		if (!back)
			return heap->low + (segment << (heap->segment_log & 31));
		if (back > segment)
			return 0;
		segment -= back;
	}
	return 0;
}

/* Reads the blob that an address lies in into w->blob, whose kind says whether there is
   one. */
__noinline int find_blob(struct walker *w, __u64 addr)
{
	struct blob *b;
	__u64 block = 0, blob;
	__u32 i, size;

	if (!w)
		return 0;
	b = &w->blob;
	if (b->kind != BLOB_NONE && addr - b->begin < b->end - b->begin)
		return 0;
	b->kind = BLOB_NONE;
	for (i = 0; i < MAX_CODE_HEAPS; i++) {
		struct code_heap *heap = &w->jvm.heaps[i];

		if (i < w->jvm.heap_count && addr - heap->low < heap->high - heap->low) {
			block = find_block(w, heap, addr);
			break;
		}
	}
	if (!block)
		return 0;
	blob = block + w->jvm.block_header;
	size = w->jvm.blob_bytes;
	if (size > MAX_BLOB_BYTES || read_user(w->bytes, size, blob))
		return 0;
	if (w->jvm.is_compact) {
		b->begin = blob + field32(w, w->jvm.code_begin);
		b->frame_complete = field16(w, w->jvm.frame_complete);
		b->verified_entry = b->begin + field16(w, w->jvm.verified_entry);
		b->deopt_handler = blob + field32(w, w->jvm.deopt_handler);
		b->deopt_mh_handler = blob + field32(w, w->jvm.deopt_mh_handler);
	} else {
		b->begin = field64(w, w->jvm.code_begin);
		b->frame_complete = field32(w, w->jvm.frame_complete);
		b->verified_entry = field64(w, w->jvm.verified_entry);
		b->deopt_handler = field64(w, w->jvm.deopt_handler);
		b->deopt_mh_handler = field64(w, w->jvm.deopt_mh_handler);
	}
	b->end = blob + field32(w, w->jvm.data_offset);
	b->osr_entry = field64(w, w->jvm.osr_entry);
	b->orig_pc_offset = field32(w, w->jvm.orig_pc_offset);
	b->compile_id = field32(w, w->jvm.compile_id);
	b->frame_bytes = (__u64)field32(w, w->jvm.frame_size) * WORD;
	if (b->frame_bytes > MAX_FRAME_BYTES)
		b->frame_bytes = 0;
	if (addr - b->begin < b->end - b->begin)
		b->kind = kind_of_name(w, field64(w, w->jvm.name));
	return 0;
}

/* Where the caller's stack ends, of which the return address was found below `sp`: who calls
   an interpreted method, or is called by one, has it in a register, for arguments are put in
   between. */
static __always_inline __u64 sender_sp(struct walker *w, __u64 sp)
{
	return w->r13 > sp && w->r13 - sp <= MAX_ARGUMENT_BYTES ? w->r13 : sp;
}

/* The interpreter's frames have a frame pointer. frame_x86.hpp: from it downwards, the
   caller's sp, the last sp, the Method, ...; what comes then differs by version. */
__noinline int caller_of_interpreted(struct walker *w)
{
	/* From fp - 8 words up to the return address. */
	__u64 words[10], method, bcp, const_method, base, bci, sp, top;
	bool is_new;

	if (!w)
		return END_IMPLAUSIBLE;
	if (w->fp >= w->sp && !(w->fp & (WORD - 1)) &&
	    !read_user(words, sizeof(words), w->fp - 8 * WORD) && in_code_cache(w, words[9])) {
		/* On entry the Method is in a register until it is pushed. */
		is_new = w->is_innermost && w->sp > w->fp - 3 * WORD;
		method = is_new ? w->bx : words[5];
		bcp = w->jvm.bcp_slot == 7 ? words[1] : words[0];
		bci = NO_BCI;
		if (!read_user(&const_method, WORD, method + w->jvm.const_method)) {
			base = const_method + w->jvm.const_method_size;
			/* While it interprets, the register is ahead of the frame. */
			if (is_new)
				bci = 0;
			else if (w->is_innermost && w->r13 - base < NO_BCI)
				bci = w->r13 - base;
			else if (bcp - base < NO_BCI)
				bci = bcp - base;
			if (!w->is_deoptimizing)
				w->frame = INTERPRETED | bci << ADDR_BITS | (method & ADDR_MASK);
		}
		/* So is the caller's sp. */
		sp = w->is_innermost && w->sp == w->fp ? w->r13 : words[7];
		top = w->fp + 2 * WORD;
		/* The arguments belong to the caller; an adapter may have moved them. */
		if (sp < top || sp - top > MAX_FRAME_BYTES)
			sp = top;
		return go_to(w, words[9], sp, words[8]);
	}
	/* A method's entry, which has no frame yet: the return address is where the call
	   put it, or in a register while the arguments are moved. */
	if (w->is_innermost) {
		if (!read_user(&base, WORD, w->sp) && in_code_cache(w, base))
			return go_to(w, base, sender_sp(w, w->sp + WORD), w->fp);
		if (in_code_cache(w, w->ax))
			return go_to(w, w->ax, sender_sp(w, w->sp + WORD), w->fp);
	}
	return caller_by_fp(w);
}

enum frame_state {
	FRAME_COMPLETE,
	FRAME_NOTHING,      /* only the return address is on the stack */
	FRAME_FP_PUSHED,    /* the caller's fp below it */
	FRAME_NO_FP,        /* sp is where it belongs, but fp is not saved yet */
};

/* What an instruction of a prologue does, above its length. */
#define PUSHES_FP 0x100     /* push rbp */
#define MOVES_SP 0x200      /* sub rsp, X */
#define STORES_FP 0x400     /* mov [rsp + X], rbp */

/* Decodes the instruction at w->bytes[at]; 0 for one that is in no prologue. A function
   of its own, so that the verifier need not follow where each leads. */
__noinline int prologue_instruction(struct walker *w, __u32 at)
{
	__u8 *c;

	if (!w)
		return 0;
	/* w->bytes is longer than CODE_BYTES: what follows is in it. */
	c = w->bytes + (at & (CODE_BYTES - 1));
	switch (c[0]) {
	case 0x55:
		return 1 | PUSHES_FP;
	case 0x90: /* nop */
		return 1;
	case 0x66:
		return c[1] == 0x90 ? 2 : 0;
	case 0x0f: /* nop, by its addressing form */
		if (c[1] != 0x1f)
			return 0;
		return c[2] == 0x00 ? 3 : c[2] == 0x40 ? 4 : c[2] == 0x44 ? 5 :
		       c[2] == 0x80 ? 7 : c[2] == 0x84 ? 8 : 0;
	case 0x89: /* mov [rsp - X], eax: is there enough stack? */
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

/* How far a method has come in setting up its frame, when it is entered there. */
__noinline int prologue_state(struct walker *w, __u64 entry)
{
	__u32 at = 0, state = FRAME_NOTHING, i;
	__u64 reached;

	if (!w)
		return FRAME_COMPLETE;
	/* The check of the receiver's class comes first. */
	if (w->ip <= entry)
		return FRAME_NOTHING;
	reached = w->ip - entry;
	if (read_user(w->bytes, CODE_BYTES, entry))
		return FRAME_COMPLETE;
	for (i = 0; i < 8; i++) {
		__u32 insn;

		if (at >= reached || at >= CODE_BYTES)
			break;
		insn = prologue_instruction(w, at);
		if (!insn)
			/* Something else: who looks at the stack will see. */
			return state == FRAME_NOTHING ? FRAME_COMPLETE : state;
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

/* Whether the jump at w->bytes[at], of the code at w->ip, leads out of the blob. */
static __always_inline bool leaves_method(struct walker *w, __u32 at)
{
	__s32 rel = 0;

	__builtin_memcpy(&rel, w->bytes + at + 1, sizeof(rel));
	return w->ip + at + 5 + rel - w->blob.begin >= w->blob.end - w->blob.begin;
}

/* Whether a method is about to return, by the instruction that comes next. */
__noinline int epilogue_state(struct walker *w)
{
	__u8 *c;

	if (!w)
		return FRAME_COMPLETE;
	c = w->bytes;
	if (read_user(c, 16, w->ip))
		return FRAME_COMPLETE;
	/* ret */
	if (c[0] == 0xc3 || c[0] == 0xc2)
		return FRAME_NOTHING;
	/* A jump out of the method, to where exceptions go on. */
	if (c[0] == 0xe9 && leaves_method(w, 0))
		return FRAME_NOTHING;
	/* What a return poll jumps to: lea r10, [rip + X]; mov [r15 + X], r10; and that jump. */
	if (c[0] == 0x4c && c[1] == 0x8d && c[2] == 0x15 && c[7] == 0x4d && c[8] == 0x89 &&
	    c[9] == 0x97)
		return FRAME_NOTHING;
	if (c[0] == 0x4d && c[1] == 0x89 && c[2] == 0x97 && c[7] == 0xe9 && leaves_method(w, 7))
		return FRAME_NOTHING;
	/* pop rbp */
	if (c[0] == 0x5d)
		return FRAME_FP_PUSHED;
	/* The return poll up to JDK 15: mov r10, [r15 + X]; test [r10], eax; ret */
	if (c[0] == 0x4d && c[1] == 0x8b && c[2] == 0x97 && c[7] == 0x41 && c[8] == 0x85 &&
	    c[9] == 0x02 && c[10] == 0xc3)
		return FRAME_NOTHING;
	if (c[0] == 0x41 && c[1] == 0x85 && c[2] == 0x02 && c[3] == 0xc3)
		return FRAME_NOTHING;
	/* ... with one page for all threads: test eax, [rip + X]; ret */
	if (c[0] == 0x85 && c[1] == 0x05 && c[6] == 0xc3)
		return FRAME_NOTHING;
	/* Since then: cmp rsp, [r15 + X]; ja; ret */
	if (c[0] == 0x49 && c[1] == 0x3b && (c[2] == 0xa7 || c[2] == 0x67))
		return FRAME_NOTHING;
	if (c[0] == 0x0f && c[1] == 0x87 && c[6] == 0xc3)
		return FRAME_NOTHING;
	return FRAME_COMPLETE;
}

/* To the caller of a frame that ends at `end`, with fp and return address below it. */
static __always_inline int caller_below(struct walker *w, __u64 end)
{
	__u64 frame[2];

	if (read_user(frame, sizeof(frame), end - sizeof(frame)))
		return END_UNREADABLE;
	return go_to(w, frame[1], end, frame[0]);
}

/* To the caller of code that has put nothing below its return address. */
static __always_inline int caller_at_sp(struct walker *w)
{
	__u64 ip = 0;

	if (read_user(&ip, WORD, w->sp))
		return END_UNREADABLE;
	return go_to(w, ip, w->sp + WORD, w->fp);
}

/*
 * Looks for the end of a frame from where it should be: whoever calls generated code
 * is generated code itself. 0 where there is none.
 */
__noinline __u64 frame_end(struct walker *w, __u64 end)
{
	__u64 ip = 0;
	int i;

	if (!w)
		return 0;
	for (i = 0; i <= MAX_EXTRA_WORDS; i++) {
		if (read_user(&ip, WORD, end - WORD))
			return 0;
		if (in_code_cache(w, ip)) {
			if (i)
				guess(w);
			return end;
		}
		end += WORD;
	}
	return 0;
}

/*
 * Where a call leads that returns to this address; 0 where there is none before it, or one
 * that goes where a register says. Generated code calls stubs by call rel32, or, where that
 * does not reach, by mov r10, imm64; call r10.
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

/* Where the call leads, if this is a return address of generated code that calls the blob
   found last; else 0. */
static __always_inline __u64 entry_by_caller(struct walker *w, __u64 addr)
{
	__u64 to;

	if (!in_code_cache(w, addr))
		return 0;
	to = call_target(addr);
	return to - w->blob.begin < w->blob.end - w->blob.begin ? to : 0;
}

/* The length of a push (0x50) or pop (0x58) of any register but rbp; 0 for anything else. */
static __always_inline __u32 stack_instruction(const __u8 *c, __u8 opcode)
{
	if ((c[0] & 0xf8) == opcode)
		return c[0] != (opcode | 5);
	return c[0] == 0x41 && (c[1] & 0xf8) == opcode ? 2 : 0;
}

/*
 * How many words there are below a method's frame for a call that takes its arguments there, as
 * C1 calls slow_subtype_check: push, push, call, pop, pop. (emit_typecheck_helper(),
 * c1_LIRAssembler_x86.cpp)
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

static __always_inline bool in_handler(struct blob *b, __u64 addr)
{
	return addr - b->deopt_handler < HANDLER_BYTES ||
	       addr - b->deopt_mh_handler < HANDLER_BYTES;
}

/* How far the frame of the innermost method is set up. */
static __always_inline int frame_state(struct walker *w)
{
	struct blob *b = &w->blob;
	__u64 osr = b->osr_entry;
	int state = FRAME_COMPLETE;

	/* Methods that are entered in a loop, by on-stack replacement, begin there. */
	if (osr > b->begin && w->ip - osr < CODE_BYTES)
		state = prologue_state(w, osr);
	else if (w->ip < b->begin + b->frame_complete)
		return prologue_state(w, b->verified_entry);
	return state == FRAME_COMPLETE ? epilogue_state(w) : state;
}

/*
 * Where the innermost frame's code leads if it is what a compiled method's own call goes
 * through to interpreted code: mov rbx, Method; jmp (emit_to_interp_stub(),
 * compiledIC_x86.cpp). Else 0.
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

__noinline int caller_of_compiled(struct walker *w, bool below_stub)
{
	struct blob *b;
	__u64 pc = 0, end;
	int state = FRAME_COMPLETE;

	if (!w)
		return END_IMPLAUSIBLE;
	b = &w->blob;
	if (w->is_innermost) {
		/* On its way to interpreted code it is no more this method's. */
		pc = call_stub_target(w);
		if (pc) {
			w->frame = pc & ADDR_MASK;
			return caller_at_sp(w);
		}
	}
	if (in_handler(b, w->ip)) {
		/* The handler pushes its own address and jumps on. */
		if (w->is_innermost && !read_user(&pc, WORD, w->sp) && in_handler(b, pc))
			w->sp += WORD;
		/* Deoptimised: it returns to the handler, and remembers from where. */
		if (!read_user(&pc, WORD, w->sp + b->orig_pc_offset) &&
		    pc - b->begin < b->end - b->begin)
			w->frame = (pc - w->is_innermost) | (w->frame & ~ADDR_MASK);
	} else if (w->is_innermost) {
		state = frame_state(w);
	}
	end = w->sp + (state == FRAME_NOTHING	 ? WORD :
		       state == FRAME_FP_PUSHED ? 2 * WORD :
						  b->frame_bytes);
	if (state == FRAME_COMPLETE && (w->is_innermost || below_stub))
		end += pushed_words(w) * WORD;
	if (read_user(&pc, WORD, end - WORD) || !in_code_cache(w, pc)) {
		guess(w);
		/* Behind its epilogue, on the way to a handler. */
		if (w->is_innermost && !read_user(&pc, WORD, w->sp) && in_code_cache(w, pc))
			return caller_at_sp(w);
	} else if (state == FRAME_NOTHING || state == FRAME_NO_FP) {
		return go_to(w, pc, end, w->fp);
	} else {
		return caller_below(w, end);
	}
	end = frame_end(w, end);
	if (end)
		return caller_below(w, end);
	return caller_by_fp(w);
}

/* Eight bytes from the k-th of two words on. */
static __always_inline __u64 bytes_from(const __u64 *words, __u32 k)
{
	return k ? words[0] >> 8 * k | words[1] << (64 - 8 * k) : words[0];
}

/* Whether code begins with these bytes, the first one lowest: 1 or 0, without a branch. */
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
 * Whether an adapter has set r13 to the caller's sp: what leads to the interpreter (jmp rcx) is
 * still to come, but mov r13, rsp or, since JDK 20, lea r13, [rsp + 8] is not. Before that, r13
 * is anything; there may be a kilobyte of barriers first. (On the way from interpreted to
 * compiled code, which lies before, the caller's sp is not needed.)
 */
__noinline int is_behind_sender_sp(struct walker *w)
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
		/* Without branches, of which the verifier would follow each. */
		found = 0;
#pragma unroll
		for (k = 0; k < WORD; k++) {
			__u64 c = bytes_from(words + i, k);

			found |= leads_to_interpreter(c) | sets_sender_sp(c);
		}
		if (found)
			break;
	}
	/* By way of memory, lest the verifier look at what follows for each number. */
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

/* What moves arguments between interpreted and compiled code: gen_i2c_adapter() and
   gen_c2i_adapter(), sharedRuntime_x86_64.cpp. */
__noinline int caller_of_adapter(struct walker *w)
{
	__u64 ip = 0, sp = 0, fp = 0, saved;
	__u8 c[16] = {};
	__u32 bytes;

	if (!w)
		return END_IMPLAUSIBLE;
	if (!w->is_innermost) {
		/* It has the JVM correct what called it, with all registers saved: push_CPU_state(),
		   macroAssembler_x86.cpp. How many bytes the FPU's take, below them, depends on the
		   processor: vzeroupper; fxrstor [rsp]; add rsp, X. rax is the return address. */
		if (read_user(c, sizeof(c), w->ip))
			return END_UNREADABLE;
		__builtin_memcpy(&bytes, c[0] == 0xc5 ? c + 11 : c + 8, sizeof(bytes));
		saved = w->sp + bytes;
		if (read_user(&sp, WORD, saved + 2 * WORD) || read_user(&fp, WORD, saved + 10 * WORD) ||
		    read_user(&ip, WORD, saved + 15 * WORD) || read_user(&saved, WORD, sp) ||
		    saved != ip || !in_code_cache(w, ip)) {
			guess(w);
			return caller_by_fp(w);
		}
		return go_to(w, ip, sp + WORD, fp);
	}
	if (read_user(c, sizeof(c), w->ip) || read_user(&ip, WORD, w->sp))
		return END_UNREADABLE;
	/* The return address is on its way: mov r13, rsp; sub rsp, X; and rsp, -16; mov [rsp], rax;
	   push rax */
	if ((c[0] == 0x4c && c[1] == 0x8b && c[2] == 0xec) ||
	    (c[0] == 0x48 && (c[1] == 0x83 || c[1] == 0x81) && (c[2] == 0xec || c[2] == 0xe4)) ||
	    (c[0] == 0x48 && c[1] == 0x89 && c[2] == 0x04 && c[3] == 0x24) || c[0] == 0x50) {
		if (in_code_cache(w, w->ax))
			return go_to(w, w->ax,
				     c[0] == 0x4c ? w->sp : sender_sp(w, w->sp), w->fp);
	}
	sp = w->sp + WORD;
	return go_to(w, ip, is_behind_sender_sp(w) ? sender_sp(w, sp) : sp, w->fp);
}

/* Where on the stack, in words above sp, is the return address of the generated code that
   called the innermost stub; STUB_WORDS where none is. */
__noinline int scan_stub(struct walker *w)
{
	__u64 *words, entry;
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
			break;
		}
	}
	return i;
}

/*
 * The caller of a stub that was interrupted anywhere in it, known by its call of this very
 * stub. Many stubs set rbp up, as C does; some push what they please and leave rbp alone,
 * which may be that of any frame further out.
 */
static __always_inline int caller_of_innermost_stub(struct walker *w)
{
	__u64 words[3], end;
	__u8 first = 0;
	__u32 found;

	if (w->fp >= w->sp && w->fp - w->sp < MAX_FRAME_BYTES &&
	    !read_user(words, sizeof(words), w->fp)) {
		if (entry_by_caller(w, words[1]))
			return go_to(w, words[1], w->fp + 2 * WORD, words[0]);
		/* The stub of nmethods' entry barriers has room for an sp above its frame
		   pointer, which is -1 as long as nothing is deoptimised. */
		if (words[1] == -1ULL && entry_by_caller(w, words[2]))
			return go_to(w, words[2], w->fp + 3 * WORD, words[0]);
	}
	if (w->blob.frame_bytes) {
		end = w->sp + w->blob.frame_bytes;
		if (!read_user(words, 2 * WORD, end - 2 * WORD) && entry_by_caller(w, words[1]))
			return go_to(w, words[1], end, words[0]);
	}
	found = scan_stub(w);
	if (found >= STUB_WORDS)
		return 0;
	end = w->sp + (found + 1) * WORD;
	/* push rbp */
	if (found && !read_user(&first, 1, w->found_entry) && first == 0x55)
		return caller_below(w, end);
	return go_to(w, w->found_ip, end, w->fp);
}

/* Stubs: many have a frame pointer, some a frame of a known size, some nothing. */
__noinline int caller_of_stub(struct walker *w)
{
	__u64 words[3], ip = 0, end;

	if (!w)
		return END_IMPLAUSIBLE;
	if (w->is_innermost && !read_user(w->bytes, 8, w->ip - 1)) {
		__u8 *c = w->bytes + 1;

		/* push rbp; ret */
		if (c[0] == 0x55 || c[0] == 0xc3)
			return caller_at_sp(w);
		/* mov rbp, rsp behind push rbp */
		if (w->bytes[0] == 0x55 && c[0] == 0x48 &&
		    ((c[1] == 0x8b && c[2] == 0xec) || (c[1] == 0x89 && c[2] == 0xe5)))
			return caller_below(w, w->sp + 2 * WORD);
	}
	if (w->is_innermost) {
		int why = caller_of_innermost_stub(w);

		if (why || !w->is_innermost)
			return why;
	}
	if (w->blob.frame_bytes && !w->is_innermost) {
		end = frame_end(w, w->sp + w->blob.frame_bytes);
		if (end)
			return caller_below(w, end);
	}
	/* What native code calls has a frame pointer; for the rest it is a guess. */
	if (w->fp >= w->sp && w->fp - w->sp < MAX_FRAME_BYTES &&
	    !read_user(words, sizeof(words), w->fp)) {
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
	if (end && !read_user(&ip, WORD, end - WORD))
		return go_to(w, ip, end, w->fp);
	return END_IMPLAUSIBLE;
}

static __always_inline int caller_in_code_cache(struct walker *w)
{
	bool is_stub;

	if (w->jvm.return_barrier && w->ip == w->jvm.return_barrier) {
		/* The outer frames of a virtual thread wait in the heap, and what is
		   outside of these is this. */
		if (read_user(&w->ip, WORD, w->jvm.cont_return_pc_at) ||
		    !in_code_cache(w, w->ip))
			return END_IMPLAUSIBLE;
		w->frame = w->ip;
	}
	if (in_interpreter(w, w->ip))
		return caller_of_interpreted(w);
	w->is_deoptimizing = false;
	is_stub = w->blob.kind == BLOB_STUB;
	/* A return address may lie behind the code that called. */
	find_blob(w, w->ip - !w->is_innermost);
	switch (w->blob.kind) {
	case BLOB_METHOD:
		w->frame |= (__u64)(__u16)w->blob.compile_id << ADDR_BITS;
		return caller_of_compiled(w, is_stub);
	case BLOB_DISPATCH:
		/* Nothing is below the return address, and nothing is called from there. */
		return caller_at_sp(w);
	case BLOB_ADAPTER:
		return caller_of_adapter(w);
	case BLOB_DEOPT:
		w->is_deoptimizing = true;
		return caller_of_stub(w);
	case BLOB_STUB:
		return caller_of_stub(w);
	}
	guess(w);
	return caller_by_fp(w);
}

/* Finds the mapping that an address lies in; whether there is one. */
__noinline int find_mapping(struct walker *w, __u64 addr)
{
	struct mapping *m;
	__u32 low = 1, high, zero = 0, i;
	void *inner;
	__u64 key;

	if (!w)
		return 0;
	if (addr - w->mapping.start < w->mapping.end - w->mapping.start)
		return 1;
	key = w->key;
	inner = bpf_map_lookup_elem(&mappings, &key);
	if (!inner)
		return 0;
	m = bpf_map_lookup_elem(inner, &zero);
	if (!m)
		return 0;
	/* The last that begins at or before the address lies in [low - 1, high). */
	high = m->start + 1;
	for (i = 0; i < MAX_MAPPING_STEPS && low < high; i++) {
		__u32 middle = (low + high) / 2;

		m = bpf_map_lookup_elem(inner, &middle);
		if (m && m->start <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	low--;
	m = low ? bpf_map_lookup_elem(inner, &low) : NULL;
	if (!m || addr >= m->end || addr < m->start)
		return 0;
	w->mapping = *m;
	return 1;
}

/* The row that holds at an address of the mapping found last, as one number. */
__noinline __u64 find_row(struct walker *w, __u64 addr)
{
	__u32 low = 0, high, table, i;
	struct unwind_row *row;
	void *inner;

	if (!w || addr - w->mapping.bias > 0xffffffff)
		return 0;
	addr -= w->mapping.bias;
	table = w->mapping.table;
	high = w->mapping.rows;
	inner = bpf_map_lookup_elem(&tables, &table);
	if (!inner)
		return 0;
	for (i = 0; i < MAX_ROW_STEPS && low < high; i++) {
		__u32 middle = (low + high) / 2;

		row = bpf_map_lookup_elem(inner, &middle);
		if (row && row->pc <= addr)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return 0;
	low--;
	row = bpf_map_lookup_elem(inner, &low);
	return row ? *(__u64 *)row : 0;
}

/* Whether there is a call before an address: what a return address looks like. */
static __always_inline bool is_behind_call(__u64 addr)
{
	__u8 c[7];

	if (read_user(c, sizeof(c), addr - sizeof(c)))
		return false;
	/* call rel32; call r/m in its lengths of 2, 3, 4, 6 and 7 bytes */
	return c[2] == 0xe8 || c[5] == 0xff || c[4] == 0xff || c[3] == 0xff || c[1] == 0xff ||
	       c[0] == 0xff;
}

/* Where on the stack, in words above sp, is what looks like a return address to code that
   is known; SCAN_WORDS where nothing does. The stack is in w->bytes then. */
__noinline int scan(struct walker *w)
{
	__u64 *words;
	__u32 i;

	if (!w)
		return SCAN_WORDS;
	words = (__u64 *)w->bytes;
	if (read_user(words, SCAN_WORDS * WORD, w->sp))
		return SCAN_WORDS;
	for (i = 0; i < SCAN_WORDS; i++) {
		__u64 addr = words[i];

		if (addr < 0x10000 || addr & INTERPRETED || !is_behind_call(addr))
			continue;
		w->found_ip = addr;
		if (w->is_jvm && in_code_cache(w, addr))
			break;
		if (find_mapping(w, addr) && (find_row(w, addr - 1) >> 48 & 0xff) != ROW_UNKNOWN)
			break;
	}
	return i;
}

/* Whether an address may be a frame pointer of a frame above `end`: there is a return
   address where it should be. */
static __always_inline bool is_frame(__u64 fp, __u64 end)
{
	__u64 ip = 0;

	return fp - end < MAX_FRAME_BYTES && !(fp & (WORD - 1)) &&
	       !read_user(&ip, WORD, fp + WORD) && is_behind_call(ip);
}

/* The caller's frame pointer, when its return address was found that many words above sp:
   in its register still, or saved below. */
__noinline __u64 saved_fp(struct walker *w, __u32 found)
{
	__u64 fp, end;
	__u32 i;

	if (!w)
		return 0;
	end = w->sp + found * WORD;
	if (is_frame(w->fp, end))
		return w->fp;
	for (i = 0; i < SCAN_WORDS && i < found; i++) {
		fp = ((__u64 *)w->bytes)[i];
		if (is_frame(fp, end))
			return fp;
	}
	return w->fp;
}

/* Native code of which nothing is known: hand-written, or built without tables, as musl
   is. Its frames are small. */
static __always_inline int caller_of_unknown(struct walker *w)
{
	__u32 found = scan(w);
	__u64 fp;

	guess(w);
	/* A frame pointer that is one is better than a guess. */
	if (found >= SCAN_WORDS || (!w->is_innermost && w->fp - w->sp < found * WORD))
		return caller_by_fp(w);
	fp = saved_fp(w, found);
	return go_to(w, w->found_ip, w->sp + (found + 1) * WORD, fp);
}

__noinline int caller_of_native(struct walker *w)
{
	__u64 addr, end, ip = 0, fp, saved[2];
	__u16 cs = 0;
	union {
		__u64 word;
		struct unwind_row row;
	} found;
	struct unwind_row *row = &found.row;

	if (!w)
		return END_IMPLAUSIBLE;
	addr = w->ip - !w->is_innermost;
	if (!find_mapping(w, addr)) {
		guess(w);
		return caller_by_fp(w);
	}
	found.word = find_row(w, addr);
	switch (row->kind) {
	case ROW_SP:
		end = w->sp + row->cfa * WORD;
		break;
	case ROW_FP:
		end = w->fp + row->cfa * WORD;
		break;
	case ROW_PLT:
		end = w->sp + WORD + ((w->ip & 15) >= row->cfa) * WORD;
		break;
	case ROW_DEREF_FP:
	case ROW_DEREF_FP_PLUS_8:
		if (read_user(&end, WORD, w->fp + (__s16)row->cfa * WORD))
			return END_UNREADABLE;
		end += row->kind == ROW_DEREF_FP_PLUS_8 ? WORD : 0;
		break;
	case ROW_DEREF_SP:
	case ROW_DEREF_SP_PLUS_8:
		if (read_user(&end, WORD, w->sp + (__s16)row->cfa * WORD))
			return END_UNREADABLE;
		end += row->kind == ROW_DEREF_SP_PLUS_8 ? WORD : 0;
		break;
	case ROW_SIGNAL:
		/* struct ucontext: gregs[REG_RBP], [REG_RSP], [REG_RIP] and [REG_CSGSFS]. */
		if (read_user(&fp, WORD, w->sp + 120) || read_user(saved, sizeof(saved), w->sp + 160))
			return END_UNREADABLE;
		/* While the kernel puts back the registers, sp is already the interrupted one:
		   there is something else then. */
		if (read_user(&cs, sizeof(cs), w->sp + 184) || cs != USER_CS)
			return END_IMPLAUSIBLE;
		/* The trampoline is looked up where it begins. */
		w->frame++;
		/* On a stack of its own, a handler may be below or above. */
		w->sp = 0;
		end = go_to(w, saved[1], saved[0], fp);
		w->is_innermost = true;
		return end;
	case ROW_END:
		return END_ENTRY;
	default:
		return caller_of_unknown(w);
	}
	if (row->fp == -2) {
		/* As most functions have it. */
		return caller_below(w, end);
	}
	if (read_user(&ip, WORD, end - WORD))
		return END_UNREADABLE;
	fp = w->fp;
	if (row->fp == -128)
		fp = 0;
	else if (row->fp && read_user(&fp, WORD, end + row->fp * WORD))
		return END_UNREADABLE;
	return go_to(w, ip, end, fp);
}

/* Finds out what is known of the process. */
static __always_inline void prepare(struct walker *w)
{
	struct jvm *jvm;
	__u64 key = w->key;
	__u32 i;

	w->mapping.start = w->mapping.end = 0;
	w->blob.kind = BLOB_NONE;
	if (!know_jvms)
		return;
	jvm = bpf_map_lookup_elem(&jvms, &key);
	if (!jvm) {
		w->by_tables = bpf_map_lookup_elem(&mappings, &key);
		return;
	}
	w->by_tables = true;
	bpf_probe_read_kernel(&w->jvm, sizeof(w->jvm), jvm);
	w->code_low = -1;
	w->code_high = 0;
	for (i = 0; i < MAX_CODE_HEAPS; i++) {
		struct code_heap *heap = &w->jvm.heaps[i];

		if (i >= w->jvm.heap_count)
			break;
		if (heap->low < w->code_low)
			w->code_low = heap->low;
		if (heap->high > w->code_high)
			w->code_high = heap->high;
	}
	w->is_jvm = w->code_low < w->code_high;
}

#endif

/* From a frame to its caller; 0, or why there is none. */
__noinline int step(struct walker *w)
{
	if (!w)
		return END_IMPLAUSIBLE;
	/* All frames but the first are looked up one byte before their addresses, so for
	   what a signal interrupted that is not what it points behind. */
	w->frame = (w->ip & ADDR_MASK) + (w->is_innermost && !w->is_first);
	w->is_first = false;
	w->depth++;
#if defined(__TARGET_ARCH_x86)
	if (w->is_jvm && in_code_cache(w, w->ip))
		return caller_in_code_cache(w);
	if (w->by_tables)
		return caller_of_native(w);
#endif
	/* Whoever asks for frame pointers knows what they are worth. */
	if (know_jvms)
		guess(w);
	return caller_by_fp(w);
}

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

/* From the innermost frame on, as far as there are callers. Returns a hash of them. */
__noinline __u64 walk_frames(struct walker *w, struct walked *walked)
{
	bool has_interpreted = false;
	__u32 i;
	__u64 hash = 0;
	int why = 0;

	if (!w || !walked)
		return 0;
#if defined(__TARGET_ARCH_x86)
	prepare(w);
#endif
	walked->target = w->key;
	walked->unloads = 0;
	for (i = 0; i < MAX_FRAMES && !why; i++) {
		why = step(w);
		has_interpreted |= (__s64)w->frame < 0;
		walked->frames[i & (MAX_FRAMES - 1)] = w->frame;
		hash = mix(hash, w->frame);
	}
	walked->count = i;
	walked->end = (why ? why : END_TOO_DEEP) | w->known << KNOWN_SHIFT;
	/* A Method is one of this JVM's, and its address may be another one's when classes
	   were unloaded. */
	if (has_interpreted) {
		if (w->jvm.unloads_at)
			read_user(&walked->unloads, sizeof(walked->unloads), w->jvm.unloads_at);
		hash = mix(mix(hash, w->key), walked->unloads);
	}
	return mix(hash, walked->end);
}

/*
 * Walks the stack of a process in user mode, whose registers these are. The result is a
 * hash of the stack.
 */
static __always_inline __u64 walk(struct pt_regs *regs, __u64 key, struct walked *walked)
{
	__u32 zero = 0;
	struct walker *w = bpf_map_lookup_elem(&walkers, &zero);

	walked->count = 0;
	walked->end = END_NONE;
	if (!w)
		return 0;
	w->key = key;
	w->ip = PT_REGS_IP(regs);
	w->sp = PT_REGS_SP(regs);
	w->fp = PT_REGS_FP(regs);
#if defined(__TARGET_ARCH_x86)
	w->ax = regs->rax;
	w->bx = regs->rbx;
	w->r13 = regs->r13;
#endif
	w->is_innermost = true;
	w->is_first = true;
	w->is_jvm = false;
	w->by_tables = false;
	w->is_deoptimizing = false;
	w->depth = 0;
	w->known = 0;
	return walk_frames(w, walked);
}

#endif
