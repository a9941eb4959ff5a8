/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Event of one stop of a JVM's application threads; read by libjvmprobe/src/bpf/stops.rs. */
#ifndef JVMPROBE_STOPS_H
#define JVMPROBE_STOPS_H

#include <linux/types.h>

#define STOP_LEN 64          /* a power of two */

/* One stop of the application threads; begin and end in nanoseconds of CLOCK_MONOTONIC. */
struct stop_event {
	__u64 kind;
	__u64 target;
	__u64 begin;
	__u64 end;
	__u64 is_gc;
	char name[STOP_LEN]; /* of the VM operation */
};

#endif
