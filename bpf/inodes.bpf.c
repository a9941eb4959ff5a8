// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The inodes of the files that a process has mapped, and their file systems; and the number of mappings of an inode in all
 * processes.
 *
 * A file on an overlay has other numbers in each container, but the kernel attaches uprobes to the inode below all
 * overlays. It also maps that inode (ovl_mmap() of fs/overlayfs/file.c, backing_file_mmap() of fs/backing-file.c), so
 * vm_file leads to it.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct seq_file;

/* Maximum number of steps through the tree of all mappings of a file: up to three for each counted mapping, and the way to it. */
#define MAX_STEPS (1 << 17)

/*
 * Fields of include/linux/fs.h, include/linux/mm_types.h and include/linux/rbtree_types.h; libbpf inserts the offsets of the
 * running kernel.
 */
struct file_system_type {
	const char *name;
} __attribute__((preserve_access_index));

struct super_block {
	unsigned long s_magic;
	struct file_system_type *s_type;
} __attribute__((preserve_access_index));

struct rb_node {
	/* Address of the parent, and the color in bit 0. */
	unsigned long __rb_parent_color;
	struct rb_node *rb_right;
	struct rb_node *rb_left;
} __attribute__((preserve_access_index));

struct rb_root {
	struct rb_node *rb_node;
} __attribute__((preserve_access_index));

struct rb_root_cached {
	struct rb_root rb_root;
} __attribute__((preserve_access_index));

struct address_space {
	struct rb_root_cached i_mmap;
} __attribute__((preserve_access_index));

struct inode {
	struct super_block *i_sb;
	struct address_space *i_mapping;
} __attribute__((preserve_access_index));

struct file {
	struct inode *f_inode;
} __attribute__((preserve_access_index));

struct task_struct {
	int tgid;
} __attribute__((preserve_access_index));

struct mm_struct {
	/* Absent without CONFIG_MEMCG. */
	struct task_struct *owner;
} __attribute__((preserve_access_index));

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	/* Offset in the file, in pages. */
	unsigned long vm_pgoff;
	struct mm_struct *vm_mm;
	struct file *vm_file;
	struct {
		struct rb_node rb;
		/* The last page of the file that a mapping in this subtree contains. */
		unsigned long rb_subtree_last;
	} shared;
} __attribute__((preserve_access_index));

/* First field of struct bpf_iter_meta (include/linux/bpf.h), and struct bpf_iter__task_vma (kernel/bpf/task_iter.c). */
struct iterator {
	__bpf_md_ptr(struct seq_file *, seq);
};

struct iterated_mapping {
	__bpf_md_ptr(struct iterator *, meta);
	__bpf_md_ptr(struct task_struct *, task);
	__bpf_md_ptr(struct vm_area_struct *, vma);
};

/* A mapping of a file. */
struct mapping {
	__u64 start;
	/* Address of the inode. */
	__u64 inode;
	/* Number and name of the kind of file system. */
	__u64 magic;
	char name[16];
};

/* Writes each mapping of a file. */
SEC("iter/task_vma")
int mapped_files(struct iterated_mapping *ctx)
{
	struct vm_area_struct *vma = ctx->vma;
	struct file *file = vma ? vma->vm_file : 0;
	struct mapping mapping = {};

	if (!file)
		return 0;
	mapping.start = vma->vm_start;
	mapping.inode = (__u64)file->f_inode;
	mapping.magic = file->f_inode->i_sb->s_magic;
	bpf_probe_read_kernel_str(mapping.name, sizeof(mapping.name), file->f_inode->i_sb->s_type->name);
	bpf_seq_write(ctx->meta->seq, &mapping, sizeof(mapping));
	return 0;
}

/* Argument and result of count_mappings(). */
struct count {
	__u64 inode;
	/* Offset in the file, and size of a page, in bytes. */
	__u64 offset;
	__u64 page_size;
	/* Number of mappings that suffices. */
	__u64 max;
	/* Result: number of mappings, at most `max`. */
	__u64 mappings;
	/* Result: a process that has one of them, chosen at random; 0 if unknown. */
	__u64 pid;
};

/* A walk through the tree of all mappings of a file. */
struct tree_walk {
	struct rb_node *node;
	struct rb_node *from;
	/* Page of the location. */
	__u64 page;
	__u64 mappings;
	__u64 max;
	__u64 page_size;
	struct vm_area_struct *chosen;
};

static struct vm_area_struct *mapping_of(struct rb_node *node)
{
	return (void *)node - bpf_core_field_offset(struct vm_area_struct, shared.rb);
}

/* Returns a child if a mapping below it may contain the page. */
static struct rb_node *relevant(struct rb_node *child, __u64 page)
{
	if (!child || BPF_CORE_READ(mapping_of(child), shared.rb_subtree_last) < page)
		return 0;
	return child;
}

static long visit(__u32 step, void *data)
{
	struct tree_walk *walk = data;
	struct rb_node *node = walk->node, *next;
	struct vm_area_struct *vma = mapping_of(node);
	__u64 first = BPF_CORE_READ(vma, vm_pgoff);
	struct rb_node *left = relevant(BPF_CORE_READ(node, rb_left), walk->page);
	struct rb_node *right =
		first <= walk->page ? relevant(BPF_CORE_READ(node, rb_right), walk->page) : 0;
	struct rb_node *parent = (void *)(BPF_CORE_READ(node, __rb_parent_color) & ~3UL);

	if (walk->from == parent) {
		__u64 size = BPF_CORE_READ(vma, vm_end) - BPF_CORE_READ(vma, vm_start);

		if ((walk->page - first) * walk->page_size < size) {
			walk->mappings++;
			if (bpf_get_prandom_u32() % walk->mappings == 0)
				walk->chosen = vma;
		}
		next = left ?: right ?: parent;
	} else {
		next = walk->from == left && right ? right : parent;
	}
	walk->from = node;
	walk->node = next;
	return !next || walk->mappings == walk->max;
}

/*
 * Counts the mappings of a location in all processes, as the kernel visits them for each uprobe (build_map_info() of
 * kernel/events/uprobes.c, interval_tree_generic.h). The tree may change during the walk, so that the result is approximate.
 */
SEC("syscall")
int count_mappings(struct count *ctx)
{
	struct inode *inode = (void *)ctx->inode;
	struct tree_walk walk = {
		.page = ctx->offset / ctx->page_size,
		.page_size = ctx->page_size,
		.max = ctx->max,
	};
	struct vm_area_struct *chosen;

	walk.node = relevant(BPF_CORE_READ(inode, i_mapping, i_mmap.rb_root.rb_node), walk.page);
	if (walk.node)
		bpf_loop(MAX_STEPS, visit, &walk, 0);
	ctx->mappings = walk.node ? walk.max : walk.mappings;
	chosen = walk.chosen;
	if (chosen && bpf_core_field_exists(struct mm_struct, owner))
		ctx->pid = BPF_CORE_READ(chosen, vm_mm, owner, tgid);
	return 0;
}
