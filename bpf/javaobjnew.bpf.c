// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javaobjnew: counts what a JVM allocates, by class.
 *
 * A Java thread allocates from a buffer of its own, the TLAB, without a call.
 * When an object does not fit into the rest, the thread gets a new TLAB or
 * allocates outside of it, and HotSpot calls AllocTracer's two functions
 * (gc/shared/memAllocator.cpp), whether or not anybody listens. An object outside
 * of TLABs is counted as it is. One that begins a TLAB stands for all bytes that
 * its thread has allocated in TLABs since the last such event: HotSpot's own
 * numbers, read from the Thread, so that nothing is missed or counted twice.
 *
 * Bytes since a thread's last event are read from the Thread: by user space while it lives, and
 * here when it ends.
 *
 * From time to time user space is told of a TLAB that is full, and reads what is
 * in it.
 *
 * Where stacks are wanted, a thread's stack is walked with each of these events. User
 * space is told of each stack once and knows it by a number from then on.
 *
 * A daemon wants no more stacks than it may take the time to name: flood.bpf.h.
 *
 * Where it is wanted when, hits are counted apart in slots of time, and taken out once a second.
 *
 * All other counters only grow and are never removed while a JVM is traced, so that user
 * space loses nothing between reading and resetting them.
 */
#include "javaobjnew.h"
#include "walk/intern.bpf.h"
#include "flood.bpf.h"
#include "slots.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Keep threads apart. */
const volatile bool by_thread = false;
/* No TLAB is larger: it would not fit into the heap region or an int of words. */
#define MAX_TLAB (1ULL << 34)
/* Objects of at least this size are told one by one. */
const volatile __u64 large_bytes = ~0ULL;
/* A TLAB is told of when it is full with this probability, in 2^32ths; user space adapts it. */
__u32 tlab_share = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct layout);
} layouts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it: see Session::load(). */
	__uint(max_entries, 1 << 17);
	__type(key, struct tally_key);
	__type(value, struct tally);
} tallies SEC(".maps");

/* What has found no room in tallies, by JVM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct tally);
} others SEC(".maps");

/* What was counted in which slot of time. Where there is no room for one, it is as if it had been
   when its likes were. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* As above. */
	__uint(max_entries, 1 << 17);
	__type(key, struct tally_key);
	__type(value, struct hit);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct thread_key);
	__type(value, struct thread_state);
} threads SEC(".maps");

/* What threads had allocated before the trace, filled in by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct old_thread);
	__type(value, __u64);
} old_threads SEC(".maps");

/* Keeps the types in BTF, from which Rust's mirrors are generated. */
struct name_event unused_name;
struct large_event unused_large;
struct tlab_event unused_tlab;
struct stack_event unused_stack;
struct hit unused_hit;
struct flood unused_flood;
struct duty_cycles unused_duty_cycles;

static const struct tally no_tally;

static __always_inline __u64 read_word(__u64 addr)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)addr);
	return word;
}

/* The number of the stack that the thread is at. */
static __always_inline __u64 stack_of(struct pt_regs *regs, __u64 target,
				      const struct layout *layout)
{
	return layout->walks ? intern_stack(regs, target) : STACK_NONE;
}

/* Sends names in a record with so much room for the class's. */
static __always_inline void send_names_in(const struct tally_key *key, __u64 text, __u64 size,
					  const __u64 room)
{
	struct name_event *event;

	event = bpf_ringbuf_reserve(&events, offsetof(struct name_event, text) + room, 0);
	if (!event)
		return;
	if (size > room)
		size = room;
	/* A page that is not there now is read by user space. */
	if (bpf_probe_read_user(event->text, size, (void *)text))
		size = 0;
	event->kind = EVENT_NAME;
	event->target = key->target;
	event->class = key->class;
	event->tid = key->tid;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	event->size = size;
	bpf_ringbuf_submit(event, wake());
}

