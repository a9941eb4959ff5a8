//! History of a JVM's code cache: the code at each address at any time.
//!
//! Compiled code is freed, and other code may take its place. A `CodeLog` collects a snapshot of the code cache
//! (`CodeLog::snapshot`) and the loads and unloads since then (`CodeLog::load`, `CodeLog::unload`). From these it
//! makes a `CodeIndex`, which looks up the code at an address and time. Time is counted in epochs: each load or unload
//! begins a new epoch, and each sample has the number of its epoch.
//!
//! HotSpot's probe `compiled__method__unload` has the name of a method, not an address
//! (hotspot/share/code/nmethod.cpp), and a method may be compiled more than once. So an unload
//! does not identify the code. When other code is loaded at an address, the log looks for an unload of the
//! code that was there before.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use crate::{
    Addr,
    names::{code::Code, perfmap},
};

/// Maximum number of epochs for which code may have run before its load is reported. The compiler thread may
/// be preempted after it has installed the code and before it reports the load.
const MAX_REPORT_DELAY: u64 = 32;

/// Compiled code of a JVM at one time.
#[derive(Debug)]
pub enum Snapshot {
    /// Content of a perf-PID.map file. A name is parsed only when it is needed, because only a few of a
    /// million names are used.
    Map(String),
    /// Address, size in bytes and name of the code in each entry.
    Entries(Vec<(Addr, u64, Code)>),
}

impl Snapshot {
    /// Returns all entries.
    pub fn into_entries(self) -> Vec<(Addr, u64, Code)> {
        match self {
            Self::Map(text) => {
                let entries = perfmap::parse(&text);
                entries.map(|e| (e.start, e.size, perfmap::hotspot_code(e.name))).collect()
            }
            Self::Entries(entries) => entries,
        }
    }
}

/// History of one code cache.
#[derive(Debug, Default)]
pub(crate) struct CodeLog {
    /// Text that [`Label::Line`]s refer to.
    text: String,
    snapshot: Vec<Entry>,
    snapshot_epoch: u64,
    loads: Vec<Entry>,
    unloads: Vec<(u64, Code)>,
    /// Current code by start address, with its end. `None` until it is needed, which saves memory: of
    /// hundreds of JVMs, most compile nothing at a given time.
    latest: Option<BTreeMap<u64, (u64, Slot)>>,
    /// Whether the snapshot is sorted and free of overlaps.
    is_normalized: bool,
    /// Size of all names in bytes, less [`USUAL_NAME`] bytes of each.
    long_names: usize,
}

/// Bytes of an entry with a name of the usual size.
pub(crate) const ENTRY: usize = 200;
/// Usual size of a name with its parameters in bytes.
const USUAL_NAME: usize = 128;

/// Returns the number of bytes by which a name with its parameters exceeds the usual size.
fn excess(code: &Code) -> usize {
    let signature = code.signature.as_ref().map_or(0, |signature| signature.len());
    (code.name.len() + signature).saturating_sub(USUAL_NAME)
}

/// An index into the entries of a [`CodeLog`].
#[derive(Clone, Copy, Debug)]
enum Slot {
    Snapshot(usize),
    Load(usize),
}

#[derive(Clone, Debug)]
struct Entry {
    start: u64,
    end: u64,
    /// First epoch in which the code exists, and first epoch in which it no longer exists.
    since: u64,
    until: u64,
    label: Label,
}

/// Name of an entry.
#[derive(Clone, Debug)]
enum Label {
    /// A name shared with the indices made from this log.
    Parsed(Arc<Code>),
    /// Offset and length of a name in the text of a map.
    Line(u32, u32),
}

impl Label {
    fn code<'a>(&'a self, text: &str) -> Cow<'a, Code> {
        match self {
            Self::Parsed(code) => Cow::Borrowed(code),
            Self::Line(at, len) => {
                let line = text.get(*at as usize..).and_then(|rest| rest.get(..*len as usize));
                Cow::Owned(perfmap::hotspot_code(line.unwrap_or_default()))
            }
        }
    }
}

