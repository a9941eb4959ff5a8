//! GraalVM native images: programs of Java code that was compiled ahead of time.
//!
//! Such a program has no code cache and usually no unwind tables for its Java code, and its linker symbols are often
//! stripped. But it walks and names its own stacks, for its garbage collector and for exceptions. The tables for that
//! are in its heap image (`.svm_heap`): `ImageCodeInfo` and the objects that it refers to. Only these tables are read
//! here, from the file.
//!
//! | module | contents |
//! |---|---|
//! | `heap` | objects in the image's heap |
//! | `locate` | location of the tables, found by their content, because no symbol leads to them |
//! | `code` | table of methods and frame sizes by address |
//! | `names` | methods, inlined methods and lines |
//!
//! The format is validated: the code table is read from its first entry to its last one, and must agree with its own
//! index at each step. Otherwise the file counts as an unknown kind of image.
//!
//! Sources: substratevm's `com.oracle.svm.core.code`: `CodeInfoImpl` and `ImageCodeInfo` (the
//! tables), `CodeInfoDecoder` (entries), `FrameInfoDecoder` (frames), and Graal's
//! `UnsafeArrayTypeReader` (numbers).

mod code;
mod heap;
mod locate;
mod names;

pub(crate) use code::Method;

use crate::{
    Result, Vaddr,
    elf::{ElfFile, NATIVE_IMAGE_HEAP},
    names::code::SourceFrame,
    native_image::{code::Table, heap::Heap, names::Names},
};

/// Code information of a native image.
#[derive(Debug)]
pub(crate) struct Image {
    /// Start of its code.
    code: Vaddr,
    heap: Heap,
    table: Table,
    /// Names; `None` if their format is unknown.
    names: Option<Names>,
}

impl Image {
    /// Reads a program. Returns `None` if it is not a native image, or if the format of its tables is unknown.
    ///
    /// # Errors
    /// Returns the errors of reading a section.
    pub(crate) fn read(elf: &ElfFile) -> Result<Option<Self>> {
        let Some(section) = elf.section(NATIVE_IMAGE_HEAP) else { return Ok(None) };
        let bytes = section.image_heap()?;
        let Some((heap, tables)) = locate::find(elf, section.vaddr(), bytes) else {
            return Ok(None);
        };
        let Some(table) = Table::read(&heap, &tables) else { return Ok(None) };
        let names = Names::read(&heap, &tables, &table);
        Ok(Some(Self { code: tables.code, heap, table, names }))
    }

    /// Returns the size of its heap in bytes.
    pub(crate) fn size(&self) -> usize {
        self.heap.len()
    }

    /// Returns its methods in ascending order of addresses.
    pub(crate) fn methods(&self) -> impl Iterator<Item = Method> + '_ {
        self.table.methods(self.code)
    }

    /// Returns the frames at an address, innermost first; empty if the address is not in Java code or the
    /// format of the names is unknown. Inlined methods and lines are known at calls only; elsewhere, only the
    /// method is returned.
    pub(crate) fn at(&self, vaddr: Vaddr) -> Vec<SourceFrame> {
        let frame = |names: &Names| {
            let inside = vaddr.0.checked_sub(self.code.0)?;
            names.frames(&self.heap, self.table.frame_info(&self.heap, inside)?)
        };
        self.names.as_ref().and_then(frame).unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::Library;

    #[test]
    fn image_yields_methods_and_inlined_frames() {
        let made = testing::FakeImage::new();
        let library = Library::build(&made.assembly(), &[]);
        let image = Image::read(&library.elf()).unwrap().expect("an image");
        let methods: Vec<_> = image.methods().collect();
        let base = image.code.0;
        let method = |start, end, frame_words, saves_fp| Method {
            start: Vaddr(base + start),
            end: Vaddr(base + end),
            frame_words,
            saves_fp,
        };
        assert_eq!(methods, [method(0, 0x40, 2, false), method(0x40, 0x1200, 10, true)]);
        let names = |at: u64| -> Vec<_> {
            let frames = image.at(Vaddr(base + at));
            frames.into_iter().map(|f| (f.name.to_string(), f.line)).collect()
        };
        let main = |line| ("app.Main.main".to_owned(), line);
        let inner = ("app.Main$Inner.run".to_owned(), 7);
        // At addresses that are not calls, only the method itself is known.
        assert_eq!(names(0), [("app.Main$Inner.run".to_owned(), 0)]);
        assert_eq!(names(0x41), [main(0)]);
        // One byte before the return address of a call.
        assert_eq!(names(0x4f), [inner.clone(), main(12)]);
        assert_eq!(names(0x50), [main(0)]);
        // The list of this call has only a reference to a shared frame, which refers to its caller's frame.
        assert_eq!(names(0x6f), [inner, main(12)]);
        assert_eq!(names(0x1100), [main(0)]);
        assert_eq!(names(0x1200), []);
        assert!(image.at(Vaddr(0)).is_empty());
    }

    #[test]
    fn inconsistent_tables_are_rejected() {
        let made = testing::FakeImage::new();
        let none = |made: testing::FakeImage, what: &str| {
            let library = Library::build(&made.assembly(), &[]);
            assert!(Image::read(&library.elf()).unwrap().is_none(), "{what}");
        };
        let changed = |change: fn(&mut testing::FakeImage)| {
            let mut made = made.clone();
            change(&mut made);
            made
        };
        none(changed(|made| made.index[4] += 1), "an index that disagrees with the table");
        none(changed(|made| made.entries.truncate(20)), "a table that ends early");
        none(changed(|made| made.code_size = 1 << 40), "code that does not fit");
        none(changed(|made| made.entries[2] = 0x10), "code before the first method");
        let library = Library::build("main: nop", &[]);
        assert!(!library.elf().is_native_image() && Image::read(&library.elf()).unwrap().is_none());
    }

    #[test]
    fn unknown_name_format_leaves_methods_unnamed() {
        let mut made = testing::FakeImage::new();
        made.frames[0] = 1;
        let library = Library::build(&made.assembly(), &[]);
        let image = Image::read(&library.elf()).unwrap().expect("an image");
        assert_eq!(image.methods().count(), 2);
        assert!(image.at(image.code).is_empty());
    }
}
