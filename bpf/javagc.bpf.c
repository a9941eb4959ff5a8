// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javagc: records the stops of a JVM's application threads.
 *
 * Only the VM thread begins and ends safepoints, runs the operations inside and hits the gc probes,
 * one after the other and never nested:
 *
 *	safepoint begin, operation begin, gc begin, gc end, safepoint end
 *
 * So one record per JVM is filled step by step and sent when the stop is over, outside the pause. If
 * the JVM's own record of its last stop can be read, the first two probes are not attached, and the
 * pause is shorter by two traps. With ZGC, whose pauses free nothing, only the last probe is attached.
 * Without the JVM's own record, a stop whose start was not observed is dropped.
 *
 * Each of these instants has two programs: one for the USDT probe, and one for a uprobe on the function
 * that would contain the probe, for builds without USDT probes.
 *
 * If a build has neither these probes nor these functions' symbols, stops are derived from the JVM's own
 * counters. The VM thread updates them when a stop is over, and a hardware watchpoint reports the update.
 */
#include "gauge.bpf.h"
#include "javagc.h"
#include "walk/intern.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * The current stop of each traced JVM. User space adds and removes the entries, because a probe of a shared file is hit by
 * every process that maps the file. Hits of a process without an entry are ignored.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct stop_event);
} stops SEC(".maps");

#include "gc_threads.bpf.h"

/* Whether user space reports the memory pools of each pause. */
const volatile bool reports_pools = false;

/*
 * Maximum number of events of each kind that one JVM sends per second; 0: no limit. The ring buffer
 * is shared by all JVMs, and a JVM that dumps stacks in a loop makes twenty thousand stops per second.
 */
const volatile __u64 max_events_per_second = 0;
/* The corresponding maximum for all JVMs of a control group together, because their number is not limited. */
const volatile __u64 max_tenant_events_per_second = 0;

/* User space adds the entry of a JVM if there is such a maximum. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct budget);
} budgets SEC(".maps");

/* Events of a control group: how many were sent, and how much of the ring buffer its unread events take. */
struct tenant {
	struct rate rate;
	/* Number of bytes sent since this field was last reset; each event counts as much as a struct
	   stop_event. */
	__u64 waiting;
	/* Producer position at that reset. Once user space has read up to it, `waiting` is reset again. */
	__u64 position;
};

/* Indexed by number of the control group. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct tenant);
} tenants SEC(".maps");

static const struct tenant no_tenant;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct counter_addresses);
} counted SEC(".maps");

/* Keep the types in BTF, from which the Rust mirrors are generated. */
struct stop_event unused_stop;
struct pool_event unused_pool;
struct state_event unused_state;
struct request_event unused_request;
struct counters_event unused_counters;
struct budget unused_budget;
struct gc_threads unused_threads;

static __always_inline struct tenant *tenant_of(__u64 number)
{
	struct tenant *tenant = bpf_map_lookup_elem(&tenants, &number);

	if (!tenant && !bpf_map_update_elem(&tenants, &number, &no_tenant, BPF_NOEXIST))
		tenant = bpf_map_lookup_elem(&tenants, &number);
	return tenant;
}

/* Counts an event. Returns whether it is among the first `max` events of this second. Updates of several
   processors may overlap, so that a few more are sent. */
static __always_inline bool is_within(struct rate *rate, __u32 kind, __u64 now, __u64 max)
{
	__u64 second = now / 1000000000;

	if (!rate || kind >= BUDGET_KINDS)
		return false;
	if (rate->second != second) {
		rate->second = second;
		__builtin_memset(rate->sent, 0, sizeof(rate->sent));
	}
	return rate->sent[kind]++ < max;
}

/*
 * Returns whether the ring buffer has space for one more event of a tenant, and counts the event if so. The
 * unread events of one tenant may take at most a quarter of the free space. If user space is late and n
 * tenants send at the highest possible rate, this leaves 1 / (1 + n / 4) of the ring buffer to others
 * (dynamic thresholds: Choudhury and Hahne, 1998).
 */
