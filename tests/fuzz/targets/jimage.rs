//! Fuzzes the parser of the index of a JDK's `modules` file (jimage).
#![no_main]

#[path = "../../../tools/javaclass/src/jars/jimage.rs"]
#[allow(dead_code)]
mod jimage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(([table, locations], index)) = bytes.split_first_chunk() else { return };
    let _ = jimage::parse(index, usize::from(*table), usize::from(*locations));
});
