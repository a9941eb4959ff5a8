/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Selects HotSpot's frames of the processor that the walker is compiled for. */
#ifndef JVMPROBE_WALK_ARCH_FRAMES_BPF_H
#define JVMPROBE_WALK_ARCH_FRAMES_BPF_H

#if defined(__TARGET_ARCH_x86)
#include "arch_x86_frames.bpf.h"
#elif defined(__TARGET_ARCH_arm64)
#include "arch_arm64_frames.bpf.h"
#endif

#endif