static __always_inline bool has_ring_space(struct tenant *tenant)
{
	__u64 size = bpf_ringbuf_query(&events, BPF_RB_RING_SIZE);
	__u64 used = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	if (bpf_ringbuf_query(&events, BPF_RB_CONS_POS) >= tenant->position) {
		tenant->position = bpf_ringbuf_query(&events, BPF_RB_PROD_POS);
		tenant->waiting = 0;
	}
	if (used > size || tenant->waiting > (size - used) / 4)
		return false;
	__sync_fetch_and_add(&tenant->waiting, sizeof(struct stop_event));
	return true;
}

/* Returns whether a JVM may send one more event of a kind, and counts the event if so. */
static __always_inline bool may_send(struct budget *budget, __u32 kind, __u64 now)
{
	struct tenant *tenant;

	if (!budget || !is_within(&budget->rate, kind, now, max_events_per_second))
		return false;
	tenant = tenant_of(budget->tenant);
	return tenant && is_within(&tenant->rate, kind, now, max_tenant_events_per_second) &&
	       has_ring_space(tenant);
}

/* Returns whether a JVM may send an event that is not a stop. */
static __always_inline bool may_send_other(__u64 key, __u64 now)
{
	return !max_events_per_second ||
	       may_send(bpf_map_lookup_elem(&budgets, &key), BUDGET_OTHER, now);
}

/* Returns whether a stop may be sent. If not, adds it to the JVM's totals of stops that were not sent. Runs
   on the VM thread only. */
static __always_inline bool may_send_stop(const struct stop_event *stop, __u64 now)
{
	__u32 kind = stop->gc_pairs ? BUDGET_GC : BUDGET_SAFEPOINT;
	__u64 ns = stop->end_ns - stop->begin_ns;
	struct limited_stops *limited;
	struct budget *budget;

	if (!max_events_per_second)
		return true;
	budget = bpf_map_lookup_elem(&budgets, &stop->target);
	if (!budget) {
		count_lost(stop->target);
		return false;
	}
	if (may_send(budget, kind, now))
		return true;
	limited = &budget->limited[kind];
	limited->count++;
	limited->ns += ns;
	if (limited->max_ns < ns)
		limited->max_ns = ns;
	return false;
}

/* Returns whether this is a JVM that user space traces. */
static __always_inline bool is_traced(__u64 key)
{
	return bpf_map_lookup_elem(&stops, &key);
}

static __always_inline struct stop_event *current_stop(__u64 key)
{
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &key);

	/* Concurrent collector threads run some of the same functions; their hits are ignored. */
	if (!stop || !stop->begin_ns || stop->tid != (__u32)bpf_get_current_pid_tgid())
		return NULL;
	return stop;
}

static __always_inline struct stop_event *new_stop(__u64 key, __u64 now)
{
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &key);

	if (!stop)
		return NULL;
	/* Usually end_stop() has cleared the record already. Clearing it here lengthens the pause. */
	if (stop->begin_ns)
		__builtin_memset(stop, 0, sizeof(*stop));
	stop->kind = EVENT_STOP;
	stop->target = key;
	stop->tid = (__u32)bpf_get_current_pid_tgid();
	stop->heap_before = UNKNOWN;
	stop->heap_after = UNKNOWN;
	stop->heap_at_gc_end = UNKNOWN;
	stop->op_type = UNKNOWN;
	stop->cpu_wait_ns = UNKNOWN;
	stop->throttled_periods = UNKNOWN;
	stop->begin_ns = now;
	return stop;
}

/* For USDT probes, which are hit on the VM thread only. Returns the current stop. If there is none, begins a new one,
   provided that the JVM's own record of its stops can be read. */
static __always_inline struct stop_event *current_or_new_stop(__u64 key, __u64 now,
							      const struct gauge *gauge)
{
	struct stop_event *stop = current_stop(key);

	return !stop && gauge && gauge->stop_end ? new_stop(key, now) : stop;
}

static __always_inline void read_counters(const struct gauge *gauge, __u64 *out)
{
	int i;

	/* Reads the low half of a jlong, or a counter of 32 bits. */
	for (i = 0; i < GAUGE_COUNTERS; i++)
		if (gauge->counters[i])
			bpf_probe_read_user(&out[i], sizeof(__u32), (void *)gauge->counters[i]);
}

static __always_inline void read_causes(const struct gauge *gauge, char *cause,
					char *last_cause)
{
	if (gauge->cause)
		bpf_probe_read_user_str(cause, CAUSE_LEN, (void *)gauge->cause);
	if (gauge->last_cause)
		bpf_probe_read_user_str(last_cause, CAUSE_LEN, (void *)gauge->last_cause);
}

