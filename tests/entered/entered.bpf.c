// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* entered: records each entered method once, in a map. */
#include "jvm.bpf.h"

#define CLASS_LEN 128
#define NAME_LEN 64
#define DESCRIPTOR_LEN 128
#define MAX_METHODS 200000

struct entered_method {
	char class[CLASS_LEN];
	char name[NAME_LEN];
	char descriptor[DESCRIPTOR_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_METHODS);
	__type(key, struct entered_method);
	__type(value, __u64);
} methods SEC(".maps");

/*
 * hotspot:method__entry(thread, class, length, name, length, descriptor, length),
 * src/hotspot/share/runtime/sharedRuntime.cpp.
 */
SEC("usdt")
int BPF_USDT(method_entry)
{
	struct entered_method method = {};
	__u64 key = target_key(bpf_usdt_cookie(ctx)), one = 1;

	read_usdt_name(ctx, 1, method.class, CLASS_LEN);
	read_usdt_name(ctx, 3, method.name, NAME_LEN);
	read_usdt_name(ctx, 5, method.descriptor, DESCRIPTOR_LEN);
	if (!bpf_map_lookup_elem(&methods, &method) &&
	    bpf_map_update_elem(&methods, &method, &one, BPF_ANY))
		count_lost(key);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
