//! Requests for collections: stacks of the threads that call System.gc(), kept until the pause that follows.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::{
    Pid, Result,
    bpf::{records::text, walker::Walker},
    hotspot::{HotSpot, thread_names::ThreadNames},
    stack::{StackFrame, namer::Namers, raw::RawStack},
    trace::pauses::{
        event::request_event,
        record::{Request, Stop},
    },
};

/// A request whose stack is added later, because another processor may send the stack after the request.
#[derive(Clone, Debug)]
struct PendingRequest {
    request: Request,
    /// Number of the requesting thread's stack.
    stack: u64,
}

/// Cause of a collection that Java code has requested.
const CAUSE: &str = "System.gc()";
/// Maximum number of requests of a JVM that wait for a pause. It is rare that more threads than this call
/// System.gc() at the same time. With -XX:+DisableExplicitGC no pause follows, so the oldest requests are
/// dropped.
const MAX_WAITING: usize = 64;

/// Number of stacks at which the stacks without a request are dropped. The kernel side can store 4,096
/// stacks.
const MANY_STACKS: usize = 1 << 11;

/// Requests are carried over from one pause to the next only if at most this many nanoseconds lie between the
/// begins of these pauses. A thread that requests a collection waits for it, and the collection follows
/// immediately unless that thread gets no processor. A pause that begins later therefore serves newer
/// requests.
const MAX_CARRY_NS: u64 = 1_000_000_000;

/// Requests that were attributed to pauses. It is unknown which pause served which request, because requests
/// need not be served in order and one pause may serve all of them.
#[derive(Debug, Default)]
struct ServedRequests {
    requests: Vec<PendingRequest>,
    /// Number of pauses that were attributed to these requests.
    pauses: usize,
    /// Begin of the last of these pauses, in nanoseconds on `CLOCK_MONOTONIC`.
    begin: u64,
}

impl ServedRequests {
    /// Returns those requests that a pause beginning at `begin` may serve, too. `new` are the requests made
    /// since the previous pause.
    fn carry_over(mut self, begin: u64, new: &VecDeque<PendingRequest>) -> Self {
        if begin.saturating_sub(self.begin) > MAX_CARRY_NS {
            return Self::default();
        }
        // A thread that makes a new request has got the collection that it requested before.
        let before = self.requests.len();
        self.requests.retain(|old| !new.iter().any(|new| new.request.tid == old.request.tid));
        self.pauses = self.pauses.saturating_sub(before - self.requests.len());
        self
    }
}

/// Requests of all JVMs.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    namers: Namers,
    threads: HashMap<u64, ThreadNames>,
    /// Stacks by the key of the JVM and by number. The kernel side sends each stack once.
    stacks: HashMap<u64, HashMap<u64, Vec<StackFrame>>>,
    waiting: HashMap<u64, VecDeque<PendingRequest>>,
    served: HashMap<u64, ServedRequests>,
}

impl Requests {
    /// Prepares the naming of a JVM's stacks.
    pub(crate) fn add(&mut self, key: u64, pid: Pid, hotspot: &HotSpot, walker: &mut Walker) {
        self.threads.insert(key, ThreadNames::new(hotspot));
        self.namers.add(key, pid, hotspot, walker);
    }

    /// Forgets a JVM that has ended.
    pub(crate) fn forget(&mut self, key: u64) {
        self.namers.forget(key);
        self.threads.remove(&key);
        self.stacks.remove(&key);
        self.waiting.remove(&key);
        self.served.remove(&key);
    }

    /// Releases files that no JVM has mapped any more.
    pub(crate) fn release_unused(&mut self, walker: Option<&mut Walker>) {
        self.namers.release_unused(walker);
    }

    /// Names a new stack at once, while its code exists. The walker also gets the files that were mapped
    /// since the last call.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`].
    pub(crate) fn name_stack(
        &mut self,
        number: u64,
        stack: &RawStack,
        hotspot: Option<&HotSpot>,
        walker: &mut Walker,
    ) -> Result<()> {
        let Some(hotspot) = hotspot else { return Ok(()) };
        let Some(frames) = self.namers.name(hotspot, walker, stack)? else { return Ok(()) };
        let frames = frames.iter().rev().map(StackFrame::from).collect();
        self.stacks.entry(stack.target).or_default().insert(number, frames);
        Ok(())
    }

    /// Returns the numbers of stacks that no request refers to. Returns none if fewer than `MANY_STACKS`
    /// stacks are kept.
    pub(crate) fn unreferenced_stacks(&self) -> Vec<u64> {
        if self.stacks.values().map(HashMap::len).sum::<usize>() < MANY_STACKS {
            return Vec::new();
        }
        let served = self.served.values().flat_map(|served| &served.requests);
        let wanted = self.waiting.values().flatten().chain(served);
        let wanted: HashSet<_> = wanted.map(|waiting| waiting.stack).collect();
        let numbers = self.stacks.values().flat_map(HashMap::keys).copied();
        numbers.filter(|number| !wanted.contains(number)).collect()
    }

    /// Forgets these stacks. The kernel side sends them again if they occur again.
    pub(crate) fn forget_stacks(&mut self, numbers: &[u64]) {
        let numbers: HashSet<_> = numbers.iter().collect();
        for stacks in self.stacks.values_mut() {
            stacks.retain(|number, _| !numbers.contains(number));
        }
    }

