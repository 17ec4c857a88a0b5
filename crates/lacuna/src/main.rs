//! The command line. Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 the run
//! failed, 2 bad usage or bad input.

mod args;
mod commands;
mod diagnostics;
mod interrupt;
mod render;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lacuna_kernels::Isa;

use commands::{
    calibrate, complete, convert, demo, eval, import, inspect, predict, report, sparsify, synth, train,
};

/// A detector frees and takes the same large blocks over and over.
#[global_allocator]
static ALLOCATOR: lacuna_kernels::Recycle = lacuna_kernels::Recycle::new();

/// Train object detectors on data sets whose annotations have gaps, and fill the gaps.
#[derive(Parser)]
#[command(name = "lacuna", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Synth(synth::Args),
    Inspect(inspect::Args),
    Convert(convert::Args),
    Sparsify(sparsify::Args),
    Train(train::Args),
    Import(import::Args),
    Predict(predict::Args),
    Eval(eval::Args),
    Calibrate(calibrate::Args),
    Complete(complete::Args),
    Report(report::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let result = Isa::from_env().map_err(anyhow::Error::from).and_then(|()| run(command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => diagnostics::report(&error),
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Sparsify(args) => sparsify::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Complete(args) => complete::run(&args),
        Command::Report(args) => report::run(&args),
    }
}
