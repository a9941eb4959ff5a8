//! Parser for profiles in the pprof format. It is written by hand, because the test must not trust
//! the library that wrote the profile. Source: github.com/google/pprof, proto/profile.proto.

use std::{collections::HashMap, path::Path, process::Command};

/// The parts of a profile that tests need.
#[derive(Debug, Default)]
pub struct Pprof {
    /// `type` and `unit` of each value of a sample.
    pub types: Vec<(String, String)>,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// A sample: a stack with its values.
#[derive(Debug, Default)]
pub struct Sample {
    /// Functions, innermost first.
    pub functions: Vec<String>,
    /// One value for each of [`Pprof::types`].
    pub values: Vec<u64>,
    /// Labels with a text, by key.
    pub labels: HashMap<String, String>,
}

/// A field of a message, as number and value.
enum Field<'a> {
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
}

/// Reads a gzipped profile.
///
/// # Panics
/// If it is not one.
pub fn read(path: &Path) -> Pprof {
    let output = Command::new("gunzip").arg("-c").arg(path).output().expect("gunzip");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut types, mut samples, mut strings) = (Vec::new(), Vec::new(), Vec::new());
    let mut function_of = HashMap::new();
    let mut name_of = HashMap::new();
    for field in fields(&output.stdout) {
        match field {
            Field::Bytes(1, bytes) => types.push((number(bytes, 1), number(bytes, 2))),
            Field::Bytes(2, bytes) => {
                let labels = fields(bytes).into_iter().filter_map(|field| match field {
                    Field::Bytes(3, label) => Some((number(label, 1), number(label, 2))),
                    _ => None,
                });
                samples.push((numbers(bytes, 1), numbers(bytes, 2), labels.collect::<Vec<_>>()));
            }
            Field::Bytes(4, bytes) => {
                let line = fields(bytes).into_iter().find_map(|field| match field {
                    Field::Bytes(4, line) => Some(number(line, 1)),
                    _ => None,
                });
                function_of.insert(number(bytes, 1), line.expect("a line"));
            }
            Field::Bytes(5, bytes) => {
                name_of.insert(number(bytes, 1), number(bytes, 2));
            }
            Field::Bytes(6, bytes) => {
                strings.push(String::from_utf8(bytes.to_vec()).expect("UTF-8"));
            }
            _ => {}
        }
    }
    assert_eq!(strings.first().map(String::as_str), Some(""), "the first string is empty");
    let text = |id: u64| strings[usize::try_from(id).expect("an index")].clone();
    let function = |location: u64| text(name_of[&function_of[&location]]);
    Pprof {
        types: types.into_iter().map(|(kind, unit)| (text(kind), text(unit))).collect(),
        samples: samples
            .into_iter()
            .map(|(locations, values, labels)| Sample {
                functions: locations.into_iter().map(function).collect(),
                values,
                labels: labels
                    .into_iter()
                    .filter(|(_, value)| *value != 0)
                    .map(|(key, value)| (text(key), text(value)))
                    .collect(),
            })
            .collect(),
    }
}

/// Returns a message's fields (protobuf.dev, "Encoding").
fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        match tag & 7 {
            0 => fields.push(Field::Number(tag >> 3, varint(&mut bytes))),
            2 => {
                let len = usize::try_from(varint(&mut bytes)).expect("a length");
                let (field, rest) = bytes.split_at(len);
                fields.push(Field::Bytes(tag >> 3, field));
                bytes = rest;
            }
            other => panic!("wire type {other} is not in these messages"),
        }
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// Returns the values of a repeated numeric field, packed or not.
fn numbers(message: &[u8], wanted: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    for field in fields(message) {
        match field {
            Field::Number(number, value) if number == wanted => numbers.push(value),
            Field::Bytes(number, mut packed) if number == wanted => {
                while !packed.is_empty() {
                    numbers.push(varint(&mut packed));
                }
            }
            _ => {}
        }
    }
    numbers
}

/// Returns the value of a numeric field; an absent field is 0.
fn number(message: &[u8], wanted: u64) -> u64 {
    numbers(message, wanted).last().copied().unwrap_or(0)
}
