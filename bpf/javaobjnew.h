/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What javaobjnew's kernel side counts and sends; Rust's mirrors are checked by tests. */
#ifndef JVMPROBE_JAVAOBJNEW_H
#define JVMPROBE_JAVAOBJNEW_H

#include "stops.h"
#include "walk/walk.h"

/* Of a class's name, as much is sent; what is longer is cut. */
#define CLASS_LEN 1024
#define SHORT_CLASS_LEN 64   /* room for most of them */
#define COMM_LEN 16

enum event_kind {
	EVENT_NAME = 1,
	EVENT_LARGE = 2,
	EVENT_TLAB = 3,
	EVENT_STACK = 4,
	EVENT_STOP = 5,
};

/*
 * Where a JVM keeps what is read with each event: offsets in bytes from the
 * start of the object.
 */
struct layout {
	__u64 thread_allocated; /* Thread::_allocated_bytes */
	__u64 tlab;             /* Thread::_tlab, its _start and, next to it, _top */
	__u64 told_first;       /* whether a TLAB is told of before its thread has it: JDK 8 */
	__u64 klass_name;       /* Klass::_name */
	__u64 symbol_length;    /* Symbol::_length, 16 bits */
	__u64 symbol_body;      /* Symbol::_body */
	__u64 collections;      /* address of the count of collections, 32 bits; 0: none */
	__u64 humongous;        /* larger objects are humongous; 0: none are */
	__u64 walks;            /* whether its stacks can be walked */
};

/*
 * A class by its name. A Symbol may be freed with the last class of its name and
 * its memory used for another one: the length and the last bytes, in which
 * generated names differ, tell the two apart.
 */
struct class_id {
	__u64 symbol;
	__u64 tail;
	__u32 len;
	__u32 pad;
};

/* Allocations that are alike are counted together. */
struct tally_key {
	__u64 target;
	struct class_id class;
	__u64 stack;
	__u32 tid;              /* 0: not asked for */
	__u32 slot;             /* of time: of hits alone, else 0 */
};

/* All counters only ever grow. */
struct tally {
	__u64 samples;          /* objects that began a TLAB; --exact: all objects */
	__u64 bytes;            /* that they stand for; --exact: their own */
	__u64 objects;          /* that they stand for, in 256ths */
	__u64 outside;          /* objects outside of TLABs */
	__u64 outside_bytes;
	__u64 humongous;        /* of all that were seen */
	__u64 humongous_bytes;
};

/* What was counted under a key in one slot of time: it tells when, not how much. */
struct hit {
	__u64 bytes;
	__u64 outside_bytes;
};

struct thread_key {
	__u64 target;
	__u64 tid;
};

/* A thread at its last event. */
struct thread_state {
	__u64 thread;           /* address of the Thread */
	__u64 counted;          /* bytes that it had allocated, attributed to classes; */
	__u64 told;             /* for so many stands what was taken of them */
	__u64 last;             /* when its last event was, in jiffies */
	__u64 has_ended;        /* whether it has ended: counted is all that it has allocated */
	__u64 tlab;             /* start of its TLAB, if that is to be told of; else 0 */
	__u64 tlab_bytes;       /* its size */
	__u64 before_tlab;      /* bytes that it had allocated outside of this TLAB */
	__u64 collections;      /* of the JVM when it got its TLAB */
};

/* What a JVM allocates, where not all of it is taken. */
struct flood {
	__u64 line;             /* so long is the line that it is taken from */
	__u64 outside_hits;     /* objects outside of TLABs whose hits counted, */
	__u64 tlab_hits;        /* and those that began one */
	__u64 window;           /* of time, in which were */
	__u64 hits;             /* so many allocations; */
	__u64 before;           /* and so many bytes before it */
	__u64 shift;            /* one byte is chosen of so many: 2^shift */
};

/* on_until_ns of a probe that is always attached. */
#define ALWAYS_ON (~0ULL)

/* Duty cycle of a probe: its current or last on period. */
struct duty_cycle {
	__u64 on_until_ns;      /* on CLOCK_MONOTONIC: later hits are ignored */
	__u64 weight;           /* number of hits that one represents, in 256ths; 0: hits are ignored */
};

/* Duty cycles of a JVM's probes. */
struct duty_cycles {
	struct duty_cycle outside;
	struct duty_cycle tlab;
};

/* A thread that was there before the trace. */
struct old_thread {
	__u64 target;
	__u64 thread;
};

/* Names of a class and a thread, sent when they are first seen. */
struct name_event {
	__u64 kind;
	__u64 target;
	struct class_id class;
	__u64 tid;              /* 0: not asked for */
	char comm[COMM_LEN];
	__u64 size;             /* of text */
	char text[CLASS_LEN];
};

/* A large object, as it is allocated. */
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

/* A TLAB that is full: all objects from start on, so many bytes. */
struct tlab_event {
	__u64 kind;
	__u64 target;
	__u64 start;
	__u64 size;
	__u64 collections;      /* as long as the JVM's count is this, they are all there */
	__u64 tid;              /* 0: not asked for */
};

#endif
