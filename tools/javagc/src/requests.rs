//! Who asked for a collection: stacks of System.gc(), until its pause comes.

use std::collections::{HashMap, VecDeque};

use libjvmprobe::{
    Pid, Result,
    bpf::walker::Walker,
    hotspot::HotSpot,
    render::stack::StackFrame,
    stack::{namer::StackNamer, native::Files, raw::RawStack},
};

use crate::{
    event,
    record::{Request, Stop},
};

/// A request whose stack may still be on its way: another processor may send it.
#[derive(Clone, Debug)]
struct Waiting {
    request: Request,
    /// The number of its stack.
    stack: u64,
}

/// The cause of a collection that Java code asked for.
const CAUSE: &str = "System.gc()";
/// More threads than that are seldom at it at once; and with -XX:+DisableExplicitGC,
/// nothing follows.
const MAX_WAITING: usize = 64;

/// The requests of all JVMs.
#[derive(Debug, Default)]
pub struct Requests {
    files: Files,
    /// By the key of their JVM.
    names: HashMap<u64, StackNamer>,
    /// Stacks by the key of their JVM and their number, which the kernel side tells once.
    stacks: HashMap<u64, HashMap<u64, Vec<StackFrame>>>,
    waiting: HashMap<u64, VecDeque<Waiting>>,
    /// What the last pause was for, but for the first: theirs may come next.
    served: HashMap<u64, Vec<Waiting>>,
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
        let names = StackNamer::new(key, pid, hotspot, &mut self.files, false, walker)?;
        self.names.insert(key, names);
        Ok(())
    }

    /// Forgets a JVM that has ended.
    pub fn forget(&mut self, key: u64) {
        self.names.remove(&key);
        self.stacks.remove(&key);
        self.waiting.remove(&key);
        self.served.remove(&key);
    }

    /// Lets go of what no JVM needs any more.
    pub fn let_go(&mut self, walker: Option<&mut Walker>) {
        self.files.let_go(walker);
    }

    /// Takes a stack, and names it while its code is there. The walker learns of files that were
    /// mapped since.
    ///
    /// # Errors
    /// [`libjvmprobe::Error::Bpf`].
    pub fn take_stack(
        &mut self,
        number: u64,
        stack: &RawStack,
        hotspot: Option<&HotSpot>,
        walker: &mut Walker,
    ) -> Result<()> {
        let (Some(names), Some(hotspot)) = (self.names.get_mut(&stack.target), hotspot) else {
            return Ok(());
        };
        let frames = names.name(hotspot, &mut self.files, walker, stack)?;
        let frames = frames.iter().rev().map(StackFrame::from).collect();
        self.stacks.entry(stack.target).or_default().insert(number, frames);
        Ok(())
    }

    /// Takes a request.
    pub fn take(&mut self, request: &event::Request) {
        let waiting = self.waiting.entry(request.target).or_default();
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(Waiting {
            request: Request {
                ts_ns: request.ts_ns,
                tid: request.tid,
                thread: request.comm.clone(),
                stack: Vec::new(),
            },
            stack: request.stack,
        });
    }

    /// Gives a pause those requests that were made before it. Where several were, each may
    /// get a pause of its own, or one pause is enough for all: so those behind the first
    /// are given to the next one as well if nobody has asked for that since.
    pub fn settle(&mut self, key: u64, stop: &mut Stop) {
        if stop.cause.as_deref() != Some(CAUSE) {
            return;
        }
        let begin = stop.ts_ns.saturating_add(stop.ttsp_ns.unwrap_or(0));
        let waiting = self.waiting.remove(&key).unwrap_or_default();
        let (now, later): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|waiting| waiting.request.ts_ns <= begin);
        self.waiting.insert(key, later);
        let served = self.served.remove(&key).unwrap_or_default();
        let now: Vec<_> = if now.is_empty() { served } else { now.into() };
        let stacks = self.stacks.get(&key);
        let with_stack = |waiting: &Waiting| {
            let stack = stacks.and_then(|stacks| stacks.get(&waiting.stack)).cloned();
            Request { stack: stack.unwrap_or_default(), ..waiting.request.clone() }
        };
        stop.requests = now.iter().map(with_stack).collect();
        self.served.insert(key, now.into_iter().skip(1).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ts_ns: u64) -> Waiting {
        let request = Request { ts_ns, tid: 1, thread: "main".into(), stack: Vec::new() };
        Waiting { request, stack: 0 }
    }

    fn pause(requests: &mut Requests, key: u64, ts_ns: u64, cause: &str) -> Vec<u64> {
        let mut stop = Stop { ts_ns, cause: Some(cause.into()), ..Default::default() };
        requests.settle(key, &mut stop);
        stop.requests.iter().map(|request| request.ts_ns).collect()
    }

    #[test]
    fn a_pause_gets_the_requests_before_it() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([request(100), request(300)]));
        assert!(pause(&mut requests, 7, 150, "Allocation Failure").is_empty());
        assert!(pause(&mut requests, 8, 150, CAUSE).is_empty(), "another JVM");
        assert_eq!(pause(&mut requests, 7, 150, CAUSE), [100]);
        assert_eq!(pause(&mut requests, 7, 400, CAUSE), [300]);
        assert!(pause(&mut requests, 7, 500, CAUSE).is_empty());
    }

    #[test]
    fn of_two_requests_each_may_have_its_pause() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([request(100), request(110)]));
        assert_eq!(pause(&mut requests, 7, 150, CAUSE), [100, 110]);
        assert_eq!(pause(&mut requests, 7, 160, CAUSE), [110]);
        assert!(pause(&mut requests, 7, 170, CAUSE).is_empty());
    }
}
