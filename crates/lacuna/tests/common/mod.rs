//! What tests of the binary share.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use std::path::Path;
use std::process::{Command, Output};

/// `lacuna` with these arguments, in a folder.
pub(crate) fn lacuna(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lacuna"));
    command.current_dir(folder).args(arguments.split_whitespace()).output().unwrap()
}

/// A 24-bit BMP of colored stripes.
pub(crate) fn bmp(width: u32, height: u32) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    for value in [54 + row * height, 0, 54, 40, width, height, 1 | (24 << 16), 0, row * height, 0, 0, 0, 0] {
        file.extend(value.to_le_bytes());
    }
    file.extend((0..row * height).map(|byte| (byte * 37 % 256) as u8));
    file
}
