/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Cost of the probes to each JVM: every hit is counted, and the duration of one program run in four
 * is measured. User space adds the cost of the trap, which it has measured itself, to each hit. For programs
 * that the kernel calls without a trap or an interrupt, only the run time counts.
 */
#ifndef JVMPROBE_COST_BPF_H
#define JVMPROBE_COST_BPF_H

/* Whether costs are counted; set by a daemon. */
const volatile bool counts_costs = false;

/* Key of the entry that counts hits of processes without an entry of their own. */
#define COST_OF_OTHERS 0

/* Maximum duration of a measured run, in nanoseconds. A longer run is ignored, because it was preempted and
   its duration includes the time of other threads. */
#define MAX_RUN_NS 250000

struct cost {
	__u64 hits;
	__u64 timed;            /* number of measured runs */
	__u64 timed_ns;         /* total run time of these */
	__u64 untrapped_ns;     /* run time of programs that no trap calls, estimated */
	__u64 interrupts;       /* sampling interrupts; they are not included in hits */
	__u64 last_tgid;        /* process of the last hit; only in the entry of processes without their own */
};

/* One in this many runs of programs that no trap calls is measured; a power of two. */
#define UNTRAPPED_ONE_IN 16

/* User space adds and removes the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct cost);
} costs SEC(".maps");

static __always_inline struct cost *cost_of(__u64 key)
{
	struct cost *cost = bpf_map_lookup_elem(&costs, &key);

	if (cost)
		return cost;
	key = COST_OF_OTHERS;
	return bpf_map_lookup_elem(&costs, &key);
}

/* Counts one hit of a probe. */
static __always_inline void count_cost(__u64 key)
{
	__u64 others = COST_OF_OTHERS;
	struct cost *cost;

	if (!counts_costs)
		return;
	cost = bpf_map_lookup_elem(&costs, &key);
	if (!cost) {
		cost = bpf_map_lookup_elem(&costs, &others);
		if (cost)
			cost->last_tgid = bpf_get_current_pid_tgid() >> 32;
	}
	if (cost)
		__sync_fetch_and_add(&cost->hits, 1);
}

/* Counts one sampling interrupt. */
static __always_inline void count_interrupt(__u64 key)
{
	struct cost *cost = counts_costs ? cost_of(key) : NULL;

	if (cost)
		__sync_fetch_and_add(&cost->interrupts, 1);
}

/* Begins the measurement of a program's run. Returns the time in nanoseconds, or 0 if this run is not measured. */
static __always_inline __u64 begin_run(void)
{
	if (!counts_costs || bpf_get_prandom_u32() & 3)
		return 0;
	return bpf_ktime_get_ns();
}

/* Ends the measurement of a program's run. */
static __always_inline void end_run(__u64 key, __u64 begin)
{
	struct cost *cost;
	__u64 ns;

	if (!counts_costs || !begin)
		return;
	ns = bpf_ktime_get_ns() - begin;
	cost = ns < MAX_RUN_NS ? cost_of(key) : NULL;
	if (!cost)
		return;
	__sync_fetch_and_add(&cost->timed, 1);
	__sync_fetch_and_add(&cost->timed_ns, ns);
}

/* Begins the measurement of a program that no trap calls. Returns the time, or 0 if this run is not measured. */
static __always_inline __u64 begin_untrapped(void)
{
	if (!counts_costs || bpf_get_prandom_u32() & (UNTRAPPED_ONE_IN - 1))
		return 0;
	return bpf_ktime_get_ns();
}

/* Adds a measured run of a program that no trap calls, multiplied to represent those that were not measured. */
static __always_inline void count_untrapped(__u64 key, __u64 ns)
{
	struct cost *cost = ns < MAX_RUN_NS ? cost_of(key) : NULL;

	if (cost)
		__sync_fetch_and_add(&cost->untrapped_ns, UNTRAPPED_ONE_IN * ns);
}

#endif
