//! Memory retained by the allocator.

/// Makes the allocator return freed memory to the kernel sooner, for a process that runs for months and whose
/// memory use has peaks. By default, glibc has an arena for each thread, and memory freed in an arena stays
/// there. Once a large block was freed, glibc also serves blocks of that size from arenas. Source:
/// mallopt(3).
pub fn return_memory_sooner() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 1 << 16;
        let wanted = [
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_THRESHOLD, LARGE),
            (libc::M_TRIM_THRESHOLD, LARGE),
        ];
        for (parameter, value) in wanted {
            // SAFETY: the arguments are numbers, and mallopt() rejects unknown ones.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}
