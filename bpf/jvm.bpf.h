/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What every tracer shares on the kernel side: who is being traced, reading
 * the target's strings, and counting what is lost.
 *
 * Only uapi headers: no kernel type is touched, so that the object needs
 * neither a generated vmlinux.h to build nor kernel BTF to load.
 */
#ifndef JVMPROBE_JVM_BPF_H
#define JVMPROBE_JVM_BPF_H

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <linux/errno.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
/*
 * Slots for the ways in which USDT probes pass their arguments. Each build of a libjvm.so takes some
 * ten, and one that is made to take many takes a hundred (MAX_SPELLINGS in elf/stapsdt.rs).
 */
#define BPF_USDT_MAX_SPEC_CNT 1024
#include <bpf/usdt.bpf.h>

/*
 * One JVM per key: see target_key().
 *
 * No map here says BPF_F_NO_PREALLOC: before Linux 6.1 a program that traces may not have such
 * maps (perf_event), or the kernel prints a warning. User space adds it to large ones where it
 * may: trace::room.
 */
#define MAX_TARGETS 4096

#include "cost.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, __u64);
} lost_events SEC(".maps");

/* Whether whoever reads events looks for them by itself. */
const volatile bool wakes_late = false;

/* How to send an event. */
static __always_inline __u64 wake(void)
{
	if (!wakes_late)
		return 0;
	/* So that what comes until it has looked finds room. */
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >
			       bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) / 4 ?
		       BPF_RB_FORCE_WAKEUP :
		       BPF_RB_NO_WAKEUP;
}

/* Never. */
const volatile bool calls_tail = false;

/*
 * Keeps a program that a uprobe or a USDT probe runs on the stack of its task.
 *
 * From Linux 6.13 on, what such a program has on its stack lies in memory of the processor (the
 * JIT's "private stack"), and nothing keeps a second thread off it: the program may be preempted
 * where the kernel is, and the next thread that comes to the probe overwrites pointers of the
 * first. Seen on 7.3: an oops that killed threads of the JVM, and sums a million times too high.
 * Programs in which there is a tail call, reached or not, have no private stack
 * (kernel/bpf/verifier.c: check_subprogs, check_max_stack_depth).
 */
static __always_inline void keep_own_stack(void)
{
	if (calls_tail)
		bpf_tail_call(NULL, NULL, 0);
}

/* The key of the JVM that runs here: see target_key(). */
static __always_inline __u64 current_key(__u64 cookie)
{
	return cookie ? cookie : bpf_get_current_pid_tgid() >> 32;
}

/*
 * The cookie names the target where a probe is attached to one process: the
 * number that bpf_get_current_pid_tgid() gives belongs to the initial PID
 * namespace and need not be the one that the tool sees. Attached to every
 * process that maps a file, the cookie is zero and the tgid is the key.
 *
 * Every program of a probe asks for it, once: the hit is counted here.
 */
static __always_inline __u64 target_key(__u64 cookie)
{
	__u64 key = current_key(cookie);

	keep_own_stack();
	count_cost(key);
	return key;
}

/* Of a uprobe; zero where the kernel has none (before Linux 5.15). */
static __always_inline __u64 uprobe_cookie(struct pt_regs *ctx)
{
	return LINUX_HAS_BPF_COOKIE ? bpf_get_attach_cookie(ctx) : 0;
}

static __always_inline void count_lost(__u64 key)
{
	__u64 one = 1, *n = bpf_map_lookup_elem(&lost_events, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&lost_events, &key, &one, BPF_NOEXIST);
}

/* Sends an event, or counts it. */
static __always_inline void send(__u64 key, void *event, __u64 size)
{
	if (bpf_ringbuf_output(&events, event, size, wake()))
		count_lost(key);
}

/*
 * HotSpot's probe strings come with a length and without a NUL. `room` is a
 * constant power of two; dst is left zero-padded only where it was zero before.
 */
#define read_name(dst, room, ptr, len)                                     \
	do {                                                               \
		__u64 n_ = (len);                                          \
		if (n_ > (room) - 1)                                       \
			n_ = (room) - 1;                                   \
		/* The mask is for verifiers that lose the bound above. */ \
		bpf_probe_read_user((dst), n_ & ((room) - 1), (ptr));      \
	} while (0)

/* The same for a probe's argument `n`, a pointer, and the length behind it. */
#define read_usdt_name(ctx, n, dst, room)                           \
	do {                                                        \
		long ptr_ = 0, size_ = 0;                           \
		bpf_usdt_arg((ctx), (n), &ptr_);                    \
		bpf_usdt_arg((ctx), (n) + 1, &size_);               \
		read_name((dst), (room), (void *)ptr_, size_);      \
	} while (0)

#endif
