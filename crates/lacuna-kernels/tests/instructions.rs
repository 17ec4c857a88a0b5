//! `LACUNA_INSTRUCTIONS`, which is asked for once in a process.

use std::env;
use std::process::Command;

use lacuna_kernels::Isa;

/// Where none is named, this test runs itself again in a process for each that the processor has.
#[test]
fn the_kernels_are_held_to_what_is_named() {
    if let Ok(named) = env::var("LACUNA_INSTRUCTIONS") {
        Isa::from_env().expect("the processor has it");
        assert_eq!(Isa::best().name(), named);
        return;
    }
    for isa in Isa::available() {
        let mut itself = Command::new(env::current_exe().expect("this test"));
        let ended = itself.env("LACUNA_INSTRUCTIONS", isa.name()).status().expect("it runs");
        assert!(ended.success(), "{}", isa.name());
    }
}
