/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The parts of libbpf's header of this name that bpf/walk/ uses, for user space: maps are variables that
 * harness.c knows by their addresses, and helpers are functions of harness.c.
 */
#ifndef WALK_HARNESS_BPF_HELPERS_H
#define WALK_HARNESS_BPF_HELPERS_H

#include <linux/types.h>

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[]

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
/* In BPF, the walker's __noinline functions are global. Here they are static, and need no declarations. */
#define __noinline static __attribute__((noinline))

#define barrier() __asm__ volatile("" ::: "memory")
#define barrier_var(variable) __asm__ volatile("" : "+r"(variable))

/* These are static, because the tests also link libbpf, which has functions of the same names. */
static void *bpf_map_lookup_elem(void *map, const void *key);
static long bpf_probe_read_user(void *to, __u32 size, const void *addr);
static long bpf_probe_read_kernel(void *to, __u32 size, const void *addr);
static long bpf_get_stack(void *context, void *to, __u32 size, __u64 flags);
static __u64 bpf_get_current_task(void);
static void *bpf_get_current_task_btf(void);
static long bpf_task_pt_regs(void *task);

#endif
