//! Memory and reading time of unwind tables, by tenant.
//!
//! The kernel charges the tables to this process's control group, so they count as memory of this process. A file's
//! table is shared by all processes that have mapped the file, which may belong to several tenants. One of these
//! tenants pays for the table, at first the one that needed it first. If its processes do not map the file any more, or
//! if it exceeds its share, another tenant that maps the file pays. So no tenant pays for a file that it does not map,
//! and mapping a neighbor's file cannot take the table from the neighbor: a table is dropped only if none of the tenants
//! that map the file can pay.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    elf::{ElfFile, Segments},
    process::code::CodeFile,
    sys::{
        budget::{Budget, Reservation},
        descriptors::ran_out,
        limited, thread_cpu_time,
    },
    unwind::{Row, UnwindTable},
};

/// Reading a tenant's tables takes at most one part in this number of a processor's time, on average.
const PAUSE_FACTOR: u32 = 10;
/// CPU time of a tenant's readings that is allowed without a pause. An ordinary JVM's files take 0.1 s.
const BURST: Duration = Duration::from_secs(1);
/// Time for which a tenant that exceeded its share gets no further tables.
const EXCESS_PAUSE: Duration = Duration::from_secs(30);

/// Result of an attempt to read a file's table.
pub(super) enum Reading {
    /// The table, the file's segments, and memory held while the table is copied.
    Table { table: UnwindTable, segments: Segments, payment: Payment, transient: Reservation },
    /// The file has no usable table.
    Nothing,
    /// The attempt must be repeated: too many files are open, or the tenant's readings are paused.
    Later,
    /// The tenant's share does not suffice: the number of bytes that the attempt needs.
    Short(usize),
}

/// What the unwind tables of all tenants take: memory, places in the kernel's table of tables, and time.
#[derive(Debug)]
pub(super) struct TableMemory {
    memory: Budget,
    /// Number of tables.
    tables: Budget,
    /// Time until which reading is paid for by pauses, by tenant.
    busy_until: HashMap<Arc<str>, Instant>,
}

/// One tenant's payment for one table.
#[derive(Debug)]
pub(super) struct Payment {
    tenant: Arc<str>,
    memory: Reservation,
    table: Reservation,
    /// Number of bytes that reading the table needs.
    need: usize,
}

impl Payment {
    /// Returns the tenant that pays.
    pub(super) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Returns the size of the table in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Returns the number of bytes that reading the table again needs.
    pub(super) fn need(&self) -> usize {
        self.need
    }
}

impl TableMemory {
    /// Makes the accounts of at most `max_tables` tables, within the budget of this process.
    pub(super) fn new(max_tables: usize) -> Self {
        Self::within(Budget::of_process(), Budget::of(max_tables))
    }

    fn within(memory: Budget, tables: Budget) -> Self {
        Self { memory, tables, busy_until: HashMap::new() }
    }

    /// Reserves memory of a tenant for another purpose.
    pub(super) fn reserve(&self, tenant: &Arc<str>, bytes: usize) -> Option<Reservation> {
        let mut memory = Reservation::within(&self.memory.share(tenant));
        memory.reserve(bytes).then_some(memory)
    }

    fn pay(&self, tenant: &Arc<str>, bytes: usize, need: usize) -> Option<Payment> {
        let mut table = Reservation::within(&self.tables.share(tenant));
        let is_free = table.reserve(1);
        let memory = self.reserve(tenant, bytes).filter(|_| is_free)?;
        Some(Payment { tenant: Arc::clone(tenant), memory, table, need })
    }

    /// Makes another one of `tenants` pay. Returns `false` if none of them can; then the payment has ended.
    pub(super) fn hand_on<'a>(
        &self,
        payment: &mut Payment,
        tenants: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> bool {
        let (bytes, need) = (payment.bytes(), payment.need);
        payment.memory.release();
        payment.table.release();
        let mut others = tenants.into_iter().filter(|&tenant| *tenant != payment.tenant);
        match others.find_map(|tenant| self.pay(tenant, bytes, need)) {
            Some(other) => *payment = other,
            None => return false,
        }
        true
    }

    /// Returns by how much a tenant exceeds its share while others are short: bytes, and number of tables.
    pub(super) fn excess(&self, tenant: &Arc<str>) -> (usize, usize) {
        (self.memory.share(tenant).excess(), self.tables.share(tenant).excess())
    }

