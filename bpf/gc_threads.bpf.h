/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Waits of a collection for a CPU, on the run queue or because a CPU quota is used up.
 *
 * For each thread, the scheduler adds up the time in which it was runnable but did not run: sched_info.run_delay of
 * task_struct, the second field of /proc/PID/schedstat. The sum grows when the thread runs again. The sums of the VM
 * thread and of the collector's worker threads are read when the first collection of a stop begins, and again when the
 * stop is over. The largest growth is the result. Adding up the waits of parallel threads could exceed the pause.
 *
 * Finding the worker threads requires a walk through the list of threads, so that happens outside of pauses only.
 *
 * This file reads only offsets that user space has set. If it could not, no JVM has an entry in the map.
 */
#ifndef JVMPROBE_GC_THREADS_BPF_H
#define JVMPROBE_GC_THREADS_BPF_H

#include "javagc.h"
#include "tasks.bpf.h"

const volatile __u32 task_thread_node = 0;
const volatile __u32 task_signal = 0;
/* Offsets in task_struct of fields of sched_info: the sum, when the thread last began to run, and since when it has been
   waiting (0 if it is not waiting). The last two are on the scheduler's clock, which has no helper to read it. */
const volatile __u32 task_run_delay = 0;
const volatile __u32 task_last_arrival = 0;
const volatile __u32 task_last_queued = 0;
/* Offsets of nr_threads and thread_head in signal_struct. */
const volatile __u32 signal_threads = 0;
const volatile __u32 signal_thread_head = 0;
/* Offset of sched_task_group in task_struct, and of parent and cfs_bandwidth.nr_throttled in task_group. All are 0 if
   the kernel has no CPU quotas. */
const volatile __u32 task_group = 0;
const volatile __u32 group_parent = 0;
const volatile __u32 group_throttled = 0;

/* Maximum number of threads that a search for workers visits. A JVM starts its first workers before Java threads. */
#define MAX_SEARCHED 512
/* Minimum time between two searches. */
#define SEARCH_INTERVAL_NS 1000000000
/* Maximum number of nested control groups whose quotas are read. */
#define MAX_GROUPS 6

/* User space adds an entry for each JVM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct gc_threads);
} gc_threads SEC(".maps");

/* Returns the number of periods in which this control group or one of its parents used up its CPU quota. */
static __always_inline __u64 throttled_periods(__u64 group)
{
	__u64 sum = 0;
	int i;

	if (!group_throttled)
		return UNKNOWN;
	for (i = 0; i < MAX_GROUPS && group; i++) {
		sum += task_u32(group, group_throttled);
		group = task_u64(group, group_parent);
	}
	return sum;
}

/*
 * Reads the state of the threads when a collection begins. The workers are not checked here, because that can be done
 * after the pause: a thread that still exists then has existed all the time.
 */
__noinline int begin_waits(__u64 key, __u64 now)
{
	struct gc_threads *threads = bpf_map_lookup_elem(&gc_threads, &key);
	__u64 task = bpf_get_current_task(), arrival;
	__u32 i;

	if (!threads)
		return 0;
	threads->begin_ns = now;
	threads->delay_ns = task_u64(task, task_run_delay);
	threads->group = task_u64(task, task_group);
	threads->throttled = throttled_periods(threads->group);
	arrival = task_u64(task, task_last_arrival);
	for (i = 0; i < MAX_WORKERS; i++) {
		struct worker *worker = &threads->workers[i];
		__u64 queued;

		if (i >= threads->count)
			break;
		worker->delay_ns = task_u64(worker->task, task_run_delay);
		queued = task_u64(worker->task, task_last_queued);
		/* The worker is waiting already. Its wait counts from the time at which the VM thread began to run,
		   which is usually the beginning of the stop. */
		if (queued && queued < arrival)
			worker->delay_ns += arrival - queued;
	}
	return 0;
}

/* Returns eight characters as a number, so that they can be compared in one step. */
static __always_inline __u64 word(const char *text)
{
	__u64 word;

	__builtin_memcpy(&word, text, sizeof(word));
	return word;
}

/*
 * Returns whether a thread's name, given as its 16 bytes, is that of a worker thread which collects in pauses: that of G1,
 * Parallel and CMS; Parallel up to JDK 16; Parallel, and CMS and G1 in early JDK 8; Shenandoah up to JDK 25, and later.
 */
static __always_inline bool is_worker(const __u64 name[2])
{
	return name[0] == word("GC Threa") || name[0] == word("ParGC Th") ||
	       name[0] == word("GC task ") || name[0] == word("Gang wor") ||
	       (name[0] == word("Shenando") && name[1] == word("ah GC T")) ||
	       name[0] == word("ShenWork");
}