static __always_inline int begin_stop(__u64 cookie)
{
	new_stop(target_key(cookie), bpf_ktime_get_ns());
	return 0;
}

/* Counts an operation; the first one names the stop. JDK 13 and older may run several within one safepoint. */
static __always_inline void begin_op(struct stop_event *stop, __u64 now)
{
	if (!stop->ops++) {
		stop->op_ns = now;
		stop->op = stop->last;
	}
}

static __always_inline int begin_gc(struct stop_event *stop, const struct gauge *gauge,
				    __u64 now, bool full)
{
	/* With op_shows_collection, this JVM does not need the probe. The probe is attached for another JVM
	   that maps the same file. */
	if (!stop || (gauge && gauge->op_shows_collection))
		return 0;
	stop->full |= full;
	/*
	 * Hits of the gc probes never nest. Up to JDK 13, however, calls of the functions that replace these
	 * probes may nest: a full collection runs inside the young collection that has failed.
	 */
	if (stop->in_gc++)
		return 0;
	if (!stop->gc_pairs) {
		stop->gc_op = stop->last;
		stop->gc_begin_ns = now;
		/* Called before the heap is read, because CMS frees memory concurrently: the later it is read, the
		   closer it is to the JVM's own reading. */
		begin_waits(stop->target, now);
		if (gauge) {
			stop->heap_before = heap_used(gauge);
			read_counters(gauge, stop->before);
		}
	}
	/* Until the collection ends, this field contains its start, so that gc_ns cannot underflow. */
	stop->gc_end_ns = now;
	return 0;
}

static __always_inline int end_gc(__u64 cookie)
{
	__u64 now = bpf_ktime_get_ns(), key = target_key(cookie);
	struct stop_event *stop = current_stop(key);
	struct gauge *gauge;

	if (!stop || !stop->in_gc)
		return 0;
	if (--stop->in_gc)
		return 0;
	stop->gc_pairs++;
	stop->gc_ns += now - stop->gc_end_ns;
	stop->gc_end_ns = now;
	gauge = bpf_map_lookup_elem(&gauges, &key);
	if (gauge) {
		stop->heap_after = heap_used(gauge);
		if (gauge->used_at_gc_end[0])
			stop->heap_at_gc_end = heap_at_gc_end(gauge);
		read_counters(gauge, stop->after);
		stop->gauged = 1;
		/* If one operation collects twice, the cause of the first collection is kept. */
		if (!stop->has_cause) {
			stop->has_cause = 1;
			read_causes(gauge, stop->cause, stop->last_cause);
		}
	}
	return 0;
}

/*
 * A collector begins its work. For a full collection after a failed allocation, Parallel sets a
 * separate cause and resets it before the gc end probe is hit, so the cause is read here.
 */
static __always_inline int begin_collection(__u64 cookie)
{
	__u64 key = target_key(cookie);
	struct stop_event *stop = current_stop(key);
	struct gauge *gauge;

	if (!stop || !stop->in_gc)
		return 0;
	if (stop->collections++ || stop->has_cause)
		return 0;
	gauge = bpf_map_lookup_elem(&gauges, &key);
	if (gauge && gauge->cause) {
		stop->has_cause = 1;
		bpf_probe_read_user_str(stop->cause, CAUSE_LEN, (void *)gauge->cause);
	}
	return 0;
}

/*
 * Reads the used heap again for CMS, whose concurrent thread goes on sweeping until the VM thread has waited
 * for it. JDK 8 reads the value "before" of its log after that wait, too (ParNewGeneration::collect(),
 * GenMarkSweep::invoke_at_safepoint()).
 */
static __always_inline int read_heap_before(__u64 cookie)
{
	__u64 key = target_key(cookie);
	struct stop_event *stop = current_stop(key);
	struct gauge *gauge;

	if (!stop || !stop->in_gc || stop->has_before)
		return 0;
	gauge = bpf_map_lookup_elem(&gauges, &key);
	if (gauge && gauge->waits) {
		stop->has_before = 1;
		stop->heap_before = heap_used(gauge);
	}
	return 0;
}

/*
 * A collector has finished. Before the gc end probe is hit, Serial, Parallel and CMS allocate the
 * object that had not fitted, so the used heap is read here. The last collection of an operation counts.
 */