impl Entry {
    fn excess(&self) -> usize {
        match &self.label {
            Label::Parsed(code) => excess(code),
            // The text of the map is counted as a whole.
            Label::Line(..) => 0,
        }
    }

    fn new(start: Addr, size: u64, since: u64, label: Label) -> Self {
        let end = start.0.saturating_add(size);
        Self { start: start.0, end, since, until: u64::MAX, label }
    }
}

impl CodeLog {
    /// Sets the snapshot of an epoch. If entries overlap, the one that is listed last is valid. A new
    /// snapshot replaces an earlier one.
    pub(crate) fn snapshot(&mut self, epoch: u64, snapshot: Snapshot) {
        self.snapshot_epoch = epoch;
        (self.latest, self.is_normalized) = (None, false);
        match snapshot {
            Snapshot::Map(text) => {
                let entry = |line: perfmap::Entry<'_>| {
                    // Offset and length must fit into 32 bits; otherwise the line is skipped.
                    let at = line.name.as_ptr() as usize - text.as_ptr() as usize;
                    let label = Label::Line(at.try_into().ok()?, line.name.len().try_into().ok()?);
                    Some(Entry::new(line.start, line.size, 0, label))
                };
                self.snapshot = perfmap::parse(&text).filter_map(entry).collect();
                self.text = text;
            }
            Snapshot::Entries(entries) => {
                let entry =
                    |(start, size, code)| Entry::new(start, size, 0, Label::Parsed(Arc::new(code)));
                self.snapshot = entries.into_iter().map(entry).collect();
                self.text = String::new();
            }
        }
        self.count_names();
    }

    fn count_names(&mut self) {
        let entries = self.snapshot.iter().chain(&self.loads);
        let unloads = self.unloads.iter().map(|(_, code)| excess(code));
        let excess: usize = entries.map(Entry::excess).chain(unloads).sum();
        self.long_names = excess + self.text.len();
    }

    /// Returns the approximate size of the log in bytes.
    pub(crate) fn size(&self) -> usize {
        self.len() * ENTRY + self.long_names
    }

    /// Returns the current code, from the snapshot and the loads since then.
    fn latest(&mut self) -> &mut BTreeMap<u64, (u64, Slot)> {
        let (snapshot, loads, epoch) = (&self.snapshot, &self.loads, self.snapshot_epoch);
        self.latest.get_or_insert_with(|| {
            let mut latest = BTreeMap::new();
            for (i, entry) in snapshot.iter().enumerate() {
                insert_current(&mut latest, Slot::Snapshot(i), entry);
            }
            for (i, load) in loads.iter().enumerate() {
                // The snapshot already contains the code that was loaded up to its epoch, even if this log
                // received the load only after the snapshot.
                if snapshot.is_empty() || load.since > epoch {
                    insert_current(&mut latest, Slot::Load(i), load);
                }
            }
            latest
        })
    }

    /// Adds code that was loaded at the beginning of `epoch`.
    pub fn load(&mut self, epoch: u64, start: Addr, size: u64, code: Code) {
        let entry = Entry::new(start, size, epoch, Label::Parsed(Arc::new(code)));
        let slot = Slot::Load(self.loads.len());
        if self.snapshot.is_empty() || epoch > self.snapshot_epoch {
            insert_current(self.latest(), slot, &entry);
        }
        self.long_names += entry.excess();
        self.loads.push(entry);
    }

    /// Records that code with this name was unloaded at the beginning of `epoch`.
    pub(crate) fn unload(&mut self, epoch: u64, code: Code) {
        self.long_names += excess(&code);
        self.unloads.push((epoch, code));
    }

    /// Adds inlined methods to the current code with the same start address and name. Returns the entries
    /// that match no current code.
    pub(crate) fn refine(&mut self, entries: Vec<(Addr, u64, Code)>) -> Vec<(Addr, u64, Code)> {
        let mut unknown = Vec::new();
        for (start, size, code) in entries {
            let known = match self.latest().get(&start.0) {
                Some(&(_, Slot::Snapshot(i))) => self.snapshot.get_mut(i),
                Some(&(_, Slot::Load(i))) => self.loads.get_mut(i),
                None => None,
            };
            match known.map(|entry| &mut entry.label) {
                Some(Label::Parsed(known)) if known.name == code.name => {
                    Arc::make_mut(known).add_inlined(&code);
                }
                _ => unknown.push((start, size, code)),
            }
        }
        unknown
    }

    /// Returns the number of loads and unloads in the log.
    pub fn changes(&self) -> usize {
        self.loads.len() + self.unloads.len()
    }

    /// Returns the number of loads and unloads in the log, and of the current code.
    pub(crate) fn len(&self) -> usize {
        self.snapshot.len() + self.changes()
    }

    /// Returns an index of the history so far, and reduces the log to the current code. Only the index
    /// retains the earlier history.
    pub fn take_index(&mut self) -> CodeIndex {
        if self.is_normalized && self.changes() == 0 {
            return CodeIndex::new(self.snapshot.clone(), String::new());
        }
        let times = self.loads.iter().map(|load| load.since);
        let times = times.chain(self.unloads.iter().map(|unload| unload.0));
        let epoch = times.fold(self.snapshot_epoch, u64::max);
        self.latest();
        let now = self.latest.iter().flatten().filter_map(|(_, (_, slot))| match *slot {
            Slot::Snapshot(i) => self.snapshot.get(i),
            Slot::Load(i) => self.loads.get(i),
        });
        let mut next: Vec<_> = now
            .map(|entry| {
                let label = match &entry.label {
                    Label::Parsed(code) => Label::Parsed(Arc::clone(code)),
                    line @ Label::Line(..) => {
                        Label::Parsed(Arc::new(line.code(&self.text).into_owned()))
                    }
                };
                Entry { since: 0, until: u64::MAX, label, ..*entry }
            })
            .collect();
        next.shrink_to_fit();
        let mut compacted =
            Self { snapshot: next, snapshot_epoch: epoch, is_normalized: true, ..Self::default() };
        compacted.count_names();
        std::mem::replace(self, compacted).into_index()
    }

    /// Shares the names of code with other JVMs that have the same code.
    pub fn share(&mut self, names: &mut SharedNames) {
        for entry in self.snapshot.iter_mut().chain(&mut self.loads) {
            if let Label::Parsed(code) = &mut entry.label {
                names.share(code);
            }
        }
    }

    /// Makes an index of the complete history.
    pub(crate) fn into_index(self) -> CodeIndex {
        let Self { text, snapshot, snapshot_epoch, mut loads, unloads, .. } = self;
        loads.sort_by_key(|load| load.since);
        let mut unloads = Unloads::new(&unloads);
        let later = loads.split_off(loads.partition_point(|load| load.since <= snapshot_epoch));
        let mut timeline = Timeline { text: &text, now: BTreeMap::new(), past: Vec::new() };
        for load in loads {
            timeline.put(load, &mut unloads);
        }
        timeline.replace_current(snapshot, snapshot_epoch);
        for load in later {
            timeline.put(load, &mut unloads);
        }
        let entries = timeline.finish();
        CodeIndex::new(entries, text)
    }
}

