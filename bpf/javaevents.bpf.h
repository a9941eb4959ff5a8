/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Named events of Java programs: exceptions, definition of classes, start of threads, deoptimisation,
 * compilation, requests for collections. Included by javaprof.bpf.c.
 *
 * The subject of an event (a class, a method, a reason) is reported beside its stack as a label. A label's
 * text is sent once and represented by a number from then on.
 */
#ifndef JVMPROBE_JAVAEVENTS_BPF_H
#define JVMPROBE_JAVAEVENTS_BPF_H

#include "class.bpf.h"

struct label_key {
	__u64 target;
	__u64 label;
};

/* Labels whose text was sent to user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 15);
	__type(key, struct label_key);
	__type(value, __u8);
} labels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_TARGETS);
	__type(key, __u64);
	__type(value, struct java_layout);
} java_layouts SEC(".maps");

/* The compilation that a thread is doing. */
struct compilation {
	__u64 since;        /* when it began; 0 between java_compile_task and java_compile_begin */
	__u64 label;
	__u32 level;        /* compilation tier, 1 to 4; 0 if unknown */
	__u32 is_osr;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 12);
	__type(key, __u64);
	__type(value, struct compilation);
} compilations SEC(".maps");

/* Buffer for a label's text while its hash is computed. Programs lock it: see lock.bpf.h. */
struct own_label {
	__u64 locked;
	struct label_event event;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct own_label);
} own_labels SEC(".maps");

static __always_inline struct own_label *lock_label(void)
{
	__u32 zero = 0;
	struct own_label *own = bpf_map_lookup_elem(&own_labels, &zero);

	return own && try_lock(&own->locked) ? own : NULL;
}

/* Sends a label's text unless it was sent before. Returns the label. */
static __always_inline __u64 send_label(struct label_event *event, __u64 target, __u64 label)
{
	struct label_key key = { .target = target, .label = label };
	__u64 size = event->size;
	__u8 one = 1;
	long error;

	if (bpf_map_lookup_elem(&labels, &key))
		return label;
	error = bpf_map_update_elem(&labels, &key, &one, BPF_NOEXIST);
	if (error == -EEXIST)
		return label;
	if (error)
		return LABEL_OTHER;
	event->kind = EVENT_LABEL;
	event->target = target;
	event->label = label;
	if (size > LABEL_LEN)
		size = LABEL_LEN;
	barrier_var(size);
	if (size > LABEL_LEN)
		return LABEL_OTHER;
	if (bpf_ringbuf_output(&events, event, offsetof(struct label_event, text) + size, wake())) {
		bpf_map_delete_elem(&labels, &key);
		count_lost(target);
	}
	return label;
}

/* Number of 8-byte words of a text that are hashed. Texts of the same length that differ only after these
   words have the same label. */
#define HASHED_WORDS 32

__noinline __u64 hash_text(struct label_event *event)
{
	__u64 hash, i;

	if (!event)
		return 0;
	hash = event->size;
	for (i = 0; i < HASHED_WORDS; i++) {
		if (i * 8 >= event->size)
			break;
		hash = mix(hash, ((__u64 *)event->text)[i]);
	}
	return hash;
}

static __always_inline void clear_text(struct label_event *event)
{
	__u32 i;

	for (i = 0; i < HASHED_WORDS; i++)
		((__u64 *)event->text)[i] = 0;
	event->size = 0;
}

/* Appends `size` bytes of text from the target's memory. */
static __always_inline void add_text(struct label_event *event, __u64 from, __u64 size)
{
	__u64 at = event->size;

	if (at >= LABEL_LEN / 2)
		return;
	if (size > LABEL_LEN / 2 - 1)
		size = LABEL_LEN / 2 - 1;
	/* The masks are for verifiers that do not track the bounds above, and the barriers preserve the masks. */
	barrier_var(at);
	barrier_var(size);
	at &= LABEL_LEN / 2 - 1;
	size &= LABEL_LEN / 2 - 1;
	if (!bpf_probe_read_user(&event->text[at], size, (void *)from))
		event->size = at + size;
}

