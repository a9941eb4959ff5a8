//! Who asked for a collection: stacks of System.gc(), until its pause comes.

use std::collections::{HashMap, VecDeque};

use libjvmprobe::{
    Pid, Result,
    hotspot::HotSpot,
    stack::{Frame, live::LiveNames, maps::FileCache},
    trace::walker::Walker,
};

use crate::{
    event,
    record::{Request, StackFrame, Stop},
};

/// The cause of a collection that Java code asked for.
const CAUSE: &str = "System.gc()";
/// More threads than that are seldom at it at once; and with -XX:+DisableExplicitGC,
/// nothing follows.
const MAX_WAITING: usize = 64;

/// The requests of all JVMs.
#[derive(Debug, Default)]
pub struct Requests {
    files: FileCache,
    /// By the key of their JVM.
    names: HashMap<u64, LiveNames>,
    waiting: HashMap<u64, VecDeque<(u64, Request)>>,
}

impl Requests {
    /// Gets ready to name the stacks of a JVM.
    ///
    /// # Errors
    /// Where they can be walked by frame pointers only.
    pub fn add(
        &mut self,
        key: u64,
        pid: Pid,
        hotspot: &HotSpot,
        walker: &mut Walker,
    ) -> Result<()> {
        let names = LiveNames::new(pid, hotspot, &mut self.files, false)?;
        walker.add_jvm(key, &hotspot.walking()?)?;
        walker.set_mappings(key, names.maps())?;
        self.names.insert(key, names);
        Ok(())
    }

    /// Whether it can name the stacks of a JVM.
    pub fn knows(&self, key: u64) -> bool {
        self.names.contains_key(&key)
    }

    /// Forgets a JVM that has ended.
    pub fn forget(&mut self, key: u64) {
        self.names.remove(&key);
        self.waiting.remove(&key);
    }

    /// Takes a request.
    pub fn take(&mut self, request: &event::Request, hotspot: Option<&HotSpot>) {
        let (Some(names), Some(hotspot)) = (self.names.get_mut(&request.target), hotspot) else {
            return;
        };
        let ts_ns = request.ts_ns;
        let frames = names.name(hotspot, &mut self.files, &request.stack);
        let waiting = self.waiting.entry(request.target).or_default();
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        let request = Request {
            tid: request.tid,
            thread: request.comm.clone(),
            stack: frames.iter().rev().map(stack_frame).collect(),
        };
        waiting.push_back((ts_ns, request));
    }

    /// Gives a pause those requests that were waiting for it.
    pub fn settle(&mut self, key: u64, stop: &mut Stop) {
        if stop.cause.as_deref() != Some(CAUSE) {
            return;
        }
        let Some(waiting) = self.waiting.get_mut(&key) else {
            return;
        };
        let begin = stop.ts_ns.saturating_add(stop.ttsp_ns.unwrap_or(0));
        let (now, later): (VecDeque<_>, _) =
            std::mem::take(waiting).into_iter().partition(|(ts, _)| *ts <= begin);
        *waiting = later;
        stop.requests = now.into_iter().map(|(_, request)| request).collect();
    }
}

fn stack_frame(frame: &Frame) -> StackFrame {
    StackFrame {
        method: frame.name.to_string(),
        file: frame.file.as_ref().map(ToString::to_string),
        line: (frame.line > 0).then_some(frame.line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tid: u64) -> Request {
        Request { tid, thread: "main".into(), stack: Vec::new() }
    }

    #[test]
    fn a_pause_gets_the_requests_before_it() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([(100, request(1)), (300, request(2))]));
        let mut stop = Stop { ts_ns: 150, ..Default::default() };
        requests.settle(7, &mut stop);
        assert!(stop.requests.is_empty(), "another cause");
        stop.cause = Some(CAUSE.into());
        requests.settle(8, &mut stop);
        assert!(stop.requests.is_empty(), "another JVM");
        requests.settle(7, &mut stop);
        assert_eq!(stop.requests, [request(1)]);
        let mut later = Stop { ts_ns: 400, cause: Some(CAUSE.into()), ..Default::default() };
        requests.settle(7, &mut later);
        assert_eq!(later.requests, [request(2)]);
    }
}
