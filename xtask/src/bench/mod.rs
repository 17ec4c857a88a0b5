//! Benchmarks, one module each.

mod conv;
mod peer;

#[derive(clap::Subcommand)]
pub enum Bench {
    /// Convolutions and the other kernels, against PyTorch.
    Conv(conv::Options),
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Conv(options) => conv::run(&options),
        }
    }
}
