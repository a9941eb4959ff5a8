//! Fuzzes the decoder of javaclass's ring buffer records.
#![no_main]

#[path = "../../../tools/javaclass/src/watch/event.rs"]
#[allow(dead_code, unused_imports)]
mod event;

#[allow(clippy::all, dead_code, missing_docs)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaclass.skel.rs"));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = event::Event::decode(bytes);
});
