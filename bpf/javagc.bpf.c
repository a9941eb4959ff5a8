// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * javagc: stamps the stops of a JVM's application threads.
 *
 * The VM thread alone begins and ends safepoints, runs the operations inside
 * and fires the gc probes, one after the other and never nested:
 *
 *	safepoint begin, operation begin, gc begin, gc end, safepoint end
 *
 * So one record per JVM is filled along the way and sent when the stop is
 * over, outside the pause. Where the JVM's own record of the last stop can be
 * read, nothing need be attached to the first two, and the pause is shorter by
 * two traps; with ZGC, whose pauses free nothing, to the last one only. Else a
 * stop whose begin was not seen is dropped.
 *
 * Each instant has two programs: one for the USDT probe and one for a uprobe
 * on the function that holds the probe in builds that were made without.
 *
 * Where a build has neither, the JVM's own counters tell of a stop: the VM thread
 * adds to them when it is over, which a watchpoint notices.
 */
#include "gauge.bpf.h"
#include "javagc.h"
#include "walk/intern.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct stop_event);
} stops SEC(".maps");

/* Too large for the BPF stack. */
static const struct stop_event no_stop;

/*
 * Maximum number of events of each kind that one JVM sends per second; 0: no limit. The ring buffer
 * serves all JVMs, and a loop of stack dumps makes twenty thousand stops a second.
 */
const volatile __u64 max_events_per_second = 0;
/* The same for all JVMs of a control group together, which could start any number of JVMs. */
const volatile __u64 max_tenant_events_per_second = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct budget);
} budgets SEC(".maps");

static const struct budget no_budget;

/* Events of a control group: how many were sent, and how much of the ring those take that wait. */
struct tenant {
	struct rate rate;
	__u64 waiting; /* bytes that were sent since user space had read up to position, as if each were a stop */
	__u64 position; /* in the ring */
};

/* By number of the control group. */
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
	__type(value, struct counted_at);
} counted SEC(".maps");

/* Keeps the types in BTF, from which Rust's mirrors are generated. */
struct stop_event unused_stop;
struct pool_event unused_pool;
struct moment_event unused_moment;
struct request_event unused_request;
struct counted_event unused_counted;
struct budget unused_budget;

static __always_inline struct budget *budget_of(__u64 key)
{
	struct budget *budget = bpf_map_lookup_elem(&budgets, &key);

	if (!budget && !bpf_map_update_elem(&budgets, &key, &no_budget, BPF_NOEXIST))
		budget = bpf_map_lookup_elem(&budgets, &key);
	return budget;
}

static __always_inline struct tenant *tenant_of(__u64 number)
{
	struct tenant *tenant = bpf_map_lookup_elem(&tenants, &number);

	if (!tenant && !bpf_map_update_elem(&tenants, &number, &no_tenant, BPF_NOEXIST))
		tenant = bpf_map_lookup_elem(&tenants, &number);
	return tenant;
}

/* Counts an event. Returns whether there were fewer than a maximum in this second. Updates of several processors may
 * overlap, so that a few more are sent. */
static __always_inline bool is_within(struct rate *rate, __u32 kind, __u64 now, __u64 most)
{
	__u64 second = now / 1000000000;

	if (!rate || kind >= BUDGET_KINDS)
		return false;
	if (rate->second != second) {
		rate->second = second;
		__builtin_memset(rate->sent, 0, sizeof(rate->sent));
	}
	return rate->sent[kind]++ < most;
}

/*
 * Whether there is room in the ring for one more event of a tenant; then it is counted. What waits of one tenant may
 * take a quarter of the room that is left, so that where user space is late, n tenants that send all they can leave
 * 1 / (1 + n / 4) of the ring to others (dynamic thresholds: Choudhury and Hahne, 1998).
 */
static __always_inline bool has_room(struct tenant *tenant)
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

/* Whether a JVM may send one more event of a kind; then it is counted. */
static __always_inline bool may_send(struct budget *budget, __u32 kind, __u64 now)
{
	struct tenant *tenant;

	if (!budget || !is_within(&budget->rate, kind, now, max_events_per_second))
		return false;
	tenant = tenant_of(budget->tenant);
	return tenant && is_within(&tenant->rate, kind, now, max_tenant_events_per_second) &&
	       has_room(tenant);
}

