// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javaobjnew: counts what a JVM allocates, by class.
 *
 * A Java thread allocates from a buffer of its own, the TLAB, without a call. When an object does not
 * fit into the rest, the thread gets a new TLAB or allocates outside of TLABs, and HotSpot calls one of
 * AllocTracer's two functions (gc/shared/memAllocator.cpp), whether or not JFR is active. Each object
 * outside of TLABs is counted with its own size. An object that begins a new TLAB represents all bytes
 * that its thread has allocated in TLABs since it got its previous one; count_first() estimates to which class they
 * belong. The number of bytes is HotSpot's
 * own, read from the Thread, so that nothing is missed or counted twice.
 *
 * The bytes that a thread has allocated since its last event are read from the Thread, too: by user
 * space while the thread lives, and here when it ends.
 *
 * A random selection of full TLABs is sent to user space, which reads the objects in them, except the first, which
 * was counted when the TLAB began.
 *
 * If stacks are wanted, the thread's stack is walked for each allocation that is counted. Each stack is
 * sent to user space once and represented by an id from then on.
 *
 * A daemon has no time to name an unlimited number of stacks. For a daemon, the programs therefore count only
 * a sample of the allocations: see allocation_sampling.bpf.h.
 *
 * If a time axis is wanted, hits are also counted by time slot; user space removes these counters once
 * per second.
 *
 * All other counters only grow. They are neither reset nor removed while a JVM is traced, because counts
 * could be lost between reading and resetting them.
 */
#include "javaobjnew.h"
#include "walk/intern.bpf.h"
#include "allocation_sampling.bpf.h"
#include "slots.bpf.h"
#include "spans.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Whether threads are counted separately. */
const volatile bool by_thread = false;
/* Upper bound of a TLAB's size in bytes: it fits into a heap region, and its number of words into an int. */
#define MAX_TLAB (1ULL << 34)
/* Minimum size in bytes of objects that are sent one by one. */
const volatile __u64 large_bytes = ~0ULL;
/* Probability with which a full TLAB is sent, in 2^32ths; user space adapts it. */
__u32 tlab_share = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct layout);
} layouts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it: see load() in libjvmprobe/src/trace/allocations/counters.rs. */
	__uint(max_entries, 1 << 17);
	__type(key, struct tally_key);
	__type(value, struct tally);
} tallies SEC(".maps");

/* Allocations that found no free entry in tallies, by JVM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct tally);
} overflow SEC(".maps");

/* Bytes by time slot. If the map is full, some bytes have no slot. User space distributes them over the slots of
   the same key, in proportion to the bytes there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it: see load() in libjvmprobe/src/trace/allocations/counters.rs. */
	__uint(max_entries, 1 << 17);
	__type(key, struct tally_key);
	__type(value, struct slot_bytes);
} bytes_by_slot SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct thread_key);
	__type(value, struct thread_state);
} threads SEC(".maps");

/* Bytes that threads had allocated before the trace, filled in by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct old_thread);
	__type(value, __u64);
} old_threads SEC(".maps");

/* Numbers of stacks in trace contexts that were sent to user space. User space empties this map together with
   known_stacks. If it is full, allocations are counted without their contexts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* User space sets it: see load() in libjvmprobe/src/trace/allocations/counters.rs. */
	__uint(max_entries, 1 << 14);
	__type(key, struct span_key);
	__type(value, __u8);
} known_spans SEC(".maps");

/* Number of allocations that were counted without their contexts. */
__u64 spans_left_out = 0;

/* Keep the types in BTF, from which Rust's mirrors are generated. */
struct name_event unused_name;
struct large_event unused_large;
struct tlab_event unused_tlab;
struct stack_event unused_stack;
struct slot_bytes unused_slot_bytes;
struct span_event unused_span;
struct span_key unused_span_key;
struct sampling_state unused_sampling_state;
struct duty_cycles unused_duty_cycles;

static const struct tally no_tally;

