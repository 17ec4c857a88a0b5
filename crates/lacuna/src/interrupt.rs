//! Ctrl-C and SIGTERM: long work stops at the next safe point and takes away what it has begun. A
//! second one ends the process at once.

use std::io::{self, Write};
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

// A signal comes to the process as a whole; there is no place to pass this through.
static REQUESTED: AtomicBool = AtomicBool::new(false);
static WATCHING: Once = Once::new();

/// From now on a signal is only noted. Whoever calls this asks [`requested`] now and then.
pub(crate) fn watch() {
    WATCHING.call_once(|| {
        let noted = ctrlc::set_handler(|| {
            if REQUESTED.swap(true, Relaxed) {
                process::exit(1);
            }
            eprintln!("stopping; once more to stop at once");
        });
        // Without a handler a signal ends the process, as it does by default.
        let _ = noted;
    });
}

pub(crate) fn requested() -> bool {
    REQUESTED.load(Relaxed)
}

/// # Errors
/// [`lacuna_data::Error::Interrupted`] after a signal: asked before results are written.
pub(crate) fn check() -> lacuna_data::Result<()> {
    if requested() { Err(lacuna_data::Error::Interrupted) } else { Ok(()) }
}

/// A writer that fails after a signal.
pub(crate) struct Interruptible<W>(pub(crate) W);

impl<W: Write> Write for Interruptible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if requested() {
            return Err(io::Error::other("interrupted"));
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
