//! A handmade native image with two methods, one of which contains calls.

use std::fmt::Write;

/// Content of the image.
#[derive(Clone, Debug)]
pub(crate) struct FakeImage {
    pub(crate) code_size: u64,
    pub(crate) index: Vec<u32>,
    pub(crate) entries: Vec<u8>,
    pub(crate) frames: Vec<u8>,
    pub(crate) code: Vec<(u64, Vec<u8>)>,
}

/// Flags of an entry with a frame size and frame information of its method, and of an entry for a call.
const METHOD: u8 = 0xc1;
const CALL: u8 = 0x80;
/// Offsets of lists in `frames`.
const INNER: u32 = 0;
const MAIN: u32 = 3;
const LIST: u32 = 13;
const LIST_OF_SHARED: u32 = 17;

impl FakeImage {
    /// Makes a method `app.Main$Inner.run` of 64 bytes with a frame of 16 bytes, and a method `app.Main.main` with a
    /// frame of 80 bytes that saves the frame pointer and has calls that return to 0x50 and 0x70.
    pub(crate) fn new() -> Self {
        let (mut index, mut entries) = (vec![0], Vec::new());
        let mut entry = |head: &[u8], info: Option<u32>| {
            entries.extend_from_slice(head);
            entries.extend(info.iter().flat_map(|info| info.to_le_bytes()));
            u32::try_from(entries.len()).unwrap_or(0)
        };
        entry(&[METHOD, 0x40, 16 | 1], Some(INNER));
        entry(&[METHOD, 0x10, 80 | 3], Some(MAIN));
        entry(&[CALL, 0x20], Some(LIST));
        let mut place = entry(&[CALL, 0x90], Some(LIST_OF_SHARED));
        for chunk in 1..0x12 {
            index.push(place);
            let is_last = chunk == 0x11;
            place = entry(&[METHOD, if is_last { 0 } else { 0xff }, 80 | 2], Some(MAIN));
            if !is_last {
                place = entry(&[0, 1], None);
            }
        }
        let frames = vec![
            2, 3, 0, // method 1, not inlined: the last frame, line unknown
            4, 3, 0, // method 2, not inlined: the last frame, line unknown
            4, 29, 0, // shared: method 2 at line 12, the last frame
            2, 20, 1,
            12, // shared: method 1 at line 7, always called by the frame at offset 6
            2, 20, 0, 15, // method 1 at line 7, then the shared frame at offset 6
            21, // the shared frame at offset 9
        ];
        let code = vec![
            (0, vec![0x48, 0x83, 0xec, 8, 0x90, 0x48, 0x83, 0xc4, 8, 0xc3, 0x90]),
            (0x40, vec![0x55, 0x48, 0x83, 0xec, 64, 0x90]),
            (0x1000, vec![0x48, 0x83, 0xc4, 64, 0x5d, 0xc3, 0x90]),
        ];
        Self { code_size: 0x1200, index, entries, frames, code }
    }

    /// Returns the assembly source of a shared library with this content.
    pub(crate) fn assembly(&self) -> String {
        let bytes = |bytes: &[u8]| {
            let bytes: Vec<_> = bytes.iter().map(u8::to_string).collect();
            bytes.join(",")
        };
        let index: Vec<u8> = self.index.iter().flat_map(|place| place.to_le_bytes()).collect();
        let mut text = String::from(".text\n.balign 16\ncode:\n");
        for (place, code) in &self.code {
            let _ = writeln!(text, ".org code - .text + {place}\n.byte {}", bytes(code));
        }
        let _ = writeln!(text, ".org code - .text + 0x1200, 0xcc");
        text += ".section .svm_heap,\"aw\",@progbits\n.balign 8\nheap: .8byte 0, 0, 0\n";
        let size = self.code_size;
        let fields = "index entries 0 frames 0 classes names strings methods";
        let _ = writeln!(text, ".8byte code, {size}, {size}, 0, {size}, 0");
        for field in fields.split(' ') {
            let reference = if field == "0" { field.into() } else { refer(field) };
            let _ = writeln!(text, ".8byte {reference}");
        }
        text += ".8byte 0\n";
        for (name, content) in
            [("index", &index), ("entries", &self.entries), ("frames", &self.frames)]
        {
            array(&mut text, name, content.len(), &format!(".byte {}", bytes(content)));
        }
        array(&mut text, "methods", 12, ".2byte 0, 0, 1, 1, 2, 2");
        references(&mut text, "classes", &["0", "inner", "main"]);
        references(&mut text, "names", &["0", "string_run", "string_main"]);
        references(&mut text, "strings", &["0"]);
        for (class, name) in [("inner", "inner_name"), ("main", "main_name")] {
            let (source, name) = (refer("string_source"), refer(name));
            let _ = writeln!(text, "{class}: .8byte 8, 0, 0, {source}, 7, {name}, 0, 0");
        }
        for (name, content) in [
            ("string_run", "run"),
            ("string_main", "main"),
            ("string_source", "Main.java"),
            ("inner_name", "app.Main$Inner"),
            ("main_name", "app.Main"),
        ] {
            let value = format!("{name}_bytes");
            let _ = writeln!(text, "{name}: .8byte 16, {}, 0", refer(&value));
            array(&mut text, &value, content.len(), &format!(".ascii \"{content}\""));
        }
        text + ".skip 128\n"
    }
}

/// Returns the expression of a reference: the section begins two pages after the heap's base.
fn refer(name: &str) -> String {
    format!("{name} - heap + 0x2000")
}

/// Adds an array of bytes. The class word has a flag set, as in some objects of real images.
fn array(text: &mut String, name: &str, length: usize, content: &str) {
    let _ = writeln!(text, "{name}: .8byte 25\n.4byte 99, {length}\n{content}\n.balign 8");
}

fn references(text: &mut String, name: &str, objects: &[&str]) {
    let _ = writeln!(text, "{name}: .8byte 32\n.4byte 99, {}", objects.len());
    for object in objects {
        let object = if *object == "0" { "0".into() } else { refer(object) };
        let _ = writeln!(text, ".8byte {object}");
    }
}
