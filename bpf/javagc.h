/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Events of javagc, as they pass through the ring buffer. */
#ifndef JVMPROBE_JAVAGC_H
#define JVMPROBE_JAVAGC_H

#include "gauge.h"
#include "walk/walk.h"

/* Powers of two: see read_name(). */
#define OP_LEN 64
#define CAUSE_LEN 64
#define POOL_LEN 64
#define COMM_LEN 16

enum event_kind {
	EVENT_STOP = 1,
	EVENT_POOL = 2,
	EVENT_CYCLE = 3,
	EVENT_REQUEST = 4,
	EVENT_STACK = 5,
	EVENT_COUNTED = 6,
};

/* An operation of the VM thread: its name, or its C++ vtable to name it by. */
struct operation {
	__u64 vtable;
	char name[OP_LEN];
};

/* One stop of the application, safepoint begin to safepoint end. */
struct stop_event {
	__u64 kind;
	__u64 target;
	__u64 begin_ns;
	__u64 op_ns;        /* first operation begins: all threads have stopped */
	__u64 gc_begin_ns;  /* first collection begins, 0 without any */
	__u64 gc_end_ns;    /* last collection ends */
	__u64 gc_ns;        /* sum over the collections */
	__u64 end_ns;
	__u64 heap_before;  /* bytes at gc_begin_ns, UNKNOWN */
	__u64 heap_after;   /* bytes at gc_end_ns, UNKNOWN */
	__u64 heap_settled; /* bytes when the last collection was over, UNKNOWN */
	__u64 before[GAUGE_COUNTERS];
	__u64 after[GAUGE_COUNTERS];
	__u64 gauged;       /* whether before and after were read */
	__u64 op_type;      /* as in struct gauge, UNKNOWN */
	__u32 gc_pairs;
	__u32 ops;
	__u32 full;         /* an operation began as a full collection */
	__u32 collections;  /* as the collectors' own tracers begin them, 0: not seen */
	__u32 in_gc;        /* how many collections are under way, one inside the other */
	__u32 has_cause;
	__u32 has_before; /* heap_before was read again where the JVM's log reads it */
	__u32 unused;
	__u64 tid;          /* the VM thread */
	struct operation op;    /* the first one */
	struct operation gc_op; /* the first one that collected */
	struct operation last;  /* the current one */
	char cause[CAUSE_LEN];
	char last_cause[CAUSE_LEN];
};

/* Kinds of events that have a budget of their own. */
enum budget_kind {
	BUDGET_SAFEPOINT = 0, /* stops without a collection that was seen */
	BUDGET_GC = 1,
	BUDGET_OTHER = 2,
	BUDGET_KINDS = 3,
};

/* Stops that were not sent one by one. */
struct limited_stops {
	__u64 count;
	__u64 ns;
	__u64 max_ns;
};

/* Events that were sent in the current second, by kind. */
struct rate {
	__u64 second;
	__u64 sent[BUDGET_KINDS];
};

/* Events that a JVM has sent in the current second, and its stops beyond that, since it is known. */
struct budget {
	struct rate rate;
	__u64 tenant; /* number of its control group, from user space */
	struct limited_stops limited[2]; /* by BUDGET_SAFEPOINT and BUDGET_GC */
};

/* The JVM at one end of a concurrent cycle, or where a pool was reported. */
struct moment_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 tid;          /* 0: of the only cycle that a JVM has */
	__u64 end;          /* 0: before, 1: after */
	__u64 heap_used;
	char cause[CAUSE_LEN];
	char last_cause[CAUSE_LEN];
};

/* A memory pool before or after a collection or a concurrent cycle. */
struct pool_event {
	struct moment_event at;
	__u64 init;
	__u64 used;
	__u64 committed;
	__u64 max;
	char manager[POOL_LEN];
	char pool[POOL_LEN];
};

/* A thread asks for a collection: System.gc(). */
struct request_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 tid;
	__u64 stack;        /* its number */
	char comm[COMM_LEN];
};

/* Numbers that the JVM itself keeps of its stops and collections: hotspot/counters.rs */
#define COUNTED_NUMBERS 15

/* Where they are; 0 where there is none. */
struct counted_at {
	__u64 at[COUNTED_NUMBERS];
};

/* What they were when the JVM had just counted a stop that is over. */
struct counted_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 numbers[COUNTED_NUMBERS];
	char cause[CAUSE_LEN];
	char last_cause[CAUSE_LEN];
};

#endif
