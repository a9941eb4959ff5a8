// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javawait: each wait of a JVM's threads above a minimum, with what the thread waited for and which thread ended the
 * wait.
 *
 * When a wait ends, the waiting thread is on a processor again, but has not left the kernel. So its JavaThread still says
 * what it waited for, and the arguments of its system call are known. When a wait is ended by another thread, that
 * thread is in the kernel, too: its stack is that of the release of the lock.
 */
/* The programs run in the scheduler, and do not interrupt each other at one level: see walk/intern.bpf.h. */
#define WALK_LEVELS 3
#define LEVEL_WAITED 1
#define LEVEL_WAKER 2
#define WALKS_PROBED

#include "javawait.h"
#include "walk/intern.bpf.h"
#include "class.bpf.h"
#include "tasks.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile bool want_kernel = true;
/* PID namespaces other than the initial one are not supported, because JavaThreads are found by thread IDs. */
const volatile __u64 pidns_ino = 0;
/* Whether the stacks of threads that end waits are walked. */
const volatile bool walks_wakers = true;
/* Offsets of task_struct.throttled (Linux 6.18), or of task_struct.se.cfs_rq and cfs_rq.throttle_count; 0: none. */
const volatile __u32 task_throttled = 0;
const volatile __u32 task_cfs_rq = 0;
const volatile __u32 cfs_rq_throttle_count = 0;

/* futex(2) */
#define FUTEX_WAIT 0
#define FUTEX_WAIT_BITSET 9
#define FUTEX_OPERATION 0x7f

/* Key of lost_events for threads without an entry; no process has the number 0. */
#define LOST_SAMPLES 0

/* The traced JVMs, by PID. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u32);
	__type(value, struct traced_jvm);
} targets SEC(".maps");

/* Addresses of JavaThreads, by thread ID. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it, as that of the next two. */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} java_threads SEC(".maps");

/* The thread that has woken a thread, by the ID of the latter. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waker);
} wakers SEC(".maps");

/* Number of threads that a thread has woken by futex(2) so far, without those that have waited for less than MUTEX_NS. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} wakes SEC(".maps");

/* A shorter wait may be for one of the mutexes by which threads park, and says nothing about the lock of a Java program. */
#define MUTEX_NS 50000

/* Running time in nanoseconds within which the next wait of a thread may belong to the last one. */
#define FOLLOWS_NS 150000

struct traced_jvm unused_jvm_fields;
struct wait_event unused_wait;
struct thread_event unused_thread_event;
struct stack_event unused_stack;

static __always_inline bool current_ids(__u32 *tgid, __u32 *tid)
{
	__u64 both = bpf_get_current_pid_tgid();

	*tgid = both >> 32;
	*tid = (__u32)both;
	return true;
}

#include "offcpu.bpf.h"
#include "asleep.bpf.h"
#include "wait_limits.bpf.h"

static __always_inline bool is_traced(__u32 tgid, __u64 *since)
{
	struct traced_jvm *jvm = bpf_map_lookup_elem(&targets, &tgid);

	if (jvm)
		*since = jvm->since;
	return jvm;
}

/* Follows a field of the JVM that refers to an object. */
static __always_inline __u64 object_of(const struct traced_jvm *jvm, __u64 field)
{
	__u64 word = read_u64(field);

	if (jvm->has_handles && word)
		word = read_u64(word);
	return jvm->form == REFERENCE_COLORED ? uncolored(word) : word;
}

/* Reads a field of an object that refers to another one. */
static __always_inline __u64 reference_at(const struct traced_jvm *jvm, __u64 field)
{
	__u64 word = read_u64(field);

	if (jvm->form == REFERENCE_NARROW)
		return (__u32)word ? jvm->base + ((__u64)(__u32)word << (jvm->shift & 63)) : 0;
	return jvm->form == REFERENCE_COLORED ? uncolored(word) : word;
}

/* Reads a field of a JavaThread that refers to a monitor. */
static __always_inline void read_monitor(const struct traced_jvm *jvm, __u64 field,
					 struct awaited *awaited)
{
	awaited->monitor = read_u64(field);
	if (!awaited->monitor)
		return;
	awaited->object = object_of(jvm, awaited->monitor + jvm->monitor_object);
	if (awaited->object)
		awaited->klass = class_of(&jvm->class, awaited->object);
}

