//! What the allocator keeps for itself.

/// From now on memory that is freed goes back to the kernel sooner: for a process that lives for
/// months and has peaks. By itself glibc has an arena for each thread, and what was freed in one
/// stays there; and it takes large blocks from arenas, too, once one was freed. Source: mallopt(3).
pub fn give_back_soon() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 1 << 16;
        let wanted = [
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_THRESHOLD, LARGE),
            (libc::M_TRIM_THRESHOLD, LARGE),
        ];
        for (what, value) in wanted {
            // SAFETY: it takes numbers, and refuses those that it does not know.
            unsafe { libc::mallopt(what, value) };
        }
    }
}