static __always_inline int end_collection(__u64 cookie)
{
	__u64 key = target_key(cookie);
	struct stop_event *stop = current_stop(key);
	struct gauge *gauge;

	if (!stop || !stop->in_gc)
		return 0;
	gauge = bpf_map_lookup_elem(&gauges, &key);
	if (gauge)
		stop->heap_at_gc_end = heap_used(gauge);
	return 0;
}

/*
 * Replaces the times of a stop by those that the JVM recorded. They are more accurate, because the
 * application runs again before the VM thread reaches the probe, and may take over the VM thread's processor.
 * The JVM uses the same clock. The recorded times are used only if they enclose the collection and lie before
 * now. Returns whether the times are known, from the record or from the probes.
 */
static __always_inline bool refine_stop(struct stop_event *stop, const struct gauge *gauge,
					__u64 now)
{
	__u64 begin, sync, end;
	__u32 type = 0;

	if (!gauge || !gauge->stop_end)
		return true;
	begin = read_u64(gauge->stop_begin);
	sync = read_u64(gauge->stop_sync);
	end = read_u64(gauge->stop_end);
	if (!begin || begin > stop->begin_ns || sync < begin || end < sync || end > now ||
	    end < stop->gc_end_ns)
		return stop->ops;
	stop->begin_ns = begin;
	stop->op_ns = sync;
	stop->end_ns = end;
	if (!bpf_probe_read_user(&type, sizeof(type), (void *)gauge->stop_op_type))
		stop->op_type = type;
	if (!stop->ops)
		stop->ops = 1;
	return true;
}

static __always_inline int end_stop(struct stop_event *stop, const struct gauge *gauge, __u64 now)
{
	bool is_known;

	if (!stop)
		return 0;
	stop->end_ns = now;
	/* With op_shows_collection, the pause belongs to a concurrent cycle that is still running, so the
	   cycle's cause can be read now. */
	if (gauge && gauge->op_shows_collection)
		read_causes(gauge, stop->cause, stop->last_cause);
	is_known = refine_stop(stop, gauge, now);
	end_waits(stop->target, now);
	if (!is_known)
		count_lost(stop->target);
	else if (may_send_stop(stop, now))
		send(stop->target, stop, sizeof(*stop));
	__builtin_memset(stop, 0, sizeof(*stop));
	return 0;
}

SEC("usdt")
int BPF_USDT(safepoint_begin)
{
	__u64 begin = begin_run(), cookie = bpf_usdt_cookie(ctx);

	begin_stop(cookie);
	end_run(current_key(cookie), begin);
	return 0;
}

SEC("usdt")
int BPF_USDT(vmops_begin, void *name, __u64 len)
{
	__u64 now = bpf_ktime_get_ns();
	struct stop_event *stop = current_stop(target_key(bpf_usdt_cookie(ctx)));

	if (!stop)
		return 0;
	__builtin_memset(&stop->last, 0, sizeof(stop->last));
	read_name(stop->last.name, OP_LEN, name, len);
	begin_op(stop, now);
	return 0;
}

SEC("usdt")
int BPF_USDT(gc_begin, __u64 full)
{
	__u64 begin = begin_run();
	__u64 now = bpf_ktime_get_ns(), key = target_key(bpf_usdt_cookie(ctx));
	struct gauge *gauge = bpf_map_lookup_elem(&gauges, &key);

	begin_gc(current_or_new_stop(key, now, gauge), gauge, now, full & 0xff);
	end_run(key, begin);
	return 0;
}

SEC("usdt")
int BPF_USDT(gc_end)
{
	__u64 begin = begin_run(), cookie = bpf_usdt_cookie(ctx);

	end_gc(cookie);
	end_run(current_key(cookie), begin);
	return 0;
}

SEC("usdt")
int BPF_USDT(safepoint_end)
{
	__u64 begin = begin_run();
	__u64 now = bpf_ktime_get_ns(), key = target_key(bpf_usdt_cookie(ctx));
	struct gauge *gauge = bpf_map_lookup_elem(&gauges, &key);

	end_stop(current_or_new_stop(key, now, gauge), gauge, now);
	end_run(key, begin);
	return 0;
}

