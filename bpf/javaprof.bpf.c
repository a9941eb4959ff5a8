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
#include "jvm.bpf.h"
#include "javaprof.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool every_process = false;
const volatile bool want_user = true;
const volatile bool want_kernel = true;
/* Whether the kernel has BTF, without which task_pt_regs() is out of reach. */
const volatile bool has_btf = true;
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

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

static __always_inline void count_lost_sample(void)
{
	count_lost(LOST_SAMPLES);
}

/* Sends a stack unless user space knows it; 0 when it could not be sent. */
static __always_inline __u64 intern(struct stack_event *stack, __u64 hash)
{
	__u64 size = stack->count * sizeof(__u64);
	__u8 one = 1;

	if (!stack->count)
		return 0;
	/* 0 means none. */
	stack->id = hash | 1;
	if (bpf_map_lookup_elem(&known_stacks, &stack->id))
		return stack->id;
	stack->kind = EVENT_STACK;
	if (size > sizeof(stack->frames))
		return 0;
	/* Not marked as known when there was no room: the next sample tries again. */
	if (!bpf_ringbuf_output(&events, stack, offsetof(struct stack_event, frames) + size, 0))
		bpf_map_update_elem(&known_stacks, &stack->id, &one, BPF_ANY);
	return stack->id;
}

/* A stack as the kernel walks it. */
static __always_inline __u64 kernels_walk(void *ctx, struct stack_event *stack, __u64 flags)
{
	long bytes = bpf_get_stack(ctx, stack->frames, MAX_KERNEL_FRAMES * sizeof(__u64), flags);
	__u64 hash = 0;
	__u32 i;

	if (bytes <= 0)
		return 0;
	stack->count = bytes / sizeof(__u64);
	for (i = 0; i < MAX_KERNEL_FRAMES; i++) {
		if (i >= stack->count)
			break;
		hash = mix(hash, stack->frames[i]);
	}
	return intern(stack, hash);
}

struct frame {
	__u64 fp;
	__u64 ip;
};

#if defined(__TARGET_ARCH_x86)
#define IN_USER_MODE(regs) ((regs)->cs & 3)
#elif defined(__TARGET_ARCH_arm64)
#define IN_USER_MODE(regs) (!((regs)->pstate & 0xf))
#endif

/* The frame pointer convention is the same on x86-64 and aarch64: a saved frame
 * pointer with the return address above it. */
static __always_inline __u64 user_stack(struct stack_event *stack, __u64 ip, __u64 sp, __u64 fp,
					__u32 *end)
{
	struct frame frame = {};
	__u64 hash;
	__u32 i;

	stack->frames[0] = ip;
	stack->count = 1;
	hash = mix(0, ip);
	*end = END_TOO_DEEP;
	for (i = 1; i < MAX_FRAMES; i++) {
		if (!fp) {
			*end = END_OUTERMOST;
			break;
		}
		if (fp < sp || fp & 7) {
			*end = END_IMPLAUSIBLE;
			break;
		}
		if (bpf_probe_read_user(&frame, sizeof(frame), (void *)fp)) {
			*end = END_UNREADABLE;
			break;
		}
		if (!frame.ip) {
			*end = END_OUTERMOST;
			break;
		}
		stack->frames[i & (MAX_FRAMES - 1)] = frame.ip;
		stack->count = i + 1;
		hash = mix(hash, frame.ip);
		sp = fp + sizeof(frame);
		fp = frame.fp;
	}
	return intern(stack, mix(hash, *end));
}

static __always_inline __u64 user_part(struct bpf_perf_event_data *ctx, struct stack_event *stack,
				       __u32 *end)
{
	struct pt_regs regs = {};
	__u64 ip;

	if (IN_USER_MODE(&ctx->regs))
		return user_stack(stack, PT_REGS_IP(&ctx->regs), PT_REGS_SP(&ctx->regs),
				  PT_REGS_FP(&ctx->regs), end);
	if (!has_btf) {
		/* The registers of user mode cannot be had. */
		*end = END_OUTERMOST;
		return kernels_walk(ctx, stack, BPF_F_USER_STACK);
	}
	bpf_probe_read_kernel(&regs, sizeof(regs),
			      (void *)bpf_task_pt_regs(bpf_get_current_task_btf()));
	ip = PT_REGS_IP(&regs);
	/* A kernel thread has none. */
	if (!ip || !IN_USER_MODE(&regs))
		return 0;
	return user_stack(stack, ip, PT_REGS_SP(&regs), PT_REGS_FP(&regs), end);
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
	struct stack_event *stack;
	struct target *target;
	__u64 id, one = 1, *count;
	__u32 zero = 0;

	/* Tgid 0 is the idle task. */
	if (!current_ids(&key.tgid, &key.tid) || !key.tgid)
		return 0;
	id = key.tgid;
	target = bpf_map_lookup_elem(&targets, &id);
	if (!target && !every_process)
		return 0;
	stack = bpf_map_lookup_elem(&scratch, &zero);
	if (!stack)
		return 0;
	key.epoch = target ? target->epoch : 0;
	key.cpu = bpf_get_smp_processor_id();
	bpf_get_current_comm(key.comm, sizeof(key.comm));
	if (want_kernel && !IN_USER_MODE(&ctx->regs))
		key.kernel = kernels_walk(ctx, stack, 0);
	if (want_user)
		key.user = user_part(ctx, stack, &key.user_end);
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
