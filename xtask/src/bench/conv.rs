//! `cargo xtask bench conv`: the kernels of `lacuna-kernels` and the same work in PyTorch.
//!
//! Our runs and the peer's alternate, and the minimum of each is kept: on a shared machine that is
//! the time least disturbed by others. A convolution is timed forward, input gradient and weight
//! gradient together, with everything that a training step does for it (packing weights,
//! allocating results). The peer's time is the better of its two memory formats. That of a network has
//! one format for all convolutions, because conversions take time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Context;
use lacuna_kernels::{
    Average, Conv2d, Epilogue, FocalLoss, Grid, Isa, MaxPool2d, SegmentNorm, Sgd, SgdParameter, Window, ema,
    relu_gradient,
};
use serde_json::{Value, json};

use super::peer::{Peer, PeerOptions};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peer: PeerOptions,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// How often our runs and the peer's alternate.
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
}

const BATCH: usize = 4;

/// The sizes of P3–P7.
const PYRAMID: &[usize] = &[32, 16, 8, 4, 2];

/// One convolution of a detector at 256×256, and how many of it are in each backbone with its pyramid, and in
/// RetinaNet's heads.
struct Layer {
    /// Sides of the maps of a call: one, or those of a pyramid, which share weights.
    sizes: &'static [usize],
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    stride: usize,
    in_r18: u32,
    in_r50: u32,
    in_heads: u32,
}

const fn layer(
    sizes: &'static [usize],
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    stride: usize,
    in_r18: u32,
    in_r50: u32,
) -> Layer {
    Layer { sizes, in_channels, out_channels, kernel, stride, in_r18, in_r50, in_heads: 0 }
}

/// A 3×3 convolution of RetinaNet's heads, over all levels.
const fn head(out_channels: usize, in_heads: u32) -> Layer {
    Layer { in_heads, ..layer(PYRAMID, 256, out_channels, 3, 1, 0, 0) }
}

/// Every convolution of ResNet-18-FPN and ResNet-50-FPN (P3–P7), and of RetinaNet's heads.
#[rustfmt::skip]
const LAYERS: &[Layer] = &[
    layer(&[256],     3,   64, 7, 2, 1, 1),
    // 3×3, stride 1
    layer(&[64],     64,   64, 3, 1, 4, 3),
    layer(&[32],    128,  128, 3, 1, 3, 3),
    layer(&[32],    256,  256, 3, 1, 1, 1),
    layer(&[16],    256,  256, 3, 1, 4, 6),
    layer(&[8],     512,  512, 3, 1, 3, 2),
    layer(&[8],     256,  256, 3, 1, 1, 1),
    layer(&[4],     256,  256, 3, 1, 0, 0), // the heads' at one level
    layer(&[32],    256,  180, 3, 1, 0, 0),
    layer(&[32],    256,   36, 3, 1, 0, 0),
    head(256, 8),
    head(180, 1), // 9 anchors × 20 classes
    head( 36, 1), // 9 anchors × 4 sides
    // 3×3, stride 2
    layer(&[64],     64,  128, 3, 2, 1, 0),
    layer(&[64],    128,  128, 3, 2, 0, 1),
    layer(&[32],    128,  256, 3, 2, 1, 0),
    layer(&[32],    256,  256, 3, 2, 0, 1),
    layer(&[16],    256,  512, 3, 2, 1, 0),
    layer(&[16],    512,  512, 3, 2, 0, 1),
    layer(&[8],     256,  256, 3, 2, 1, 1), // P6
    layer(&[4],     256,  256, 3, 2, 1, 1), // P7
    // 1×1
    layer(&[64],     64,   64, 1, 1, 0, 1),
    layer(&[64],    256,   64, 1, 1, 0, 2),
    layer(&[64],     64,  256, 1, 1, 0, 4),
    layer(&[64],    256,  128, 1, 1, 0, 1),
    layer(&[32],    128,  512, 1, 1, 0, 4),
    layer(&[32],    512,  128, 1, 1, 0, 3),
    layer(&[32],    512,  256, 1, 1, 0, 2),
    layer(&[32],    128,  256, 1, 1, 1, 0),
    layer(&[16],    256,  256, 1, 1, 1, 0),
    layer(&[16],    256, 1024, 1, 1, 0, 6),
    layer(&[16],   1024,  256, 1, 1, 0, 6),
    layer(&[16],   1024,  512, 1, 1, 0, 1),
    layer(&[8],     512,  256, 1, 1, 1, 0),
    layer(&[8],     512, 2048, 1, 1, 0, 3),
    layer(&[8],    2048,  512, 1, 1, 0, 2),
    layer(&[8],    2048,  256, 1, 1, 0, 1),
    // 1×1, stride 2
    layer(&[64],     64,  128, 1, 2, 1, 0),
    layer(&[32],    128,  256, 1, 2, 1, 0),
    layer(&[16],    256,  512, 1, 2, 1, 0),
    layer(&[64],    256,  512, 1, 2, 0, 1),
    layer(&[32],    512, 1024, 1, 2, 0, 1),
    layer(&[16],   1024, 2048, 1, 2, 0, 1),
];