static __always_inline void add_char(struct label_event *event, char c)
{
	__u64 at = event->size;

	if (at >= LABEL_LEN)
		return;
	barrier_var(at);
	at &= LABEL_LEN - 1;
	event->text[at] = c;
	event->size = at + 1;
}

/* Returns the label of the class of a handle's object. */
static __always_inline __u64 class_label(__u64 target, __u64 handle)
{
	struct java_layout *java = bpf_map_lookup_elem(&java_layouts, &target);
	__u64 klass, symbol, text, label;
	struct own_label *own;
	__u16 size = 0;

	if (!java || !handle)
		return 0;
	/* The two low bits of a handle may encode its kind. */
	klass = class_of(&java->class, read_u64(handle & ~3ULL));
	symbol = read_u64(klass + java->klass_name);
	if (bpf_probe_read_user(&size, sizeof(size), (void *)(symbol + java->symbol_length)))
		return LABEL_OTHER;
	text = symbol + java->symbol_body;
	/* A Symbol's memory may be reused after its class is unloaded, so the end of the name is part of the label. */
	label = read_u64(size < 8 ? text : text + size - 8);
	label = mix(mix(symbol, size), label) | LABEL_IS_TEXT;
	own = lock_label();
	if (!own)
		return LABEL_OTHER;
	own->event.size = 0;
	add_text(&own->event, text, size);
	label = send_label(&own->event, target, label);
	unlock(&own->locked);
	return label;
}

/* Returns the label of a NUL-terminated name in the target's memory. */
static __always_inline __u64 name_label(__u64 target, __u64 name)
{
	struct own_label *own;
	__u64 label;
	long size;

	if (!name)
		return 0;
	own = lock_label();
	if (!own)
		return LABEL_OTHER;
	clear_text(&own->event);
	size = bpf_probe_read_user_str(own->event.text, LABEL_LEN, (void *)name);
	own->event.size = size > 0 ? size - 1 : 0;
	label = hash_text(&own->event) | LABEL_IS_TEXT;
	label = send_label(&own->event, target, label);
	unlock(&own->locked);
	return label;
}

/* JVM_FillInStackTrace(JNIEnv *, jobject), JVM_StartThread(JNIEnv *, jobject) */
SEC("uprobe")
int BPF_UPROBE(java_object, __u64 env, __u64 object)
{
	struct sample_key key = {};

	if (!is_hit_sampled(&key, uprobe_cookie(ctx)))
		return 0;
	key.label = class_label(key.tgid, object);
	count_hit_of(ctx, &key);
	return 0;
}

static __always_inline int defines(struct pt_regs *ctx, __u64 name)
{
	struct sample_key key = {};

	if (!is_hit_sampled(&key, uprobe_cookie(ctx)))
		return 0;
	key.label = name_label(key.tgid, name);
	count_hit_of(ctx, &key);
	return 0;
}

/* JVM_DefineClass(JNIEnv *, const char *, ...), JVM_DefineClassWithSource(JNIEnv *, const char *, ...) */
SEC("uprobe")
int BPF_UPROBE(java_define, __u64 env, __u64 name)
{
	return defines(ctx, name);
}

/* JVM_LookupDefineClass(JNIEnv *, jclass, const char *, ...) */
SEC("uprobe")
int BPF_UPROBE(java_lookup_define, __u64 env, __u64 lookup, __u64 name)
{
	return defines(ctx, name);
}

/* Deoptimization::uncommon_trap(JavaThread *, jint, jint) */
SEC("uprobe")
int BPF_UPROBE(java_deopt, __u64 thread, __u64 request)
{
	struct sample_key key = {};

	if (!is_hit_sampled(&key, uprobe_cookie(ctx)))
		return 0;
	/* A negative request encodes a reason and an action. Any other request is the constant pool index of a class
	   that is not loaded; its reason is "unloaded". */
	key.label = 1 + (__u64)(__u32)request;
	count_hit_of(ctx, &key);
	return 0;
}