/*
 * Tells user space the names of a class and a thread that are new. Without room, they are read
 * by user space, too: no count is lost. Right in the ring buffer, where no other thread is.
 */
static __always_inline void send_names(const struct tally_key *key, __u64 text)
{
	__u64 size = key->class.len;

	if (size <= SHORT_CLASS_LEN)
		send_names_in(key, text, size, SHORT_CLASS_LEN);
	else
		send_names_in(key, text, size, CLASS_LEN);
}

static __always_inline void fill_class(struct class_id *class, __u64 symbol, __u64 text, __u32 len)
{
	__u32 size = len < sizeof(class->tail) ? len : sizeof(class->tail);

	class->symbol = symbol;
	class->len = len;
	if (size && size <= sizeof(class->tail))
		bpf_probe_read_user(&class->tail, size, (void *)(text + len - size));
}

/* The counters of a key; those of the others where there is no room for it. */
static __always_inline struct tally *tally_of(struct tally_key *key, __u64 text)
{
	struct tally *tally = bpf_map_lookup_elem(&tallies, key);
	__u64 target = key->target;

	if (tally)
		return tally;
	if (!bpf_map_update_elem(&tallies, key, &no_tally, BPF_NOEXIST))
		send_names(key, text);
	tally = bpf_map_lookup_elem(&tallies, key);
	if (tally)
		return tally;
	if (key->stack) {
		/* Its class may have room. */
		key->stack = STACK_OTHER;
		tally = bpf_map_lookup_elem(&tallies, key);
		if (tally)
			return tally;
	}
	tally = bpf_map_lookup_elem(&others, &target);
	if (tally)
		return tally;
	bpf_map_update_elem(&others, &target, &no_tally, BPF_NOEXIST);
	tally = bpf_map_lookup_elem(&others, &target);
	if (!tally)
		count_lost(target);
	return tally;
}

/* Notes when something was counted. */
static __always_inline void note_time(struct tally_key *key, __u64 bytes, __u64 outside_bytes)
{
	struct hit fresh = { .bytes = bytes, .outside_bytes = outside_bytes };
	struct hit *hit;

	if (!slot_ns)
		return;
	key->slot = slot_now();
	hit = bpf_map_lookup_elem(&hits, key);
	if (!hit && !bpf_map_update_elem(&hits, key, &fresh, BPF_NOEXIST))
		goto out;
	if (!hit)
		hit = bpf_map_lookup_elem(&hits, key);
	/* To add nothing would be compiled to an instruction that Linux 5.10 does not have. */
	if (hit && bytes)
		__sync_fetch_and_add(&hit->bytes, bytes);
	if (hit && outside_bytes)
		__sync_fetch_and_add(&hit->outside_bytes, outside_bytes);
out:
	key->slot = 0;
}

/* With a stack of its own: the programs that call it have none to spare for the event beside the walker's. */
static __noinline void send_large(const struct tally_key *key, __u64 size, bool humongous)
{
	struct large_event event = {
		.kind = EVENT_LARGE,
		.target = key->target,
		.ts_ns = bpf_ktime_get_ns(),
		.class = key->class,
		.stack = key->stack,
		.size = size,
		.tid = (__u32)bpf_get_current_pid_tgid(),
		.humongous = humongous,
	};

	bpf_get_current_comm(event.comm, sizeof(event.comm));
	send(key->target, &event, sizeof(event));
}

static __always_inline bool is_humongous(const struct layout *layout, __u64 size)
{
	return layout->humongous && size > layout->humongous;
}

/* Counts an object that may be large, one of so many. */
static __always_inline void count_large(const struct tally_key *key, struct tally *tally,
					const struct layout *layout, __u64 size, __u64 objects,
					__u64 bytes)
{
	bool humongous = is_humongous(layout, size);

	if (humongous) {
		__sync_fetch_and_add(&tally->humongous, objects);
		__sync_fetch_and_add(&tally->humongous_bytes, bytes);
	}
	if (size >= large_bytes)
		send_large(key, size, humongous);
}