/// Convolutions that are also timed with a frozen batch norm and a ReLU behind them.
#[rustfmt::skip]
const BLOCKS: &[Layer] = &[
    layer(&[64],     64,   64, 3, 1, 0, 0),
    layer(&[32],    128,  128, 3, 1, 0, 0),
    layer(&[16],    256,  256, 3, 1, 0, 0),
    layer(&[64],     64,  256, 1, 1, 0, 0),
    layer(&[16],   1024,  512, 1, 1, 0, 0),
];

/// Something to time: our run, and what the peer is asked.
struct Case {
    request: Value,
    /// Floating-point operations of the definition (not of the algorithm); 0 if not of interest.
    operations: f64,
    run: Box<dyn FnMut() + Send>,
}

/// The same numbers in −1..1 each time; their values do not matter.
fn numbers(len: usize) -> Vec<f32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn conv_case(layer: &Layer, block: bool) -> anyhow::Result<Case> {
    let &Layer { sizes, in_channels, out_channels, kernel, stride, .. } = layer;
    let isa = Isa::best();
    let grids = sizes.iter().map(|&size| Grid::new(BATCH, size, size)).collect();
    let conv = Conv2d::new(grids, in_channels, out_channels, Window::new(kernel, stride, kernel / 2))?;
    let pixels = |grids: &[Grid]| -> usize { grids.iter().map(|grid| grid.pixels()).sum() };
    let outputs = pixels(conv.outputs());
    let x = numbers(pixels(conv.inputs()) * in_channels);
    let w = numbers(kernel * kernel * in_channels * out_channels);
    let mut dy = numbers(outputs * out_channels);
    // An image has no gradient.
    let input_gradient = in_channels > 3;
    let passes = if input_gradient { 3.0 } else { 2.0 };
    let operations = passes * 2.0 * (outputs * out_channels * kernel * kernel * in_channels) as f64;
    let kind = if block { "block" } else { "conv" };
    let request = json!({
        "kind": kind, "batch": BATCH, "sizes": sizes, "in_channels": in_channels,
        "out_channels": out_channels, "kernel": kernel, "stride": stride, "input_gradient": input_gradient,
    });
    let (scale, shift) = (numbers(out_channels), numbers(out_channels));
    let run = move || {
        let fit = "shapes fit";
        if block {
            let epilogue = Epilogue { scale: Some(&scale), shift: Some(&shift), residual: None, relu: true };
            let y = conv.forward(isa, &x, &w, &epilogue).expect(fit);
            // In place, as in a step; repeating it changes nothing.
            relu_gradient(isa, Some(&y), &mut dy, out_channels, false).expect(fit);
            black_box(conv.input_gradient(isa, &dy, &w, Some(&scale)).expect(fit));
            black_box(conv.weight_gradient(isa, &x, &dy, Some(&scale)).expect(fit));
        } else {
            black_box(conv.forward(isa, &x, &w, &Epilogue::default()).expect(fit));
            if input_gradient {
                black_box(conv.input_gradient(isa, &dy, &w, None).expect(fit));
            }
            black_box(conv.weight_gradient(isa, &x, &dy, None).expect(fit));
        }
    };
    Ok(Case { request, operations, run: Box::new(run) })
}

/// A case other than a convolution of a backbone.
fn other_case(request: Value, run: impl FnMut() + Send + 'static) -> Case {
    Case { request, operations: 0.0, run: Box::new(run) }
}

fn max_pool_case() -> anyhow::Result<Case> {
    let isa = Isa::best();
    let pool = MaxPool2d::new(Grid::new(BATCH, 128, 128), 64, Window::new(3, 2, 1))?;
    let x = numbers(BATCH * 128 * 128 * 64);
    let dy = numbers(BATCH * 64 * 64 * 64);
    Ok(other_case(json!({"kind": "max_pool"}), move || {
        let pooled = pool.forward(isa, &x).expect("shapes fit");
        black_box(pool.gradient(isa, &dy, &pooled.taps).expect("shapes fit"));
    }))
}

