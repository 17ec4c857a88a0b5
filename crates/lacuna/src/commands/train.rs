//! `lacuna train`: trains a detector by a configuration.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lacuna_data::output::{IfExists, is_within};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::metrics::Record;
use lacuna_train::phases::{Phase, Stopwatch};
use lacuna_train::run::{Begin, CONFIG, Finished};
use serde_json::{Value, json};

use crate::args::output::OutputArgs;
use crate::diagnostics::usage;
use crate::render::number::{percent, thousands};
use crate::render::path_json;
use crate::render::table::Table;
use crate::render::training;

/// Train a detector by a configuration
///
/// The run's folder holds the whole configuration, the metrics of training (metrics.jsonl) and of each evaluation
/// (results.csv), and checkpoints. A run that was stopped resumes with `--resume`; the result is bit-identical.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A TOML file; `configs/` has presets
    config: PathBuf,

    /// Override a value of the configuration, such as `train.lr=0.005`; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// The run's folder [default: runs/NAME for NAME.toml]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Resume a run that was stopped
    #[arg(long, conflicts_with = "force")]
    resume: bool,

    /// Print where the time went
    #[arg(long)]
    profile: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let text = fs::read_to_string(&args.config)
        .map_err(|source| lacuna_data::Error::Read { path: args.config.clone(), source })?;
    let config = RunConfig::parse(ConfigSource { path: &args.config, text: &text, overrides: &args.set })?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => default_folder(&args.config)?,
    };
    // A run's own `config.toml` is written again.
    if args.output.force && !is_within(&out.join(CONFIG), &args.config) {
        IfExists::Replace.check_all(&[&out], &[&args.config])?;
    }
    let begin = if args.resume { Begin::Resume } else { Begin::New(IfExists::forced(args.output.force)) };
    let finished = training::train(config, &out, begin, None)?;

    let mut stdout = std::io::stdout().lock();
    let model = Finished::model(&out);
    if args.output.json {
        let Record { iteration, student, teacher, .. } = &finished.last;
        let mut result = json!({
            "run": path_json(&out), "model": path_json(&model), "iterations": iteration,
            "student": student, "teacher": teacher,
        });
        if args.profile {
            result["profile"] = profile_json(&finished);
        }
        writeln!(stdout, "{result}")?;
        return Ok(());
    }
    for (who, ap) in [("student", &finished.last.student), ("teacher", &finished.last.teacher)] {
        if let Some(ap) = ap {
            writeln!(stdout, "{who}: AP {}, AP50 {}", percent(ap.ap), percent(ap.ap50))?;
        }
    }
    writeln!(stdout, "model: {}", model.display())?;
    if args.profile {
        write!(stdout, "\n{}", profile(&finished))?;
    }
    Ok(())
}

/// `runs/NAME` for `…/NAME.toml`.
fn default_folder(config: &Path) -> Result<PathBuf> {
    let Some(name) = config.file_stem() else { usage("the configuration is a file") };
    fs::create_dir_all("runs").map_err(|source| lacuna_data::Error::Write { path: "runs".into(), source })?;
    Ok(Path::new("runs").join(name))
}

fn seconds(stopwatch: &Stopwatch) -> impl Iterator<Item = (Phase, f64)> {
    Phase::ALL.into_iter().map(|phase| (phase, stopwatch.elapsed(phase).as_secs_f64()))
}

fn profile_json(finished: &Finished) -> Value {
    let phases =
        seconds(&finished.stopwatch).map(|(phase, seconds)| (phase.name().to_owned(), seconds.into()));
    json!({ "images": finished.images, "seconds": Value::Object(phases.collect()) })
}

/// Where the time of a run went.
fn profile(finished: &Finished) -> Table {
    let whole: f64 = seconds(&finished.stopwatch).map(|(_, seconds)| seconds).sum();
    let iterations = finished.iterations.max(1) as f64;
    let mut table = Table::new(["phase", "seconds", "share", "ms per iteration"]);
    for (phase, seconds) in seconds(&finished.stopwatch) {
        let share = 100.0 * seconds / whole.max(1e-9);
        let each = 1000.0 * seconds / iterations;
        table.row([
            phase.name().into(),
            format!("{seconds:.1}"),
            format!("{share:.1} %"),
            format!("{each:.1}"),
        ]);
    }
    let each = 1000.0 * whole / iterations;
    table.row([
        format!("{} images", thousands(finished.images as usize)),
        format!("{whole:.1}"),
        "100 %".into(),
        format!("{each:.1}"),
    ]);
    table
}
