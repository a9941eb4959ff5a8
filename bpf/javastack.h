/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Threads that javastack's BPF programs report. */
#ifndef JVMPROBE_JAVASTACK_H
#define JVMPROBE_JAVASTACK_H

#include "walk/walk.h"

enum event_kind {
	EVENT_STACK = 1,
	EVENT_RUNNING = 2,
};

/* A thread that runs on a processor. */
struct running_thread {
	__u64 kind;         /* EVENT_RUNNING */
	__u32 tgid;
	__u32 tid;
	__u64 user;         /* id of its user stack */
	__u64 kernel;       /* id of its kernel stack */
};

/* A thread that does not run. */
struct waiting_thread {
	__u32 tgid;
	__u32 tid;
	__u64 switches;     /* how often it was switched out so far */
	__u64 kernel;       /* id of its kernel stack */
	/* Registers with which it entered the kernel. */
	__u64 ip;
	__u64 sp;
	__u64 fp;
	__u64 others[OTHER_REGISTERS];    /* struct registers of walk/arch_*.h */
};

#endif
