#![no_main]

#[path = "../src/checks.rs"]
#[allow(dead_code, reason = "each target takes one")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::traceparent(data));
