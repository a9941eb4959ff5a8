/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the kernel side and libjvmprobe share. */
#ifndef JVMPROBE_GAUGE_H
#define JVMPROBE_GAUGE_H

#include <linux/types.h>

#define UNKNOWN (~0ULL)

#define GAUGE_TERMS 8
#define GAUGE_COUNTERS 4
#define GAUGE_SPACES 8
/* CompactibleFreeListSpace::IndexSetSize: one list for each size in words. */
#define FREE_LISTS 257

/* How one summand of the used heap is read from the target's memory. */
enum term_kind {
	TERM_DIRECT = 0,   /* *addr */
	TERM_INDIRECT = 1, /* *(*addr + plus) */
	TERM_SPAN = 2,     /* *(*addr + plus) - *(*addr + minus) */
	/* Words of 8 bytes that are free within a span, to be subtracted. */
	TERM_FREE = 3,       /* *addr */
	TERM_FREE_LISTS = 4, /* the sum of i * *(addr + i * plus) */
};

struct gauge_term {
	__u64 addr;
	__u64 plus;
	__u64 minus;
	__u64 kind;
	__u64 none; /* where *addr is this, there is nothing */
};

/*
 * Where a target keeps the numbers that belong into every event. What is wanted while the
 * application is stopped comes first: it is in no cache by then.
 */
struct gauge {
	__u64 terms_used;
	/* Collections by collector: young, old, concurrent; 0 where unknown. */
	__u64 counters[GAUGE_COUNTERS];
	/* The strings sun.gc.cause and sun.gc.lastCause; 0 where unknown. */
	__u64 cause;
	__u64 last_cause;
	/* The last stop as the JVM itself keeps it; all of these or none. */
	__u64 stop_end;     /* ns, all run again */
	struct gauge_term terms[GAUGE_TERMS];
	__u64 stop_begin;   /* ns, threads are asked to stop */
	__u64 stop_sync;    /* ns, all have stopped */
	__u64 stop_op_type; /* 32 bits, an index into the operations' names */
	/* VMThread::_cur_vm_operation; 0 where unknown. */
	__u64 operation;
	/*
	 * What the collector itself counted at the end of its last collection, by
	 * space; none where it keeps no such counters.
	 */
	__u64 settled[GAUGE_SPACES];
	/* Whether the heap is wanted as it is after the collector has waited for its threads. */
	__u64 waits;
	/*
	 * Whether the operation alone tells of a stop that it was a collection, so that nothing
	 * is looked at within: ZGC's pauses, which free nothing.
	 */
	__u64 op_tells;
};

#endif
