//! Code that was sampled, looked at while it is still there.
//!
//! Compiled methods come and go, and with them goes what was inlined where. So a profiler
//! asks for the addresses that it sampled soon after; what was answered already is not
//! read again, as long as the same method is in the same place: its Method and its compile
//! id say so, before and after it is read.

use std::collections::{BTreeMap, HashSet};

use super::{
    HotSpot,
    code_cache::{Blob, Inlining, Reader, heaps},
};
use crate::{Addr, Result, stack::code::Code};

/// More code than any program runs in: beyond it, what was answered is forgotten.
const MAX_LIVE: usize = 200_000;

/// What was answered.
#[derive(Debug, Default)]
pub struct Sampled {
    /// By where the code begins.
    live: BTreeMap<Addr, Live>,
}

#[derive(Debug)]
struct Live {
    blob: Blob,
    asked: HashSet<Addr>,
}

impl HotSpot {
    /// Looks at the code at these addresses, which are sorted: what of it was not there
    /// when it was last looked at, or what is new of it, with what was inlined there.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::Memory`] when the JVM is gone.
    pub fn look(&self, known: &mut Sampled, addrs: &[Addr]) -> Result<Vec<(Addr, u64, Code)>> {
        let (memory, structs) = (&self.memory, &self.structs);
        let mut reader = Reader::new(memory, structs, self.major, Inlining::At(addrs))?;
        let heaps = heaps(memory, structs)?
            .into_iter()
            .map(|heap| reader.place(heap))
            .collect::<Result<Vec<_>>>()?;
        let mut news = Vec::new();
        let mut rest = addrs;
        while let [addr, others @ ..] = rest {
            rest = others;
            // What cannot be read is being made or discarded just now.
            let Ok(Some(blob)) = reader.find(&heaps, *addr) else { continue };
            let inside = others.partition_point(|&addr| addr < blob.end);
            let asked = addrs.len() - rest.len() - 1..addrs.len() - rest.len() + inside;
            rest = &others[inside..];
            let asked = &addrs[asked];
            if known.knows(blob, asked) {
                continue;
            }
            if let Some(code) = reader.code(blob)
                && reader.is_still(memory, blob)
            {
                known.learn(blob, asked);
                news.push((blob.begin, blob.end.0 - blob.begin.0, code));
            }
        }
        self.name_stubs(&mut news);
        Ok(news)
    }
}

impl Sampled {
    fn knows(&self, blob: Blob, asked: &[Addr]) -> bool {
        self.live.get(&blob.begin).is_some_and(|live| {
            live.blob == blob && asked.iter().all(|addr| live.asked.contains(addr))
        })
    }

    fn learn(&mut self, blob: Blob, asked: &[Addr]) {
        if self.live.len() >= MAX_LIVE {
            self.live.clear();
        }
        match self.live.get_mut(&blob.begin) {
            Some(live) if live.blob == blob => live.asked.extend(asked),
            _ => {
                let asked = asked.iter().copied().collect();
                self.live.insert(blob.begin, Live { blob, asked });
            }
        }
    }
}