/// Enters code as the current one at its addresses, and removes overlapping code.
fn insert_current(latest: &mut BTreeMap<u64, (u64, Slot)>, slot: Slot, entry: &Entry) {
    let before = latest.range(..entry.end).rev();
    let gone = before.take_while(|(_, (end, _))| *end > entry.start);
    for at in gone.map(|(&at, _)| at).collect::<Vec<_>>() {
        latest.remove(&at);
    }
    latest.insert(entry.start, (entry.end, slot));
}

/// Names of code that several JVMs have in common: most compiled methods belong to the JDK.
#[derive(Debug, Default)]
pub(crate) struct SharedNames(HashSet<Arc<Code>>);

impl SharedNames {
    fn share(&mut self, code: &mut Arc<Code>) {
        match self.0.get(&**code) {
            Some(known) => *code = Arc::clone(known),
            None => drop(self.0.insert(Arc::clone(code))),
        }
    }

    /// Drops names that no log or index uses any more.
    pub(crate) fn drop_unused(&mut self) {
        self.0.retain(|code| Arc::strong_count(code) > 1);
        self.0.shrink_to(2 * self.0.len());
    }
}

/// Epochs of the unloads not yet attributed to code: by name, latest first.
struct Unloads<'a>(BTreeMap<&'a str, Vec<u64>>);