/* Adds a worker to the list. Not static, so that the verifier checks it once and not for each thread of a process. */
__noinline int add_worker(__u64 key, __u64 task, __u64 signal)
{
	struct gc_threads *threads = bpf_map_lookup_elem(&gc_threads, &key);
	struct worker *worker;
	__u32 i;

	/* A task that has been freed during the search may belong to another process by now. */
	if (!threads || task_u64(task, task_signal) != signal)
		return 0;
	i = threads->count;
	if (i >= MAX_WORKERS)
		return 0;
	threads->count = i + 1;
	worker = &threads->workers[i];
	worker->task = task;
	worker->start_time = task_u64(task, task_start_time);
	worker->tid = task_u32(task, task_pid);
	/* The previous search has found all workers that existed then. */
	if (worker->start_time <= threads->searched_ns)
		return 0;
	if (worker->start_time >= threads->begin_ns) {
		__u64 delay_ns = task_u64(task, task_run_delay);

		/* The JVM has started this worker for the current collection. */
		if (threads->longest_ns < delay_ns)
			threads->longest_ns = delay_ns;
	} else {
		threads->is_incomplete = 1;
	}
	return 0;
}

/* Finds the workers of the current process. */
__noinline int find_workers(__u64 key, __u64 signal)
{
	__u64 head = signal + signal_thread_head, node = task_u64(head, 0);
	__u64 name[2];
	int i;

	for (i = 0; i < MAX_SEARCHED; i++) {
		__u64 task = node - task_thread_node;

		if (!node || node == head)
			break;
		if (!bpf_probe_read_kernel(name, sizeof(name), (void *)(task + task_comm)) &&
		    is_worker(name))
			add_worker(key, task, signal);
		node = task_u64(node, 0);
	}
	return 0;
}

/* Updates the list of workers if the number of threads has changed. */
static __always_inline void update_workers(__u64 key, struct gc_threads *threads, __u64 task,
					   __u64 now)
{
	__u64 signal = task_u64(task, task_signal);
	__u32 number = task_u32(signal, signal_threads);

	if (threads->searched_ns &&
	    (threads->threads == number || now < threads->searched_ns + SEARCH_INTERVAL_NS))
		return;
	threads->threads = number;
	threads->count = 0;
	find_workers(key, signal);
	threads->searched_ns = now;
}

/*
 * Raises longest_ns to the wait of a thread since the collection began. `after` is the maximum length of the part that was
 * after the stop.
 */
static __always_inline void count_wait(struct gc_threads *threads, __u64 task, __u64 begin_delay_ns,
				       __u64 after)
{
	__u64 delay_ns = task_u64(task, task_run_delay);

	begin_delay_ns += after;
	if (delay_ns > begin_delay_ns && threads->longest_ns < delay_ns - begin_delay_ns)
		threads->longest_ns = delay_ns - begin_delay_ns;
}

/* Completes the record of a stop that is over, and updates the list of workers. */
__noinline int end_waits(__u64 key, __u64 now)
{
	struct gc_threads *threads = bpf_map_lookup_elem(&gc_threads, &key);
	struct stop_event *stop = bpf_map_lookup_elem(&stops, &key);
	__u64 task = bpf_get_current_task(), begin, end, after, arrival, longest, throttled;
	__u32 i;

	if (!threads || !stop)
		return 0;
	begin = stop->gc_begin_ns;
	end = stop->end_ns;
	if (!begin || begin != threads->begin_ns || begin > end || end > now) {
		threads->begin_ns = UNKNOWN;
		update_workers(key, threads, task, now);
		return 0;
	}
	threads->longest_ns = 0;
	threads->is_incomplete = 0;
	/* Since the end of the stop, the threads may have waited, too. */
	after = now - end;
	count_wait(threads, task, threads->delay_ns, after);
	/* If the VM thread has waited since then, the stop ended at this time on the scheduler's clock; if not, later. */
	arrival = task_u64(task, task_last_arrival) - after;
	for (i = 0; i < MAX_WORKERS; i++) {
		struct worker *worker = &threads->workers[i];
		bool is_within;

		if (i >= threads->count)
			break;
		/* The thread may have ended, and another one may use the memory. */
		if (task_u32(worker->task, task_pid) != worker->tid ||
		    task_u64(worker->task, task_start_time) != worker->start_time)
			continue;
		is_within = task_u64(worker->task, task_last_arrival) <= arrival;
		count_wait(threads, worker->task, worker->delay_ns, is_within ? 0 : after);
	}
	update_workers(key, threads, task, now);
	stop->workers = threads->count;
	longest = threads->longest_ns;
	if (!threads->is_incomplete)
		stop->cpu_wait_ns = longest < end - begin ? longest : end - begin;
	throttled = threads->throttled;
	if (throttled != UNKNOWN && task_u64(task, task_group) == threads->group) {
		__u64 periods = throttled_periods(threads->group);

		if (periods >= throttled)
			stop->throttled_periods = periods - throttled;
	}
	return 0;
}

#endif
