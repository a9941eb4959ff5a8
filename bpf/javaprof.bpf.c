// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javaprof: samples processors at a frequency and counts stacks.
 *
 * A sample is a count under a small key, in which its stacks are numbers
 * (walk/intern.bpf.h): it costs nothing in user space until it is collected.
 *
 * Code that a JVM compiles may lie where other code lay before. Each load and
 * unload in a JVM raises its epoch, which is part of a sample's key: user space
 * names an address by what lay there in that epoch.
 */
#include "javaprof.h"
#include "walk/intern.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool every_process = false;
/* Processes that user space knows nothing of yet may turn out to be JVMs. */
const volatile bool newcomers = false;
const volatile bool want_user = true;
const volatile bool want_kernel = true;
/* Our PID namespace, by whose numbers processes are known; 0: the initial one. */
const volatile __u64 pidns_dev = 0;
const volatile __u64 pidns_ino = 0;

/* Lost samples, under this key of lost_events: no process has the number 0. */
#define LOST_SAMPLES 0

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct target);
} targets SEC(".maps");

/* Processes that have been looked at and are no JVMs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_IGNORED);
	__type(key, __u64);
	__type(value, __u8);
} ignored SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it by the frequency. */
	__uint(max_entries, 1 << 14);
	__type(key, struct sample_key);
	__type(value, __u64);
} samples SEC(".maps");

struct stack_event unused_stack;
struct code_event unused_code;
struct sample_key unused_key;

static __always_inline void count_lost_sample(void)
{
	count_lost(LOST_SAMPLES);
}

static __always_inline __u64 kernel_part(void *ctx, struct stack_event *event)
{
	__u64 hash = walk_by_kernel(ctx, 0, 0, &event->stack);

	return intern(event, hash, true);
}

static __always_inline __u64 user_part(struct bpf_perf_event_data *ctx, __u64 key,
				       struct stack_event *event, __u32 *end)
{
	__u64 hash = in_user_mode(&ctx->regs) ? walk(&ctx->regs, key, &event->stack) :
						walk_task(ctx, key, &event->stack);

	*end = event->stack.end;
	return intern(event, hash, true);
}

static __always_inline bool current_ids(__u32 *tgid, __u32 *tid)
{
	struct bpf_pidns_info info = {};
	__u64 both;

	if (pidns_ino) {
		if (bpf_get_ns_current_pid_tgid(pidns_dev, pidns_ino, &info, sizeof(info)))
			return false;
		*tgid = info.tgid;
		*tid = info.pid;
		return true;
	}
	both = bpf_get_current_pid_tgid();
	*tgid = both >> 32;
	*tid = (__u32)both;
	return true;
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *ctx)
{
	struct sample_key key = {};
	struct own_stack *own;
	struct target *target;
	__u64 id, one = 1, *count;

	/* Tgid 0 is the idle task. */
	if (!current_ids(&key.tgid, &key.tid) || !key.tgid)
		return 0;
	id = key.tgid;
	target = bpf_map_lookup_elem(&targets, &id);
	if (!target && !every_process &&
	    (!newcomers || bpf_map_lookup_elem(&ignored, &id)))
		return 0;
	own = own_stack();
	if (!own)
		return 0;
	key.epoch = target ? target->epoch : 0;
	key.cpu = bpf_get_smp_processor_id();
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	if (want_kernel && !in_user_mode(&ctx->regs))
		key.kernel = kernel_part(ctx, &own->event);
	if (want_user)
		key.user = user_part(ctx, id, &own->event, &key.user_end);
	count = bpf_map_lookup_elem(&samples, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (bpf_map_update_elem(&samples, &key, &one, BPF_NOEXIST))
		count_lost_sample();
	return 0;
}

/*
 * Raises the epoch before the code can run (load) or be replaced (unload): what
 * is sampled from now on belongs to the new one.
 */
static __always_inline int code(struct pt_regs *ctx, bool load)
{
	__u64 key = target_key(bpf_usdt_cookie(ctx));
	struct target *target = bpf_map_lookup_elem(&targets, &key);
	struct code_event *event;

	if (!target)
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost(key);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = EVENT_CODE;
	event->target = key;
	event->epoch = __sync_fetch_and_add(&target->epoch, 1) + 1;
	read_usdt_name(ctx, 0, event->klass, NAME_LEN);
	read_usdt_name(ctx, 2, event->method, NAME_LEN);
	read_usdt_name(ctx, 4, event->signature, NAME_LEN);
	if (load) {
		bpf_usdt_arg(ctx, 6, (long *)&event->addr);
		bpf_usdt_arg(ctx, 7, (long *)&event->size);
	}
	bpf_ringbuf_submit(event, 0);
	return 0;
}

SEC("usdt")
int BPF_USDT(code_load)
{
	return code(ctx, true);
}

SEC("usdt")
int BPF_USDT(code_unload)
{
	return code(ctx, false);
}