impl<'a> Unloads<'a> {
    fn new(unloads: &'a [(u64, Code)]) -> Self {
        let mut by_name: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (epoch, code) in unloads {
            by_name.entry(&code.name).or_default().push(*epoch);
        }
        for epochs in by_name.values_mut() {
            epochs.sort_unstable_by(|a, b| b.cmp(a));
        }
        Self(by_name)
    }

    /// Removes the last unload of `name` after `since` and not after `latest`, and returns its epoch. Of
    /// several unloads, any may belong to another compiled version of the same method. The last one is used,
    /// because an end that is too late does no harm: until `latest`, no other code is at the address.
    fn remove_last(&mut self, name: &str, since: u64, latest: u64) -> Option<u64> {
        let epochs = self.0.get_mut(name)?;
        let at = epochs.iter().position(|&epoch| epoch > since && epoch <= latest)?;
        Some(epochs.remove(at))
    }
}

/// State of the code cache while the history is replayed: current code by start address, and past code.
struct Timeline<'a> {
    text: &'a str,
    now: BTreeMap<u64, Entry>,
    past: Vec<Entry>,
}

impl Timeline<'_> {
    fn overlapping(&self, start: u64, end: u64) -> Vec<u64> {
        // Current entries do not overlap, so their ends ascend with their starts.
        let before = self.now.range(..end).rev();
        before.take_while(|(_, entry)| entry.end > start).map(|(&at, _)| at).collect()
    }

    /// Enters loaded code, and ends the code that it replaces.
    fn put(&mut self, load: Entry, unloads: &mut Unloads<'_>) {
        for at in self.overlapping(load.start, load.end) {
            if let Some(mut gone) = self.now.remove(&at) {
                let name = &gone.label.code(self.text).name;
                let unload = unloads.remove_last(name, gone.since, load.since);
                gone.until = unload.unwrap_or(load.since);
                self.past.push(gone);
            }
        }
        self.now.insert(load.start, load);
    }

    /// Replaces the current code by a snapshot.
    fn replace_current(&mut self, snapshot: Vec<Entry>, epoch: u64) {
        let loaded = std::mem::take(&mut self.now);
        let seen = without_overlaps(snapshot);
        self.now = seen.into_iter().map(|entry| (entry.start, entry)).collect();
        for (_, mut load) in loaded {
            let mut is_there = false;
            for at in self.overlapping(load.start, load.end) {
                let Some(entry) = self.now.get_mut(&at) else { continue };
                // If the snapshot has a different method here, that method was loaded after `load`.
                let same = entry.label.code(self.text).name == load.label.code(self.text).name;
                entry.since = entry.since.max(if same { load.since } else { load.since + 1 });
                is_there |= same;
            }
            if !is_there {
                load.until = epoch.max(load.since + 1);
                self.past.push(load);
            }
        }
    }

    fn finish(self) -> Vec<Entry> {
        let mut all = self.past;
        all.extend(self.now.into_values());
        all
    }
}

/// Sorts a snapshot by address. Of overlapping entries, keeps the one that was listed last.
fn without_overlaps(snapshot: Vec<Entry>) -> Vec<Entry> {
    let mut lines: Vec<_> = snapshot.into_iter().enumerate().collect();
    lines.sort_by_key(|(_, entry)| entry.start);
    let mut kept: Vec<(usize, Entry)> = Vec::with_capacity(lines.len());
    'lines: for (line, entry) in lines {
        while let Some((other, last)) = kept.last()
            && last.end > entry.start
        {
            if *other > line {
                continue 'lines;
            }
            kept.pop();
        }
        kept.push((line, entry));
    }
    kept.into_iter().map(|(_, entry)| entry).collect()
}

