//! Classes of a JDK, from the index of its `lib/modules`.
//!
//! Source: java.base/share/native/libjimage/{imageFile,endian}.hpp (version 1.0, JDK 9 and later). The
//! file has a header, a hash table, a table of the locations' offsets, the locations, and the strings.
//! The contents of resources follow; they are not read.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
};

use anyhow::{Context, Result, ensure};

/// Size of the header: magic number, version, flags, count of resources, length of the tables, size of
/// the locations and of the strings, each of four bytes in native byte order.
const HEADER: usize = 28;
const MAGIC: u32 = 0xcafe_dada;
const VERSION: u32 = 1 << 16;
/// Maximum size of the index, and of a name, in bytes.
const MAX_INDEX: u64 = 256 << 20;
const MAX_NAME: usize = 4096;
/// Maximum size of all names of classes in bytes, each with [`ENTRY`] bytes. Names may overlap in the index. The 30,000
/// classes of a JDK have about 4 MB.
const MAX_NAMES: usize = 64 << 20;
/// Size of an entry of a set in bytes.
const ENTRY: usize = 64;

/// Kinds of attributes of a location.
const END: u8 = 0;
const MODULE: usize = 1;
const PARENT: usize = 2;
const BASE: usize = 3;
const EXTENSION: usize = 4;
const ATTRIBUTES: usize = 8;

/// Returns the classes by module.
pub fn classes(file: &File) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut header = [0; HEADER];
    let mut file = file;
    file.read_exact(&mut header).context("cannot read its header")?;
    let word = |at: usize| -> Result<u32> {
        let bytes =
            header.get(at..).and_then(<[u8]>::first_chunk).context("cannot read its header")?;
        Ok(u32::from_ne_bytes(*bytes))
    };
    ensure!(word(0)? == MAGIC && word(4)? == VERSION, "unknown format of the module image");
    let (table, locations, strings) = (u64::from(word(16)?), word(20)?, word(24)?);
    let size = table * 8 + u64::from(locations) + u64::from(strings);
    ensure!(size <= MAX_INDEX, "its index of {size} bytes is too large");
    let mut index = vec![0; usize::try_from(size)?];
    file.read_exact(&mut index).context("cannot read its index")?;
    parse(&index, usize::try_from(table)?, locations as usize)
}

/// Parses an index, which begins with two tables of `table` 32-bit words each.
pub fn parse(
    index: &[u8],
    table: usize,
    locations: usize,
) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let tables = table.checked_mul(4).context("its index is too large")?;
    let (_, rest) = index.split_at_checked(tables).context("its index is truncated")?;
    let (offsets, rest) = rest.split_at_checked(tables).context("its offsets are truncated")?;
    let (locations, strings) =
        rest.split_at_checked(locations).context("its locations are truncated")?;
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut free_bytes = MAX_NAMES;
    for offset in offsets.as_chunks::<4>().0 {
        let at = u32::from_ne_bytes(*offset) as usize;
        let location = locations.get(at..).context("a location is invalid")?;
        let attributes =
            attributes(location).context("the attributes of a location are invalid")?;
        let text = |attribute: usize| {
            let at = attributes.get(attribute).copied().unwrap_or_default();
            let text = strings.get(usize::try_from(at).ok()?..)?;
            let text = text.get(..MAX_NAME.min(text.len()))?;
            str::from_utf8(text.split(|&byte| byte == 0).next()?).ok()
        };
        let package_error = "a module or package name is invalid";
        let module = text(MODULE).context(package_error)?;
        let parent = text(PARENT).context(package_error)?;
        let class_error = "a class name is invalid";
        let (base, extension) =
            (text(BASE).context(class_error)?, text(EXTENSION).context(class_error)?);
        if extension != "class"
            || module.is_empty()
            || matches!(base, "module-info" | "package-info")
        {
            continue;
        }
        let class = match parent {
            "" => base.to_owned(),
            parent => format!("{}.{base}", parent.replace('/', ".")),
        };
        // A module's name is stored once, unless each class has its own module.
        let bytes = ENTRY + class.len() + if found.contains_key(module) { 0 } else { module.len() };
        free_bytes = free_bytes.checked_sub(bytes).context("its class names are too long")?;
        match found.get_mut(module) {
            Some(classes) => _ = classes.insert(class),
            None => _ = found.insert(module.to_owned(), BTreeSet::from([class])),
        }
    }
    Ok(found)
}

/// Returns the attributes of a location. Each begins with a byte for its kind and the length of its
/// value, which follows in network byte order.
fn attributes(mut location: &[u8]) -> Option<[u64; ATTRIBUTES]> {
    let mut attributes = [0; ATTRIBUTES];
    loop {
        let (&first, rest) = location.split_first()?;
        let kind = first >> 3;
        if kind == END {
            return Some(attributes);
        }
        let (number, rest) = rest.split_at_checked(usize::from(first & 7) + 1)?;
        location = rest;
        let value = number.iter().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        *attributes.get_mut(usize::from(kind))? = value;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An index of one location.
    fn index(strings: &[u8], attributes: &[u8]) -> (Vec<u8>, usize) {
        ([&[0; 8][..], attributes, strings].concat(), attributes.len())
    }

    #[test]
    fn parse_lists_classes_by_module() {
        let strings = b"\0java.base\0java/lang\0String\0class\0";
        let attributes = [MODULE, PARENT, BASE, EXTENSION].into_iter().zip([1_u8, 11, 21, 28]);
        let bytes: Vec<u8> = attributes.flat_map(|(kind, at)| [(kind as u8) << 3, at]).collect();
        let (bytes, locations) = index(strings, &[&bytes[..], &[0]].concat());
        let found = parse(&bytes, 1, locations).unwrap();
        assert_eq!(found["java.base"].iter().collect::<Vec<_>>(), ["java.lang.String"]);
        assert!(parse(&bytes, 2, locations).is_err());
        assert!(parse(&bytes, 1, locations - 1).is_err());
    }

    #[test]
    fn overlapping_names_beyond_the_limit_are_rejected() {
        // The name of each class begins one byte after that of the previous one, and has 4,096 bytes.
        let count = MAX_NAMES / MAX_NAME + 1;
        let strings = [b"\0m\0class\0", &vec![b'a'; count + MAX_NAME][..]].concat();
        let mut locations = Vec::new();
        let mut offsets = Vec::new();
        for number in 0..count as u32 {
            offsets.extend((locations.len() as u32).to_ne_bytes());
            locations.extend([(MODULE as u8) << 3, 1, (EXTENSION as u8) << 3, 3]);
            locations.push((BASE as u8) << 3 | 3);
            locations.extend((9 + number).to_be_bytes());
            locations.push(END);
        }
        let tables = [&vec![0; offsets.len()][..], &offsets, &locations, &strings].concat();
        let error = parse(&tables, count, locations.len()).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    proptest! {
        #[test]
        fn random_image_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), table in 0..9_usize, locations in 0..200_usize) {
            let _ = parse(&bytes, table, locations);
        }
    }
}
