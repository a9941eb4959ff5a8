/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Samples that javaprof's BPF programs count, and events that they send. */
#ifndef JVMPROBE_JAVAPROF_H
#define JVMPROBE_JAVAPROF_H

#include "class.h"
#include "offcpu.h"
#include "spans.h"
#include "stops.h"
#include "walk/walk.h"

#define MAX_IGNORED 16384
#define NAME_LEN 256         /* a power of two */
#define LABEL_LEN 512        /* a power of two */
#define MAX_EVENTS 16        /* maximum number of events of one trace; a power of two */

enum event_kind {
	EVENT_STACK = 1,
	EVENT_CODE = 2,
	EVENT_LABEL = 3,
	EVENT_STOP = 4,
};

/* A process that is profiled. */
struct target {
	/*
	 * Number of loads into and unloads from the code cache so far: a logical clock
	 * that orders samples and code.
	 */
	__u64 epoch;
	/* Time at which the trace of its threads began, on CLOCK_MONOTONIC. */
	__u64 since;
};

/* Limits of a process whose control group exceeds its share. User space sets them. */
struct limits {
	__u32 unwalked;     /* probability that a sample's stacks are not walked, multiplied by 2^32 */
	__u32 leaves_out_code;  /* 1: loads and unloads of code are not sent */
	__u64 left_out;     /* number of loads and unloads that were not sent */
};

/* Key of samples that are counted together. */
struct sample_key {
	__u64 user;         /* id of the user stack, 0 if there is none */
	__u64 kernel;
	__u64 epoch;
	__u64 label;        /* text or number reported beside the stack, 0 if there is none: see LABEL_IS_TEXT */
	struct span_ids span;    /* trace context that the thread publishes */
	__u32 tgid;
	__u32 tid;
	__u32 cpu;
	__u32 user_end;     /* as in struct walked */
	__u32 event;        /* index of the event */
	__u32 slot;         /* time slot, 0 if time slots are not used: see slot_ns */
	char comm[COMM_LEN];
};

struct sample_count {
	__u64 samples;
	__u64 value;        /* sum that these samples represent, in the event's unit */
};

/* A method was loaded into the code cache, or, if size is 0, unloaded. */
struct code_event {
	__u64 kind;
	__u64 target;
	__u64 epoch;        /* epoch that begins with this load or unload */
	__u64 addr;
	__u64 size;
	char klass[NAME_LEN];
	char method[NAME_LEN];
	char signature[NAME_LEN];
};

/* Set in a label that represents text of the target's memory, which is sent once. Other labels are numbers
   whose meaning user space knows. */
#define LABEL_IS_TEXT (1ULL << 63)
/* Label of all texts that could not be read or stored. */
#define LABEL_OTHER (LABEL_IS_TEXT | 1)
/* Set in the label of a compilation that failed. The text is that of the label without this bit. */
#define LABEL_FAILED (1ULL << 62)

struct label_event {
	__u64 kind;
	__u64 target;
	__u64 label;
	__u64 size;         /* of text, in bytes */
	char text[LABEL_LEN];
};

/* How to read a JVM's structures: offsets in bytes and, to find the class of an object, the layout of the
   class pointer in the object's header. */
struct java_layout {
	__u32 klass_name;
	__u32 symbol_length;
	__u32 symbol_body;
	__u32 unused;
	struct class_place class;
	/* Offsets in a CompileTask, zero if unknown. */
	__u32 task_level;
	__u32 task_osr_bci;
};

/* Key of an event that is sampled by thin.bpf.h. */
struct thin_key {
	__u64 target;
	__u64 label;        /* 0 for the event's rate, which all labels share */
	__u64 event;
};

/* Rate of an event; the value of events that are left out is added to the next one that is kept. */
struct thin {
	__u64 window;       /* number of the current time window */
	__u64 hits;         /* events in this window so far */
	__u64 one_in;       /* one of this many events is kept */
	__u64 pending;      /* value of the events left out since the last kept one */
};

/* Used instead of the id of a user stack that is missing; ids of stacks are odd. */
#define STACK_NOT_WALKED 4   /* the events are too frequent, or a new thread waited for its first processor */
#define STACK_OVER_SHARE 8   /* its control group exceeds its share of stack walks and names */

/* Labels of the samples of switch_event: the kind of time. */
#define LABEL_BLOCKED 1      /* blocked, until it was woken */
#define LABEL_RUNNABLE 2     /* runnable, until it got a processor */
#define LABEL_SHORT 3        /* sum of waits shorter than the minimum */
#define LABEL_ON_CPU 4       /* running */

#endif