/// Index to look up the code at an address in an epoch.
#[derive(Debug, Default)]
pub(crate) struct CodeIndex {
    text: String,
    /// Sorted by start address.
    entries: Vec<Entry>,
    /// For each entry, the maximum end of all entries up to it. A backward search stops at an entry whose
    /// value is not above the address.
    max_ends: Vec<u64>,
}

impl CodeIndex {
    fn new(mut entries: Vec<Entry>, text: String) -> Self {
        entries.sort_by_key(|entry| (entry.start, entry.since));
        let mut end = 0;
        let max_ends = entries.iter().map(|entry| {
            end = end.max(entry.end);
            end
        });
        Self { max_ends: max_ends.collect(), entries, text }
    }

    /// Returns the code at `addr` in `epoch`. If no code was there in that epoch, returns the next code that
    /// was loaded there within [`MAX_REPORT_DELAY`] epochs, because code may run shortly before its load is
    /// reported.
    pub(crate) fn find(&self, addr: Addr, epoch: u64) -> Option<CodeId> {
        let mut next: Option<(u64, CodeId)> = None;
        let end = self.entries.partition_point(|entry| entry.start <= addr.0);
        for i in (0..end).rev() {
            if self.max_ends[i] <= addr.0 {
                break;
            }
            let entry = &self.entries[i];
            if entry.end <= addr.0 {
                continue;
            }
            if (entry.since..entry.until).contains(&epoch) {
                return Some(CodeId(i));
            }
            let is_early = entry.since > epoch && entry.since - epoch <= MAX_REPORT_DELAY;
            if is_early && next.is_none_or(|(since, _)| entry.since < since) {
                next = Some((entry.since, CodeId(i)));
            }
        }
        next.map(|(_, id)| id)
    }

    /// Returns the name of code that [`find`](Self::find) returned.
    ///
    /// # Panics
    /// If `id` belongs to another index.
    pub(crate) fn code(&self, id: CodeId) -> Cow<'_, Code> {
        self.entries[id.0].label.code(&self.text)
    }
}