    /// Adds a request, which waits for its pause.
    pub(crate) fn add_request(&mut self, request: &request_event) {
        let comm = text(&request.comm);
        let thread = match self.threads.get_mut(&request.target) {
            Some(threads) => threads.of(u32::try_from(request.tid).unwrap_or(0), comm),
            None => comm,
        };
        let waiting = self.waiting.entry(request.target).or_default();
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(PendingRequest {
            request: Request { ts_ns: request.ts_ns, tid: request.tid, thread, stack: Vec::new() },
            stack: request.stack,
        });
    }

    /// Adds to a pause the requests that it may serve, all of which were made before it. If there are several
    /// requests, each may get a pause of its own, or one pause may serve several of them. Each pause serves
    /// at least one, presumably the oldest. The next pause after N pauses therefore gets all of these
    /// requests except the first N.
    /// If a thread has made another request since, one of the N pauses has served its earlier request. That
    /// request is removed, and N decreases by one.
    pub(crate) fn add_to_pause(&mut self, key: u64, stop: &mut Stop) {
        if stop.cause.as_deref() != Some(CAUSE) {
            return;
        }
        let begin = stop.ts_ns.saturating_add(stop.ttsp_ns.unwrap_or(0));
        let waiting = self.waiting.remove(&key).unwrap_or_default();
        let (now, later): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|waiting| waiting.request.ts_ns <= begin);
        self.waiting.insert(key, later);
        let mut served = self.served.remove(&key).unwrap_or_default().carry_over(begin, &now);
        served.requests.extend(now);
        let stacks = self.stacks.get(&key);
        let with_stack = |waiting: &PendingRequest| {
            let stack = stacks.and_then(|stacks| stacks.get(&waiting.stack)).cloned();
            Request { stack: stack.unwrap_or_default(), ..waiting.request.clone() }
        };
        stop.requests = served.requests.iter().skip(served.pauses).map(with_stack).collect();
        served.pauses += 1;
        served.begin = begin;
        if served.pauses < served.requests.len() && served.requests.len() <= MAX_WAITING {
            self.served.insert(key, served);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ts_ns: u64) -> PendingRequest {
        request_of(1, ts_ns)
    }

    fn request_of(tid: u64, ts_ns: u64) -> PendingRequest {
        let request = Request { ts_ns, tid, thread: "main".into(), stack: Vec::new() };
        PendingRequest { request, stack: 0 }
    }

    fn pause(requests: &mut Requests, key: u64, ts_ns: u64, cause: &str) -> Vec<u64> {
        let mut stop = Stop { ts_ns, cause: Some(cause.into()), ..Default::default() };
        requests.add_to_pause(key, &mut stop);
        stop.requests.iter().map(|request| request.ts_ns).collect()
    }

    #[test]
    fn pause_gets_the_earlier_requests_of_its_jvm() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([request(100), request(300)]));
        assert!(pause(&mut requests, 7, 150, "Allocation Failure").is_empty());
        assert!(pause(&mut requests, 8, 150, CAUSE).is_empty(), "another JVM");
        assert_eq!(pause(&mut requests, 7, 150, CAUSE), [100]);
        assert_eq!(pause(&mut requests, 7, 400, CAUSE), [300]);
        assert!(pause(&mut requests, 7, 500, CAUSE).is_empty());
    }

    #[test]
    fn stacks_of_waiting_requests_are_retained() {
        let mut requests = Requests::default();
        let stacks = (0..MANY_STACKS as u64).map(|number| (number, Vec::new()));
        requests.stacks.insert(7, stacks.collect());
        requests.waiting.insert(7, VecDeque::from([PendingRequest { stack: 5, ..request(100) }]));
        let unreferenced_stacks = requests.unreferenced_stacks();
        assert_eq!(unreferenced_stacks.len(), MANY_STACKS - 1);
        requests.forget_stacks(&unreferenced_stacks);
        assert_eq!(requests.stacks[&7].keys().collect::<Vec<_>>(), [&5]);
        assert!(requests.unreferenced_stacks().is_empty());
    }

    #[test]
    fn second_request_also_matches_the_next_pause() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([request(100), request(110)]));
        assert_eq!(pause(&mut requests, 7, 150, CAUSE), [100, 110]);
        assert_eq!(pause(&mut requests, 7, 160, CAUSE), [110]);
        assert!(pause(&mut requests, 7, 170, CAUSE).is_empty());
    }

    /// The thread whose request came first need not get the first pause.
    #[test]
    fn new_request_replaces_the_threads_earlier_one() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([request_of(1, 100), request_of(2, 110)]));
        assert_eq!(pause(&mut requests, 7, 150, CAUSE), [100, 110]);
        requests.waiting.insert(7, VecDeque::from([request_of(2, 155)]));
        assert_eq!(pause(&mut requests, 7, 160, CAUSE), [100, 155]);
        assert_eq!(pause(&mut requests, 7, 170, CAUSE), [155]);
        assert!(pause(&mut requests, 7, 180, CAUSE).is_empty());
    }

    #[test]
    fn carried_requests_do_not_match_a_late_pause() {
        let mut requests = Requests::default();
        requests.waiting.insert(7, VecDeque::from([request_of(1, 100), request_of(2, 110)]));
        assert_eq!(pause(&mut requests, 7, 150, CAUSE), [100, 110]);
        let later = 150 + MAX_CARRY_NS + 1;
        requests.waiting.insert(7, VecDeque::from([request_of(3, later)]));
        assert_eq!(pause(&mut requests, 7, later, CAUSE), [later]);
    }
}
