/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Kernel side shared by all tracers: the key of the traced JVM, reading the target's strings, sending
 * events and counting lost ones.
 *
 * This file includes uapi headers only and touches no kernel type, so that the object needs neither a
 * generated vmlinux.h to build nor kernel BTF to load.
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
 * Maximum number of USDT argument specifications. A normal libjvm.so needs about ten. For a crafted one, user
 * space accepts at most MAX_ARG_SPECS (elf/stapsdt.rs) for each probe, so all probes together need about a hundred.
 */
#define BPF_USDT_MAX_SPEC_CNT 1024
#include <bpf/usdt.bpf.h>

/*
 * Maximum number of traced JVMs. Maps hold one entry for each JVM, under its key: see target_key().
 *
 * No map here sets BPF_F_NO_PREALLOC, because before Linux 6.1 the verifier rejects perf_event programs that
 * use such maps, and prints a warning for other tracing programs. User space sets the flag on large maps
 * where the kernel allows it: libjvmprobe/src/bpf/sparse_map.rs.
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

/* Whether user space polls the ring buffer at regular intervals, so that an event need not wake it. */
const volatile bool polls_regularly = false;

/* Returns the wake-up flags for submitting an event to the ring buffer. */
static __always_inline __u64 wake(void)
{
	if (!polls_regularly)
		return 0;
	/* Wakes user space when the buffer is a quarter full. The other three quarters have space for the
	   events that are sent before user space reads the buffer. */
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >
			       bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) / 4 ?
		       BPF_RB_FORCE_WAKEUP :
		       BPF_RB_NO_WAKEUP;
}

/* Always false: see keep_own_stack(). */
const volatile bool calls_tail = false;

/*
 * Keeps the BPF stack of a uprobe or USDT program on the kernel stack of the thread that hit the probe.
 *
 * From Linux 6.13 on, the JIT gives such a program a "private stack" in per-CPU memory. On a preemptible
 * kernel, the program may be preempted. If the next thread on this processor then hits the probe, it
 * overwrites the stack of the preempted program. On Linux 7.3, this caused an oops that killed threads of the
 * JVM, and sums that were a million times too high. A program that contains a tail call gets no private
 * stack, even if the call is never executed (kernel/bpf/verifier.c: check_subprogs, check_max_stack_depth).
 */
static __always_inline void keep_own_stack(void)
{
	if (calls_tail)
		bpf_tail_call(NULL, NULL, 0);
}

/* Reads a word of the target's memory; 0 if it cannot be read. */
static __always_inline __u64 read_u64(__u64 addr)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)addr);
	return value;
}

/* Returns the key of the JVM that the current thread belongs to: see target_key(). */
static __always_inline __u64 current_key(__u64 cookie)
{
	return cookie ? cookie : bpf_get_current_pid_tgid() >> 32;
}

/*
 * Returns the key of the target. If the probe is attached to every process that maps a file, the cookie is
 * zero and the tgid is the key. If the probe is attached to one process, the attach cookie is the key,
 * because the number that bpf_get_current_pid_tgid() returns belongs to the initial PID namespace and may
 * differ from the one that the tool sees.
 *
 * A program calls this function at most once, because each call counts a hit.
 */
static __always_inline __u64 target_key(__u64 cookie)
{
	__u64 key = current_key(cookie);

	keep_own_stack();
	count_cost(key);
	return key;
}

/* Returns the attach cookie of a uprobe or kprobe; zero if the kernel has no cookies (before Linux 5.15). */
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

/* Sends an event. If the ring buffer is full, counts the event as lost. */
static __always_inline void send(__u64 key, void *event, __u64 size)
{
	if (bpf_ringbuf_output(&events, event, size, wake()))
		count_lost(key);
}

/*
 * Reads a string argument of one of HotSpot's probes. Such a string has a length and no terminating NUL.
 * `capacity`, the size of dst, is a constant power of two. The rest of dst is left unchanged, so the caller
 * must zero dst first.
 */
#define read_name(dst, capacity, ptr, len)                                \
	do {                                                              \
		__u64 n_ = (len);                                         \
		if (n_ > (capacity) - 1)                                  \
			n_ = (capacity) - 1;                              \
		/* The mask is for verifiers that do not track the bound above. */ \
		bpf_probe_read_user((dst), n_ & ((capacity) - 1), (ptr)); \
	} while (0)

/* Reads the string whose pointer is the probe's argument `n` and whose length is the argument after it. */
#define read_usdt_name(ctx, n, dst, capacity)                      \
	do {                                                       \
		long ptr_ = 0, size_ = 0;                          \
		bpf_usdt_arg((ctx), (n), &ptr_);                   \
		bpf_usdt_arg((ctx), (n) + 1, &size_);              \
		read_name((dst), (capacity), (void *)ptr_, size_); \
	} while (0)

#endif
