//! A training run on stderr: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lacuna_calib::Calibrator;
use lacuna_train::config::RunConfig;
use lacuna_train::data::Data;
use lacuna_train::metrics::{MetricsWindow, Record};
use lacuna_train::run::{self as training_run, Begin, Finished, Observer, TrainError};

use crate::interrupt;
use crate::render::notes::note_problems;
use crate::render::number::{percent, thousands};

/// Where there is no terminal, a line each time this has passed, at most.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Trains and shows progress. `title` tells several runs apart.
pub(crate) fn train(
    config: RunConfig,
    run: &Path,
    begin: Begin,
    title: Option<&str>,
) -> Result<Finished, TrainError> {
    interrupt::watch();
    let mut display = RunDisplay::new(title, config.train.iterations);
    training_run::train(config, run, begin, &mut display)
}

struct RunDisplay {
    /// Before every line.
    title: String,
    iterations: u64,
    bar: Option<ProgressBar>,
    /// When and where this process began, for the speed.
    began: (Instant, u64),
    images: u64,
    next_line: Instant,
}

impl RunDisplay {
    fn new(title: Option<&str>, iterations: u64) -> Self {
        let now = Instant::now();
        Self {
            title: title.map_or(String::new(), |title| format!("{title}: ")),
            iterations,
            bar: None,
            began: (now, 0),
            images: 0,
            next_line: now,
        }
    }

    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{}{line}", self.title)),
            None => eprintln!("{}{line}", self.title),
        }
    }

    /// Images a second and the seconds left.
    fn speed(&self, iteration: u64) -> (f64, u64) {
        let (began, first) = self.began;
        let passed = began.elapsed().as_secs_f64();
        let done = (iteration - first).max(1) as f64;
        let left = (self.iterations - iteration) as f64 * passed / done;
        (self.images as f64 / passed.max(1e-9), left as u64)
    }

    fn status(&self, iteration: u64, window: &MetricsWindow, calibrator: Option<&Calibrator>) -> String {
        let (speed, _) = self.speed(iteration);
        let terms: Vec<String> = window.terms().map(|(name, loss)| format!("{name} {loss:.3}")).collect();
        let mut status = format!("{speed:.1} images/s, loss {:.3} ({})", window.loss(), terms.join(", "));
        if window.detections > 0 {
            status += &format!(", {:.2} pseudo labels per image", window.per_image(window.pseudo_labels));
        }
        let parameters = calibrator.map(|calibrator| calibrator.pooled().parameters()).unwrap_or_default();
        if !parameters.is_empty() {
            let parameters: Vec<String> =
                parameters.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
            status += &format!(", calibrator {}", parameters.join(" "));
        }
        status
    }
}

impl Observer for RunDisplay {
    fn keep_going(&mut self) -> bool {
        !interrupt::requested()
    }

    fn warn(&mut self, warning: String) {
        self.print(&format!("warning: {warning}"));
    }

    fn started(&mut self, data: &Data, iteration: u64) {
        note_problems(&data.train.split);
        let train = &data.train.dataset;
        let mut line = format!(
            "{} images, {} boxes of {} classes",
            thousands(train.images().len()),
            thousands(train.annotations().len()),
            train.categories().len()
        );
        if iteration > 0 {
            line += &format!("; resuming after iteration {}", thousands(iteration as usize));
        }
        self.print(&line);
        if stderr().is_terminal() {
            let template = "{prefix}{pos} / {len} {wide_bar} {eta} left\n{wide_msg}";
            let style = ProgressStyle::with_template(template).expect("the template is right");
            let bar = ProgressBar::new(self.iterations).with_style(style).with_prefix(self.title.clone());
            bar.set_position(iteration);
            bar.reset_eta();
            self.bar = Some(bar);
        }
        self.began = (Instant::now(), iteration);
        self.next_line = Instant::now() + BETWEEN_LINES;
    }

    fn iteration(
        &mut self,
        iteration: u64,
        images: usize,
        window: &MetricsWindow,
        calibrator: Option<&Calibrator>,
    ) {
        self.images += images as u64;
        if let Some(bar) = &self.bar {
            bar.set_message(self.status(iteration, window, calibrator));
            bar.set_position(iteration);
        } else if Instant::now() >= self.next_line {
            self.next_line = Instant::now() + BETWEEN_LINES;
            let (at, of) = (thousands(iteration as usize), thousands(self.iterations as usize));
            let left = self.speed(iteration).1;
            self.print(&format!(
                "{at} / {of}, {left} s left, {}",
                self.status(iteration, window, calibrator)
            ));
        }
    }

    fn evaluating(&mut self, images: usize, of: usize) {
        let line = format!("evaluating, image {} of {}", thousands(images), thousands(of));
        if let Some(bar) = &self.bar {
            bar.set_message(line);
        } else if Instant::now() >= self.next_line {
            self.next_line = Instant::now() + BETWEEN_LINES;
            self.print(&line);
        }
    }

    fn evaluated(&mut self, record: &Record) {
        let of = |who: &str, ap: &Option<lacuna_eval::AveragePrecision>| {
            ap.as_ref().map(|ap| format!(", {who} AP {} AP50 {}", percent(ap.ap), percent(ap.ap50)))
        };
        let [student, teacher] = [of("student", &record.student), of("teacher", &record.teacher)];
        if student.is_some() || teacher.is_some() {
            let at = thousands(record.iteration as usize);
            let aps = [student, teacher].into_iter().flatten().collect::<String>();
            self.print(&format!("iteration {at}{aps}"));
        }
    }
}

impl Drop for RunDisplay {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
