//! Methods in HotSpot's memory: names, parameters, lines.
//!
//! Sources: hotspot/share/oops/{method,constMethod,constantPool,symbol,klass}.hpp, with the
//! fields that vmStructs exports. A Method points to its ConstMethod. The ConstMethod points to the
//! ConstantPool, and has the indexes of the method's name and descriptor in that pool. The pool
//! points to its class. The compressed table of line numbers follows the bytecodes
//! (`CompressedLineNumberReadStream`).

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr, Error, Result,
    hotspot::{
        compressed::{Encoding, Stream},
        layout::Item,
        origins::Origins,
        pages::Pages,
        resolved::Layout,
        symbols::{ENTRY, Symbols},
    },
    names::{
        code::{MethodOrigin, method_name},
        java::java_parameters,
    },
};

/// Maximum size of a line table in bytes; bytecodes have the same limit of 64 KiB.
const MAX_LINE_TABLE: usize = 65_536;
/// `_has_linenumber_table`: the lowest bit of the flags in all versions.
const HAS_LINES: u8 = 1;

/// Name, parameters, source file and lines of a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MethodInfo {
    /// Class and name, such as `java.lang.String.hashCode`.
    pub(crate) name: Arc<str>,
    /// Its parameters as Java source writes them.
    pub(crate) signature: Option<Arc<str>>,
    /// The name of the source file, if the class file contains it.
    pub(crate) file: Option<Arc<str>>,
    /// Its origin, if [`Methods::read_origins`] was called and it is a native method or has a named module.
    pub(crate) origin: Option<Arc<MethodOrigin>>,
    /// Bytecode indexes and the lines that begin there, in ascending order.
    lines: Vec<(u32, u32)>,
}

impl MethodInfo {
    /// Returns the number of bytes of its names and lines.
    pub(crate) fn size(&self) -> usize {
        let optional = [&self.signature, &self.file].into_iter().flatten();
        let text = self.name.len() + optional.map(|text| text.len()).sum::<usize>();
        text + self.lines.len() * size_of::<(u32, u32)>()
    }

    /// Returns the line of a bytecode index, 0 if unknown.
    pub(crate) fn line(&self, bci: i32) -> u32 {
        // A negative index means the method's entry.
        let bci = u32::try_from(bci).unwrap_or(0);
        let behind = self.lines.partition_point(|&(from, _)| from <= bci);
        behind.checked_sub(1).and_then(|at| self.lines.get(at)).map_or(0, |&(_, line)| line)
    }
}

/// Offsets of the fields.
#[derive(Debug)]
struct Fields {
    const_method: u64,
    constants: u64,
    code_size: u64,
    flags: u64,
    name_index: u64,
    signature_index: u64,
    const_method_size: u64,
    pool_holder: u64,
    pool_size: u64,
    /// The object that contains the index of the source file (true: the pool; false: the class, up to
    /// JDK 16), and the offset of the index in this object.
    file_index: Option<(bool, u64)>,
    klass_name: u64,
}

impl Fields {
    fn read(layout: &Layout) -> Result<Self> {
        let file_index = |item, in_pool| Some((in_pool, layout.get(item).ok()?));
        Ok(Self {
            const_method: layout.get(Item::ConstMethodOf)?,
            constants: layout.get(Item::Constants)?,
            code_size: layout.get(Item::CodeSize)?,
            flags: layout.get(Item::ConstMethodFlags)?,
            name_index: layout.get(Item::NameIndex)?,
            signature_index: layout.get(Item::SignatureIndex)?,
            const_method_size: layout.get(Item::ConstMethodSize)?,
            pool_holder: layout.get(Item::PoolHolder)?,
            pool_size: layout.get(Item::PoolSize)?,
            file_index: file_index(Item::PoolFileIndex, true)
                .or_else(|| file_index(Item::ClassFileIndex, false)),
            klass_name: layout.get(Item::KlassName)?,
        })
    }
}

/// Cache of methods.
#[derive(Debug)]
pub(crate) struct Methods {
    fields: Fields,
    encoding: Encoding,
    cached: HashMap<Addr, Arc<MethodInfo>>,
    /// Cache of names. Its size limit covers all cached data. When the limit is reached, further
    /// methods have no names.
    symbols: Symbols,
    /// Reads the origins of methods, if a caller wants them.
    origins: Option<Origins>,
}

