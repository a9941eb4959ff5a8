/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What javaclass's kernel side sends: layouts shared with Rust. */
#ifndef JVMPROBE_JAVACLASS_H
#define JVMPROBE_JAVACLASS_H

/* Longer names are cut: `length` tells. */
#define CLASS_NAME_LEN 512
#define COMM_LEN 16

enum event_kind {
	EVENT_CLASS = 1,
	EVENT_STACK = 2,
};

enum class_what {
	CLASS_LOADED = 1,
	CLASS_UNLOADED = 2,
	CLASS_INITIALIZED = 3,
	CLASS_FAILED = 4,
};

struct class_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 duration_ns; /* of an initialisation, from when it was asked for */
	__u64 stack;       /* its number, 0 without */
	__u64 loader;      /* HotSpot's number of it: the boot loader's is 0 */
	__u32 tid;
	__u32 what;
	__u32 length; /* of the name */
	__u32 shared; /* whether it comes from an archive */
	char comm[COMM_LEN];
	char name[CLASS_NAME_LEN];
};

#endif
