//! Resources of pools and queues for which threads wait, recognized by the methods of well-known libraries and of the JDK.

use crate::stack::Frame;

/// A method in which threads wait for a resource, and the resource's name. The outermost of these methods in a stack
/// decides, because pools are made of the JDK's queues and semaphores.
const METHODS: [(&str, &str); 17] = [
    ("com.zaxxer.hikari.pool.HikariPool.getConnection", "HikariCP connection"),
    ("org.apache.tomcat.jdbc.pool.ConnectionPool.borrowConnection", "Tomcat JDBC connection"),
    ("org.apache.commons.dbcp2.PoolingDataSource.getConnection", "DBCP2 connection"),
    ("org.apache.commons.pool2.impl.GenericObjectPool.borrowObject", "Commons Pool object"),
    ("com.mchange.v2.resourcepool.BasicResourcePool.checkoutResource", "c3p0 connection"),
    ("io.agroal.pool.ConnectionPool.getConnection", "Agroal connection"),
    ("org.apache.http.pool.AbstractConnPool.getPoolEntryBlocking", "Apache HTTP connection"),
    ("redis.clients.jedis.util.Pool.getResource", "Jedis connection"),
    ("java.util.concurrent.Semaphore.acquire", "Semaphore permit"),
    ("java.util.concurrent.Semaphore.tryAcquire", "Semaphore permit"),
    ("java.util.concurrent.ArrayBlockingQueue.put", "space in ArrayBlockingQueue"),
    ("java.util.concurrent.ArrayBlockingQueue.take", "element of ArrayBlockingQueue"),
    ("java.util.concurrent.ArrayBlockingQueue.poll", "element of ArrayBlockingQueue"),
    ("java.util.concurrent.LinkedBlockingQueue.put", "space in LinkedBlockingQueue"),
    ("java.util.concurrent.LinkedBlockingQueue.take", "element of LinkedBlockingQueue"),
    ("java.util.concurrent.FutureTask.get", "result of FutureTask"),
    ("java.util.concurrent.CompletableFuture.get", "result of CompletableFuture"),
];

/// Packages of the JDK, of pools and of drivers, which are not the application.
const LIBRARIES: [&str; 14] = [
    "java.",
    "javax.",
    "jdk.",
    "sun.",
    "com.sun.",
    "com.zaxxer.hikari.",
    "org.apache.tomcat.jdbc.",
    "org.apache.commons.dbcp2.",
    "org.apache.commons.pool2.",
    "com.mchange.v2.",
    "io.agroal.",
    "org.postgresql.",
    "com.mysql.",
    "redis.clients.jedis.",
];

/// Returns the name of the resource for which a thread with this stack, outermost frame first, waits.
pub(super) fn resource(stack: &[Frame]) -> Option<&'static str> {
    let java = stack.iter().filter(|frame| frame.is_java());
    java.filter_map(|frame| METHODS.iter().find(|(method, _)| *method == &*frame.name))
        .map(|(_, resource)| *resource)
        .next()
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
    use crate::stack::Kind;

    fn stack(names: &[&'static str]) -> Vec<Frame> {
        names.iter().map(|&name| Frame::new(Kind::Java, name)).collect()
    }

    #[test]
    fn outermost_pool_is_the_resource() {
        let dao = stack(&[
            "OrderDao.find",
            "com.zaxxer.hikari.pool.HikariPool.getConnection",
            "java.util.concurrent.Semaphore.tryAcquire",
            "jdk.internal.misc.Unsafe.park",
        ]);
        assert_eq!(resource(&dao), Some("HikariCP connection"));
        assert_eq!(resource(&dao[2..]), Some("Semaphore permit"));
        assert_eq!(resource(&dao[3..]), None);
    }

    #[test]
    fn application_frame_skips_libraries() {
        let name = |names: &[&'static str]| {
            application_frame(&stack(names)).map(|frame| frame.name.to_string())
        };
        assert_eq!(name(&["A.main", "B.run", "java.lang.Thread.sleep"]).as_deref(), Some("B.run"));
        assert_eq!(
            name(&["java.lang.Thread.run", "java.lang.Thread.sleep"]).as_deref(),
            Some("java.lang.Thread.sleep")
        );
        assert_eq!(name(&[]), None);
        let native = [Frame::new(Kind::Native, "clone"), Frame::new(Kind::Native, "read")];
        assert_eq!(application_frame(&native).map(|frame| &*frame.name), Some("read"));
    }
}