impl Methods {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        Ok(Self {
            fields: Fields::read(layout)?,
            encoding: Encoding::of_jdk(layout.major),
            cached: HashMap::new(),
            symbols: Symbols::new(layout)?,
            origins: None,
        })
    }

    /// Returns this reader with a cache of at most `max` bytes.
    #[must_use]
    pub(super) fn limited_to(self, max: usize) -> Self {
        Self { symbols: self.symbols.limited_to(max), ..self }
    }

    /// Makes methods that are read from now on have their origins.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn read_origins(&mut self, layout: &Layout) -> Result<()> {
        self.origins = Some(Origins::new(layout)?);
        Ok(())
    }

    /// Returns the method at an address; `None` if there is no consistent method, or if the cache is full.
    pub(crate) fn get(&mut self, pages: &mut Pages<'_>, method: Addr) -> Option<Arc<MethodInfo>> {
        if let Some(cached) = self.cached.get(&method) {
            return Some(Arc::clone(cached));
        }
        let info = self.read(pages, method).ok()?;
        self.symbols.reserve(info.size() + ENTRY).ok()?;
        let info = Arc::new(info);
        self.cached.insert(method, Arc::clone(&info));
        Some(info)
    }

    /// Returns the approximate size of the cache in bytes.
    pub(super) fn size(&self) -> usize {
        self.symbols.size()
    }

    /// Clears the cache, because methods may have been unloaded.
    pub(crate) fn clear(&mut self) {
        self.cached.clear();
        self.symbols.clear();
        self.origins.iter_mut().for_each(Origins::clear);
    }

    fn read(&mut self, pages: &mut Pages<'_>, method: Addr) -> Result<MethodInfo> {
        let fields = &self.fields;
        let const_method = pages.pointer(plus(method, fields.const_method)?)?;
        let pool = pages.pointer(plus(const_method, fields.constants)?)?;
        let class = pages.pointer(plus(pool, fields.pool_holder)?)?;
        let class_name = pages.pointer(plus(class, fields.klass_name)?)?;
        let name_index = pages.u16(plus(const_method, fields.name_index)?)?;
        let signature_index = pages.u16(plus(const_method, fields.signature_index)?)?;
        let file_index = match fields.file_index {
            Some((true, offset)) => pages.u16(plus(pool, offset)?)?,
            Some((false, offset)) => pages.u16(plus(class, offset)?)?,
            None => 0,
        };
        let class_name = self.symbols.get(pages, class_name)?.replace('/', ".");
        let name = self.pool_symbol(pages, pool, name_index)?;
        let signature = self.pool_symbol(pages, pool, signature_index)?;
        let file = match file_index {
            0 => None,
            index => Some(self.pool_symbol(pages, pool, index)?),
        };
        if !signature.starts_with('(') {
            return Err(Error::layout(format!("the method at {method} has no descriptor")));
        }
        Ok(MethodInfo {
            name: method_name(&format!("{class_name}.{name}")),
            signature: java_parameters(&signature).map(Into::into),
            file,
            lines: self.lines(pages, const_method)?,
            origin: match &mut self.origins {
                Some(origins) => {
                    origins.read(pages, &mut self.symbols, method, class)?.map(Arc::new)
                }
                None => None,
            },
        })
    }

    fn pool_symbol(&mut self, pages: &mut Pages<'_>, pool: Addr, index: u16) -> Result<Arc<str>> {
        let slot = plus(plus(pool, self.fields.pool_size)?, u64::from(index) * 8)?;
        let symbol = pages.pointer(slot)?;
        self.symbols.get(pages, symbol)
    }

    fn lines(&self, pages: &mut Pages<'_>, const_method: Addr) -> Result<Vec<(u32, u32)>> {
        // One byte suffices, whatever the field's width, because the supported machines are
        // little-endian.
        let [flags] = pages.array(plus(const_method, self.fields.flags)?)?;
        if flags & HAS_LINES == 0 {
            return Ok(Vec::new());
        }
        let code_size = pages.u16(plus(const_method, self.fields.code_size)?)?;
        let begin = plus(plus(const_method, self.fields.const_method_size)?, code_size.into())?;
        let mut lines = Vec::new();
        // The table's length is known only after decoding it.
        for size in [256, 4096, MAX_LINE_TABLE] {
            let Ok(bytes) = pages.bytes(begin, size) else { continue };
            match line_table(&bytes, self.encoding) {
                Some(table) => return Ok(table),
                None => lines.clear(),
            }
        }
        Ok(lines)
    }
}

fn plus(addr: Addr, bytes: u64) -> Result<Addr> {
    addr.checked_add(bytes)
        .filter(|_| addr.0 != 0)
        .ok_or_else(|| Error::layout("a pointer in a method is null"))
}

/// Decodes a line table; `None` if it does not end within `bytes`.
pub(super) fn line_table(bytes: &[u8], encoding: Encoding) -> Option<Vec<(u32, u32)>> {
    let mut stream = Stream::new(bytes, encoding);
    let (mut bci, mut line) = (0_u32, 0_u32);
    let mut table = Vec::new();
    loop {
        match stream.byte()? {
            0 => break,
            0xff => {
                bci = bci.wrapping_add_signed(stream.signed()?);
                line = line.wrapping_add_signed(stream.signed()?);
            }
            // Five bits are the difference of bytecode indexes, three that of lines.
            byte => {
                bci = bci.wrapping_add(u32::from(byte >> 3));
                line = line.wrapping_add(u32::from(byte & 7));
            }
        }
        table.push((bci, line));
    }
    // Compilers may emit entries in any order.
    table.sort_by_key(|&(bci, _)| bci);
    Some(table)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn line_tables_are_decoded() {
        let encoding = Encoding::of_jdk(17);
        // (0, 10) with an escape, then (3, 12) in one byte, then the end.
        let bytes = [0xff, 0, 20, 3 << 3 | 2, 0, 99];
        let table = line_table(&bytes, encoding).unwrap();
        assert_eq!(table, [(0, 10), (3, 12)]);
        assert_eq!(line_table(&bytes[..4], encoding), None);
        let info = MethodInfo {
            name: "a".into(),
            signature: None,
            file: None,
            origin: None,
            lines: table,
        };
        assert_eq!([-1, 0, 2, 3, 99].map(|bci| info.line(bci)), [10, 10, 10, 12, 12]);
    }

    proptest! {
        #[test]
        fn hostile_line_tables_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for major in [8, 25] {
                let _ = line_table(&bytes, Encoding::of_jdk(major));
            }
        }
    }
}
