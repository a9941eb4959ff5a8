/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Threads as an iterator over all tasks sees them (kernel/bpf/task_iter.c): fields of task_struct, and the
 * registers with which a thread entered the kernel.
 *
 * Included after walk/intern.bpf.h.
 */
#ifndef JVMPROBE_TASKS_BPF_H
#define JVMPROBE_TASKS_BPF_H

/* Offsets of fields of the kernel's task_struct, which user space reads from the kernel's BTF. */
const volatile __u32 task_pid = 0;
const volatile __u32 task_tgid = 0;
const volatile __u32 task_state = 0;
const volatile __u32 task_start_time = 0;
const volatile __u32 task_comm = 0;

struct seq_file;
struct task_struct;

/* First fields of struct bpf_iter_meta (include/linux/bpf.h) and struct bpf_iter__task (kernel/bpf/task_iter.c). */
struct iterator {
	__bpf_md_ptr(struct seq_file *, seq);
};

struct iterated_task {
	__bpf_md_ptr(struct iterator *, meta);
	__bpf_md_ptr(struct task_struct *, task);
};

static __always_inline __u32 task_u32(__u64 task, __u32 at)
{
	__u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + at));
	return value;
}

static __always_inline __u64 task_u64(__u64 task, __u32 at)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(task + at));
	return value;
}

/* Interns the kernel stack of a thread that is not running. Returns its id. */
static __always_inline __u64 kernel_part_of(struct task_struct *task)
{
	struct own_stack *own = lock_stack();
	struct walked *walked;
	__u64 id;

	if (!own)
		return STACK_NONE;
	walked = &own->event.stack;
	id = intern(&own->event,
		    finish_kernel_walk(walked, 0,
				       bpf_get_task_stack(task, walked->frames,
							  MAX_KERNEL_FRAMES * sizeof(__u64), 0)),
		    true);
	unlock_stack(own);
	return id;
}

/* Reads the registers with which a thread that is not running entered the kernel from user mode. Returns false if
   there are none. */
static __always_inline bool user_registers(struct task_struct *task, bpf_user_pt_regs_t *regs)
{
	return has_user_registers &&
	       !bpf_probe_read_kernel(regs, sizeof(*regs), (void *)bpf_task_pt_regs(task)) &&
	       in_user_mode(regs);
}

#endif
