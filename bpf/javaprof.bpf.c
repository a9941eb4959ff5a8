// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javaprof: counts stacks, either at a frequency on each processor or at each occurrence of an event.
 *
 * Samples are counted in a map, under small keys that contain the ids of their stacks (walk/intern.bpf.h).
 * A sample costs nothing in user space until the counters are collected.
 *
 * Code that a JVM compiles may lie where other code lay before. Each load and unload in a JVM raises
 * its epoch, which is part of a sample's key, so that user space names an address by the code that was
 * there in that epoch.
 */
/* Number of levels of programs that may interrupt each other: see LEVEL_ below. */
#define WALK_LEVELS 3
/* Makes the walker recognise threads that are executing a probed instruction. Tools that walk stacks only at
   probes do not define this: their walks start at the original instruction, and the variables of their
   programs leave little of the BPF stack. */
#define WALKS_PROBED

#include "javaprof.h"
#include "thin.bpf.h"
#include "walk/intern.bpf.h"
#include "slots.bpf.h"
#include "spans.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool every_process = false;
/* Whether processes that user space has not classified yet are sampled, because they may turn out to be JVMs. */
const volatile bool samples_new_processes = false;
const volatile bool want_user = true;
const volatile bool want_kernel = true;
/* Whether processes may have limits; set by a daemon. */
const volatile bool has_limits = false;
/* PID namespace of this tool, whose PIDs the kernel side uses; 0: the initial one. */
const volatile __u64 pidns_dev = 0;
const volatile __u64 pidns_ino = 0;

/* For each event, by its index: whether thin.bpf.h keeps only some occurrences if there are too many. */
const volatile bool is_thinned[MAX_EVENTS] = {};
/* Index of the only event, for kernels that do not give programs a cookie (before Linux 5.15). */
const volatile __u32 only_event = 0;

/* Index of the event under which waits are counted. */
const volatile __u32 switch_event = 0;

/* Key of lost_events for lost samples; no process has the number 0. */
#define LOST_SAMPLES 0

/*
 * Levels of programs. Each level has walker memory of its own. Programs of uprobes share the first level and
 * lock its memory (LEVEL_LOCKED). Programs of perf events, tracepoints and kprobes may interrupt them, but not
 * each other, because the kernel runs none of these while another one runs on the processor
 * (bpf_prog_active). It does run programs of raw tracepoints meanwhile, so these have a level of their own.
 */
#define LEVEL_EVENT 1
#define LEVEL_SWITCH 2

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct target);
} targets SEC(".maps");

/* Processes that user space has found not to be JVMs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_IGNORED);
	__type(key, __u64);
	__type(value, __u8);
} ignored SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sizes it by the sampling frequency. */
	__uint(max_entries, 1 << 14);
	__type(key, struct sample_key);
	__type(value, struct sample_count);
} samples SEC(".maps");

/* Processes without an entry have no limits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct limits);
} limits_of SEC(".maps");

struct stack_event unused_stack;
struct limits unused_limits;
struct code_event unused_code;
struct sample_key unused_key;
struct sample_count unused_count;
struct label_event unused_label;
struct java_layout unused_java_layout;
struct thin_key unused_thin_key;
struct thin unused_thin;

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

/* Writes the ids of the current thread to the key and returns its target; NULL if its process is no target. Tgid 0,
   the idle task, belongs to no process. */
static __always_inline struct target *current_target(struct sample_key *key)
{
	__u64 id;

	if (!current_ids(&key->tgid, &key->tid) || !key->tgid) {
		key->tgid = 0;
		return NULL;
	}
	id = key->tgid;
	return bpf_map_lookup_elem(&targets, &id);
}

/* Writes the remaining properties of the current thread to the key. */
static __always_inline void describe(struct sample_key *key, const struct target *target)
{
	key->epoch = target ? target->epoch : 0;
	key->cpu = bpf_get_smp_processor_id();
	key->slot = slot_now();
	bpf_get_current_comm(key->comm, sizeof(key->comm));
}

/* Fills in the key for the current thread. Returns whether the thread is to be sampled. */
static __always_inline bool is_sampled(struct sample_key *key)
{
	struct target *target = current_target(key);
	__u64 id = key->tgid;

	if (!id)
		return false;
	if (!target && !every_process &&
	    (!samples_new_processes || bpf_map_lookup_elem(&ignored, &id)))
		return false;
	describe(key, target);
	return true;
}

static __always_inline void count(const struct sample_key *key, __u64 value)
{
	struct sample_count one = { .samples = 1, .value = value };
	struct sample_count *count = bpf_map_lookup_elem(&samples, key);

	if (!count) {
		if (!bpf_map_update_elem(&samples, key, &one, BPF_NOEXIST))
			return;
		/* Another thread has added the entry just now, or the map is full. */
		count = bpf_map_lookup_elem(&samples, key);
	}
	if (!count) {
		count_lost(LOST_SAMPLES);
		return;
	}
	__sync_fetch_and_add(&count->samples, 1);
	__sync_fetch_and_add(&count->value, value);
}

static __always_inline __u64 kernel_part(void *ctx, struct stack_event *event)
{
	__u64 hash = walk_by_kernel(ctx, 0, 0, &event->stack);

	return intern(event, hash, true);
}

static __always_inline struct limits *limits_for(__u64 key)
{
	return has_limits ? bpf_map_lookup_elem(&limits_of, &key) : NULL;
}

/* Returns whether this sample's stacks are not walked, because the control group of process `key` exceeds its
   share. Decides at random, with the probability in the process's limits. */
