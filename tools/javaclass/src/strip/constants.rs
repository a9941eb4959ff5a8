//! The texts in a class file's constant pool: names of classes, descriptors, signatures, strings.
//!
//! Source: JVMS 4.1 and 4.4. Everything that a class refers to is named in one of these texts, so the
//! rest of the file is not read.

const MAGIC: [u8; 4] = [0xca, 0xfe, 0xba, 0xbe];
/// Size of the data before the pool: magic number, minor and major version.
const HEADER: usize = 8;

/// Returns the texts as modified UTF-8, which differs from UTF-8 only in NUL and supplementary
/// characters; `None` if this is not a class file.
pub fn texts(class: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = class.strip_prefix(&MAGIC)?.get(HEADER - MAGIC.len()..)?;
    let count = read_u16(&mut rest)?;
    let mut texts = Vec::new();
    // Entry 0 does not exist.
    let mut entry = 1;
    while entry < count {
        let (&tag, behind) = rest.split_first()?;
        rest = behind;
        let size = match tag {
            1 => {
                let length = usize::from(read_u16(&mut rest)?);
                texts.push(rest.get(..length)?);
                length
            }
            // Class, String, MethodType, Module, Package: an index.
            7 | 8 | 16 | 19 | 20 => 2,
            // MethodHandle.
            15 => 3,
            // Integer, Float; constants that refer to two others.
            3 | 4 | 9..=12 | 17 | 18 => 4,
            // Long, Double, which take two entries.
            5 | 6 => {
                entry += 1;
                8
            }
            _ => return None,
        };
        rest = rest.get(size..)?;
        entry += 1;
    }
    Some(texts)
}

fn read_u16(rest: &mut &[u8]) -> Option<u16> {
    let (number, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u16::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The beginning of a class file with these constants.
    fn class(count: u16, constants: &[&[u8]]) -> Vec<u8> {
        let head = [&MAGIC[..], &[0, 0, 0, 61], &count.to_be_bytes()].concat();
        [head, constants.concat()].concat()
    }

    #[test]
    fn utf8_constants_are_extracted_from_constant_pool() {
        let bytes =
            class(6, &[b"\x01\0\x03a/B", b"\x05\0\0\0\0\0\0\0\0", b"\x07\0\x01", b"\x01\0\0"]);
        assert_eq!(texts(&bytes), Some(vec![&b"a/B"[..], b""]));
        for bad in [&bytes[..bytes.len() - 1], &bytes[..9], b"", b"PK"] {
            assert_eq!(texts(bad), None);
        }
        assert_eq!(texts(&class(2, &[b"\x02\0\0"])), None, "an invalid tag");
        assert_eq!(texts(&class(1, &[])), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn random_constant_pools_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = texts(&class(u16::MAX, &[&bytes]));
        }
    }
}
