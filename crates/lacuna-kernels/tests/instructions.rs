//! `LACUNA_INSTRUCTIONS`, in a process of its own for each.

use std::process::Command;

use lacuna_kernels::Isa;

#[test]
#[ignore = "for the other test, which names an instruction set"]
fn held() {
    Isa::hold().expect("it was named");
    println!("the best is {}", Isa::best().name());
}

#[test]
fn the_kernels_are_held_to_what_is_named() {
    for isa in Isa::available() {
        let mut itself = Command::new(std::env::current_exe().expect("this test"));
        itself.args(["--exact", "held", "--ignored", "--nocapture"]).env("LACUNA_INSTRUCTIONS", isa.name());
        let output = itself.output().expect("it ran a moment ago");
        let says = String::from_utf8_lossy(&output.stdout);
        assert!(says.contains(&format!("the best is {}\n", isa.name())), "{}: {says}", isa.name());
    }
}
