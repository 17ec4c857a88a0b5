//! Progress of long work on stderr: a bar with the time left on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;
use crate::render::number::thousands;

/// Where there is no terminal, a line each time this has passed.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

pub(crate) struct Progress {
    bar: ProgressBar,
    what: &'static str,
    /// When the next line is due; `None` on a terminal.
    next_line: Option<Mutex<Instant>>,
}

impl Progress {
    /// `what` names the work: `"rendering images"`.
    pub(crate) fn new(what: &'static str, total: usize) -> Self {
        interrupt::watch();
        if !stderr().is_terminal() {
            let next_line = Some(Mutex::new(Instant::now() + BETWEEN_LINES));
            return Self { bar: ProgressBar::hidden(), what, next_line }.with_total(total);
        }
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {human_pos} / {human_len}, {eta} left")
            .expect("the template is right");
        let bar = ProgressBar::new(0).with_style(style).with_prefix(what);
        Self { bar, what, next_line: None }.with_total(total)
    }

    fn with_total(self, total: usize) -> Self {
        self.bar.set_length(total as u64);
        self
    }

    /// Counts one more. Returns whether to go on: not after Ctrl-C.
    pub(crate) fn done(&self) -> bool {
        self.bar.inc(1);
        self.print_line_if_due();
        !interrupt::requested()
    }

    fn print_line_if_due(&self) {
        let Some(next_line) = &self.next_line else { return };
        let Ok(mut due) = next_line.try_lock() else { return };
        if Instant::now() >= *due {
            *due = Instant::now() + BETWEEN_LINES;
            let (position, total) = (self.bar.position() as usize, self.bar.length().unwrap_or(0) as usize);
            let (what, left) = (self.what, self.bar.eta().as_secs());
            eprintln!("{what}: {} / {}, {left} s left", thousands(position), thousands(total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
