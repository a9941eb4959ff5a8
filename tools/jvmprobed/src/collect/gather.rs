//! Pieces put together to windows.

use std::{collections::BTreeMap, mem, sync::Arc};

use libjvmprobe::stack::profile::Profile;

use crate::{
    collect::{jvms::Jvms, piece::Piece},
    metrics::{SharedBook, figures::Figures},
    push::ledger::unix_ns,
    window::{Identity, Taken, Window},
};

/// What has come since the last window.
#[derive(Debug)]
pub struct Gather {
    book: SharedBook,
    begin_ns: u64,
    taken: BTreeMap<u32, Taken>,
}

impl Gather {
    /// Nothing yet.
    pub fn new(book: SharedBook) -> Self {
        Self { book, begin_ns: unix_ns(), taken: BTreeMap::new() }
    }

    /// A window's worth, from the last one to now; it is entered in the book.
    /// Measures that were left out in it have these names.
    pub fn cut(&mut self, left_out: impl Iterator<Item = &'static str>) -> Window {
        let end_ns = unix_ns().max(self.begin_ns);
        let begin_ns = mem::replace(&mut self.begin_ns, end_ns);
        let jvms: Vec<_> = mem::take(&mut self.taken).into_values().collect();
        for taken in &jvms {
            let figures = Figures::of(taken);
            self.book.lock().add(&taken.who, &figures);
        }
        let left_out = left_out.map(|what| (what.to_owned(), end_ns - begin_ns)).collect();
        Window { begin_ns, end_ns, jvms, left_out }
    }

    /// Takes a piece.
    pub fn take(&mut self, piece: Piece, jvms: &mut Jvms) {
        match piece {
            Piece::Samples { profiles, lost_stacks, lost_code } => {
                let mut book = self.book.lock();
                book.lose("stacks", lost_stacks);
                book.lose("code", lost_code);
                book.lose("samples", profiles.first().map_or(0, |profile| profile.lost));
                for profile in &profiles {
                    book.take(profile.measure.name(), profile.sampled());
                }
                drop(book);
                for (pid, profile) in profiles.into_iter().flat_map(Profile::by_process) {
                    self.keep(jvms, pid, |taken| taken.profiles.push(profile));
                }
            }
            Piece::Allocated { pid, profile } => {
                let profile = profile.filter(|profile| !profile.samples.is_empty());
                self.keep(jvms, pid, |taken| taken.profiles.extend(profile));
            }
            Piece::Pause { pid, line } => self.keep(jvms, pid, |taken| taken.pauses.push(line)),
            Piece::Lost { what, events } => self.book.lock().lose(what, events),
            Piece::Begun | Piece::Ended { .. } => {}
        }
    }

    fn keep(&mut self, jvms: &mut Jvms, pid: u32, keep: impl FnOnce(&mut Taken)) {
        let (who, is_new) = jvms.who(pid);
        let Some(who) = who else { return };
        if is_new {
            self.book.lock().found(&who);
        }
        let taken = self.taken.entry(pid).or_insert_with(|| new(&who));
        // Another one may have its number by now.
        if taken.who != who {
            *taken = new(&who);
        }
        keep(taken);
    }
}

fn new(who: &Arc<Identity>) -> Taken {
    Taken { who: Arc::clone(who), profiles: Vec::new(), pauses: Vec::new() }
}
