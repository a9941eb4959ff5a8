/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Finds the caller of each kind of HotSpot's frames: interpreted and compiled methods, adapters between the
 * two, and stubs.
 *
 * The frame size of a blob leads to the caller. Only the innermost frame can be incomplete; how much of it is set
 * up is decoded from its instructions (arch_NAME.bpf.h). Nearly all generated code is called from generated
 * code. So a step is confirmed if the return address lies in the code cache. Steps that nothing confirms are
 * guesses.
 */
#ifndef JVMPROBE_WALK_HOTSPOT_BPF_H
#define JVMPROBE_WALK_HOTSPOT_BPF_H

#include "arch_frames.bpf.h"

static __always_inline int caller_in_code_cache(struct walker *w)
{
	bool is_stub;
	int why;

	if (w->jvm.return_barrier && w->ip == w->jvm.return_barrier) {
		/* The outer frames of a virtual thread are frozen in the heap. The walk goes on at the return
		   address of the continuation's entry. */
		if (read_user(&w->ip, WORD, w->jvm.cont_return_pc_at) ||
		    !in_code_cache(w, w->ip))
			return END_IMPLAUSIBLE;
		w->frame = w->ip;
	}
	if (in_interpreter(w, w->ip)) {
		/* Called here and not in caller_of_interpreted(), because a deeper call chain would exceed
		   the BPF stack. */
		if (w->is_innermost) {
			why = caller_of_frameless(w);
			if (!w->is_innermost)
				return why;
		}
		return caller_of_interpreted(w);
	}
	w->is_deoptimizing = false;
	is_stub = w->blob.kind == BLOB_STUB;
	find_own_blob(w);
	switch (w->blob.kind) {
	case BLOB_METHOD:
		w->frame |= (w->blob.compile_id & COMPILE_ID_MASK) << ADDR_BITS;
		return caller_of_compiled(w, is_stub);
	case BLOB_DISPATCH:
		/* Such code pushes nothing and calls nothing. */
		return caller_of_dispatch(w);
	case BLOB_ADAPTER:
		return caller_of_adapter(w);
	case BLOB_DEOPT:
		w->is_deoptimizing = true;
		return caller_of_stub(w);
	case BLOB_STUB:
		return caller_of_stub(w);
	}
	guess(w);
	return caller_by_fp(w);
}

#endif
