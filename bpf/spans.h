/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Trace contexts that threads publish: see spans.bpf.h. */
#ifndef JVMPROBE_SPANS_H
#define JVMPROBE_SPANS_H

#include <linux/types.h>

/* Identifiers of a trace and a span, in the order of their bytes in memory. A span of 0 means that there is none. */
struct span_ids {
	__u64 trace[2];
	__u64 span;
};

/* Where the threads of a process publish their context: a thread-local pointer to a record, and the record's layout. */
struct span_source {
	__s64 offset;       /* of the pointer from the thread pointer or, with a module, in the module's block */
	__u64 module;       /* number of the module; 0: none */
	__u32 is_musl;      /* layout of the table of blocks: 1 for musl, 0 for glibc */
	/* Offsets in the record. */
	__u32 ids_at;
	__u32 valid_at;
	/* In a valid record, the byte at valid_at is not 0, and the 16 bits there are equal to `valid` under the mask. */
	__u32 valid;
	__u32 valid_mask;
	__u32 unused;
};

#endif
