//! Resources of pools and queues for which threads wait, recognized by the methods of well-known libraries and of the JDK.

use crate::{stack::Frame, trace::waits::Kind};

/// A resource for which threads wait.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Resource {
    /// The method in which they wait.
    method: &'static str,
    /// The name of the resource.
    pub(super) name: &'static str,
    /// Beginning of the names of the methods by which a thread returns the resource; `None` if threads do not hold it.
    returned_by: Option<&'static str>,
}

const fn pool(method: &'static str, name: &'static str, returned_by: &'static str) -> Resource {
    Resource { method, name, returned_by: Some(returned_by) }
}

const fn queue(method: &'static str, name: &'static str) -> Resource {
    Resource { method, name, returned_by: None }
}

/// Name of a connection of HikariCP.
const HIKARI: &str = "HikariCP connection";

/// The outermost of these methods in a stack decides, because pools are made of the JDK's queues and semaphores.
const RESOURCES: [Resource; 17] = [
    pool("com.zaxxer.hikari.pool.HikariPool.getConnection", HIKARI, "com.zaxxer.hikari."),
    pool(
        "org.apache.tomcat.jdbc.pool.ConnectionPool.borrowConnection",
        "Tomcat JDBC connection",
        "org.apache.tomcat.jdbc.",
    ),
    pool(
        "org.apache.commons.dbcp2.PoolingDataSource.getConnection",
        "DBCP2 connection",
        "org.apache.commons.dbcp2.",
    ),
    pool(
        "org.apache.commons.pool2.impl.GenericObjectPool.borrowObject",
        "Commons Pool object",
        "org.apache.commons.pool2.",
    ),
    pool(
        "com.mchange.v2.resourcepool.BasicResourcePool.checkoutResource",
        "c3p0 connection",
        "com.mchange.v2.",
    ),
    pool("io.agroal.pool.ConnectionPool.getConnection", "Agroal connection", "io.agroal."),
    pool(
        "org.apache.http.pool.AbstractConnPool.getPoolEntryBlocking",
        "Apache HTTP connection",
        "org.apache.http.",
    ),
    pool("redis.clients.jedis.util.Pool.getResource", "Jedis connection", "redis.clients.jedis."),
    pool(
        "java.util.concurrent.Semaphore.acquire",
        "Semaphore permit",
        "java.util.concurrent.Semaphore.release",
    ),
    pool(
        "java.util.concurrent.Semaphore.tryAcquire",
        "Semaphore permit",
        "java.util.concurrent.Semaphore.release",
    ),
    queue("java.util.concurrent.ArrayBlockingQueue.put", "space in ArrayBlockingQueue"),
    queue("java.util.concurrent.ArrayBlockingQueue.take", "element of ArrayBlockingQueue"),
    queue("java.util.concurrent.ArrayBlockingQueue.poll", "element of ArrayBlockingQueue"),
    queue("java.util.concurrent.LinkedBlockingQueue.put", "space in LinkedBlockingQueue"),
    queue("java.util.concurrent.LinkedBlockingQueue.take", "element of LinkedBlockingQueue"),
    queue("java.util.concurrent.FutureTask.get", "result of FutureTask"),
    queue("java.util.concurrent.CompletableFuture.get", "result of CompletableFuture"),
];

/// Packages of the JDK, of pools, drivers and frameworks, which are not the application.
const LIBRARIES: [&str; 26] = [
    "java.",
    "javax.",
    "jakarta.",
    "jdk.",
    "sun.",
    "com.sun.",
    "com.zaxxer.hikari.",
    "org.apache.tomcat.",
    "org.apache.catalina.",
    "org.apache.commons.",
    "org.apache.http.",
    "com.mchange.v2.",
    "io.agroal.",
    "org.postgresql.",
    "org.mariadb.",
    "com.mysql.",
    "oracle.jdbc.",
    "com.microsoft.sqlserver.",
    "org.h2.",
    "redis.clients.jedis.",
    "org.springframework.",
    "org.hibernate.",
    "org.jooq.",
    "io.netty.",
    "org.eclipse.jetty.",
    "kotlin.",
];

/// Returns the resource for which a thread with this stack, outermost frame first, waits.
pub(super) fn resource(kind: Kind, stack: &[Frame]) -> Option<&'static Resource> {
    if !matches!(kind, Kind::Park | Kind::Wait | Kind::Pinned) {
        return None;
    }
    let java = stack.iter().filter(|frame| frame.is_java());
    java.filter_map(|frame| RESOURCES.iter().find(|of| of.method == &*frame.name)).next()
}

impl Resource {
    /// Returns whether threads hold the resource, and a thread with this stack returns it.
    pub(super) fn is_returned(&self, stack: &[Frame]) -> bool {
        let returns = |frame: &Frame| self.returned_by.is_some_and(|by| frame.name.starts_with(by));
        stack.iter().any(returns)
    }

    /// Whether it is a connection of HikariCP.
    pub(super) fn is_hikari(&self) -> bool {
        self.name == HIKARI
    }

    /// Returns a number that identifies the resource among all resources.
    pub(super) fn key(&self) -> u64 {
        RESOURCES.iter().position(|of| of.name == self.name).unwrap_or(RESOURCES.len()) as u64
    }
}

/// Returns the innermost frame of a stack that is Java code of the application: neither of the JDK nor of a pool or a
/// driver. If there is none, returns the innermost Java frame; if there is none either, the innermost frame. The stack's
/// outermost frame comes first.
pub fn application_frame(stack: &[Frame]) -> Option<&Frame> {
    let is_library = |frame: &&Frame| LIBRARIES.iter().any(|of| frame.name.starts_with(of));
    let mut java = stack.iter().rev().filter(|frame| frame.is_java());
    let application = java.clone().find(|frame| !is_library(frame));
    application.or_else(|| java.next()).or_else(|| stack.last())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack;

    fn frames(names: &[&'static str]) -> Vec<Frame> {
        names.iter().map(|&name| Frame::new(stack::Kind::Java, name)).collect()
    }

    #[test]
    fn outermost_pool_is_the_resource() {
        let name = |stack: &[Frame]| resource(Kind::Park, stack).map(|resource| resource.name);
        let dao = frames(&[
            "OrderDao.find",
            "com.zaxxer.hikari.pool.HikariPool.getConnection",
            "java.util.concurrent.Semaphore.tryAcquire",
            "jdk.internal.misc.Unsafe.park",
        ]);
        assert_eq!(name(&dao), Some("HikariCP connection"));
        assert_eq!(name(&dao[2..]), Some("Semaphore permit"));
        assert_eq!(name(&dao[3..]), None);
        assert_eq!(resource(Kind::RunQueue, &dao), None);
    }

    #[test]
    fn application_frame_skips_libraries() {
        let name = |names: &[&'static str]| {
            application_frame(&frames(names)).map(|frame| frame.name.to_string())
        };
        assert_eq!(name(&["A.main", "B.run", "java.lang.Thread.sleep"]).as_deref(), Some("B.run"));
        assert_eq!(
            name(&["java.lang.Thread.run", "java.lang.Thread.sleep"]).as_deref(),
            Some("java.lang.Thread.sleep")
        );
        assert_eq!(name(&[]), None);
        let native =
            [Frame::new(stack::Kind::Native, "clone"), Frame::new(stack::Kind::Native, "read")];
        assert_eq!(application_frame(&native).map(|frame| &*frame.name), Some("read"));
    }
}
