/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Events that javagc's BPF programs send through the ring buffer. */
#ifndef JVMPROBE_JAVAGC_H
#define JVMPROBE_JAVAGC_H

#include "gauge.h"
#include "walk/walk.h"

/* Sizes of strings; powers of two: see read_name(). */
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

/* An operation of the VM thread. USDT probes report its name. In builds without them, `vtable` is the address
   of its C++ vtable, from which user space derives the name. */
struct operation {
	__u64 vtable;
	char name[OP_LEN];
};

/* One stop of the application, from safepoint begin to safepoint end. Times are on CLOCK_MONOTONIC. */
struct stop_event {
	__u64 kind;
	__u64 target;
	__u64 begin_ns;
	__u64 op_ns;        /* first operation begins: all threads have stopped */
	__u64 gc_begin_ns;  /* first collection begins, 0 if there is none */
	__u64 gc_end_ns;    /* last collection ends */
	__u64 gc_ns;        /* total duration of the collections */
	__u64 end_ns;
	__u64 heap_before;  /* used bytes at gc_begin_ns, or UNKNOWN */
	__u64 heap_after;   /* used bytes at gc_end_ns, or UNKNOWN */
	__u64 heap_at_gc_end; /* used bytes when the collector had finished, or UNKNOWN */
	__u64 before[GAUGE_COUNTERS];
	__u64 after[GAUGE_COUNTERS];
	__u64 gauged;       /* 1: the fields before[] and after[] were filled in */
	__u64 op_type;      /* number read at stop_op_type of struct gauge, or UNKNOWN */
	__u32 gc_pairs;     /* number of collections that have begun and ended */
	__u32 ops;
	__u32 full;         /* 1: a collection began as a full one */
	__u32 collections;  /* number of calls of GCTracer::report_gc_start(); 0: not observed */
	__u32 in_gc;        /* nesting depth of the collections in progress */
	__u32 has_cause;
	__u32 has_before;   /* 1: heap_before was read again, when the JVM read the used heap for its log */
	__u32 workers;      /* number of worker threads of the collector that cpu_wait_ns covers */
	__u64 tid;          /* the VM thread */
	__u64 cpu_wait_ns;  /* longest wait of one of these threads or the VM thread for a CPU, or UNKNOWN */
	__u64 throttled_periods; /* periods in which the control group used up its CPU quota, or UNKNOWN */
	struct operation op;    /* first operation */
	struct operation gc_op; /* first operation that collected */
	struct operation last;  /* current operation */
	char cause[CAUSE_LEN];
	char last_cause[CAUSE_LEN];
};

/* Maximum number of a collector's worker threads whose waits for a CPU are measured. */
#define MAX_WORKERS 64

/* A worker thread of the collector. */
struct worker {
	__u64 task;         /* its task_struct */
	__u64 start_time;   /* together with the address and tid, this identifies the thread */
	__u64 delay_ns;     /* total wait for a CPU up to begin_ns */
	__u32 tid;
	__u32 unused;
};

/* Threads of a JVM that take part in collections, and their state when the current collection began. */
struct gc_threads {
	__u64 begin_ns;     /* gc_begin_ns of the stop for which the following three fields were read */
	__u64 delay_ns;     /* total wait of the VM thread for a CPU */
	__u64 group;        /* task_group of the VM thread */
	__u64 throttled;    /* throttled periods of this group and its parents, or UNKNOWN */
	__u64 longest_ns;   /* longest wait found so far */
	__u64 searched_ns;  /* time of the last search for workers; 0: there was none */
	__u32 is_incomplete; /* 1: in this stop, a worker was found of which no earlier state is known */
	__u32 threads;      /* number of threads of the process at the last search */
	__u32 count;        /* number of entries used in workers[] */
	__u32 unused;
	struct worker workers[MAX_WORKERS];
};

/* Kinds of events with a separate rate limit. */
enum budget_kind {
	BUDGET_SAFEPOINT = 0, /* stops in which no collection was observed */
	BUDGET_GC = 1,
	BUDGET_OTHER = 2,
	BUDGET_KINDS = 3,
};

/* Totals of the stops that were not sent one by one because of a rate limit. */
struct limited_stops {
	__u64 count;
	__u64 ns;
	__u64 max_ns;
};

/* Number of events sent in the current second, by kind. */
struct rate {
	__u64 second;
	__u64 sent[BUDGET_KINDS];
};

/* Number of events that a JVM has sent in the current second. Also, from its first event on, the totals of
   its stops that were not sent because of a limit. */
struct budget {
	struct rate rate;
	__u64 tenant; /* number of its control group, set by user space */
	struct limited_stops limited[2]; /* indexed by BUDGET_SAFEPOINT and BUDGET_GC */
};

/* State of the JVM at the start or end of a concurrent cycle, or when a memory pool was reported. */
struct state_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 tid;          /* 0 if the JVM has at most one such cycle at a time */
	__u64 end;          /* 0: before the collection or cycle, 1: after it */
	__u64 heap_used;
	char cause[CAUSE_LEN];
	char last_cause[CAUSE_LEN];
};

/* A memory pool before or after a collection or a concurrent cycle. */
struct pool_event {
	struct state_event at;
	__u64 init;
	__u64 used;
	__u64 committed;
	__u64 max;
	char manager[POOL_LEN];
	char pool[POOL_LEN];
};

/* A thread requests a collection: System.gc(). */
struct request_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 tid;
	__u64 stack;        /* id of its stack */
	char comm[COMM_LEN];
};

/* Number of counters that the JVM itself keeps of its stops and collections: hotspot/counters.rs */
#define COUNTED_NUMBERS 15

/* Addresses of these counters; 0 if a counter does not exist. */
struct counter_addresses {
	__u64 at[COUNTED_NUMBERS];
};

/* Values of these counters, read just after the JVM has counted a stop that is over. */
struct counters_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 numbers[COUNTED_NUMBERS];
	char cause[CAUSE_LEN];
	char last_cause[CAUSE_LEN];
};

#endif
