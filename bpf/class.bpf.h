/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads the class of an object of the JVM. */
#ifndef JVMPROBE_CLASS_BPF_H
#define JVMPROBE_CLASS_BPF_H

#include "class.h"
#include "jvm.bpf.h"

/* Returns the address of the Klass of the object at an address; 0 if it cannot be read. */
static __always_inline __u64 class_of(const struct class_place *place, __u64 object)
{
	__u64 pointer = read_u64(object + place->at) >> (place->bit & 63);

	if (place->bytes != 4)
		return pointer;
	if (!place->bit)
		pointer = (__u32)pointer;
	return pointer ? place->base + (pointer << (place->shift & 63)) : 0;
}

#endif
