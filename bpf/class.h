/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Where the header of an object contains its class; user space fills it in. */
#ifndef JVMPROBE_CLASS_H
#define JVMPROBE_CLASS_H

#include <linux/types.h>

struct class_place {
	__u32 bytes;        /* size of the class pointer: 8, or 4 if it is compressed */
	__u32 at;           /* its offset in the header */
	__u32 bit;          /* its lowest bit at that offset */
	__u32 shift;        /* a compressed pointer p means the address base + (p << shift) */
	__u64 base;
};

#endif
