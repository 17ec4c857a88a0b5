#![no_main]

// Decoders may panic: `decode` catches it. What it does not catch ends the process all the same.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| lacuna_fuzz::data::image(bytes)
);
