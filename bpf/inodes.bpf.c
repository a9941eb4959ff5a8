// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The inodes of the files that a process has mapped, and their file systems.
 *
 * A file on an overlay has other numbers in each container, but the kernel attaches uprobes to the inode below all
 * overlays. It also maps that inode (ovl_mmap() of fs/overlayfs/file.c, backing_file_mmap() of fs/backing-file.c), so
 * vm_file leads to it.
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct seq_file;
struct task_struct;

/* Fields of include/linux/fs.h and include/linux/mm_types.h; libbpf inserts the offsets of the running kernel. */
struct file_system_type {
	const char *name;
} __attribute__((preserve_access_index));

struct super_block {
	unsigned long s_magic;
	struct file_system_type *s_type;
} __attribute__((preserve_access_index));

struct inode {
	struct super_block *i_sb;
} __attribute__((preserve_access_index));

struct file {
	struct inode *f_inode;
} __attribute__((preserve_access_index));

struct vm_area_struct {
	unsigned long vm_start;
	struct file *vm_file;
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