static __always_inline __u64 read_word(__u64 addr)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)addr);
	return word;
}

/* Returns the number of a stack in the current thread's trace context, and sends it if it is new. Returns the number of
   the stack itself if the thread has published no context. Not inlined, because the BPF stack of its callers has no space
   for its variables. */
static __noinline __u64 with_span(__u64 target, __u64 stack)
{
	struct span_event event = { .kind = EVENT_SPAN, .target = target, .stack = stack };
	struct span_key key = { .target = target };
	__u8 one = 1;
	long error;

	read_span(target, &event.span);
	if (!event.span.span)
		return stack;
	key.number = mix(mix(mix(stack, event.span.trace[0]), event.span.trace[1]),
			 event.span.span) | 1;
	if (bpf_map_lookup_elem(&known_spans, &key))
		return key.number;
	error = bpf_map_update_elem(&known_spans, &key, &one, BPF_NOEXIST);
	if (error == -EEXIST)
		return key.number;
	event.number = key.number;
	if (!error && !bpf_ringbuf_output(&events, &event, sizeof(event), wake()))
		return key.number;
	if (!error)
		bpf_map_delete_elem(&known_spans, &key);
	__sync_fetch_and_add(&spans_left_out, 1);
	return stack;
}

/* Returns the number of the current thread's stack in its trace context; STACK_NONE if stacks of this JVM cannot be
   walked. */
static __always_inline __u64 stack_of(struct pt_regs *regs, __u64 target,
				      const struct layout *layout)
{
	__u64 stack = layout->walks ? intern_stack(regs, target) : STACK_NONE;

	return layout->walks && reads_spans ? with_span(target, stack) : stack;
}

/* Sends names in a record with `capacity` bytes for the class name. */
static __always_inline void send_names_in(const struct tally_key *key, __u64 text, __u64 size,
					  const __u64 capacity)
{
	struct name_event *event;

	event = bpf_ringbuf_reserve(&events, offsetof(struct name_event, text) + capacity, 0);
	if (!event)
		return;
	if (size > capacity)
		size = capacity;
	/* If the page is not resident, the name cannot be read here, and user space reads it. */
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
 * Sends the names of a new class and thread. They are written without a copy into reserved space of the ring
 * buffer. If the buffer is full, user space reads the names itself, so no count is lost.
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

/* Returns the counters of a key. If there is no free entry, returns those of a coarser key. */
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
		/* The same key with STACK_OTHER, which represents all other stacks, may have an entry. */
		key->stack = STACK_OTHER;
		tally = bpf_map_lookup_elem(&tallies, key);
		if (tally)
			return tally;
	}
	tally = bpf_map_lookup_elem(&overflow, &target);
	if (tally)
		return tally;
	bpf_map_update_elem(&overflow, &target, &no_tally, BPF_NOEXIST);
	tally = bpf_map_lookup_elem(&overflow, &target);
	if (!tally)
		count_lost(target);
	return tally;
}

/* Adds bytes to the current time slot. */
static __always_inline void add_to_slot(struct tally_key *key, __u64 bytes, __u64 outside_bytes)
{
	struct slot_bytes fresh = { .bytes = bytes, .outside_bytes = outside_bytes };
	struct slot_bytes *slot;

	if (!slot_ns)
		return;
	key->slot = slot_now();
	slot = bpf_map_lookup_elem(&bytes_by_slot, key);
	if (!slot && !bpf_map_update_elem(&bytes_by_slot, key, &fresh, BPF_NOEXIST))
		goto out;
	if (!slot)
		slot = bpf_map_lookup_elem(&bytes_by_slot, key);
	/* Adding a constant 0 would be compiled to an instruction that Linux 5.10 does not have. */
	if (slot && bytes)
		__sync_fetch_and_add(&slot->bytes, bytes);
	if (slot && outside_bytes)
		__sync_fetch_and_add(&slot->outside_bytes, outside_bytes);
out:
	key->slot = 0;
}

