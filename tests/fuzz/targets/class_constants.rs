//! Fuzzes the parser of text constants in class files, and the search for class names in them.
#![no_main]

#[path = "../../../tools/javaclass/src/strip/constants.rs"]
mod constants;
#[path = "../../../tools/javaclass/src/strip/names.rs"]
mod names;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut names = names::Names::default();
    names.add("a.B");
    names.find_in_text(bytes, drop);
    for text in constants::texts(bytes).into_iter().flatten() {
        names.find_in_text(text, drop);
    }
});
