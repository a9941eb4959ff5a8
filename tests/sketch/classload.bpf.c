// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* classload: sends the thread, the class and the stack of each class load. */
#include "jvm.bpf.h"

#define NAME_LEN 128
#define COMM_LEN 16

enum event_kind {
	EVENT_CLASS = 1,
	EVENT_STACK = 2,
};

#include "walk/intern.bpf.h"

struct class_event {
	__u64 kind;
	__u64 target;
	__u64 ts_ns;
	__u64 tid;
	__u64 stack; /* ID of the stack */
	char comm[COMM_LEN];
	char name[NAME_LEN];
};

/* Makes the skeleton generator define the type in Rust. */
struct class_event unused_class;

/* hotspot:class__loaded(name, length, loader, shared), src/hotspot/share/oops/instanceKlass.cpp. */
SEC("usdt")
int BPF_USDT(class_loaded)
{
	__u64 key = target_key(bpf_usdt_cookie(ctx));
	struct class_event event = {
		.kind = EVENT_CLASS,
		.target = key,
		.ts_ns = bpf_ktime_get_ns(),
		.tid = (__u32)bpf_get_current_pid_tgid(),
		.stack = intern_stack(ctx, key),
	};

	bpf_get_current_comm(event.comm, sizeof(event.comm));
	read_usdt_name(ctx, 0, event.name, NAME_LEN);
	send(key, &event, sizeof(event));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
