//! Chores of the repository: `cargo xtask --help`.

mod bench;
mod experiment;
mod gaps;

use clap::Parser;

/// The program's allocator: benchmarks run with it, those of the data layer included.
#[global_allocator]
static ALLOCATOR: lacuna_kernels::Recycle = lacuna_kernels::Recycle::new();

#[derive(Parser)]
#[command(about = "Chores of the repository")]
enum Task {
    /// Time our code and, side by side, its peers in Python.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// One of the paper's tables, in small.
    Experiment(experiment::Options),
    /// Hide boxes in every way, and see how well calibrators tell the confidence of the missing ones.
    Gaps(gaps::Options),
}

fn main() -> anyhow::Result<()> {
    let task = Task::parse();
    lacuna_kernels::Isa::from_env()?;
    match task {
        Task::Bench(bench) => bench.run(),
        Task::Experiment(options) => experiment::run(&options),
        Task::Gaps(options) => gaps::run(&options),
    }
}
