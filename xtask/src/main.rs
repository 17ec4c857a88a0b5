//! Benchmarks of the project: `cargo xtask --help`.

mod bench;

use clap::Parser;

/// The program's allocator: benchmarks run with it, those of the data layer included.
#[global_allocator]
static ALLOCATOR: lacuna_kernels::Recycle = lacuna_kernels::Recycle::new();

#[derive(Parser)]
#[command(about = "Benchmarks of the project")]
enum Task {
    /// Time our code and, side by side, its peers in Python.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> anyhow::Result<()> {
    let Task::Bench(bench) = Task::parse();
    lacuna_kernels::Isa::from_env()?;
    bench.run()
}