#define MAX_LEVEL 4
/* InvocationEntryBci of hotspot/share/compiler/compilerDefinitions.hpp */
#define NO_OSR_BCI -1

/* CompileBroker::invoke_compiler_on_method(CompileTask *). This function contains the probes
   method__compile__begin and method__compile__end, which do not report the tier. */
SEC("uprobe")
int BPF_UPROBE(java_compile_task, __u64 task)
{
	struct sample_key key = {};
	struct compilation now = {};
	__u64 id = bpf_get_current_pid_tgid(), target;
	__s32 osr_bci = NO_OSR_BCI;
	struct java_layout *java;

	if (!is_hit_sampled(&key, uprobe_cookie(ctx)))
		return 0;
	target = key.tgid;
	java = bpf_map_lookup_elem(&java_layouts, &target);
	if (!java || !java->task_level)
		return 0;
	bpf_probe_read_user(&now.level, sizeof(now.level), (void *)(task + java->task_level));
	bpf_probe_read_user(&osr_bci, sizeof(osr_bci), (void *)(task + java->task_osr_bci));
	if (now.level > MAX_LEVEL)
		now.level = 0;
	now.is_osr = osr_bci != NO_OSR_BCI;
	/* If the map is full, the insertion in java_compile_begin fails, too, and counts the loss. */
	bpf_map_update_elem(&compilations, &id, &now, BPF_ANY);
	return 0;
}

/* hotspot:method__compile__begin(compiler, len, class, len, method, len, signature, len) */
SEC("usdt")
int BPF_USDT(java_compile_begin, __u64 compiler, __u64 compiler_len, __u64 klass, __u64 klass_len,
	     __u64 method, __u64 method_len)
{
	struct sample_key key = {};
	struct compilation now = {}, *task;
	struct own_label *own;
	__u64 id = bpf_get_current_pid_tgid();

	if (!is_hit_sampled(&key, bpf_usdt_cookie(ctx)))
		return 0;
	task = bpf_map_lookup_elem(&compilations, &id);
	if (task && !task->since)
		now = *task;
	own = lock_label();
	if (own) {
		clear_text(&own->event);
		add_text(&own->event, klass, klass_len);
		add_char(&own->event, '.');
		add_text(&own->event, method, method_len);
		add_char(&own->event, ' ');
		add_text(&own->event, compiler, compiler_len);
		add_char(&own->event, ' ');
		add_char(&own->event, '0' + (now.level & 7));
		add_char(&own->event, now.is_osr ? '%' : ' ');
		now.label = send_label(&own->event, key.tgid,
				       (hash_text(&own->event) | LABEL_IS_TEXT) & ~LABEL_FAILED);
		unlock(&own->locked);
	} else {
		now.label = LABEL_OTHER;
	}
	now.since = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&compilations, &id, &now, BPF_ANY))
		count_lost(LOST_SAMPLES);
	return 0;
}

/* hotspot:method__compile__end(compiler, len, class, len, method, len, signature, len, is_success) */
SEC("usdt")
int BPF_USDT(java_compile_end)
{
	struct sample_key key = {};
	long is_success = 1;
	__u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
	struct compilation *begin;

	if (!is_hit_sampled(&key, bpf_usdt_cookie(ctx)))
		return 0;
	begin = bpf_map_lookup_elem(&compilations, &id);
	/* No entry: the compilation began before the trace. */
	if (!begin)
		return 0;
	key.label = begin->label;
	if (!bpf_usdt_arg(ctx, 8, &is_success) && !(is_success & 0xff))
		key.label |= LABEL_FAILED;
	now -= begin->since;
	bpf_map_delete_elem(&compilations, &id);
	/* The compiler's own stack is not useful; each compilation is counted with its time. */
	count(&key, now);
	return 0;
}

#endif
