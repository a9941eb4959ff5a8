// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* javaclass: records classes that are loaded, unloaded and initialised, with thread and stack. */
#include "jvm.bpf.h"
#include "lock.bpf.h"
#include "javaclass.h"
#include "walk/intern.bpf.h"

/* Keeps the type in BTF, from which its Rust mirror is generated. */
struct class_event unused_class;

/* Key of an initialisation that has begun: a thread, and a class by name and loader. */
struct beginning {
	__u64 thread; /* pid and tid, as in bpf_get_current_pid_tgid() */
	__u64 name;
	__u64 loader;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct beginning);
	__type(value, __u64);
} beginnings SEC(".maps");

/* The probes' arguments are name, length and loader. */
static __always_inline struct beginning beginning_of(struct pt_regs *ctx)
{
	struct beginning beginning = { .thread = bpf_get_current_pid_tgid() };
	long name = 0, loader = 0;

	bpf_usdt_arg(ctx, 0, &name);
	bpf_usdt_arg(ctx, 2, &loader);
	beginning.name = name;
	beginning.loader = loader;
	return beginning;
}

/*
 * Sends an event, which is written directly into the ring buffer. Bytes after the name are not cleared,
 * because the event contains the length of the name.
 *
 * Programs that do not walk must not even reference the walker, because up to Linux 6.7 the verifier checks
 * the walker's functions even if they are never reached.
 */
static __always_inline void send_event(struct pt_regs *ctx, __u32 change, __u64 duration_ns,
				       bool walks)
{
	__u64 key = target_key(bpf_usdt_cookie(ctx));
	/* The stack is interned before space for the event is reserved, so that user space gets a new stack
	   before the event. */
	__u64 stack = walks ? intern_stack(ctx, key) : 0;
	struct class_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	long name = 0, length = 0, loader = 0, shared = 0;
	__u64 size;

	if (!event) {
		count_lost(key);
		return;
	}
	bpf_usdt_arg(ctx, 0, &name);
	bpf_usdt_arg(ctx, 1, &length);
	bpf_usdt_arg(ctx, 2, &loader);
	if (change == CLASS_LOADED)
		bpf_usdt_arg(ctx, 3, &shared);
	event->kind = EVENT_CLASS;
	event->target = key;
	event->ts_ns = bpf_ktime_get_ns();
	event->duration_ns = duration_ns;
	event->stack = stack;
	event->loader = loader;
	event->tid = (__u32)bpf_get_current_pid_tgid();
	event->change = change;
	event->shared = shared & 1;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	size = (__u32)length;
	if (size > CLASS_NAME_LEN - 1)
		size = CLASS_NAME_LEN - 1;
	event->length = length;
	if (bpf_probe_read_user(event->name, size & (CLASS_NAME_LEN - 1), (void *)name))
		event->length = 0;
	bpf_ringbuf_submit(event, wake());
}

/* hotspot:class__loaded(name, length, loader, shared). All probes of this file are in
   src/hotspot/share/oops/instanceKlass.cpp or services/classLoadingService.cpp. */
SEC("usdt")
int BPF_USDT(class_loaded)
{
	send_event(ctx, CLASS_LOADED, 0, false);
	return 0;
}

SEC("usdt")
int BPF_USDT(class_loaded_stacks)
{
	send_event(ctx, CLASS_LOADED, 0, true);
	return 0;
}

SEC("usdt")
int BPF_USDT(class_unloaded)
{
	send_event(ctx, CLASS_UNLOADED, 0, false);
	return 0;
}

/* hotspot:class__initialization__*(name, length, loader, thread type, wait). */
SEC("usdt")
int BPF_USDT(init_required)
{
	struct beginning beginning = beginning_of(ctx);
	__u64 now = bpf_ktime_get_ns();

	keep_own_stack();
	/* The initialising thread may request the class again meanwhile; only the first request counts. */
	bpf_map_update_elem(&beginnings, &beginning, &now, BPF_NOEXIST);
	return 0;
}

static __always_inline __u64 since_beginning(struct pt_regs *ctx)
{
	struct beginning beginning = beginning_of(ctx);
	__u64 *begin = bpf_map_lookup_elem(&beginnings, &beginning), now = bpf_ktime_get_ns();
	__u64 duration = begin && now > *begin ? now - *begin : 0;

	bpf_map_delete_elem(&beginnings, &beginning);
	return duration;
}

SEC("usdt")
int BPF_USDT(init_end)
{
	send_event(ctx, CLASS_INITIALIZED, since_beginning(ctx), false);
	return 0;
}

SEC("usdt")
int BPF_USDT(init_end_stacks)
{
	send_event(ctx, CLASS_INITIALIZED, since_beginning(ctx), true);
	return 0;
}

SEC("usdt")
int BPF_USDT(init_failed)
{
	send_event(ctx, CLASS_FAILED, since_beginning(ctx), false);
	return 0;
}

SEC("usdt")
int BPF_USDT(init_failed_stacks)
{
	send_event(ctx, CLASS_FAILED, since_beginning(ctx), true);
	return 0;
}

/* The class is already initialised, or an earlier attempt to initialise it has failed. */
SEC("usdt")
int BPF_USDT(init_elsewhere)
{
	keep_own_stack();
	since_beginning(ctx);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