static __always_inline __u64 text_of_klass(struct tally_key *key, const struct layout *layout,
					   __u64 klass)
{
	__u64 symbol = read_word(klass + layout->klass_name);
	__u64 text = symbol + layout->symbol_body;
	__u16 len = 0;

	bpf_probe_read_user(&len, sizeof(len), (void *)(symbol + layout->symbol_length));
	fill_class(&key->class, symbol, text, len);
	return text;
}

/*
 * A thread's state, with a stack of its own: a program's has no room for a new one beside the
 * walker's. A native thread may detach from the JVM and attach to it again: bytes of its former
 * JavaThread that no sample stands for are added to those of the new one.
 */
static __noinline struct thread_state *state_of(__u64 target, __u64 thread)
{
	struct thread_key key = { .target = target, .tid = (__u32)bpf_get_current_pid_tgid() };
	struct thread_state *state = bpf_map_lookup_elem(&threads, &key);
	struct thread_state fresh = { .thread = thread };
	struct old_thread old = { .target = target, .thread = thread };
	__u64 *counted;

	if (state && state->thread == thread && !state->has_ended)
		return state;
	/* One that is new, unless it was there before the trace. */
	counted = bpf_map_lookup_elem(&old_threads, &old);
	if (counted) {
		fresh.counted = fresh.told = *counted;
		bpf_map_delete_elem(&old_threads, &old);
	}
	if (state && state->has_ended)
		fresh.told += state->told - state->counted;
	bpf_map_update_elem(&threads, &key, &fresh, BPF_ANY);
	return bpf_map_lookup_elem(&threads, &key);
}

static __always_inline __u32 collections_of(const struct layout *layout)
{
	__u32 collections = 0;

	if (layout->collections)
		bpf_probe_read_user(&collections, sizeof(collections), (void *)layout->collections);
	return collections;
}

/* Tells of the TLAB that the thread has just filled, if it was chosen when it was new. With a stack
   of its own, too. */
static __noinline void send_tlab(__u64 target, const struct layout *layout,
				 const struct thread_state *state, __u64 size)
{
	struct tlab_event event = {
		.kind = EVENT_TLAB,
		.target = target,
		.start = state->tlab,
		.size = size,
		.collections = state->collections,
	};

	/* A collection has moved what was in it, or cut it short; or code of the first compiler of
	   JDK 8 got a TLAB more, which is not told of. */
	if (!size || size > state->tlab_bytes || state->collections != collections_of(layout))
		return;
	if (by_thread)
		event.tid = (__u32)bpf_get_current_pid_tgid();
	/* Not a loss where there is no room: it is one of a sample. */
	bpf_ringbuf_output(&events, &event, sizeof(event), wake());
}

