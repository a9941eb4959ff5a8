/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters and events of javaobjnew's BPF programs; tests check Rust's mirrors of them. */
#ifndef JVMPROBE_JAVAOBJNEW_H
#define JVMPROBE_JAVAOBJNEW_H

#include "spans.h"
#include "stops.h"
#include "walk/walk.h"

/* Maximum length of a class name in an event; longer names are truncated. */
#define CLASS_LEN 1024
#define SHORT_CLASS_LEN 64   /* enough for most names */
#define COMM_LEN 16

enum event_kind {
	EVENT_NAME = 1,
	EVENT_LARGE = 2,
	EVENT_TLAB = 3,
	EVENT_STACK = 4,
	EVENT_STOP = 5,
	EVENT_SPAN = 6,
};

/*
 * How to read the data of each event in a JVM's memory. Unless stated otherwise, the values are offsets in
 * bytes from the start of the C++ object.
 */
struct layout {
	__u64 thread_allocated; /* Thread::_allocated_bytes */
	__u64 tlab;             /* _start of Thread::_tlab, which _top follows */
	__u64 desired_tlab_size; /* _desired_size of Thread::_tlab, in words */
	__u64 probe_precedes_tlab;       /* 1: the probe is hit before the thread has its new TLAB (JDK 8) */
	__u64 klass_name;       /* Klass::_name */
	__u64 symbol_length;    /* Symbol::_length, 16 bits */
	__u64 symbol_body;      /* Symbol::_body */
	__u64 collections;      /* address of the number of collections, 32 bits; 0: there is none */
	__u64 humongous;        /* objects larger than this, in bytes, are humongous; 0: there are none */
	__u64 walks;            /* 1: stacks of this JVM can be walked */
};

/*
 * Identity of a class, by its name. A Symbol may be freed with the last class of its name and its memory
 * reused for another one. The length and the last bytes, in which generated names differ, distinguish the two.
 */
struct class_id {
	__u64 symbol;
	__u64 tail;
	__u32 len;
	__u32 pad;
};

/* Key of allocations that are counted together. */
struct tally_key {
	__u64 target;
	struct class_id class;
	__u64 stack;
	__u32 tid;              /* 0: threads are not kept apart */
	__u32 slot;             /* time slot, in keys of `bytes_by_slot` only; else 0 */
};

/* Counters, which never decrease. */
struct tally {
	__u64 samples;          /* objects that began a TLAB; --exact: all objects */
	__u64 bytes;            /* bytes that these represent; --exact: their total size */
	__u64 first_objects;    /* estimated number of objects that began a TLAB, in 256ths */
	__u64 first_bytes;      /* their size */
	__u64 other_objects;    /* estimated number of other objects in TLABs, in 256ths */
	__u64 other_bytes;      /* their size */
	__u64 outside;          /* objects outside of TLABs */
	__u64 outside_bytes;
	__u64 humongous;        /* humongous ones among all objects observed */
	__u64 humongous_bytes;
};

/* Bytes counted under a key in one time slot. Used for the distribution over time, not for totals. */
struct slot_bytes {
	__u64 bytes;
	__u64 outside_bytes;
};

struct thread_key {
	__u64 target;
	__u64 tid;
};

/* State of a thread at its last event. */
struct thread_state {
	__u64 thread;           /* address of the Thread */
	__u64 counted;          /* bytes that it had allocated, as read from the Thread */
	__u64 represented_bytes;             /* bytes that its samples represent */
	__u64 last;             /* time of its last event, in jiffies */
	__u64 has_ended;        /* 1: the thread has ended, and the field `counted` is final */
	__u64 outside;          /* number of hits for objects outside of TLABs since it got its TLAB */
	__u64 tlab;             /* end of the first object in its TLAB if that is to be sent when it is full; else 0 */
	__u64 tlab_bytes;       /* size of the TLAB behind that object */
	__u64 before_tlab;      /* bytes that it had allocated then, and outside of TLABs since */
	__u64 collections;      /* JVM's number of collections when the thread got that TLAB */
};

/* Sampling state of a JVM's allocations: see allocation_sampling.bpf.h. */
struct sampling_state {
	__u64 line;             /* length of the line so far, in bytes */
	__u64 outside_hits;     /* number of hits for objects outside of TLABs, except ignored hits */
	__u64 tlab_hits;        /* number of hits for new TLABs, except ignored hits */
	__u64 window;           /* number of the current time window */
	__u64 hits;             /* allocations in this window so far */
	__u64 before;           /* length of the line when the window began */
	__u64 shift;            /* log2 of the piece size */
};

/* on_until_ns of a probe that is always attached. */
#define ALWAYS_ON (~0ULL)

/* Duty cycle of a probe: its current or last on period. */
struct duty_cycle {
	__u64 on_until_ns;      /* end of the on period on CLOCK_MONOTONIC; later hits are ignored */
	__u64 weight;           /* number of hits that one hit represents, in 256ths; 0: hits are ignored */
};

/* Duty cycles of a JVM's probes. */
struct duty_cycles {
	struct duty_cycle outside;
	struct duty_cycle tlab;
	__u64 outside_per_tlab; /* average number of objects outside of TLABs per new TLAB, in 256ths */
};

/* A thread that existed before the trace began. */
struct old_thread {
	__u64 target;
	__u64 thread;
};

/* Names of a class and a thread, sent when they are first counted. */
struct name_event {
	__u64 kind;
	__u64 target;
	struct class_id class;
	__u64 tid;              /* 0: threads are not kept apart */
	char comm[COMM_LEN];
	__u64 size;             /* of text */
	char text[CLASS_LEN];
};

/* A large object, sent when it is allocated. */
struct large_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	struct class_id class;
	__u64 stack;
	__u64 size;
	__u32 tid;
	__u32 humongous;
	char comm[COMM_LEN];
};

/* A full TLAB: it holds `size` bytes of objects from `start` on, behind its first object. */
struct tlab_event {
	__u64 kind;
	__u64 target;
	__u64 start;
	__u64 size;
	__u64 collections;      /* JVM's number of collections: until it changes, the objects stay in place */
	__u64 tid;              /* 0: threads are not kept apart */
};

/* A stack in a trace context. It has a number of its own, which keys have in place of the stack's number. */
struct span_event {
	__u64 kind;
	__u64 target;
	__u64 number;
	__u64 stack;
	struct span_ids span;
};

/* Key of a number that was sent. */
struct span_key {
	__u64 target;
	__u64 number;
};

#endif
