//! Recognizes threads that wait because they have no work: workers of thread pools, event loops, and most threads of
//! the JVM itself.

use crate::stack::{Frame, Kind, waiting};

/// Frame that replaces the stack of a thread that waits for work.
pub(crate) const IDLE: &str = waiting::IDLE;

/// Java methods that wait only for work, whatever methods they call to do so.
const METHODS: [&str; 27] = [
    // Executors, and the pool behind parallel streams and virtual threads.
    "java.util.concurrent.ThreadPoolExecutor.getTask",
    "java.util.concurrent.ForkJoinPool.awaitWork",
    "java.util.concurrent.ForkJoinPool.deactivate",
    "java.util.TimerThread.mainLoop",
    // Event loops, and threads that accept connections.
    "sun.nio.ch.EPoll.wait",
    "sun.nio.ch.EPollArrayWrapper.epollWait",
    "sun.nio.ch.EPollSelectorImpl.doSelect",
    "sun.nio.ch.Net.accept",
    "sun.nio.ch.ServerSocketChannelImpl.accept",
    "sun.nio.ch.NioSocketImpl.accept",
    "java.net.PlainSocketImpl.socketAccept",
    "java.net.ServerSocket.implAccept",
    "io.netty.channel.epoll.Native.epollWait",
    "io.netty.channel.epoll.EpollEventLoop.epollWait",
    "org.eclipse.jetty.util.thread.QueuedThreadPool.idleJobPoll",
    // Threads of the JDK itself.
    "java.lang.ref.Reference.waitForReferencePendingList",
    "java.lang.ref.ReferenceQueue.remove",
    "java.lang.ref.ReferenceQueue.remove0",
    "java.lang.ref.NativeReferenceQueue.remove",
    "jdk.internal.ref.CleanerImpl.run",
    "sun.misc.GC$Daemon.run",
    "sun.rmi.transport.ObjectTable$Reaper.run",
    // Threads of the JDK that serve virtual threads.
    "sun.nio.ch.Poller.pollerLoop",
    "sun.nio.ch.Poller.subPollerLoop",
    "sun.nio.ch.Poller.updateLoop",
    "java.lang.VirtualThread.takeVirtualThreadListToUnblock",
    "java.util.concurrent.DelayScheduler.loop",
];

/// Functions of libjvm.so and of the launcher that wait only for work.
const FUNCTIONS: [&str; 26] = [
    "jni_DestroyJavaVM",
    "Threads::destroy_vm",
    "CompileQueue::get",
    "VMThread::loop",
    "VMThread::wait_for_operation",
    "VMThread::wait_until_executed",
    "WatcherThread::sleep",
    "os::signal_wait",
    "signal_thread_entry",
    "ServiceThread::service_thread_entry",
    "NMethodSweeper::sweeper_loop",
    "MonitorDeflationThread::monitor_deflation_thread_entry",
    "NotificationThread::notification_thread_entry",
    "AttachListener::dequeue",
    "StringDedupThread::run",
    "GangWorker::wait_for_task",
    "GangWorker::loop",
    "AbstractGangWorker::loop",
    "WorkerThread::run",
    "WorkerThreads::wait",
    "G1ConcurrentRefineThread::run_service",
    "G1ConcurrentMarkThread::wait_for_next_cycle",
    "G1ServiceThread::wait_for_task",
    "ConcurrentGCThread::run",
    "GCTaskThread::run",
    "CallJavaMainInNewThread",
];

/// Endings of the names of functions in which the JVM's threads do their work. A wait inside one of these is not
/// idle.
const AT_WORK: [&str; 3] = ["::work", "VM_Operation::evaluate", "::do_it"];

/// In JDK 11, a worker of the ForkJoinPool parks directly in its loop.
const WORKER: (&str, &str) =
    ("java.util.concurrent.ForkJoinPool.runWorker", "java.util.concurrent.locks.LockSupport.park");

/// Returns whether a wait with these frames, outermost first, is a wait for work.
pub(crate) fn is_idle<'a>(frames: impl Iterator<Item = &'a Frame>) -> bool {
    let mut before = "";
    let mut is_idle = false;
    for frame in frames {
        let name = &*frame.name;
        let listed = match frame.kind {
            Kind::Java | Kind::Inlined | Kind::Interpreted => {
                METHODS.contains(&name) || (before == WORKER.0 && name.starts_with(WORKER.1))
            }
            Kind::Jvm | Kind::Native => FUNCTIONS.contains(&name),
            _ => false,
        };
        is_idle |= listed;
        if frame.kind == Kind::Jvm && AT_WORK.iter().any(|work| name.ends_with(work)) {
            return false;
        }
        before = name;
    }
    is_idle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_waiting_for_work_is_idle() {
        let idle = |frames: &[(Kind, &str)]| {
            let frames: Vec<_> =
                frames.iter().map(|(kind, name)| Frame::new(*kind, *name)).collect();
            is_idle(frames.iter())
        };
        let run = (Kind::Java, "java.lang.Thread.run");
        let park = (Kind::Java, "java.util.concurrent.locks.LockSupport.park");
        let task = (Kind::Inlined, "java.util.concurrent.ThreadPoolExecutor.getTask");
        assert!(idle(&[run, task, park]));
        assert!(!idle(&[run, park]), "a park outside of a pool may wait for anything");
        assert!(idle(&[run, (Kind::Java, WORKER.0), park]));
        assert!(!idle(&[run, (Kind::Java, WORKER.0), (Kind::Java, "My.job"), park]));
        assert!(idle(&[(Kind::Jvm, "CompileQueue::get")]));
        assert!(idle(&[(Kind::Jvm, "WorkerThread::run")]));
        assert!(!idle(&[(Kind::Jvm, "WorkerThread::run"), (Kind::Jvm, "G1EvacuateTask::work")]));
        assert!(!idle(&[(Kind::Java, "CompileQueue::get")]), "a method of that name");
    }
}
