//! Progress of a run on standard error, its deadline, and the processor time of its iterations.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lacuna_calib::Calibrator;
use lacuna_train::data::Data;
use lacuna_train::metrics::{MetricsWindow, Record};
use lacuna_train::run::Observer;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// When to stop: at a time, if one is given, or when the user interrupts.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// From now on, interrupts end runs instead of the process.
    pub(crate) fn new(minutes: Option<f64>) -> anyhow::Result<Self> {
        ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))?;
        Ok(Self(minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes))))
    }

    pub(crate) fn is_over(self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed) || self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// Follows one run.
pub(crate) struct Watch {
    iterations: u64,
    deadline: Deadline,
    began: (Instant, u64),
    next_line: Instant,
    cost: Option<Cost>,
}

/// Processor time at the start of the first iteration and at the end of the last, and their number.
#[derive(Clone, Copy)]
struct Cost {
    before: Duration,
    after: Duration,
    iterations: u64,
}

impl Watch {
    pub(crate) fn new(iterations: u64, deadline: Deadline) -> Self {
        let now = Instant::now();
        Self { iterations, deadline, began: (now, 0), next_line: now + BETWEEN_LINES, cost: None }
    }

    /// Processor seconds of an iteration; `None` after too few iterations.
    pub(crate) fn seconds_per_iteration(&self) -> Option<f64> {
        const ENOUGH: u64 = 100;
        let cost = self.cost.filter(|cost| cost.iterations >= ENOUGH)?;
        Some((cost.after - cost.before).as_secs_f64() / cost.iterations as f64)
    }
}

impl Observer for Watch {
    fn keep_going(&mut self) -> bool {
        !self.deadline.is_over()
    }

    fn warn(&mut self, warning: String) {
        eprintln!("warning: {warning}");
    }

    fn started(&mut self, _: &Data, iteration: u64) {
        self.began = (Instant::now(), iteration);
        let now = processor_time();
        self.cost = Some(Cost { before: now, after: now, iterations: 0 });
    }

    fn iteration(&mut self, iteration: u64, _: usize, window: &MetricsWindow, _: Option<&Calibrator>) {
        if let Some(cost) = &mut self.cost {
            cost.after = processor_time();
            cost.iterations += 1;
        }
        if Instant::now() < self.next_line {
            return;
        }
        self.next_line = Instant::now() + BETWEEN_LINES;
        let (began, first) = self.began;
        let each = began.elapsed().as_secs_f64() / (iteration - first).max(1) as f64;
        let left = (self.iterations - iteration) as f64 * each / 60.0;
        eprintln!("  {iteration} / {}, {left:.0} min left, loss {:.3}", self.iterations, window.loss());
    }

    fn evaluated(&mut self, record: &Record) {
        let ap50 = record.teacher.as_ref().or(record.student.as_ref()).and_then(|ap| ap.ap50);
        eprintln!("  iteration {}: AP50 {:.1}", record.iteration, 100.0 * ap50.unwrap_or(0.0));
    }
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