/* Whether a JVM may send an event that is no stop. */
static __always_inline bool may_send_other(__u64 key, __u64 now)
{
	return !max_events_per_second || may_send(budget_of(key), BUDGET_OTHER, now);
}

/* Whether a stop is to be sent; else it is added to the sums of its JVM. Runs on its VM thread only. */
static __always_inline bool may_send_stop(const struct stop_event *stop, __u64 now)
{
	__u32 kind = stop->gc_pairs ? BUDGET_GC : BUDGET_SAFEPOINT;
	__u64 ns = stop->end_ns - stop->begin_ns;
	struct limited_stops *limited;
	struct budget *budget;

	if (!max_events_per_second)
		return true;
	budget = budget_of(stop->target);
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

static __always_inline struct stop_event *current_stop(__u64 key)
{
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &key);

	/* Concurrent collector threads run some of the same functions. */
	if (!stop || !stop->begin_ns || stop->tid != (__u32)bpf_get_current_pid_tgid())
		return NULL;
	return stop;
}

static __always_inline struct stop_event *new_stop(__u64 key, __u64 now)
{
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &key);

	if (stop) {
		/* One that was sent is clear: the application waits. */
		if (stop->begin_ns)
			__builtin_memset(stop, 0, sizeof(*stop));
	} else {
		if (bpf_map_update_elem(&stops, &key, &no_stop, BPF_NOEXIST)) {
			count_lost(key);
			return NULL;
		}
		stop = bpf_map_lookup_elem(&stops, &key);
		if (!stop)
			return NULL;
	}
	stop->kind = EVENT_STOP;
	stop->target = key;
	stop->tid = (__u32)bpf_get_current_pid_tgid();
	stop->heap_before = UNKNOWN;
	stop->heap_after = UNKNOWN;
	stop->heap_settled = UNKNOWN;
	stop->op_type = UNKNOWN;
	stop->begin_ns = now;
	return stop;
}

/* For USDT probes, which fire on the VM thread only. */
static __always_inline struct stop_event *current_or_new_stop(__u64 key, __u64 now,
							      const struct gauge *gauge)
{
	struct stop_event *stop = current_stop(key);

	return !stop && gauge && gauge->stop_end ? new_stop(key, now) : stop;
}

static __always_inline void read_counters(const struct gauge *gauge, __u64 *out)
{
	int i;

	/* The low half of a jlong, or a counter of 32 bits. */
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

/* JDK 11 and older may run several operations inside one safepoint. */
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
	/* Attached for other JVMs of the same file. */
	if (!stop || (gauge && gauge->op_tells))
		return 0;
	stop->full |= full;
	/*
	 * Functions, unlike the probes, are nested up to JDK 13: a full collection is inside
	 * of the young one that has failed.
	 */
	if (stop->in_gc++)
		return 0;
	if (!stop->gc_pairs) {
		stop->gc_op = stop->last;
		stop->gc_begin_ns = now;
		if (gauge) {
			stop->heap_before = heap_used(gauge);
			read_counters(gauge, stop->before);
		}
	}
	/* Until the end is known: the sum is kept free of underflow. */
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
		if (gauge->settled[0])
			stop->heap_settled = heap_settled(gauge);
		read_counters(gauge, stop->after);
		stop->gauged = 1;
		/* Where one operation collects twice, the first cause counts. */
		if (!stop->has_cause) {
			stop->has_cause = 1;
			read_causes(gauge, stop->cause, stop->last_cause);
		}
	}
	return 0;
}

