/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Events that javaclass's BPF programs send; layouts shared with Rust. */
#ifndef JVMPROBE_JAVACLASS_H
#define JVMPROBE_JAVACLASS_H

/* Size of a name; a longer one is truncated, and `length` is that of the complete name. */
#define CLASS_NAME_LEN 512
#define COMM_LEN 16

enum event_kind {
	EVENT_CLASS = 1,
	EVENT_STACK = 2,
};

enum class_change {
	CLASS_LOADED = 1,
	CLASS_UNLOADED = 2,
	CLASS_INITIALIZED = 3,
	CLASS_FAILED = 4,
};

struct class_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 duration_ns; /* of an initialisation, from its request */
	__u64 stack;       /* id of the stack, 0 if there is none */
	__u64 loader;      /* HotSpot's id of the class loader: 0 for the boot loader */
	__u32 tid;
	__u32 change;
	__u32 length; /* of the name; 0 if it could not be read */
	__u32 shared; /* 1: the class comes from a CDS archive */
	char comm[COMM_LEN];
	char name[CLASS_NAME_LEN];
};

#endif