/* Not inlined: the BPF stack (512 bytes) of its callers has no space for both this event and the walker's variables. */
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

/* If an object of `size` bytes is humongous, counts it as `objects` objects with `bytes` bytes in total. If
   it is large, sends an event. */
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
 * Returns a thread's state. Not inlined: the BPF stack has no space for both a new state and the walker's
 * variables. A native thread may detach from the JVM and attach again, which gives it a new JavaThread. The
 * bytes of its former JavaThread that no sample represents are then carried over to the new one.
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
	/* A thread that existed before the trace has an entry in old_threads; any other begins at zero. */
	counted = bpf_map_lookup_elem(&old_threads, &old);
	if (counted) {
		fresh.counted = fresh.represented_bytes = *counted;
		bpf_map_delete_elem(&old_threads, &old);
	}
	if (state && state->has_ended)
		fresh.represented_bytes += state->represented_bytes - state->counted;
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

/* Sends the TLAB that the thread has just filled, which was chosen when it was new. Not inlined, for the same
   reason as state_of(). */
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

	/* Sends nothing if a collection has moved the objects or cut the TLAB short, or if C1 code of JDK 8
	   has got another TLAB, which it does without hitting a probe. */
	if (!size || size > state->tlab_bytes || state->collections != collections_of(layout))
		return;
	if (by_thread)
		event.tid = (__u32)bpf_get_current_pid_tgid();
	/* If the ring buffer is full, nothing is counted as lost, because the TLABs sent are a random
	   selection anyway. */
	bpf_ringbuf_output(&events, &event, sizeof(event), wake());
}

/* Defaults of -XX:TLABRefillWasteFraction, and of -XX:TLABWasteIncrement (4 words) in bytes. */
#define WASTE_FRACTION 64
#define WASTE_INCREMENT 32

/*
 * Adds an object of `size` bytes that began a TLAB, and the other objects of its class that it represents. These
 * are a part of the `bytes` that its thread has allocated in TLABs since it got its previous TLAB.
 *
 * If an object does not fit into the rest of a TLAB of T bytes, it begins a new TLAB only if that rest is at most
 * a limit, and is allocated outside of TLABs otherwise (MemAllocator::allocate_inside_tlab_slow). The rest is
 * assumed to have any size below that of the object with the same probability. Then an object begins a
 * TLAB with the probability min(size, limit) / T, and lies in a TLAB behind others with the probability (T - size) / T.
 * Small objects thus represent all `bytes`, larger ones more, and objects larger than T none. In truth, rests near 0
 * are rare, so the estimate is too low for small objects. After a collection, any object begins a TLAB.
 */
static __always_inline void count_first(struct tally *tally, __u64 size, __u64 objects, __u64 bytes,
					__u64 tlab_size, __u64 limit)
{
	__u64 others = bytes > size ? (objects * (bytes - size)) / ONE : 0, factor = 0;

	if (tlab_size > size)
		factor = ((tlab_size - size) << 10) / tlab_size;
	if (limit && size > limit)
		factor = (factor * size) / limit;
	others = (others * factor) >> 10;
	__sync_fetch_and_add(&tally->samples, 1);
	__sync_fetch_and_add(&tally->first_objects, objects);
	__sync_fetch_and_add(&tally->first_bytes, (objects * size) / ONE);
	__sync_fetch_and_add(&tally->other_objects, (others * ONE) / size);
	__sync_fetch_and_add(&tally->other_bytes, others);
}