/*
 * A collector begins its work. Parallel sets a cause of its own for a full
 * collection that a failed allocation leads to, and takes it back before the
 * gc probe tells of the end: this is where it can be read.
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
 * CMS's thread sweeps on beside the VM thread until that has waited for it. JDK 8 reads only
 * then what its log tells as the heap before (ParNewGeneration::collect(),
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
 * A collector is done. Serial, Parallel and CMS allocate what had not fitted before the gc
 * probe tells of the end; the last one of an operation counts.
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
		stop->heap_settled = heap_used(gauge);
	return 0;
}

/*
 * The application runs again before the VM thread comes to the probe, and may
 * well take its processor away. The JVM's own stamps are nearer to the truth;
 * its clock is ours. They must lie around the collection and before now.
 * Tells whether the stop's times are known, from there or from the probes.
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
	if (!stop)
		return 0;
	stop->end_ns = now;
	/* The cycle that a pause of such a collector is of goes on. */
	if (gauge && gauge->op_tells)
		read_causes(gauge, stop->cause, stop->last_cause);
	if (!refine_stop(stop, gauge, now))
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
 * VMThread::evaluate_operation(VM_Operation *). Its argument is where the compiler wants it
 * to be (it clones the function without `this`), so the operation is read from the variable
 * that the VM thread has put it into before.
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
 * GCIdMark() brackets a collection in every collector of JDK 9 and later; the
 * function that holds the probe, VM_GC_Operation::notify_gc_begin(), is empty in
 * a build without probes and thus inlined here and there.
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

static __always_inline void fill_moment(struct moment_event *at, __u64 kind, __u64 key, bool end)
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
	struct pool_event *event;

	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost(key);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	fill_moment(&event->at, EVENT_POOL, key, end);
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

static __always_inline int cycle(__u64 key, bool is_only, bool end)
{
	struct moment_event *event = NULL;

	if (may_send_other(key, bpf_ktime_get_ns()))
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count_lost(key);
		return 0;
	}
	__builtin_memset(event, 0, sizeof(*event));
	fill_moment(event, EVENT_CYCLE, key, end);
	if (is_only)
		event->tid = 0;
	bpf_ringbuf_submit(event, wake());
	return 0;
}

/*
 * Concurrent cycles: G1ConcurrentMark::concurrent_cycle_start() and _end(); in
 * builds without probes TraceMemoryManagerStats of ZGC and Shenandoah.
 */
static __always_inline int cycle_outside_of_stops(struct pt_regs *ctx, bool end)
{
	__u64 key = target_key(uprobe_cookie(ctx));

	/* The VM thread runs the same functions around a pause. */
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
 * The only one that there can be at a time: CMSCollector::collect_in_background() to
 * ConcurrentMarkSweepThread::sleepBeforeNextCycle(); of G1 in JDK 8 ConcurrentMark::scanRootRegions()
 * to G1CollectedHeap::register_concurrent_cycle_end(). A collection may end it: then there is a stop.
 */
SEC("uprobe")
int BPF_UPROBE(fn_only_cycle_begin)
{
	return cycle(target_key(uprobe_cookie(ctx)), true, false);
}

SEC("uprobe")
int BPF_UPROBE(fn_only_cycle_end)
{
	return cycle(target_key(uprobe_cookie(ctx)), true, true);
}

/* JVM_GC(), which System.gc() and Runtime.gc() call. */
SEC("uprobe")
int BPF_UPROBE(fn_request)
{
	__u64 key = target_key(uprobe_cookie(ctx));
	struct request_event event = {
		.kind = EVENT_REQUEST,
		.target = key,
		.ts_ns = bpf_ktime_get_ns(),
		.tid = (__u32)bpf_get_current_pid_tgid(),
		.stack = intern_stack(ctx, key),
	};

	bpf_get_current_comm(event.comm, sizeof(event.comm));
	send(key, &event, sizeof(event));
	return 0;
}

/* The VM thread has just added a stop that is over to sun.rt.safepointTime. */
SEC("perf_event")
int counted_stop(struct bpf_perf_event_data *ctx)
{
	__u64 key = target_key(LINUX_HAS_BPF_COOKIE ? bpf_get_attach_cookie(ctx) : 0);
	struct counted_at *counters = bpf_map_lookup_elem(&counted, &key);
	struct gauge *gauge = bpf_map_lookup_elem(&gauges, &key);
	struct counted_event event = {
		.kind = EVENT_COUNTED,
		.target = key,
		.ts_ns = bpf_ktime_get_ns(),
	};
	int i;

	if (!counters || !gauge)
		return 0;
	/* The next one tells of this stop, too: user space makes differences of the counters. */
	if (!may_send_other(key, event.ts_ns))
		return 0;
	for (i = 0; i < COUNTED_NUMBERS; i++)
		if (counters->at[i])
			event.numbers[i] = read_u64(counters->at[i]);
	read_causes(gauge, event.cause, event.last_cause);
	send(key, &event, sizeof(event));
	return 0;
}
