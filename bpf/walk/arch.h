/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Selects the registers of the processor that the walker is compiled for. */
#ifndef JVMPROBE_WALK_ARCH_H
#define JVMPROBE_WALK_ARCH_H

#if defined(__TARGET_ARCH_x86)
#include "arch_x86.h"
#elif defined(__TARGET_ARCH_arm64)
#include "arch_arm64.h"
#else
#error "the stack walker does not know the registers of this machine"
#endif

#endif
