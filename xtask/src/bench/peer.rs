//! A process that times one side of a benchmark: one JSON request per line in, one JSON answer per line out.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use lacuna_kernels::Isa;
use serde_json::Value;

/// The options of every benchmark that has a peer.
#[derive(clap::Args)]
pub(crate) struct PeerOptions {
    /// An interpreter with the peer's libraries; without it only our side is timed.
    #[arg(long)]
    pub(crate) python: Option<PathBuf>,
    /// One JSON object per line in place of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A running process.
pub(crate) struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts `script`, a file of `xtask/peers`, limited to our instruction set.
    pub(crate) fn start(python: &Path, script: &str) -> anyhow::Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(script);
        let mut command = Command::new(python);
        command.arg(script);
        // For PyTorch itself, oneDNN and MKL.
        let limits = match Isa::best().name() {
            "avx2" => Some(["avx2", "AVX2", "AVX2"]),
            "portable" => Some(["default", "SSE41", "SSE4_2"]),
            _ => None,
        };
        if let Some([pytorch, onednn, mkl]) = limits {
            command.env("ATEN_CPU_CAPABILITY", pytorch).env("ONEDNN_MAX_CPU_ISA", onednn);
            command.env("MKL_ENABLE_INSTRUCTIONS", mkl);
        }
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let requests = process.stdin.take().context("the peer has no stdin")?;
        let answers = BufReader::new(process.stdout.take().context("the peer has no stdout")?);
        Ok(Self { process, requests, answers })
    }

    /// Sends `request` and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Value) -> anyhow::Result<Value> {
        writeln!(self.requests, "{request}")?;
        self.requests.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the peer ended without an answer to {request}");
        serde_json::from_str(&line).with_context(|| format!("the peer answered {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already, and nothing can be done about a failure here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