/* Returns the number of the virtual thread that is mounted on a thread; 0 if none is. */
static __always_inline __u64 mounted_on(const struct traced_jvm *jvm, __u64 java_thread)
{
	__u64 own, mounted;

	if (!jvm->virtual_thread || !java_thread)
		return 0;
	own = object_of(jvm, java_thread + jvm->thread_object);
	mounted = object_of(jvm, java_thread + jvm->virtual_thread);
	return mounted && mounted != own ? read_u64(mounted + jvm->number) : 0;
}

/* Whether the control group of a task has used up its CPU time. */
static __always_inline bool is_throttled(__u64 task)
{
	__u8 throttled = 0;

	if (task_throttled) {
		bpf_probe_read_kernel(&throttled, sizeof(throttled), (void *)(task + task_throttled));
		return throttled;
	}
	return task_cfs_rq && task_u32(task_u64(task, task_cfs_rq), cfs_rq_throttle_count);
}

/* The system call of a thread. */
struct system_call {
	__u64 number;
	__u64 args[4];
};

/* Reads the system call of the current thread. Returns false if the thread has none. Reads single registers, because the
   BPF stack has no space for all of them. */
static __always_inline bool current_call(struct system_call *call)
{
	const bpf_user_pt_regs_t *regs;
	__u32 i;

	if (!has_user_registers)
		return false;
	regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	{
		const void *args[] = { CALL_ARGUMENTS(regs) };

		if (bpf_probe_read_kernel(&call->number, sizeof(__u64), CALL_NUMBER(regs)))
			return false;
		for (i = 0; i < 4; i++)
			bpf_probe_read_kernel(&call->args[i], sizeof(__u64), args[i]);
	}
	return (__s32)call->number >= 0;
}

static __always_inline void thread_woken(void *ctx, __u64 task, struct thread *thread, __u64 now)
{
	struct waker waker = { .woken = now, .call = -1 };
	__u64 both, *count, *java_thread, one = 1, operation = FUTEX_WAIT;
	struct traced_jvm *jvm;
	struct system_call call = {};
	struct own_stack *own;
	bool is_long;

	/* Since Linux 6.18, a thread that is woken runs until it leaves the kernel, whatever its control group has used. */
	if (!task_throttled && is_throttled(task))
		thread->flags |= WAIT_WOKEN_THROTTLED;
	is_long = now - thread->since >= min_wait || wants_short(thread);
	if (!is_long && now - thread->since < MUTEX_NS)
		return;
	both = bpf_get_current_pid_tgid();
	waker.tgid = both >> 32;
	waker.tid = (__u32)both;
	if (!waker.tid)
		return;
	if (current_call(&call)) {
		waker.call = (__s32)call.number;
		waker.address = call.args[0];
		operation = call.args[1] & FUTEX_OPERATION;
	}
	/* An interrupt may have come while the thread waits for a futex. */
	if (waker.call == CALL_FUTEX && operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET &&
	    now - thread->since >= MUTEX_NS) {
		count = bpf_map_lookup_elem(&wakes, &waker.tid);
		if (count)
			__sync_fetch_and_add(count, 1);
		else
			bpf_map_update_elem(&wakes, &waker.tid, &one, BPF_NOEXIST);
	}
	/* The entry of a shorter wait's waker remains, and has another time. */
	if (!is_long)
		return;
	bpf_get_current_comm(waker.comm, sizeof(waker.comm));
	jvm = bpf_map_lookup_elem(&targets, &waker.tgid);
	/* If an interrupt ends the wait, its functions are among the kernel's frames. */
	own = walks_wakers ? own_stack(LEVEL_WAKER) : NULL;
	if (own)
		waker.kernel = intern(&own->event, walk_by_kernel(ctx, 0, 0, &own->event.stack), true);
	if (jvm) {
		if (own)
			waker.user = intern(&own->event,
					    walk_task(ctx, jvm->key, &own->event.stack, LEVEL_WAKER), true);
		java_thread = bpf_map_lookup_elem(&java_threads, &waker.tid);
		if (java_thread)
			waker.number = mounted_on(jvm, *java_thread);
	}
	/* If the map is full, the waker is unknown. */
	bpf_map_update_elem(&wakers, &thread->tid, &waker, BPF_ANY);
}