/* RuntimeService::record_safepoint_begin() */
SEC("uprobe")
int BPF_UPROBE(fn_safepoint_begin)
{
	__u64 begin = begin_run(), cookie = uprobe_cookie(ctx);

	begin_stop(cookie);
	end_run(current_key(cookie), begin);
	return 0;
}

/*
 * VMThread::evaluate_operation(VM_Operation *). The register of its argument depends on the compiler,
 * which clones the function without `this`. So the operation is read from the variable in which the
 * VM thread has stored it before.
 */
SEC("uprobe")
int BPF_UPROBE(fn_evaluate_operation)
{
	__u64 now = bpf_ktime_get_ns(), key = target_key(uprobe_cookie(ctx));
	struct stop_event *stop = current_stop(key);
	struct gauge *gauge;

	if (!stop)
		return 0;
	gauge = bpf_map_lookup_elem(&gauges, &key);
	stop->last.vtable = 0;
	if (gauge && gauge->operation)
		stop->last.vtable = read_u64(read_u64(gauge->operation));
	begin_op(stop, now);
	return 0;
}

/*
 * Constructor of GCIdMark, an object that spans each collection in every collector of JDK 9 and later.
 * The function that contains the probe, VM_GC_Operation::notify_gc_begin(), is empty in a build without
 * probes and may be inlined.
 */
SEC("uprobe")
int BPF_UPROBE(fn_gc_begin)
{
	__u64 begin = begin_run();
	__u64 now = bpf_ktime_get_ns(), key = target_key(uprobe_cookie(ctx));

	begin_gc(current_stop(key), bpf_map_lookup_elem(&gauges, &key), now, false);
	end_run(key, begin);
	return 0;
}

/* ~GCIdMark(), VM_GC_Operation::notify_gc_end() */
SEC("uprobe")
int BPF_UPROBE(fn_gc_end)
{
	__u64 begin = begin_run(), cookie = uprobe_cookie(ctx);

	end_gc(cookie);
	end_run(current_key(cookie), begin);
	return 0;
}

/* GCTracer::report_gc_start() */
SEC("uprobe")
int BPF_UPROBE(fn_collection_begin)
{
	return begin_collection(uprobe_cookie(ctx));
}

/* GCTracer::report_gc_start(), of CMS in JDK 8 */
SEC("uprobe")
int BPF_UPROBE(fn_heap_before)
{
	return read_heap_before(uprobe_cookie(ctx));
}

/* GCTracer::report_gc_end() */
SEC("uprobe")
int BPF_UPROBE(fn_collection_end)
{
	return end_collection(uprobe_cookie(ctx));
}

/* RuntimeService::record_safepoint_end() */
SEC("uprobe")
int BPF_UPROBE(fn_safepoint_end)
{
	__u64 begin = begin_run();
	__u64 now = bpf_ktime_get_ns(), key = target_key(uprobe_cookie(ctx));

	end_stop(current_stop(key), bpf_map_lookup_elem(&gauges, &key), now);
	end_run(key, begin);
	return 0;
}

static __always_inline void fill_state(struct state_event *at, __u64 kind, __u64 key, bool end)
{
	struct gauge *gauge = bpf_map_lookup_elem(&gauges, &key);

	at->kind = kind;
	at->target = key;
	at->ts_ns = bpf_ktime_get_ns();
	at->tid = (__u32)bpf_get_current_pid_tgid();
	at->end = end;
	at->heap_used = UNKNOWN;
	if (gauge) {
		at->heap_used = heap_used(gauge);
		read_causes(gauge, at->cause, at->last_cause);
	}
}

static __always_inline int pool(struct pt_regs *ctx, bool end)
{
	__u64 key = target_key(bpf_usdt_cookie(ctx));
	struct stop_event *stop = current_stop(key);
	struct pool_event *event = NULL;

	/* During a collection, the VM thread reports the pools of the pause, not those of a concurrent cycle. */
	if (!is_traced(key) || (stop && stop->in_gc && !reports_pools))
		return 0;
	if (may_send_other(key, bpf_ktime_get_ns()))
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost(key);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	fill_state(&event->at, EVENT_POOL, key, end);
	read_usdt_name(ctx, 0, event->manager, POOL_LEN);
	read_usdt_name(ctx, 2, event->pool, POOL_LEN);
	bpf_usdt_arg(ctx, 4, (long *)&event->init);
	bpf_usdt_arg(ctx, 5, (long *)&event->used);
	bpf_usdt_arg(ctx, 6, (long *)&event->committed);
	bpf_usdt_arg(ctx, 7, (long *)&event->max);
	bpf_ringbuf_submit(event, wake());
	return 0;
}