/// Index of an entry in a [`CodeIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CodeId(usize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::code::{Inlined, SourceFrame};

    fn method(name: &str) -> Code {
        Code::method(name, None)
    }

    fn name_at(index: &CodeIndex, addr: u64, epoch: u64) -> Option<String> {
        index.find(Addr(addr), epoch).map(|id| index.code(id).name.to_string())
    }

    fn snapshot<const N: usize>(entries: [(Addr, u64, Code); N]) -> Snapshot {
        Snapshot::Entries(entries.into())
    }

    #[test]
    fn reused_address_resolves_by_epoch() {
        let mut log = CodeLog::default();
        log.snapshot(2, snapshot([(Addr(100), 50, method("A.old"))]));
        log.unload(5, method("A.old"));
        log.load(9, Addr(120), 50, method("B.new"));
        let index = log.into_index();
        assert_eq!(name_at(&index, 130, 0).as_deref(), Some("A.old"));
        assert_eq!(name_at(&index, 130, 4).as_deref(), Some("A.old"));
        assert_eq!(name_at(&index, 130, 9).as_deref(), Some("B.new"));
        assert_eq!(name_at(&index, 110, 4).as_deref(), Some("A.old"));
        assert_eq!(name_at(&index, 165, 9).as_deref(), Some("B.new"));
        assert_eq!(name_at(&index, 170, 9), None);
        assert_eq!(name_at(&index, 99, 0), None);
    }

    #[test]
    fn size_includes_long_names_until_their_code_has_gone() {
        let mut log = CodeLog::default();
        log.load(1, Addr(100), 50, method("A.short"));
        assert_eq!(log.size(), ENTRY);
        let long = Code::method(&"n".repeat(65_000), Some(&"p".repeat(65_000)));
        log.load(2, Addr(200), 50, long.clone());
        log.unload(3, long.clone());
        assert!(log.size() > 2 * 6000 && log.size() < 2 * 7000, "{}", log.size());
        log.load(4, Addr(200), 50, method("B.short"));
        log.take_index();
        assert_eq!(log.size(), 2 * ENTRY);
        log.snapshot(5, snapshot([(Addr(100), 50, long)]));
        assert!(log.size() > 6000);
        log.snapshot(6, Snapshot::Map(format!("64 10 {}\n", "n".repeat(9000))));
        assert!(log.size() > 9000);
    }

    #[test]
    fn log_continues_with_current_code_after_take_index() {
        let mut log = CodeLog::default();
        log.snapshot(
            2,
            snapshot([(Addr(100), 50, method("A.old")), (Addr(300), 9, method("C.c"))]),
        );
        log.unload(5, method("A.old"));
        log.load(9, Addr(120), 50, method("B.new"));
        let index = log.take_index();
        assert_eq!(name_at(&index, 130, 4).as_deref(), Some("A.old"));
        assert_eq!(name_at(&index, 130, 9).as_deref(), Some("B.new"));
        assert_eq!(log.changes(), 0);
        log.load(11, Addr(120), 50, method("D.d"));
        assert_eq!(log.changes(), 1);
        let index = log.into_index();
        assert_eq!(name_at(&index, 130, 10).as_deref(), Some("B.new"));
        assert_eq!(name_at(&index, 130, 11).as_deref(), Some("D.d"));
        assert_eq!(name_at(&index, 301, 12).as_deref(), Some("C.c"));
    }

    #[test]
    fn code_running_before_its_load_event_is_named() {
        let mut log = CodeLog::default();
        log.snapshot(0, snapshot([(Addr(100), 50, method("A.old"))]));
        log.unload(5, method("A.old"));
        log.load(9, Addr(100), 50, method("B.new"));
        assert_eq!(name_at(&log.into_index(), 110, 7).as_deref(), Some("B.new"));
    }

    #[test]
    fn unload_ends_the_replaced_copy_of_a_method() {
        let mut log = CodeLog::default();
        log.load(1, Addr(100), 50, method("A.hot"));
        log.load(2, Addr(200), 50, method("A.hot"));
        log.unload(3, method("A.hot"));
        log.load(9, Addr(100), 50, method("B.b"));
        let index = log.into_index();
        assert_eq!(name_at(&index, 110, 2).as_deref(), Some("A.hot"));
        assert_eq!(name_at(&index, 110, 5).as_deref(), Some("B.b"));
        assert_eq!(name_at(&index, 210, 50).as_deref(), Some("A.hot"));
    }

    #[test]
    fn unload_of_one_copy_does_not_end_another() {
        let mut log = CodeLog::default();
        log.load(1, Addr(100), 50, method("A.hot"));
        log.load(2, Addr(200), 50, method("A.hot"));
        log.unload(3, method("A.hot"));
        log.unload(8, method("A.hot"));
        // It is unknown which unload belongs to which copy. The log uses the later one for the copy at 200,
        // so this copy still exists in epoch 7.
        log.load(9, Addr(200), 50, method("B.b"));
        assert_eq!(name_at(&log.into_index(), 210, 7).as_deref(), Some("A.hot"));
    }

    #[test]
    fn much_later_load_does_not_name_earlier_samples() {
        let mut log = CodeLog::default();
        log.load(1000, Addr(100), 50, method("B.b"));
        let index = log.into_index();
        assert_eq!(name_at(&index, 110, 5), None);
        assert_eq!(name_at(&index, 110, 999).as_deref(), Some("B.b"));
    }

    #[test]
    fn snapshot_does_not_duplicate_loaded_code() {
        let mut log = CodeLog::default();
        log.load(3, Addr(100), 50, method("A.a"));
        log.snapshot(4, snapshot([(Addr(96), 60, method("A.a"))]));
        let index = log.into_index();
        assert_eq!(name_at(&index, 120, 9).as_deref(), Some("A.a"));
        assert_eq!(index.entries.len(), 1);
    }

    #[test]
    fn map_snapshot_lines_are_read_on_lookup() {
        let mut log = CodeLog::default();
        log.load(1, Addr(0x300), 0x10, method("A.a"));
        let text = "100 10 void A.b(int)\n200 20 a stub\n300 10 int A.a()\n";
        log.snapshot(2, Snapshot::Map(text.into()));
        log.load(5, Addr(0x100), 8, method("C.c"));
        let index = log.into_index();
        for (addr, epoch, name) in
            [(0x105, 4, "A.b"), (0x105, 5, "C.c"), (0x21f, 9, "a stub"), (0x300, 9, "A.a")]
        {
            assert_eq!(name_at(&index, addr, epoch).as_deref(), Some(name), "{addr:x}");
        }
    }

    #[test]
    fn later_snapshot_entries_override_earlier_ones() {
        let mut log = CodeLog::default();
        let lines = [(Addr(100), 50, method("A.a")), (Addr(120), 10, method("B.b"))];
        log.snapshot(0, snapshot(lines));
        let index = log.into_index();
        assert_eq!(name_at(&index, 125, 0).as_deref(), Some("B.b"));
    }

    #[test]
    fn refine_adds_inlining_to_unchanged_code() {
        let frame = |name: &str| SourceFrame {
            name: name.into(),
            signature: None,
            file: None,
            line: 3,
            origin: None,
        };
        let range = Inlined {
            start: Addr(104),
            end: Addr(110),
            chain: vec![frame("B.in"), frame("A.a")],
            is_sure: true,
        };
        let with_inlining = Code { inlined: [range].into(), ..method("A.a") };
        let mut log = CodeLog::default();
        log.load(1, Addr(100), 50, method("A.a"));
        log.load(5, Addr(200), 50, method("C.c"));
        let later = [(Addr(100), 50, with_inlining.clone()), (Addr(200), 50, with_inlining)];
        let unknown = log.refine(snapshot(later).into_entries());
        assert_eq!(unknown.len(), 1, "the address has another method now");
        let index = log.into_index();
        let inlined_at = |addr| {
            let code = index.code(index.find(Addr(addr), 9).unwrap());
            let chain = code.inlined_at(Addr(addr)).map_or(&[][..], |range| &range.chain);
            chain.iter().map(|f| f.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(inlined_at(104), ["B.in", "A.a"]);
        assert!(inlined_at(110).is_empty() && inlined_at(103).is_empty());
        assert!(inlined_at(205).is_empty(), "the address has another method now");
    }

    proptest! {
        /// Compares the index with a simple model: an array of the code at each byte.
        #[test]
        fn index_agrees_with_a_byte_array_model(
            loads in prop::collection::vec((0..200_u64, 1..40_u64), 1..60),
            from in 0..30_usize,
        ) {
            let mut log = CodeLog::default();
            let mut model = vec![vec![None; 240]; loads.len() + 1];
            let mut held: Vec<Option<usize>> = vec![None; 240];
            for (i, &(start, size)) in loads.iter().enumerate() {
                let epoch = i as u64 + 1;
                // Overlapped code is removed completely.
                let gone: Vec<_> = (start..start + size).filter_map(|a| held[a as usize]).collect();
                for slot in &mut held {
                    if slot.is_some_and(|j| gone.contains(&j)) {
                        *slot = None;
                    }
                }
                held[start as usize..(start + size) as usize].fill(Some(i));
                log.load(epoch, Addr(start), size, method(&format!("M.m{i}")));
                model[i + 1].clone_from(&held);
            }
            let index = log.into_index();
            for (epoch, held) in model.iter().enumerate().skip(from.min(loads.len())) {
                for (addr, slot) in held.iter().enumerate() {
                    if let Some(i) = slot {
                        let expected = format!("M.m{i}");
                        let found = name_at(&index, addr as u64, epoch as u64);
                        prop_assert_eq!(found.as_deref(), Some(expected.as_str()));
                    }
                }
            }
        }
    }
}
