/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Records when and why a JVM stopped its application threads, for the bands of a time axis. Included by the
 * tracers that have a time axis. They define STOPS_OF, a map with a key for each traced JVM, and EVENT_STOP,
 * the `kind` of the events sent.
 *
 * Stops follow each other on the VM Thread and never nest.
 */
#ifndef JVMPROBE_STOPS_BPF_H
#define JVMPROBE_STOPS_BPF_H

#include "stops.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct stop_event);
} stops SEC(".maps");

struct stop_event unused_stop;

/* hs_private:safepoint__begin() */
SEC("usdt")
int BPF_USDT(stop_begins)
{
	__u64 target = target_key(bpf_usdt_cookie(ctx));
	struct stop_event stop = { .kind = EVENT_STOP, .target = target };

	if (!bpf_map_lookup_elem(&STOPS_OF, &target))
		return 0;
	stop.begin = bpf_ktime_get_ns();
	bpf_map_update_elem(&stops, &target, &stop, BPF_ANY);
	return 0;
}

/* hotspot:vmops__begin(name, length, mode) */
SEC("usdt")
int BPF_USDT(stop_operation)
{
	__u64 target = target_key(bpf_usdt_cookie(ctx));
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &target);

	/* If one stop runs several operations, the first one names it. */
	if (stop && !stop->name[0])
		read_usdt_name(ctx, 0, stop->name, STOP_LEN);
	return 0;
}

/* hotspot:gc__begin(full) */
SEC("usdt")
int BPF_USDT(stop_gc_begins)
{
	__u64 target = target_key(bpf_usdt_cookie(ctx));
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &target);

	if (stop)
		stop->is_gc = 1;
	return 0;
}

/* hs_private:safepoint__end() */
SEC("usdt")
int BPF_USDT(stop_ends)
{
	__u64 target = target_key(bpf_usdt_cookie(ctx));
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &target);

	if (!stop)
		return 0;
	stop->end = bpf_ktime_get_ns();
	send(target, stop, sizeof(*stop));
	bpf_map_delete_elem(&stops, &target);
	return 0;
}

#endif
