// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javaprof: samples processors at a frequency and counts stacks.
 *
 * A sample is a count under a small key; the stacks themselves are sent to user
 * space when they first appear and are known by a hash from then on. So a stack
 * of a thousand frames costs its eight kilobytes once, and samples cost nothing
 * in user space until they are collected.
 *
 * Code that a JVM compiles may lie where other code lay before. Each load and
 * unload in a JVM raises its epoch, which is part of a sample's key: user space
 * names an address by what lay there in that epoch.
 */
#include "walk.bpf.h"
#include "javaprof.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool every_process = false;
/* Processes that user space knows nothing of yet may turn out to be JVMs. */
const volatile bool newcomers = false;
const volatile bool want_user = true;
const volatile bool want_kernel = true;
/* Whether task_pt_regs() is there: Linux 5.15, with BTF. */
const volatile bool has_user_registers = true;
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

/*
 * Stacks that user space has been told of; it empties the map when it fills up.
 * Not an LRU map: hardware samples come as NMIs, in which its locks may deadlock.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, __u8);
} known_stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack_event);
} scratch SEC(".maps");

struct stack_event unused_stack;
struct code_event unused_code;
struct sample_key unused_key;

static __always_inline void count_lost_sample(void)
{
	count_lost(LOST_SAMPLES);
}

/* Sends a stack unless user space knows it; 0 when it could not be sent. */
static __always_inline __u64 intern(struct stack_event *event, __u64 hash)
{
	__u64 size = event->stack.count * sizeof(__u64);
	__u8 one = 1;

	if (!event->stack.count)
		return 0;
	/* Two processes may have the same addresses, and other code there. */
	if (event->stack.target)
		hash = mix(hash, event->stack.target);
	/* 0 means none. */
	event->id = hash | 1;
	if (bpf_map_lookup_elem(&known_stacks, &event->id))
		return event->id;
	event->kind = EVENT_STACK;
	if (size > sizeof(event->stack.frames))
		return 0;
	/* Not marked as known when there was no room: the next sample tries again. */
	if (!bpf_ringbuf_output(&events, event, offsetof(struct stack_event, stack.frames) + size,
				0))
		bpf_map_update_elem(&known_stacks, &event->id, &one, BPF_ANY);
	return event->id;
}

/* A stack as the kernel walks it: a process's, or (0) its own, which all processes share. */
static __always_inline __u64 kernels_walk(void *ctx, struct stack_event *event, __u64 target,
					  __u64 flags)
{
	struct walked *stack = &event->stack;
	long bytes = bpf_get_stack(ctx, stack->frames, MAX_KERNEL_FRAMES * sizeof(__u64), flags);
	__u64 hash = 0;
	__u32 i;

	if (bytes <= 0)
		return 0;
	stack->target = target;
	stack->unloads = 0;
	stack->end = END_OUTERMOST;
	stack->count = bytes / sizeof(__u64);
	for (i = 0; i < MAX_KERNEL_FRAMES; i++) {
		if (i >= stack->count)
			break;
		hash = mix(hash, stack->frames[i]);
	}
	return intern(event, hash);
}

#if defined(__TARGET_ARCH_x86)
#define IN_USER_MODE(regs) ((regs)->cs & 3)
#elif defined(__TARGET_ARCH_arm64)
#define IN_USER_MODE(regs) (!((regs)->pstate & 0xf))
#endif

static __always_inline __u64 user_part(struct bpf_perf_event_data *ctx, __u64 key,
				       struct stack_event *event, __u32 *end)
{
	struct pt_regs regs = {};
	__u64 hash;

	if (IN_USER_MODE(&ctx->regs)) {
		hash = walk(&ctx->regs, key, &event->stack);
		*end = event->stack.end;
		return intern(event, hash);
	}
	if (!has_user_registers) {
		/* The registers of user mode cannot be had. */
		*end = END_OUTERMOST;
		return kernels_walk(ctx, event, key, BPF_F_USER_STACK);
	}
	bpf_probe_read_kernel(&regs, sizeof(regs),
			      (void *)bpf_task_pt_regs(bpf_get_current_task_btf()));
	/* A kernel thread has none. */
	if (!PT_REGS_IP(&regs) || !IN_USER_MODE(&regs))
		return 0;
	hash = walk(&regs, key, &event->stack);
	*end = event->stack.end;
	return intern(event, hash);
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
	struct stack_event *event;
	struct target *target;
	__u64 id, one = 1, *count;
	__u32 zero = 0;

	/* Tgid 0 is the idle task. */
	if (!current_ids(&key.tgid, &key.tid) || !key.tgid)
		return 0;
	id = key.tgid;
	target = bpf_map_lookup_elem(&targets, &id);
	if (!target && !every_process &&
	    (!newcomers || bpf_map_lookup_elem(&ignored, &id)))
		return 0;
	event = bpf_map_lookup_elem(&scratch, &zero);
	if (!event)
		return 0;
	key.epoch = target ? target->epoch : 0;
	key.cpu = bpf_get_smp_processor_id();
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	if (want_kernel && !IN_USER_MODE(&ctx->regs))
		key.kernel = kernels_walk(ctx, event, 0, 0);
	if (want_user)
		key.user = user_part(ctx, id, event, &key.user_end);
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
