#![no_main]

#[path = "../../support/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| decoders::json(bytes));