static __always_inline int new_tlab(struct pt_regs *ctx, __u64 klass, __u64 object, __u64 tlab_size,
				    __u64 size, __u64 thread, bool walks)
{
	struct tally_key key = { .target = target_key(uprobe_cookie(ctx)) };
	struct layout *layout = bpf_map_lookup_elem(&layouts, &key.target);
	__u64 allocated, all, bytes, represented, desired, limit, objects = ONE, text;
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
	/* The new TLAB contains, or is about to contain, this object and nothing else. */
	allocated = read_word(thread + layout->thread_allocated);
	if (!layout->probe_precedes_tlab)
		bpf_probe_read_user(&tlab, sizeof(tlab), (void *)(thread + layout->tlab));
	all = allocated + tlab.top - tlab.start;
	state = state_of(key.target, thread);
	if (!state) {
		count_lost(key.target);
		return 0;
	}
	/* Fewer bytes than before mean that a new thread is at the address of one that has ended. */
	if (all < state->counted)
		*state = (struct thread_state){ .thread = thread };
	bytes = all - state->counted;
	/* With a duty cycle, the thread may have filled other TLABs between on periods, so the TLAB that it
	   has just filled may not be the chosen one. */
	if (state->tlab && !hit.is_cycled)
		send_tlab(key.target, layout, state, allocated - state->before_tlab);
	state->counted = all;
	state->last = bpf_jiffies64();
	state->before_tlab = all;
	state->tlab = 0;
	/* The limit for the previous TLAB, which each object outside of TLABs has raised. */
	desired = read_word(thread + layout->desired_tlab_size) * sizeof(__u64);
	limit = desired / WASTE_FRACTION + WASTE_INCREMENT * state->outside;
	if (hit.is_cycled)
		limit = desired / WASTE_FRACTION + (WASTE_INCREMENT * hit.outside_per_tlab) / ONE;
	state->outside = 0;
	/* With a duty cycle, only TLABs that fill within an on period would be sent, which is a biased selection. */
	if (!hit.is_cycled && bpf_get_prandom_u32() <= tlab_share) {
		state->tlab = tlab.top;
		/* HotSpot adds the size of the first object to the desired size. */
		state->tlab_bytes = tlab_size - size;
		state->collections = collections_of(layout);
	}
	/* The object was counted when the trace began. */
	if (!bytes)
		return 0;
	represented = bytes;
	if (walks) {
		/* Some of the bytes may belong to hits that were missed, so this hit represents at most one
		   TLAB. */
		if (hit.may_skip && bytes > desired + size)
			bytes = desired + size;
		represented = bytes_represented(key.target, weighted(bytes, &hit));
		if (!represented)
			return 0;
		objects = (represented * ONE) / bytes;
	}
	state->represented_bytes += represented;

	text = text_of_klass(&key, layout, klass);
	if (by_thread)
		key.tid = (__u32)bpf_get_current_pid_tgid();
	if (walks)
		key.stack = stack_of(ctx, key.target, layout);
	tally = tally_of(&key, text);
	if (!tally || !size)
		return 0;
	__sync_fetch_and_add(&tally->bytes, represented);
	count_first(tally, size, objects, bytes, desired, limit);
	add_to_slot(&key, represented, 0);
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
	/* The bytes of this object are counted here; those in the TLAB belong to the next TLAB event. */
	state->counted += size;
	state->before_tlab += size;
	state->outside++;
	state->last = bpf_jiffies64();
	if (walks && size) {
		bytes = weighted(size, &hit);
		/* Objects that are humongous or sent one by one are never left out. */
		if (size < large_bytes && !is_humongous(layout, size))
			bytes = bytes_represented(key.target, bytes);
		if (!bytes)
			return 0;
		objects = (bytes + size / 2) / size;
	}
	state->represented_bytes += bytes;

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
	add_to_slot(&key, 0, bytes);
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

/* Reads how many bytes a thread that ends has allocated, including those in its last TLAB. */
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
	/* Fewer bytes than before mean that a new thread is at the address of one that ended without hitting
	   this probe. */
	if (all < state->counted)
		*state = (struct thread_state){ .thread = thread };
	state->counted = all;
	state->last = bpf_jiffies64();
	state->has_ended = 1;
	return 0;
}

/* Threads::remove(JavaThread *), called by the thread itself; its TLAB is retired or about to be. */
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
	/* Up to JDK 17, size is an int, which is negative for 2 GiB and more. */
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
	add_to_slot(&key, (__u64)size, 0);
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