static __always_inline bool is_over_share(__u64 key)
{
	struct limits *limits = limits_for(key);

	return limits && limits->unwalked && bpf_get_prandom_u32() < limits->unwalked;
}

/* Walks the thread's stacks. `regs` are its registers if it is in user mode; if NULL, the thread is in the
   kernel, and the user stack is walked from where it entered the kernel. */
static __always_inline void walk_both(void *ctx, const bpf_user_pt_regs_t *regs,
				      struct sample_key *key, struct own_stack *own, __u32 level)
{
	struct stack_event *event = &own->event;
	__u64 hash;

	if (is_over_share(key->tgid)) {
		key->user = STACK_OVER_SHARE;
		return;
	}
	read_span(key->tgid, &key->span);
	if (want_kernel && !regs)
		key->kernel = kernel_part(ctx, event);
	if (!want_user)
		return;
	hash = regs ? walk(regs, key->tgid, &event->stack, level) :
		      walk_task(ctx, key->tgid, &event->stack, level);
	key->user_end = event->stack.end;
	key->user = intern(event, hash, true);
}

/* Returns the value that this event represents; 0 if it is left out. */
static __always_inline __u64 thinned_value(const struct sample_key *key, __u64 value)
{
	return is_thinned[key->event & (MAX_EVENTS - 1)] ?
		       thin(key->tgid, key->event, key->label, value) :
		       value;
}

static __always_inline int take_sample(struct bpf_perf_event_data *ctx)
{
	struct sample_key key = { .event = only_event };
	struct own_stack *own;
	__u64 value;

	if (!is_sampled(&key))
		return 0;
	if (LINUX_HAS_BPF_COOKIE)
		key.event = bpf_get_attach_cookie(ctx);
	value = thinned_value(&key, ctx->sample_period);
	own = own_stack(LEVEL_EVENT);
	if (!value || !own)
		return 0;
	if (in_user_mode(&ctx->regs))
		walk_both(ctx, &ctx->regs, &key, own, LEVEL_EVENT);
	else
		walk_both(ctx, NULL, &key, own, LEVEL_EVENT);
	count(&key, value);
	return 0;
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *ctx)
{
	__u64 begin = begin_run();
	__u32 tgid = 0, tid;

	/* Interrupts of an idle processor delay no thread, so they cost nothing. */
	if (counts_costs && current_ids(&tgid, &tid) && tgid)
		count_interrupt(tgid);
	take_sample(ctx);
	if (tgid)
		end_run(tgid, begin);
	return 0;
}

/* Counts an event whose program runs in the context of a thread that is in the kernel. */
static __always_inline int count_in_kernel(void *ctx, __u64 event)
{
	struct sample_key key = { .event = event };
	struct own_stack *own;
	__u64 value;

	if (!is_sampled(&key))
		return 0;
	value = thinned_value(&key, 1);
	own = own_stack(LEVEL_EVENT);
	if (!value || !own)
		return 0;
	walk_both(ctx, NULL, &key, own, LEVEL_EVENT);
	count(&key, value);
	return 0;
}

SEC("tracepoint")
int any_tracepoint(void *ctx)
{
	return count_in_kernel(ctx, LINUX_HAS_BPF_COOKIE ? bpf_get_attach_cookie(ctx) : only_event);
}

SEC("kprobe")
int any_kprobe(struct pt_regs *ctx)
{
	return count_in_kernel(ctx, uprobe_cookie(ctx));
}

/* Begins a program of a user-space probe: sets the event and the thread in the key. Returns whether the hit is to
   be counted. */
static __always_inline bool is_hit_sampled(struct sample_key *key, __u64 event)
{
	keep_own_stack();
	key->event = event;
	return is_sampled(key);
}

/* Walks the stack of a thread that has hit a user-space probe, and counts the hit. */
static __always_inline void count_hit_of(struct pt_regs *ctx, struct sample_key *key)
{
	__u64 value = thinned_value(key, 1);
	struct own_stack *own;

	if (!value)
		return;
	own = lock_stack();
	if (own) {
		walk_both(ctx, (const bpf_user_pt_regs_t *)ctx, key, own, LEVEL_LOCKED);
		unlock_stack(own);
	} else {
		/* A preempted program holds the memory, so the stack cannot be walked. User space reports it
		   as lost. */
		key->user = STACK_OTHER;
	}
	count(key, value);
}

SEC("uprobe")
int any_uprobe(struct pt_regs *ctx)
{
	struct sample_key key = {};

	if (is_hit_sampled(&key, uprobe_cookie(ctx)))
		count_hit_of(ctx, &key);
	return 0;
}

SEC("usdt")
int BPF_USDT(any_usdt)
{
	struct sample_key key = {};

	if (is_hit_sampled(&key, bpf_usdt_cookie(ctx)))
		count_hit_of(ctx, &key);
	return 0;
}

#include "javaevents.bpf.h"
#include "offcpu.bpf.h"
#include "asleep.bpf.h"
#include "waits.bpf.h"
#define STOPS_OF targets
#include "stops.bpf.h"

/*
 * Sends a load or an unload of code, unless the limits of its process exclude that. Raises the epoch before
 * the code can run (load) or be replaced (unload), so that later samples belong to the new epoch.
 */
static __always_inline int code(struct pt_regs *ctx, bool load)
{
	__u64 key = target_key(bpf_usdt_cookie(ctx));
	struct target *target = bpf_map_lookup_elem(&targets, &key);
	struct limits *limits = limits_for(key);
	struct code_event *event;

	if (!target)
		return 0;
	if (limits && limits->leaves_out_code) {
		__sync_fetch_and_add(&limits->left_out, 1);
		return 0;
	}
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
	bpf_ringbuf_submit(event, wake());
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