static __always_inline int new_tlab(struct pt_regs *ctx, __u64 klass, __u64 object, __u64 tlab_size,
				    __u64 size, __u64 thread, bool walks)
{
	struct tally_key key = { .target = target_key(uprobe_cookie(ctx)) };
	struct layout *layout = bpf_map_lookup_elem(&layouts, &key.target);
	__u64 allocated, all, bytes, text;
	struct hit_weight hit = represents_itself;
	struct thread_state *state;
	struct tally *tally;
	struct { __u64 start, top; } tlab = { object, object + size };

	if (!layout)
		return 0;
	if (walks)
		hit = weigh_hit(key.target, false);
	if (!hit.weight)
		return 0;
	/* The new TLAB holds the object already, or is about to, and nothing else. */
	allocated = read_word(thread + layout->thread_allocated);
	if (!layout->told_first)
		bpf_probe_read_user(&tlab, sizeof(tlab), (void *)(thread + layout->tlab));
	all = allocated + tlab.top - tlab.start;
	state = state_of(key.target, thread);
	if (!state) {
		count_lost(key.target);
		return 0;
	}
	/* A thread at the address of one that has ended begins anew. */
	if (all < state->counted)
		*state = (struct thread_state){ .thread = thread };
	bytes = all - state->counted;
	/* Between on periods it may have filled others. */
	if (state->tlab && !hit.is_cycled)
		send_tlab(key.target, layout, state, allocated - state->before_tlab);
	state->counted = all;
	state->last = bpf_jiffies64();
	state->before_tlab = allocated;
	state->tlab = 0;
	/* An on period would have those alone that are soon full. */
	if (!hit.is_cycled && bpf_get_prandom_u32() <= tlab_share) {
		state->tlab = tlab.start;
		state->tlab_bytes = tlab_size;
		state->collections = collections_of(layout);
	}
	if (walks && bytes) {
		/* Some of them belong to hits that are missing: this one is of one TLAB. */
		if (hit.may_skip && bytes > tlab_size + size)
			bytes = tlab_size + size;
		bytes = stands_for(key.target, weighted(bytes, &hit));
		if (!bytes)
			return 0;
	}
	state->told += bytes;

	text = text_of_klass(&key, layout, klass);
	if (by_thread)
		key.tid = (__u32)bpf_get_current_pid_tgid();
	if (walks)
		key.stack = stack_of(ctx, key.target, layout);
	tally = tally_of(&key, text);
	if (!tally || !size)
		return 0;
	__sync_fetch_and_add(&tally->samples, 1);
	__sync_fetch_and_add(&tally->bytes, bytes);
	__sync_fetch_and_add(&tally->objects, (bytes << 8) / size);
	note_time(&key, bytes, 0);
	return 0;
}

/* AllocTracer::send_allocation_in_new_tlab(Klass *, HeapWord *, size_t, size_t, Thread *) */
SEC("uprobe")
int BPF_UPROBE(fn_new_tlab, __u64 klass, __u64 object, __u64 tlab_size, __u64 size, __u64 thread)
{
	return new_tlab(ctx, klass, object, tlab_size, size, thread, false);
}

SEC("uprobe")
int BPF_UPROBE(fn_new_tlab_stacks, __u64 klass, __u64 object, __u64 tlab_size, __u64 size,
	       __u64 thread)
{
	__u64 begin = begin_run();

	new_tlab(ctx, klass, object, tlab_size, size, thread, true);
	end_run(current_key(uprobe_cookie(ctx)), begin);
	return 0;
}

static __always_inline int outside_tlab(struct pt_regs *ctx, __u64 klass, __u64 size, __u64 thread,
					bool walks)
{
	struct tally_key key = { .target = target_key(uprobe_cookie(ctx)) };
	struct layout *layout = bpf_map_lookup_elem(&layouts, &key.target);
	__u64 text, objects = 1, bytes = size;
	struct hit_weight hit = represents_itself;
	struct thread_state *state;
	struct tally *tally;

	if (!layout)
		return 0;
	if (walks)
		hit = weigh_hit(key.target, true);
	if (!hit.weight)
		return 0;
	state = state_of(key.target, thread);
	if (!state) {
		count_lost(key.target);
		return 0;
	}
	/* Its bytes are counted here; those in the TLAB are left to the next event there. */
	state->counted += size;
	state->before_tlab += size;
	state->last = bpf_jiffies64();
	if (walks && size) {
		bytes = weighted(size, &hit);
		/* All that are humongous are counted, or to be told of. */
		if (size < large_bytes && !is_humongous(layout, size))
			bytes = stands_for(key.target, bytes);
		if (!bytes)
			return 0;
		objects = (bytes + size / 2) / size;
	}
	state->told += bytes;

	text = text_of_klass(&key, layout, klass);
	if (by_thread)
		key.tid = (__u32)bpf_get_current_pid_tgid();
	if (walks)
		key.stack = stack_of(ctx, key.target, layout);
	tally = tally_of(&key, text);
	if (!tally)
		return 0;
	__sync_fetch_and_add(&tally->outside, objects);
	__sync_fetch_and_add(&tally->outside_bytes, bytes);
	note_time(&key, 0, bytes);
	count_large(&key, tally, layout, size, objects, bytes);
	return 0;
}

