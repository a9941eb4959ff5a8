/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What javaprof's kernel side counts and sends. */
#ifndef JVMPROBE_JAVAPROF_H
#define JVMPROBE_JAVAPROF_H

#include "walk/walk.h"

#define COMM_LEN 16
#define MAX_IGNORED 16384
#define NAME_LEN 256         /* a power of two */

enum event_kind {
	EVENT_STACK = 1,
	EVENT_CODE = 2,
};

/* A process that is profiled. */
struct target {
	/*
	 * Counts what is loaded into and unloaded from the code cache: a clock
	 * by which samples and code are put in order.
	 */
	__u64 epoch;
};

/* Samples that are alike are counted together. */
struct sample_key {
	__u64 user;         /* the stacks' numbers, 0 for none */
	__u64 kernel;
	__u64 epoch;
	__u32 tgid;
	__u32 tid;
	__u32 cpu;
	__u32 user_end;     /* as in struct walked */
	char comm[COMM_LEN];
};

/* A method was loaded into the code cache, or (without a size) unloaded. */
struct code_event {
	__u64 kind;
	__u64 target;
	__u64 epoch;        /* the first in which this holds */
	__u64 addr;
	__u64 size;
	char klass[NAME_LEN];
	char method[NAME_LEN];
	char signature[NAME_LEN];
};

#endif
