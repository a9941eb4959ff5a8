/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Waits that javawait's BPF programs report. */
#ifndef JVMPROBE_JAVAWAIT_H
#define JVMPROBE_JAVAWAIT_H

#include "class.h"
#include "offcpu.h"
#include "walk/walk.h"

enum event_kind {
	EVENT_STACK = 1,
	EVENT_WAIT = 2,
	EVENT_THREAD = 3,
};

/* Forms of references in Java objects. */
enum reference_form {
	REFERENCE_ADDRESS = 0,
	REFERENCE_NARROW = 1,   /* 32 bits: shifted, and added to a base */
	REFERENCE_COLORED = 2,  /* of generational ZGC */
};

/* A traced JVM, and where it stores what a thread waits for. Offsets are in bytes; 0 means that it has no such field. */
struct traced_jvm {
	__u64 key;          /* see target_key() in jvm.bpf.h */
	__u64 since;        /* when the trace of its threads began, on CLOCK_MONOTONIC */
	/* In a JavaThread. */
	__u32 pending_monitor;
	__u32 waiting_monitor;
	__u32 thread_object;
	__u32 virtual_thread;
	/* In an ObjectMonitor. */
	__u32 monitor_object;
	__u32 has_handles;  /* 1: fields of the JVM refer to objects by handles */
	/* In a java.lang.Thread. */
	__u32 park_blocker;
	__u32 number;
	/* Form of references in objects. */
	__u32 form;         /* enum reference_form */
	__u32 shift;
	__u64 base;
	struct class_place class;
};

/* Limits of a JVM, set by user space. */
struct wait_limits {
	__u32 unrecorded;   /* probability that a wait is not recorded, multiplied by 2^32 */
	__u32 unused;
};

/* Number and total length of waits. */
struct wait_sum {
	__u64 waits;
	__u64 ns;
};

/* Number of classes of lengths of waits; a power of two. */
#define WAIT_LENGTHS 16

/* Waits of a JVM that were left out: see wait_limits.bpf.h. */
struct left_out {
	__u64 waits;        /* number so far */
	__u64 window;       /* number of the current time window */
	__u64 hits;         /* number of waits in it */
	struct wait_sum sums[WAIT_LENGTHS];     /* those that no recorded wait carries yet, by length */
};

/* An object of the JVM that a thread waits for. */
struct awaited {
	__u64 monitor;      /* address of the ObjectMonitor; 0 for other objects */
	__u64 object;       /* address of the object when the wait ended */
	__u64 klass;        /* address of its Klass; 0 if it could not be read */
};

/* The thread that ended a wait. */
struct waker {
	__u64 woken;        /* when it did */
	__u64 user;         /* ids of its stacks */
	__u64 kernel;
	__u64 number;       /* of the virtual thread that is mounted on it; 0: none */
	__u64 address;      /* first argument of its system call */
	__u32 tgid;
	__u32 tid;
	__s32 call;         /* number of its system call; -1: none */
	__u32 unused;
	char comm[COMM_LEN];
};

/* A wait that has ended. Times are in nanoseconds on CLOCK_MONOTONIC. */
struct wait_event {
	__u64 kind;
	__u64 target;
	__u64 began;
	__u64 woken;        /* 0: it was never woken, or the wake-up was not seen */
	__u64 ended;
	__u64 on_ns;        /* thread.on_ns */
	__u64 wakes;        /* number of threads that this thread has woken so far */
	__u64 user;         /* ids of its stacks */
	__u64 kernel;
	__u64 args[4];      /* of its system call */
	__u64 word;         /* first 8 bytes of the memory at the first argument */
	__u64 java_thread;  /* address of its JavaThread; 0: unknown */
	__u64 number;       /* of the virtual thread that is mounted on it; 0: none */
	struct awaited enters;      /* monitor that it enters; 0: none */
	struct awaited waits_for;   /* monitor on which it has called Object.wait(); 0: none */
	struct awaited parks_for;   /* object given to LockSupport.park(); 0: none */
	struct waker waker;
	struct wait_sum others;     /* waits of similar length that were left out before it */
	__u32 tid;
	__s32 call;         /* number of its system call; -1: none */
	__u32 state;        /* thread.state */
	__u32 flags;
	char comm[COMM_LEN];
};

/* Flags of a wait. */
#define WAIT_UNSEEN 1        /* it began before the trace */
#define WAIT_THROTTLED 2     /* the control group had used up its CPU time when the wait began */
#define WAIT_WOKEN_THROTTLED 4   /* ... when the thread was woken */

/* A thread that was seen for the first time. */
struct thread_event {
	__u64 kind;
	__u64 target;
	__u64 tid;
};

#endif