/// Normalization and ReLU of square maps of these sizes: by groups, or with `groups` 0 by the batch.
fn norm_case(sizes: &[usize], channels: usize, groups: usize) -> anyhow::Result<Case> {
    let isa = Isa::best();
    let images: Vec<usize> = sizes.iter().flat_map(|size| [size * size; BATCH]).collect();
    let rows = images.iter().sum::<usize>();
    let normalize = match groups {
        0 => SegmentNorm::new(&[rows], channels, channels, 1e-5)?,
        _ => SegmentNorm::new(&images, channels, groups, 1e-5)?,
    };
    let (x, weight, bias) = (numbers(rows * channels), numbers(channels), numbers(channels));
    let mut dy = x.clone();
    let request =
        json!({"kind": "norm", "batch": BATCH, "sizes": sizes, "channels": channels, "groups": groups});
    Ok(other_case(request, move || {
        let normalized = normalize.forward(isa, &x, &weight, &bias, None, true).expect("shapes fit");
        let (y, statistics) = (Some(&normalized.y[..]), &normalized.statistics);
        // In place, as in a step; repeating it changes nothing.
        black_box(normalize.gradients(isa, &x, statistics, &weight, y, &mut dy, true).expect("shapes fit"));
    }))
}

fn focal_case() -> Case {
    const ROWS: usize = BATCH * 12_276;
    const CLASSES: usize = 80;
    let isa = Isa::best();
    let logits = numbers(ROWS * CLASSES);
    let labels: Vec<i32> = (0..ROWS as i32).map(|row| if row % 50 == 0 { row % 80 } else { -1 }).collect();
    let focal = FocalLoss { alpha: 0.25, gamma: 2.0 };
    other_case(json!({"kind": "focal"}), move || {
        black_box(focal.forward(isa, &logits, CLASSES, &labels, None).expect("shapes fit"));
    })
}

/// The sizes of ResNet-50's parameters, roughly: 32 million in 64 tensors.
const PARAMETERS: (usize, usize) = (64, 500_000);

fn sgd_case() -> Case {
    let isa = Isa::best();
    let make = || -> Vec<Vec<f32>> { (0..PARAMETERS.0).map(|_| numbers(PARAMETERS.1)).collect() };
    let (mut parameters, gradients, mut velocities) = (make(), make(), make());
    let sgd = Sgd { learning_rate: 1e-9, momentum: 0.9, weight_decay: 1e-4 };
    other_case(json!({"kind": "sgd", "tensors": PARAMETERS.0, "size": PARAMETERS.1}), move || {
        let mut slots: Vec<SgdParameter> = parameters
            .iter_mut()
            .zip(&gradients)
            .zip(&mut velocities)
            .map(|((parameter, gradient), velocity)| SgdParameter { parameter, gradient, velocity })
            .collect();
        sgd.step(isa, &mut slots).expect("shapes fit");
    })
}

fn ema_case() -> Case {
    let isa = Isa::best();
    let make = || -> Vec<Vec<f32>> { (0..PARAMETERS.0).map(|_| numbers(PARAMETERS.1)).collect() };
    let (mut averages, values) = (make(), make());
    other_case(json!({"kind": "ema", "tensors": PARAMETERS.0, "size": PARAMETERS.1}), move || {
        let mut slots: Vec<Average> =
            averages.iter_mut().zip(&values).map(|(average, value)| Average { average, value }).collect();
        ema(isa, 0.999, &mut slots).expect("shapes fit");
    })
}

/// A plain copy of as many bytes as `sgd` touches (`ema` touches three fifths of them): the bound of both.
fn copy_case() -> Case {
    use rayon::prelude::*;
    // SGD reads three floats per parameter and writes two: a copy of 2.5 floats.
    let from = numbers(PARAMETERS.0 * PARAMETERS.1 * 5 / 2);
    let mut to = from.clone();
    other_case(Value::Null, move || {
        to.par_chunks_mut(1 << 14)
            .zip(from.par_chunks(1 << 14))
            .for_each(|(to, from)| to.copy_from_slice(from));
    })
}

