//! Connection pools of HikariCP: how many connections are in use.
//!
//! A pool is found through its thread "NAME housekeeper": the thread's task refers to the executor, whose queue holds the
//! pool's periodic task, which refers to the pool. Sources: com.zaxxer.hikari.pool.{HikariPool,PoolBase},
//! com.zaxxer.hikari.util.ConcurrentBag (HikariCP 4 to 7); java.base's java/lang/Thread.java and
//! java/util/concurrent/{ThreadPoolExecutor,ScheduledThreadPoolExecutor,FutureTask,Executors,CopyOnWriteArrayList}.java.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{AwaitedReader, reader::Reader};
use crate::{
    Addr, Result,
    hotspot::{fields::FieldName, loaded::at, pages::Pages, threads},
    names::clean,
    process::reader::within,
};

/// End of the name of a pool's thread.
const HOUSEKEEPER: &str = "housekeeper";
const POOL: &str = "com.zaxxer.hikari.pool.HikariPool";
const ENTRY: &str = "com.zaxxer.hikari.pool.PoolEntry";
/// Maximum number of pools, and maximum time for reading them.
const MAX_POOLS: usize = 64;
const MAX_TIME: Duration = Duration::from_millis(500);
/// Maximum number of tasks of the executor that are searched.
const MAX_TASKS: u32 = 64;
/// Maximum number of connections of a pool.
const MAX_CONNECTIONS: u32 = 4096;

/// `ConcurrentBag.IConcurrentBagEntry`: values of `PoolEntry.state`.
const IN_USE: i32 = 1;
const STATES: std::ops::RangeInclusive<i32> = -2..=IN_USE;

const RUNNABLE: &str = "Ljava/lang/Runnable;";
/// Fields from a `java.lang.Thread` to its task: since JDK 19, and before.
const TASKS: [&[FieldName]; 2] =
    [&[("holder", "Ljava/lang/Thread$FieldHolder;"), ("task", RUNNABLE)], &[("target", RUNNABLE)]];
/// Fields from this task, a `ThreadPoolExecutor.Worker`, to the array of the executor's tasks.
const QUEUE: [FieldName; 3] = [
    ("this$0", "Ljava/util/concurrent/ThreadPoolExecutor;"),
    ("workQueue", "Ljava/util/concurrent/BlockingQueue;"),
    ("queue", "[Ljava/util/concurrent/RunnableScheduledFuture;"),
];
/// Fields from a task of the executor to the pool.
const POOL_OF_TASK: [FieldName; 3] = [
    ("callable", "Ljava/util/concurrent/Callable;"),
    ("task", RUNNABLE),
    ("this$0", "Lcom/zaxxer/hikari/pool/HikariPool;"),
];
const NAME: FieldName = ("poolName", "Ljava/lang/String;");
const CONFIG: FieldName = ("config", "Lcom/zaxxer/hikari/HikariConfig;");
const MAX_SIZE: FieldName = ("maxPoolSize", "I");
/// Fields from the pool to the array of its connections.
const CONNECTIONS: [FieldName; 3] = [
    ("connectionBag", "Lcom/zaxxer/hikari/util/ConcurrentBag;"),
    ("sharedList", "Ljava/util/concurrent/CopyOnWriteArrayList;"),
    ("array", "[Ljava/lang/Object;"),
];
const STATE: FieldName = ("state", "I");

/// A connection pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionPool {
    /// Its name, for example `HikariPool-1`, with harmful characters escaped.
    pub name: Arc<str>,
    /// Number of connections in use.
    pub in_use: u32,
    /// Number of connections.
    pub size: u32,
    /// Configured maximum of `size`.
    pub max_size: u32,
}

impl AwaitedReader {
    /// Returns the pools of HikariCP. Pools that cannot be read, or change meanwhile, are missing.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
    pub(crate) fn pools(&mut self) -> Result<Vec<ConnectionPool>> {
        let until = Instant::now() + MAX_TIME;
        within(MAX_TIME, || {
            let memory = self.memory();
            let pages = Pages::scattered(&memory);
            let mut walk = Walk { reader: &mut self.0, pages, offsets: HashMap::new(), until };
            let mut pools = Vec::new();
            for thread in threads::addresses(&memory, &walk.reader.layout)? {
                if pools.len() >= MAX_POOLS || Instant::now() >= until {
                    break;
                }
                pools.extend(walk.pool_of(thread));
            }
            Ok(pools)
        })
    }
}

