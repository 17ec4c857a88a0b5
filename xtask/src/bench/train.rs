//! `cargo xtask bench train`: what an iteration of Calibrated Teacher costs beyond a bare training step,
//! and whether memory grows.
//!
//! The run is a real one, with its loader, calibrator, metrics and checkpoints, on synthetic images. Every
//! few iterations it pauses, and as many bare steps of the same detector on views of the same size are timed
//! (those of `bench step`: teacher, student, SGD, moving average), so that both run under the same conditions.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use lacuna_calib::Calibrator;
use lacuna_data::output::{IfExists, NewFolder};
use lacuna_synth::{SynthConfig, fill_folder};
use lacuna_train::config::{ConfigSource, RunConfig};
use lacuna_train::data::Data;
use lacuna_train::metrics::MetricsWindow;
use lacuna_train::phases::Phase;
use lacuna_train::run::{Begin, Observer, train};
use serde_json::json;

use super::step::{Case, Work};
use super::{resident_bytes, synthetic_data};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// One JSON object per line in place of a table.
    #[arg(long)]
    json: bool,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Iterations of each case; the memory case has 2,000.
    #[arg(long, default_value_t = 60)]
    iterations: u64,
}

const IMAGES: usize = 64;
const SIZE: u32 = 256;
/// Iterations, and bare steps, at a time.
const AT_A_TIME: u64 = 10;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let data = synthetic_data()?.join("train");
    if !data.exists() {
        let scenes = SynthConfig { width: SIZE..=SIZE, height: SIZE..=SIZE, ..SynthConfig::default() };
        let folder = NewFolder::create(&data, IfExists::Refuse)?;
        fill_folder(&scenes, &[("train", IMAGES)], &folder, &|| true)?;
        folder.finish()?;
    }
    for detector in ["retinanet", "fcos", "fasterrcnn"] {
        for backbone in ["resnet18", "resnet50"] {
            let case = Case::step(detector, backbone, SIZE as usize, 4);
            if case.name().contains(&options.only) {
                time_iterations(&case, &data, options)?;
            }
        }
    }
    if "memory of 2000 iterations".contains(&options.only) {
        measure_memory(&data, options)?;
    }
    Ok(())
}

fn run_config(detector: &str, data: &Path, more: &str) -> anyhow::Result<RunConfig> {
    let annotations = data.join("annotations/instances_train.json");
    let text = format!(
        "[data.train]\npath = {:?}\nimages = {:?}\n\
         [detector]\nkind = \"{detector}\"\n\
         [detector.backbone]\ndepth = \"resnet10\"\nnorm = \"group\"\nfrozen_stages = 0\n\
         [method]\nname = \"calibrated\"\nrefit_every = 10\n{more}",
        annotations.display(),
        data.join("train").display()
    );
    Ok(RunConfig::parse(ConfigSource { path: Path::new("bench"), text: &text, overrides: &[] })?)
}

/// The time of iterations, and of bare steps in between.
struct Alternating {
    bare: Work,
    resumed: Instant,
    iterations_s: f64,
    bare_s: f64,
    counted: u64,
}

impl Observer for Alternating {
    fn started(&mut self, _: &Data, _: u64) {
        self.resumed = Instant::now();
    }

    fn iteration(&mut self, iteration: u64, _: usize, _: &MetricsWindow, _: Option<&Calibrator>) {
        if !iteration.is_multiple_of(AT_A_TIME) {
            return;
        }
        let iterations_s = self.resumed.elapsed().as_secs_f64();
        let start = Instant::now();
        (0..AT_A_TIME).for_each(|_| self.bare.run());
        // The first ones run with cold caches.
        if iteration > AT_A_TIME {
            self.iterations_s += iterations_s;
            self.bare_s += start.elapsed().as_secs_f64();
            self.counted += AT_A_TIME;
        }
        self.resumed = Instant::now();
    }
}

fn time_iterations(case: &Case, data: &Path, options: &Options) -> anyhow::Result<()> {
    let more = format!(
        "[views]\nshort_side = [{SIZE}, {SIZE}]\n\
         [train]\niterations = {}\nbatch_size = 4\nlr = 0.001\nlog_every = 10\ncheckpoint_every = 1000\n",
        options.iterations.max(2 * AT_A_TIME)
    );
    let mut config = run_config(&case.detector, data, &more)?;
    config.detector = case.config()?;
    let run = tempfile::tempdir()?;
    let mut observer = Alternating {
        bare: Work::new(case)?,
        resumed: Instant::now(),
        iterations_s: 0.0,
        bare_s: 0.0,
        counted: 0,
    };
    let finished = train(config, &run.path().join("run"), Begin::New(IfExists::Refuse), &mut observer)?;
    let Alternating { iterations_s, bare_s, counted, .. } = observer;
    let (ours, bare) = (iterations_s / counted as f64, bare_s / counted as f64);
    let phases: Vec<(&str, f64)> = Phase::ALL
        .into_iter()
        .map(|phase| (phase.name(), finished.stopwatch.elapsed(phase).as_secs_f64()))
        .collect();
    let whole: f64 = phases.iter().map(|(_, seconds)| seconds).sum();
    let name = case.name().replace("step", "iteration");
    if options.json {
        let shares: serde_json::Map<_, _> =
            phases.iter().map(|(name, seconds)| ((*name).to_owned(), (seconds / whole).into())).collect();
        println!(
            "{}",
            json!({ "case": name, "ours_s": ours, "peer_s": bare, "ratio": ours / bare, "shares": shares })
        );
        return Ok(());
    }
    println!("{name:48} {:7.1} ms  bare step {:7.1} ms  ratio {:.3}", ours * 1e3, bare * 1e3, ours / bare);
    for (name, seconds) in phases {
        println!("    {name:24} {:5.1} %", 100.0 * seconds / whole);
    }
    Ok(())
}

/// Resident memory after 500, 1,000, 1,500 and 2,000 iterations.
#[derive(Default)]
struct Resident(Vec<u64>);

impl Observer for Resident {
    fn iteration(&mut self, iteration: u64, _: usize, _: &MetricsWindow, _: Option<&Calibrator>) {
        if iteration.is_multiple_of(500) {
            self.0.push(resident_bytes().unwrap_or(0));
        }
    }
}

fn measure_memory(data: &Path, options: &Options) -> anyhow::Result<()> {
    let more = "window_images = 400\n[method.teacher]\nscore_min = 0.05\n\
                [views]\nshort_side = [64, 96]\n\
                [train]\niterations = 2000\nbatch_size = 2\nlr = 0.005\n";
    let mut config = run_config("fcos", data, more)?;
    if let lacuna_models::DetectorConfig::Fcos(detector) = &mut config.detector {
        (detector.width, detector.head_depth, detector.backbone.width) = (32, 1, 32);
    }
    let run = tempfile::tempdir()?;
    let mut resident = Resident::default();
    train(config, &run.path().join("run"), Begin::New(IfExists::Refuse), &mut resident)
        .context("the memory case")?;
    let Resident(resident) = resident;
    if options.json {
        println!("{}", json!({ "case": "memory of 2000 iterations", "resident_bytes_every_500": resident }));
    } else {
        let megabytes: Vec<String> =
            resident.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6)).collect();
        println!("resident after 500, 1,000, 1,500 and 2,000 iterations: {} MB", megabytes.join(", "));
    }
    Ok(())
}