/// A case before its memory is allocated.
#[derive(Clone, Copy)]
enum Kind {
    Conv(&'static Layer),
    /// Convolution, frozen batch norm, ReLU.
    Block(&'static Layer),
    MaxPool,
    /// Over P3–P7.
    GroupNorm,
    BatchNorm,
    Focal,
    Sgd,
    Ema,
    Copy,
}

impl Kind {
    fn all() -> impl Iterator<Item = Self> {
        let others =
            [Self::MaxPool, Self::GroupNorm, Self::BatchNorm, Self::Focal, Self::Sgd, Self::Ema, Self::Copy];
        LAYERS.iter().map(Self::Conv).chain(BLOCKS.iter().map(Self::Block)).chain(others)
    }

    fn name(self) -> String {
        let conv_name = |kind: &str, layer: &Layer| {
            let Layer { sizes, in_channels, out_channels, kernel, stride, .. } = layer;
            let maps = match sizes {
                [size] => size.to_string(),
                _ => "P3-P7".into(),
            };
            format!("{kind} {kernel}x{kernel} s{stride} {in_channels}->{out_channels} @{maps}")
        };
        match self {
            Self::Conv(layer) => conv_name("conv", layer),
            Self::Block(layer) => conv_name("block", layer),
            Self::MaxPool => "max-pool 3x3 s2 64 @128".into(),
            Self::GroupNorm => "group norm 32 + relu 256 @P3-P7".into(),
            Self::BatchNorm => "batch norm + relu 64 @64".into(),
            Self::Focal => "focal loss 49104x80".into(),
            Self::Sgd => "sgd 32M".into(),
            Self::Ema => "ema 32M".into(),
            Self::Copy => "copy, the bytes of sgd 32M".into(),
        }
    }

    /// How many of it a network has.
    fn times_in(self, network: &Network) -> u32 {
        match self {
            Self::Conv(layer) => (network.times)(layer),
            _ => 0,
        }
    }

    fn prepare(self) -> anyhow::Result<Case> {
        match self {
            Self::Conv(layer) => conv_case(layer, false),
            Self::Block(layer) => conv_case(layer, true),
            Self::MaxPool => max_pool_case(),
            Self::GroupNorm => norm_case(PYRAMID, 256, 32),
            Self::BatchNorm => norm_case(&[64], 64, 0),
            Self::Focal => Ok(focal_case()),
            Self::Sgd => Ok(sgd_case()),
            Self::Ema => Ok(ema_case()),
            Self::Copy => Ok(copy_case()),
        }
    }
}

/// Operations per second of the inner kernel with its panel in the first-level cache, on one thread: the bound of
/// convolutions, to compare with the processor's peak.
fn inner_kernel_operations() -> anyhow::Result<f64> {
    const PIXELS: usize = 960;
    const CHANNELS: [usize; 2] = [256, 32];
    let grid = Grid::new(1, 1, PIXELS);
    let conv = Conv2d::new(vec![grid], CHANNELS[0], CHANNELS[1], Window::new(1, 1, 0))?;
    let (x, w) = (numbers(PIXELS * CHANNELS[0]), numbers(CHANNELS[0] * CHANNELS[1]));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let mut run = || {
        black_box(conv.forward(Isa::best(), &x, &w, &Epilogue::default()).expect("shapes fit"));
    };
    let seconds = (0..20).map(|_| time(&pool, &mut run)).fold(f64::INFINITY, f64::min);
    Ok(2.0 * (PIXELS * CHANNELS[0] * CHANNELS[1]) as f64 / seconds)
}

/// Idle threads spin for a while before they sleep; those of one side must sleep while the other is timed.
const SETTLING: Duration = Duration::from_millis(20);

/// Processor time of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds of one `run`, repeated for long enough to measure. A first run, with the caches as the other side left them,
/// does not count. One thread is timed by processor time, which other processes hardly disturb; several by the clock.
fn time(pool: &rayon::ThreadPool, run: &mut (dyn FnMut() + Send)) -> f64 {
    pool.install(|| {
        run();
        let (start, processor_start) = (Instant::now(), processor_seconds());
        let mut runs = 0.0;
        while runs == 0.0 || start.elapsed() < Duration::from_millis(20) {
            run();
            runs += 1.0;
        }
        match rayon::current_num_threads() {
            1 => (processor_seconds() - processor_start) / runs,
            _ => start.elapsed().as_secs_f64() / runs,
        }
    })
}

/// A network, and how many of a convolution it has.
struct Network {
    name: &'static str,
    times: fn(&Layer) -> u32,
}

const NETWORKS: &[Network] = &[
    Network { name: "R18-FPN", times: |layer| layer.in_r18 },
    Network { name: "R50-FPN", times: |layer| layer.in_r50 },
    Network { name: "RetinaNet R18-FPN", times: |layer| layer.in_r18 + layer.in_heads },
    Network { name: "RetinaNet R50-FPN", times: |layer| layer.in_r50 + layer.in_heads },
];

/// The minimum times: ours, and the peer's in each of its memory formats.
struct Seconds {
    ours: f64,
    peer: Vec<f64>,
}

impl Seconds {
    fn best_of_peer(&self) -> Option<f64> {
        self.peer.iter().copied().reduce(f64::min)
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let inner = inner_kernel_operations()?;
    if options.peer.json {
        let case = format!("inner kernel, {}, one thread", Isa::best().name());
        println!(
            "{}",
            json!({"case": case, "ours_s": null, "peer_s": null, "ratio": null, "gflops": inner / 1e9})
        );
    } else {
        println!("inner kernel, {}, one thread: {:.0} GF/s", Isa::best().name(), inner / 1e9);
    }
    let mut peer =
        options.peer.python.as_deref().map(|python| Peer::start(python, "torch_conv.py")).transpose()?;
    for &threads in &options.threads {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let mut found = Vec::new();
        for kind in Kind::all().filter(|kind| kind.name().contains(&options.only)) {
            let mut case = kind.prepare()?;
            let seconds = alternate(options, &pool, &mut case, peer.as_mut())?;
            report(options.peer.json, &kind.name(), threads, &seconds, case.operations);
            found.push((kind, seconds));
        }
        if options.only.is_empty() {
            for network in NETWORKS {
                report_mean(options.peer.json, network, threads, &found);
            }
        }
    }
    Ok(())
}

/// Times our runs and the peer's in turn.
fn alternate(
    options: &Options,
    pool: &rayon::ThreadPool,
    case: &mut Case,
    mut peer: Option<&mut Peer>,
) -> anyhow::Result<Seconds> {
    let mut request = case.request.clone();
    request["threads"] = json!(pool.current_num_threads());
    let mut seconds = Seconds { ours: f64::INFINITY, peer: Vec::new() };
    for _ in 0..options.repeats {
        if peer.is_some() {
            std::thread::sleep(SETTLING);
        }
        seconds.ours = seconds.ours.min(time(pool, &mut *case.run));
        if let (Some(peer), false) = (&mut peer, case.request.is_null()) {
            std::thread::sleep(SETTLING);
            let answer: Vec<f64> = serde_json::from_value(peer.ask(&request)?["seconds"].clone())
                .context("the peer's answer has no seconds")?;
            seconds.peer.resize(answer.len(), f64::INFINITY);
            seconds.peer.iter_mut().zip(answer).for_each(|(least, found)| *least = least.min(found));
        }
    }
    Ok(seconds)
}

/// The geometric mean of the ratios, each convolution as often as the network has it, with the peer in either memory
/// format; `ratio` is the larger of the two.
fn report_mean(json: bool, network: &Network, threads: usize, found: &[(Kind, Seconds)]) {
    let mean = |format: usize| {
        let (mut logs, mut total) = (0.0, 0);
        for (kind, seconds) in found {
            let times = kind.times_in(network);
            if times > 0 {
                logs += f64::from(times) * (seconds.ours / seconds.peer.get(format)?).ln();
                total += times;
            }
        }
        (total > 0).then(|| (logs / f64::from(total)).exp())
    };
    let (Some(contiguous), Some(channels_last)) = (mean(0), mean(1)) else { return };
    let ratio = contiguous.max(channels_last);
    let case = format!("geometric mean of the convolutions of {}", network.name);
    if json {
        println!(
            "{}",
            json!({
                "case": case, "threads": threads, "ours_s": null, "peer_s": null, "ratio": ratio,
                "ratio_contiguous": contiguous, "ratio_channels_last": channels_last,
            })
        );
    } else {
        println!(
            "{threads} threads  {case}: {ratio:.3} (PyTorch contiguous {contiguous:.3}, channels-last {channels_last:.3})"
        );
    }
}

fn report(json: bool, case: &str, threads: usize, seconds: &Seconds, operations: f64) {
    let (ours, peer) = (seconds.ours, seconds.best_of_peer());
    let ratio = peer.map(|peer| ours / peer);
    let gflops = (operations > 0.0).then(|| operations / ours / 1e9);
    if json {
        println!(
            "{}",
            json!({"case": case, "threads": threads, "ours_s": ours, "peer_s": peer, "ratio": ratio, "gflops": gflops})
        );
    } else {
        let peer = peer.map_or(String::new(), |peer| format!("  peer {:8.3} ms", peer * 1e3));
        let ratio = ratio.map_or(String::new(), |ratio| format!("  ratio {ratio:.3}"));
        let gflops = gflops.map_or(String::new(), |gflops| format!("  {gflops:.0} GF/s"));
        println!("{threads} threads  {case:36} ours {:8.3} ms{peer}{ratio}{gflops}", ours * 1e3);
    }
}