    /// Reports that a tenant needs memory that it did not get, so that others give up what exceeds their shares.
    pub(super) fn report_need(&self, tenant: &Arc<str>, bytes: usize) {
        // A request that is granted is released at once.
        self.reserve(tenant, bytes);
    }

    /// Gives a tenant no further tables for a while, because it has lost some that exceeded its share.
    pub(super) fn pause(&mut self, tenant: &Arc<str>, now: Instant) {
        self.busy_until.insert(Arc::clone(tenant), now + PAUSE_FACTOR * BURST + EXCESS_PAUSE);
    }

    /// Forgets pauses that are over.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        self.busy_until.retain(|_, until| *until > now);
    }

    fn is_paused(&self, tenant: &Arc<str>, now: Instant) -> bool {
        let until = self.busy_until.get(tenant);
        until.is_some_and(|&until| until > now + PAUSE_FACTOR * BURST)
    }

    /// Charges CPU time that reading has taken.
    fn charge(&mut self, tenant: &Arc<str>, time: Duration, now: Instant) {
        let until = self.busy_until.entry(Arc::clone(tenant)).or_insert(now);
        *until = (*until).max(now) + PAUSE_FACTOR * time;
    }

    /// Reads a file's table at the expense of a tenant. `need` is the number of bytes that an earlier attempt lacked,
    /// or 0. `size` returns the size of a table by its number of rows.
    pub(super) fn read(
        &mut self,
        file: &CodeFile,
        module: &str,
        tenant: &Arc<str>,
        need: usize,
        size: fn(usize) -> usize,
    ) -> Reading {
        let now = Instant::now();
        if self.is_paused(tenant, now) {
            return Reading::Later;
        }
        let share = self.memory.share(tenant);
        let (mut building, mut table_slot) =
            (Reservation::within(&share), Reservation::within(&self.tables.share(tenant)));
        if (need > 0 && !building.reserve(need)) || !table_slot.reserve(1) {
            return Reading::Short(need);
        }
        table_slot.release();
        let (begin, mut used) = (thread_cpu_time(), 0_usize);
        let mut reserve = |bytes: usize| {
            used = used.saturating_add(bytes);
            let more = used.saturating_sub(building.bytes());
            more == 0 || building.reserve(more)
        };
        let read = read_table(file, &mut reserve);
        self.charge(tenant, thread_cpu_time().saturating_sub(begin), now);
        let is_short = used > building.bytes();
        let fallback = |why: &str| {
            log::debug!("falling back to frame pointers for stacks through {module}: {why}");
            Reading::Nothing
        };
        match read {
            Err(error) if ran_out(&error) => return Reading::Later,
            Err(_) if is_short => {}
            Err(error) => return fallback(&error.to_string()),
            Ok(None) => return Reading::Later,
            Ok(Some((table, _))) if table.rows().is_empty() => {
                return fallback("it has no unwind table");
            }
            Ok(Some((table, elf))) => {
                // From here on, only the rows are held, until they are copied.
                let (rows, size) = (size_of_val(table.rows()), size(table.rows().len()));
                used = used.max(rows + size);
                building.release();
                if building.reserve(rows)
                    && let Some(payment) = self.pay(tenant, size, used)
                {
                    let segments = elf.into_segments();
                    return Reading::Table { table, segments, payment, transient: building };
                }
            }
        }
        building.release();
        self.report_need(tenant, used);
        limited::add("unwind", tenant, 1);
        Reading::Short(used)
    }
}

/// Returns the size of an array map with this number of entries of `size_of::<T>()` bytes, in bytes.
pub(super) fn map_size<T>(entries: usize) -> usize {
    /// The kernel allocates pages, and at least one for the map itself.
    const PAGE: usize = 4096;
    (entries * size_of::<T>()).next_multiple_of(PAGE) + PAGE
}

/// Returns the size of a table of which only the kernel has a copy.
pub(super) fn in_kernel(rows: usize) -> usize {
    map_size::<Row>(rows)
}

/// Returns the size of a table of which only this process has a copy.
pub(super) fn in_process(rows: usize) -> usize {
    rows * size_of::<Row>()
}