/* Reads what a JVM stores about the wait of the current thread. */
static __always_inline void read_java(struct wait_event *event, const struct traced_jvm *jvm,
				      __u64 java_thread)
{
	__u64 object;

	if (!java_thread || !jvm->thread_object)
		return;
	event->java_thread = java_thread;
	read_monitor(jvm, event->java_thread + jvm->pending_monitor, &event->enters);
	read_monitor(jvm, event->java_thread + jvm->waiting_monitor, &event->waits_for);
	event->number = mounted_on(jvm, event->java_thread);
	/* A mounted virtual thread that parks its carrier has its own blocker. */
	object = object_of(jvm, event->java_thread + (event->number ? jvm->virtual_thread :
									 jvm->thread_object));
	if (!object || !jvm->park_blocker)
		return;
	event->parks_for.object = reference_at(jvm, object + jvm->park_blocker);
	if (event->parks_for.object)
		event->parks_for.klass = class_of(&jvm->class, event->parks_for.object);
}

static __always_inline void wait_ended(void *ctx, struct thread *thread, bool is_current)
{
	struct own_stack *own = is_current ? own_stack(LEVEL_WAITED) : NULL;
	__u64 *count, *java_thread, user = 0, kernel = 0;
	struct traced_jvm *jvm = bpf_map_lookup_elem(&targets, &thread->tgid);
	struct system_call call = {};
	__u64 ns = thread->since - thread->began, begin;
	struct left_out *left_out;
	struct wait_event *event;
	struct waker *waker;

	if (!jvm)
		return;
	/* Threads of the JVM's own, such as those of a collector, are not traced. */
	java_thread = bpf_map_lookup_elem(&java_threads, &thread->tid);
	if (java_thread && !*java_thread)
		return;
	left_out = left_out_for(jvm->key);
	if (left_out && leaves_out(jvm->key, left_out, thread->since, ns)) {
		thread->follows_until = 0;
		return;
	}
	begin = begin_run();
	if (own) {
		if (want_kernel)
			kernel = intern(&own->event, walk_by_kernel(ctx, 0, 0, &own->event.stack), true);
		user = intern(&own->event, walk_task(ctx, jvm->key, &own->event.stack, LEVEL_WAITED), true);
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost(jvm->key);
		if (left_out)
			add_to_sum(left_out, ns);
		return;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = EVENT_WAIT;
	event->target = jvm->key;
	event->began = thread->began;
	event->woken = thread->woken;
	event->ended = thread->since;
	event->on_ns = thread->on_ns;
	event->tid = thread->tid;
	event->state = thread->state;
	event->flags = thread->flags | (thread->is_unseen ? WAIT_UNSEEN : 0);
	event->user = user;
	event->kernel = kernel;
	event->call = -1;
	if (left_out)
		take_sum(left_out, ns, &event->others);
	__builtin_memcpy(event->comm, thread->comm, sizeof(event->comm));
	/* Before Linux 6.3, a key must not lie in the ring buffer. */
	count = bpf_map_lookup_elem(&wakes, &thread->tid);
	if (count)
		event->wakes = *count;
	waker = bpf_map_lookup_elem(&wakers, &thread->tid);
	if (waker && waker->woken == event->woken)
		event->waker = *waker;
	if (is_current) {
		if (current_call(&call)) {
			event->call = (__s32)call.number;
			__builtin_memcpy(event->args, call.args, sizeof(event->args));
			event->word = read_u64(event->args[0]);
		}
		read_java(event, jvm, java_thread ? *java_thread : 0);
	}
	/* A thread that was woken too early goes on waiting. */
	thread->follows_until = event->enters.monitor || event->parks_for.object ?
					thread->on_ns + FOLLOWS_NS :
					0;
	bpf_ringbuf_submit(event, wake());
	end_run(thread->tgid, begin);
}

static __always_inline bool wants_short(const struct thread *thread)
{
	return thread->on_ns < thread->follows_until && thread->state;
}

static __always_inline void thread_began(struct thread *thread)
{
	struct traced_jvm *jvm = bpf_map_lookup_elem(&targets, &thread->tgid);
	struct thread_event event = { .kind = EVENT_THREAD, .tid = thread->tid };

	if (!jvm)
		return;
	event.target = jvm->key;
	send(event.target, &event, sizeof(event));
}

static __always_inline void thread_ended(struct thread *thread)
{
	bpf_map_delete_elem(&java_threads, &thread->tid);
	bpf_map_delete_elem(&wakers, &thread->tid);
	bpf_map_delete_elem(&wakes, &thread->tid);
}

/* Whether a thread that is switched out has been throttled: see is_throttled(). */
static __always_inline void thread_leaves(struct thread *thread, __u64 task)
{
	thread->flags = !thread->state && is_throttled(task) ? WAIT_THROTTLED : 0;
}