SEC("usdt")
int BPF_USDT(pool_begin)
{
	return pool(ctx, false);
}

SEC("usdt")
int BPF_USDT(pool_end)
{
	return pool(ctx, true);
}

static __always_inline int cycle(__u64 key, bool is_single, bool end)
{
	struct state_event *event = NULL;

	if (!is_traced(key))
		return 0;
	if (may_send_other(key, bpf_ktime_get_ns()))
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost(key);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	fill_state(event, EVENT_CYCLE, key, end);
	if (is_single)
		event->tid = 0;
	bpf_ringbuf_submit(event, wake());
	return 0;
}

/*
 * Concurrent cycles: G1ConcurrentMark::concurrent_cycle_start() and _end(); in builds without
 * probes, TraceMemoryManagerStats of ZGC and Shenandoah.
 */
static __always_inline int cycle_outside_of_stops(struct pt_regs *ctx, bool end)
{
	__u64 key = target_key(uprobe_cookie(ctx));

	/* The VM thread runs the same functions during a pause; those hits are ignored. */
	return current_stop(key) ? 0 : cycle(key, false, end);
}

SEC("uprobe")
int BPF_UPROBE(fn_cycle_begin)
{
	return cycle_outside_of_stops(ctx, false);
}

SEC("uprobe")
int BPF_UPROBE(fn_cycle_end)
{
	return cycle_outside_of_stops(ctx, true);
}

/*
 * Concurrent cycles of which a JVM has at most one at a time. Those of CMS last from
 * CMSCollector::collect_in_background() to ConcurrentMarkSweepThread::sleepBeforeNextCycle(), those of G1 in
 * JDK 8 from ConcurrentMark::scanRootRegions() to G1CollectedHeap::register_concurrent_cycle_end(). A
 * collection may end the cycle, so hits within a stop count, too.
 */
SEC("uprobe")
int BPF_UPROBE(fn_single_cycle_begin)
{
	return cycle(target_key(uprobe_cookie(ctx)), true, false);
}

SEC("uprobe")
int BPF_UPROBE(fn_single_cycle_end)
{
	return cycle(target_key(uprobe_cookie(ctx)), true, true);
}

/* JVM_GC(), called by System.gc() and Runtime.gc(). */
SEC("uprobe")
int BPF_UPROBE(fn_request)
{
	__u64 key = target_key(uprobe_cookie(ctx));
	struct request_event event = {
		.kind = EVENT_REQUEST,
		.target = key,
		.ts_ns = bpf_ktime_get_ns(),
		.tid = (__u32)bpf_get_current_pid_tgid(),
	};

	if (!is_traced(key))
		return 0;
	event.stack = intern_stack(ctx, key);
	bpf_get_current_comm(event.comm, sizeof(event.comm));
	send(key, &event, sizeof(event));
	return 0;
}

/* Watchpoint, hit when the VM thread has just added a finished stop to the counter sun.rt.safepointTime. */
SEC("perf_event")
int counted_stop(struct bpf_perf_event_data *ctx)
{
	__u64 key = target_key(LINUX_HAS_BPF_COOKIE ? bpf_get_attach_cookie(ctx) : 0);
	struct counter_addresses *counters = bpf_map_lookup_elem(&counted, &key);
	struct gauge *gauge = bpf_map_lookup_elem(&gauges, &key);
	struct counters_event event = {
		.kind = EVENT_COUNTED,
		.target = key,
		.ts_ns = bpf_ktime_get_ns(),
	};
	int i;

	if (!counters || !gauge)
		return 0;
	/* If this event is not sent, the next one includes its stop, because the counters are cumulative and
	   user space computes differences. */
	if (!may_send_other(key, event.ts_ns))
		return 0;
	for (i = 0; i < COUNTED_NUMBERS; i++)
		if (counters->at[i])
			event.numbers[i] = read_u64(counters->at[i]);
	read_causes(gauge, event.cause, event.last_cause);
	send(key, &event, sizeof(event));
	return 0;
}