/// Returns the size of a table of which both the kernel and this process have a copy.
pub(super) fn in_both(rows: usize) -> usize {
    in_kernel(rows) + in_process(rows)
}

/// Reads the unwind table of a file. Returns `None` if a container has replaced the file meanwhile.
fn read_table(
    file: &CodeFile,
    reserve: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<(UnwindTable, ElfFile)>> {
    let opened = file.reopen()?;
    let copy = opened.try_clone().map_err(|e| Error::io("reopen a mapped file", e))?;
    let read =
        ElfFile::open(copy).and_then(|elf| Ok((UnwindTable::read_within(&elf, reserve)?, elf)));
    // The next attempt reads the descriptor of another container, if there is one.
    if file.is_same(&opened) { read.map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn memory(bytes: usize) -> TableMemory {
        TableMemory::within(Budget::of(bytes), Budget::of(100))
    }

    fn tenants<const N: usize>(names: [&str; N]) -> [Arc<str>; N] {
        names.map(Into::into)
    }

    #[test]
    fn another_user_of_a_table_pays_when_the_payer_has_gone() {
        let memory = memory(1000);
        let [attacker, victim] = tenants(["attacker", "victim"]);
        let mut payment = memory.pay(&attacker, 300, 0).unwrap();
        assert!(memory.hand_on(&mut payment, [&attacker, &victim]));
        assert_eq!((payment.tenant(), payment.bytes(), memory.memory.held()), (&victim, 300, 300));
        // Nobody else maps it.
        assert!(!memory.hand_on(&mut payment, [&victim]));
        assert_eq!((memory.memory.held(), memory.tables.held()), (0, 0));
    }

    #[test]
    fn a_tenant_that_exceeds_its_share_leaves_memory_and_tables_to_others() {
        let memory = memory(1000);
        let [attacker, victim] = tenants(["attacker", "victim"]);
        let held: Vec<_> = (0..10).map_while(|_| memory.pay(&attacker, 100, 0)).collect();
        assert_eq!(held.len(), 5);
        assert!(memory.pay(&victim, 250, 0).is_some());
        assert_eq!(memory.excess(&attacker), (0, 0));
        memory.report_need(&victim, 600);
        assert_eq!(memory.excess(&attacker).0, 0, "half is a fair share");
        let other = memory.pay(&"other".into(), 200, 0).unwrap();
        memory.report_need(&victim, 400);
        assert_eq!(memory.excess(&attacker).0, 100);
        drop(other);
        let slots: Vec<_> = (0..100).map_while(|_| memory.pay(&victim, 0, 0)).collect();
        assert_eq!(slots.len(), 47, "half of the 95 that the attacker leaves");
    }

    #[test]
    fn a_table_is_read_as_soon_as_there_is_memory() {
        let [tenant] = tenants(["a"]);
        let file = CodeFile::new(File::open("/proc/self/exe").unwrap());
        let mut few = memory(1 << 16);
        let Reading::Short(need) = few.read(&file, "exe", &tenant, 0, in_kernel) else {
            panic!("64 KiB do not suffice");
        };
        assert_eq!((few.memory.held(), few.tables.held()), (0, 0));
        few.memory = Budget::of(1 << 30);
        few.busy_until.clear();
        let read = few.read(&file, "exe", &tenant, need, in_kernel);
        let Reading::Table { table, payment, transient, .. } = read else { panic!("it suffices") };
        assert_eq!(payment.bytes(), in_kernel(table.rows().len()));
        assert!(payment.need() >= payment.bytes());
        drop((payment, transient));
        assert_eq!((few.memory.held(), few.tables.held()), (0, 0));
    }

    #[test]
    fn reading_that_takes_long_is_followed_by_a_pause() {
        let mut memory = memory(1000);
        let [slow, other] = tenants(["slow", "other"]);
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        memory.charge(&slow, BURST, now);
        assert!(!memory.is_paused(&slow, now));
        memory.charge(&slow, BURST, now);
        assert!(memory.is_paused(&slow, now) && !memory.is_paused(&other, now));
        assert!(memory.is_paused(&slow, after(9)) && !memory.is_paused(&slow, after(10)));
        memory.pause(&other, now);
        assert!(memory.is_paused(&other, after(29)) && !memory.is_paused(&other, after(30)));
        memory.end_pauses(after(40));
        assert!(memory.busy_until.is_empty());
    }
}