/* AllocTracer::send_allocation_outside_tlab(Klass *, HeapWord *, size_t, Thread *) */
SEC("uprobe")
int BPF_UPROBE(fn_outside_tlab, __u64 klass, __u64 object, __u64 size, __u64 thread)
{
	return outside_tlab(ctx, klass, size, thread, false);
}

SEC("uprobe")
int BPF_UPROBE(fn_outside_tlab_stacks, __u64 klass, __u64 object, __u64 size, __u64 thread)
{
	__u64 begin = begin_run();

	outside_tlab(ctx, klass, size, thread, true);
	end_run(current_key(uprobe_cookie(ctx)), begin);
	return 0;
}

/* Reads a thread's bytes when it ends, with those in its last TLAB. */
static __always_inline int thread_end(struct pt_regs *ctx, __u64 thread)
{
	__u64 target = target_key(uprobe_cookie(ctx)), all;
	struct layout *layout = bpf_map_lookup_elem(&layouts, &target);
	struct { __u64 start, top; } tlab = {};
	struct thread_state *state;

	if (!layout)
		return 0;
	state = state_of(target, thread);
	if (!state) {
		count_lost(target);
		return 0;
	}
	all = read_word(thread + layout->thread_allocated);
	bpf_probe_read_user(&tlab, sizeof(tlab), (void *)(thread + layout->tlab));
	if (tlab.start && tlab.top > tlab.start && tlab.top - tlab.start < MAX_TLAB)
		all += tlab.top - tlab.start;
	/* A new thread at the address of one that ended without this probe. */
	if (all < state->counted)
		*state = (struct thread_state){ .thread = thread };
	state->counted = all;
	state->last = bpf_jiffies64();
	state->has_ended = 1;
	return 0;
}

/* Threads::remove(JavaThread *): the thread itself calls it, its TLAB is retired or about to be. */
SEC("uprobe")
int BPF_UPROBE(fn_thread_end, __u64 thread)
{
	__u64 begin = begin_run();

	thread_end(ctx, thread);
	end_run(current_key(uprobe_cookie(ctx)), begin);
	return 0;
}

static __always_inline int any_object(struct pt_regs *ctx, bool walks)
{
	struct tally_key key = { .target = target_key(bpf_usdt_cookie(ctx)) };
	struct layout *layout = bpf_map_lookup_elem(&layouts, &key.target);
	long text = 0, len = 0, size = 0;
	struct tally *tally;

	if (!layout)
		return 0;
	bpf_usdt_arg(ctx, 1, &text);
	bpf_usdt_arg(ctx, 2, &len);
	bpf_usdt_arg(ctx, 3, &size);
	/* Up to JDK 17 an int, which 2 GiB make negative. */
	if (size < 0)
		size = (__u32)size;
	fill_class(&key.class, text - layout->symbol_body, text, (__u16)len);
	if (by_thread)
		key.tid = (__u32)bpf_get_current_pid_tgid();
	if (walks)
		key.stack = stack_of(ctx, key.target, layout);
	tally = tally_of(&key, text);
	if (!tally)
		return 0;
	__sync_fetch_and_add(&tally->samples, 1);
	__sync_fetch_and_add(&tally->bytes, (__u64)size);
	note_time(&key, (__u64)size, 0);
	count_large(&key, tally, layout, size, 1, size);
	return 0;
}

/* hotspot:object__alloc(thread id, name, its length, bytes) */
SEC("usdt")
int BPF_USDT(object_alloc)
{
	return any_object(ctx, false);
}

SEC("usdt")
int BPF_USDT(object_alloc_stacks)
{
	return any_object(ctx, true);
}

#define STOPS_OF layouts
#include "stops.bpf.h"
