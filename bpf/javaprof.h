/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What javaprof's kernel side counts and sends. */
#ifndef JVMPROBE_JAVAPROF_H
#define JVMPROBE_JAVAPROF_H

#include "stops.h"
#include "walk/walk.h"

#define COMM_LEN 16
#define MAX_IGNORED 16384
#define NAME_LEN 256         /* a power of two */
#define LABEL_LEN 512        /* a power of two */
#define MAX_EVENTS 16        /* that are asked for at once; a power of two */

enum event_kind {
	EVENT_STACK = 1,
	EVENT_CODE = 2,
	EVENT_LABEL = 3,
	EVENT_STOP = 4,
};

/* A process that is profiled. */
struct target {
	/*
	 * Counts what is loaded into and unloaded from the code cache: a clock
	 * by which samples and code are put in order.
	 */
	__u64 epoch;
	/* Since when its threads are looked at. */
	__u64 since;
};

/* Limits of a process whose tenant exceeds its share. User space sets them. */
struct limits {
	__u32 unwalked;     /* number of samples in 2^32 whose stacks are not walked */
	__u32 leaves_out_code;  /* 1: loads and unloads of code are not sent, */
	__u64 left_out;     /* only counted here */
};

/* Samples that are alike are counted together. */
struct sample_key {
	__u64 user;         /* the stacks' numbers, 0 for none */
	__u64 kernel;
	__u64 epoch;
	__u64 label;        /* what is told beside the stack, 0 for nothing: see below */
	__u32 tgid;
	__u32 tid;
	__u32 cpu;
	__u32 user_end;     /* as in struct walked */
	__u32 event;        /* which of those that were asked for */
	__u32 slot;         /* of time, where that is wanted: see slot_ns */
	char comm[COMM_LEN];
};

struct sample_count {
	__u64 samples;
	__u64 value;        /* what these stand for, in the event's unit */
};

/* A method was loaded into the code cache, or (without a size) unloaded. */
struct code_event {
	__u64 kind;
	__u64 target;
	__u64 epoch;        /* the first in which this holds */
	__u64 addr;
	__u64 size;
	char klass[NAME_LEN];
	char method[NAME_LEN];
	char signature[NAME_LEN];
};

/* What a label says, where that is text in the target's memory: told once. Others are numbers
   that user space knows the meaning of. */
#define LABEL_IS_TEXT (1ULL << 63)
/* There were too many to keep them apart. */
#define LABEL_OTHER (LABEL_IS_TEXT | 1)

struct label_event {
	__u64 kind;
	__u64 target;
	__u64 label;
	__u64 size;         /* of text */
	char text[LABEL_LEN];
};

/* How a JVM's structures are read. Which of its classes an object is of: offsets, and how the
   object's header tells; ... */
struct java {
	__u32 klass_name;
	__u32 symbol_length;
	__u32 symbol_body;
	__u32 klass_bytes;  /* in a header: 8, or 4 if it is compressed */
	__u32 klass_at;     /* where the header has it, */
	__u32 klass_bit;    /* and from which bit of that on */
	__u32 klass_shift;
	__u32 unused;
	__u64 klass_base;
	/* ... and offsets in a CompileTask, zero where they are not known. */
	__u32 task_level;
	__u32 task_osr_bci;
};

/* Events that come too fast are thinned; what was left out is the next one's. */
struct thin_key {
	__u64 target;
	__u64 label;        /* 0 for the event's rate */
	__u64 event;
};

struct thin {
	__u64 window;       /* of time, in which were */
	__u64 hits;         /* so many; */
	__u64 one_in;       /* and of so many, one is taken */
	__u64 pending;      /* what those stood for that were left out since */
};

/* In place of the number of a user stack, where there is none; those are odd. */
#define STACK_NOT_WALKED 4   /* it happened too often */
#define STACK_UNSEEN 6       /* the thread had gone before the trace */
#define STACK_OVER_SHARE 8   /* its tenant exceeds its share of walks and names */

/* What a sample of a switch_event is of. */
#define LABEL_BLOCKED 1      /* until it was woken */
#define LABEL_RUNNABLE 2     /* until it had a processor */
#define LABEL_SHORT 3        /* waits shorter than the minimum, added up */
#define LABEL_ON_CPU 4       /* the time that it ran */

/* A thread of a target that sleeps, and has done so since before it was looked at. */
struct sleeper {
	__u32 tgid;
	__u32 tid;
	__u64 epoch;
	__u64 kernel;       /* the number of its stack there */
	/* As it entered the kernel. */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 others[4];    /* struct registers of walk/arch_*.h */
};

/* A thread of a target. */
struct thread {
	__u64 since;        /* when it went, or came */
	__u64 woken;        /* when it could run again; 0: not yet */
	__u64 user;         /* where it went, if it was walked */
	__u64 kernel;
	__u64 epoch;
	__u64 on_ns;        /* how long it ran, so far, */
	__u64 short_ns;     /* and waited shortly, */
	__u64 shorts;       /* so many times */
	__u32 tgid;
	__u32 tid;
	__u32 user_end;
	__u32 short_row;    /* short waits in a row */
	__u8 is_away;
	__u8 is_walked;
	__u8 is_unseen;     /* since before the trace */
	__u8 is_ending;
	__u32 unused;
	char comm[COMM_LEN];
};

#endif
