/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Gauge of a JVM: where HotSpot's own counters are in the target's memory. Shared with libjvmprobe. */
#ifndef JVMPROBE_GAUGE_H
#define JVMPROBE_GAUGE_H

#include <linux/types.h>

#define UNKNOWN (~0ULL)

#define GAUGE_TERMS 8
#define GAUGE_COUNTERS 4
#define GAUGE_SPACES 8
/* Number of free lists, one per block size in words: CompactibleFreeListSpace::IndexSetSize. */
#define FREE_LISTS 257

/* How one summand of the used heap is read from the target's memory. */
enum term_kind {
	TERM_DIRECT = 0,   /* *addr */
	TERM_INDIRECT = 1, /* *(*addr + plus) */
	TERM_SPAN = 2,     /* *(*addr + plus) - *(*addr + minus) */
	/* The following two count free words of 8 bytes within a span. They are subtracted. */
	TERM_FREE = 3,       /* *addr */
	TERM_FREE_LISTS = 4, /* the sum of i * *(addr + i * plus) */
};

struct gauge_term {
	__u64 addr;
	__u64 plus;
	__u64 minus;
	__u64 kind;
	__u64 none; /* if *addr has this value, the summand is 0 */
};

/*
 * Addresses of those counters of a target that the kernel side reads during events. Most fields that are read
 * while the application is stopped are next to each other, at the beginning, so that they occupy few cache
 * lines: the CPU caches are cold by then.
 */
struct gauge {
	__u64 terms_used;
	/* Addresses of the numbers of collections by collector: young, old, concurrent; 0 if unknown. */
	__u64 counters[GAUGE_COUNTERS];
	/* Addresses of the strings sun.gc.cause and sun.gc.lastCause; 0 if unknown. */
	__u64 cause;
	__u64 last_cause;
	/*
	 * Addresses of the JVM's own record of its last stop: stop_end and, below, stop_begin, stop_sync and
	 * stop_op_type. Either all four are set, or none.
	 */
	__u64 stop_end;     /* ns, all threads run again */
	struct gauge_term terms[GAUGE_TERMS];
	__u64 stop_begin;   /* ns, threads are requested to stop */
	__u64 stop_sync;    /* ns, all threads have stopped */
	__u64 stop_op_type; /* 32 bits, an index into the operations' names */
	/* Address of VMThread::_cur_vm_operation; 0 if unknown. */
	__u64 operation;
	/*
	 * Addresses of the used bytes that the collector itself recorded at the end of its last
	 * collection, one per space; 0 if it keeps no such counters.
	 */
	__u64 used_at_gc_end[GAUGE_SPACES];
	/*
	 * 1 (CMS of JDK 8): before a collection, the VM thread waits for the concurrent thread, which may
	 * free memory meanwhile. heap_before of struct stop_event is therefore read again after that wait.
	 */
	__u64 waits;
	/*
	 * 1: the operation's name alone identifies a collection, so nothing is read within the stop.
	 * Set for ZGC, whose pauses free nothing.
	 */
	__u64 op_shows_collection;
};

#endif
