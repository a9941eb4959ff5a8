//! Classifies an instant, and records it if a recording of that kind is still wanted.

use std::error::Error;

use walk_harness::{
    harness::{self, Processor, Registers},
    recording::Recording,
};

use crate::{
    kinds::{self, Kind},
    recorder::Recorder,
};

/// Maximum size of a recording. A larger recording is discarded, and a later instant of the same
/// kind may be recorded instead.
const MAX_BYTES: usize = 9_000;
impl Recorder<'_> {
    pub fn kind(&mut self, at: &Registers, since_entry: usize, since_leave: usize) -> Kind {
        let code = self.live.bytes::<16>(at.ip).unwrap_or_default();
        let blob =
            if self.live.is_code(at.ip) { self.live.blob(at.ip) } else { Default::default() };
        let name = match blob.kind {
            4 => self.name_of_stub(at),
            _ => String::new(),
        };
        let instant = kinds::Instant { ip: at.ip, blob, code: &code, since_entry, since_leave };
        kinds::kind(&self.live, &instant, || name)
    }

    fn name_of_stub(&mut self, at: &Registers) -> String {
        if let Some(name) = self.names_of_stubs.get(&at.ip) {
            return name.clone();
        }
        let stack = self.live.walk(at);
        let name = self.live.names(&stack).pop().unwrap_or_default();
        self.names_of_stubs.insert(at.ip, name.clone());
        name
    }

    /// Records the thread's current stack, if it reaches the thread's entry and is possible
    /// according to the table of calls.
    pub fn record(
        &mut self,
        at: &Registers,
        kind: Kind,
        thread: &str,
        is_counted: bool,
    ) -> Result<(), Box<dyn Error>> {
        let mut recording = self.live.record(at)?;
        let end = recording.stack.end;
        recording.names = self.live.names(&recording.stack);
        if !self.reaches_entry(end) {
            self.count(&format!("stack does not reach the entry: {}", kind.name), "");
            return Ok(());
        }
        if !self.is_in_table(thread, &recording.stack, is_counted) {
            let what = format!("stack is not in the call table: {}", kind.name);
            self.count(&what, &recording.names.join(";"));
            return Ok(());
        }
        let Kind { name, detail } = &kind;
        let runtime = self.runtime_name();
        recording.about = format!("{runtime} {}: {name}: {detail}", self.flags);
        recording.truth = match is_counted {
            true => "shadow stack, started from a stack in the call table",
            false => "the call table, and the created frames when they ran",
        }
        .into();
        if end >> 8 > 0 {
            recording.about += ", partly guessed";
        }
        // Checks that the recording contains everything that the walker needs.
        let again = harness::walk(Processor::OWN, &mut &recording, at);
        if again != recording.stack {
            self.count("walk of the recording differs from walk of the live thread", name);
            return Ok(());
        }
        if self.save(&recording, &kind)? {
            self.seen.add(&kind);
        }
        Ok(())
    }

    /// Returns the runtime's name, after that of the processor if it is not x86-64.
    fn runtime_name(&self) -> String {
        let name = &self.runtime.name;
        match Processor::OWN {
            Processor::X86_64 => name.clone(),
            other => format!("{} {name}", other.name()),
        }
    }

    /// Writes the file, unless it is large.
    fn save(&mut self, recording: &Recording, kind: &Kind) -> Result<bool, Box<dyn Error>> {
        let bytes = recording.compressed()?;
        if bytes.len() > MAX_BYTES {
            return Ok(false);
        }
        let runtime = self.runtime_name();
        let words = format!("{runtime} {} {} {}", self.flags, kind.name, kind.detail);
        let words: Vec<String> = words
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty() && *word != "XX" && *word != "temurin")
            .map(str::to_ascii_lowercase)
            .collect();
        self.found.push((format!("{}.gz", words.join("-")), bytes));
        Ok(true)
    }
}
