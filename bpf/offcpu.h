/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Threads whose waits are traced: see offcpu.bpf.h. */
#ifndef JVMPROBE_OFFCPU_H
#define JVMPROBE_OFFCPU_H

#include <linux/types.h>

#include "walk/walk.h"

#define COMM_LEN 16

/* A thread of a traced process. */
struct thread {
	__u64 since;        /* when it was last switched out or in */
	__u64 began;        /* when its last wait began */
	__u64 woken;        /* when it became runnable again; 0: not yet */
	__u64 on_ns;        /* total time on a CPU so far */
	__u64 short_ns;     /* total time of its short waits */
	__u64 shorts;       /* number of its short waits */
	__u32 tgid;
	__u32 tid;
	__u32 state;        /* state of the task when it was last switched out; 0: it was preempted */
	__u8 is_off_cpu;
	__u8 is_unseen;     /* it was switched out before the trace began */
	__u8 is_ending;
	__u8 unused;
	__u64 follows_until;    /* of the tracer, as flags */
	__u32 flags;
	__u32 unused2;
	char comm[COMM_LEN];
};

/* A thread that sleeps, with the registers with which it entered the kernel. */
struct sleeper {
	__u32 tgid;
	__u32 tid;
	__u64 since;        /* thread.since; 0 if the thread has not been switched during the trace */
	__u64 kernel;       /* id of its kernel stack */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 others[OTHER_REGISTERS];    /* struct registers of walk/arch_*.h */
};

#endif