/// Follows references from object to object.
struct Walk<'a> {
    reader: &'a mut Reader,
    pages: Pages<'a>,
    /// Offsets of fields, by the Klass of an object.
    offsets: HashMap<(Addr, FieldName), u64>,
    until: Instant,
}

impl Walk<'_> {
    /// Returns the pool whose housekeeper a thread is.
    fn pool_of(&mut self, java_thread: Addr) -> Option<ConnectionPool> {
        let root = at(java_thread, self.reader.offsets.object).ok()?;
        let thread = self.reader.root(&mut self.pages, root).ok()??;
        let (fields, _) = self.reader.thread_fields(&mut self.pages, thread).ok()?;
        let name = self.reader.name(&mut self.pages, thread, &fields).ok()??;
        if !name.ends_with(HOUSEKEEPER) {
            return None;
        }
        let worker = TASKS.iter().find_map(|path| self.follow(thread, path))?;
        let queue = self.follow(worker, &QUEUE)?;
        let tasks = self.elements(queue, MAX_TASKS)?;
        let pool = tasks.into_iter().find_map(|task| self.follow(task, &POOL_OF_TASK))?;
        self.pool(pool)
    }

    fn pool(&mut self, pool: Addr) -> Option<ConnectionPool> {
        if !self.is_of(pool, POOL) {
            return None;
        }
        let name = self.follow(pool, &[NAME])?;
        let name = self.reader.text(&mut self.pages, name).ok()?;
        let config = self.follow(pool, &[CONFIG])?;
        let max_size = self.number(config, MAX_SIZE)?;
        let array = self.follow(pool, &CONNECTIONS)?;
        let connections = self.elements(array, MAX_CONNECTIONS)?;
        let mut in_use = 0;
        for &connection in &connections {
            if Instant::now() >= self.until {
                return None;
            }
            let state = self.number(connection, STATE).filter(|state| STATES.contains(state))?;
            if !self.is_of(connection, ENTRY) {
                return None;
            }
            in_use += u32::from(state == IN_USE);
        }
        let size = u32::try_from(connections.len()).ok()?;
        let max_size = u32::try_from(max_size).ok().filter(|&max| max >= size)?;
        Some(ConnectionPool { name: clean::name(&name).into(), in_use, size, max_size })
    }

    fn is_of(&mut self, object: Addr, class: &str) -> bool {
        self.reader.class_of(&mut self.pages, object).is_ok_and(|name| &*name == class)
    }

    /// Returns the offset of a field of an object's class, or of one of its superclasses.
    fn offset(&mut self, object: Addr, field: FieldName) -> Option<u64> {
        let klass = self.reader.references.class_of(&mut self.pages, object).ok()?;
        if let Some(offset) = self.offsets.get(&(klass, field)) {
            return Some(*offset);
        }
        let lineage = self.reader.fields.lineage(&mut self.pages, klass).ok()?;
        let offset = lineage.into_iter().find_map(|klass| {
            let [offset] = self.reader.fields.offsets(&mut self.pages, klass, [field]).ok()?;
            offset
        });
        // A failure may be temporary, so it is not cached.
        if let Some(offset) = offset {
            self.offsets.insert((klass, field), offset);
        }
        offset
    }

    /// Follows fields from object to object; `None` if one is null or cannot be read.
    fn follow(&mut self, object: Addr, path: &[FieldName]) -> Option<Addr> {
        path.iter().try_fold(object, |object, &field| {
            let offset = self.offset(object, field)?;
            self.reader.references.read_reference(&mut self.pages, object, offset).ok()?
        })
    }

    fn number(&mut self, object: Addr, field: FieldName) -> Option<i32> {
        let offset = self.offset(object, field)?;
        Some(self.pages.u32(at(object, offset).ok()?).ok()?.cast_signed())
    }

    /// Returns the elements of an array that are not null; `None` if it has more than `max`.
    fn elements(&mut self, array: Addr, max: u32) -> Option<Vec<Addr>> {
        let elements = self.reader.references.object(&mut self.pages, array).ok()?.elements()?;
        if elements.length > max {
            return None;
        }
        let offsets =
            (0..u64::from(elements.length)).map(|i| elements.begin + (i << elements.log2));
        let references = &self.reader.references;
        offsets
            .filter_map(|at| references.read_reference(&mut self.pages, array, at).transpose())
            .collect::<Result<_>>()
            .ok()
    }
}
