//! The command line of the experiments: `cargo experiment --help`.

mod calibration;
mod completion;
mod data;
mod gaps;
mod job;
mod judging;
mod ledger;
mod page;
mod runner;
mod table;
mod watch;

use clap::{Parser, Subcommand};

/// The allocator of the program, so that runs take as long as its own.
#[global_allocator]
static ALLOCATOR: lacuna_kernels::Recycle = lacuna_kernels::Recycle::new();

#[derive(Parser)]
#[command(
    bin_name = "cargo experiment",
    about = "Run a table of experiments and write its page in docs/results/",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(flatten)]
    table: Option<runner::Options>,
    #[command(subcommand)]
    other: Option<Other>,
}

#[derive(Subcommand)]
enum Other {
    /// Hide boxes of a complete data set and measure calibrators on the candidates for them
    Gaps(gaps::Options),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    lacuna_kernels::Isa::from_env()?;
    match (cli.other, cli.table) {
        (Some(Other::Gaps(options)), _) => gaps::run(&options),
        (None, Some(options)) => runner::run(&options),
        (None, None) => unreachable!("without a command, a table is required"),
    }
}
