/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is told of a JVM's stops: libjvmprobe/src/bpf/stops.rs reads it. */
#ifndef JVMPROBE_STOPS_H
#define JVMPROBE_STOPS_H

#include <linux/types.h>

#define STOP_LEN 64          /* a power of two */

/* The application was stopped. */
struct stop_event {
	__u64 kind;
	__u64 target;
	__u64 begin;
	__u64 end;
	__u64 is_gc;
	char name[STOP_LEN]; /* of the VM operation */
};

#endif
