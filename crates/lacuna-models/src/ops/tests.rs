//! Our kernels behind Burn against Burn's own operations: values and gradients of every function.

use burn::Tensor;
use burn::tensor::{Device, TensorData};

use super::*;

/// A value and the gradients of what is trained.
struct Outcome {
    y: Vec<f32>,
    gradients: Vec<Vec<f32>>,
}

/// One of the two implementations of every operation.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// What models call.
    Ops,
    /// Burn's own operations, on whatever device.
    Portable,
}

fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let hash =
        |i: u32| i.wrapping_add(seed).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(2_246_822_519);
    (0..len as u32).map(|i| (hash(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn constant<const D: usize>(seed: u32, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers(seed, shape.iter().product()), shape), device)
}

fn trained<const D: usize>(seed: u32, shape: [usize; D], device: &Device) -> Tensor<D> {
    constant(seed, shape, device).require_grad()
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().try_into_vec().unwrap()
}

/// Runs `Σ y · dy` backward; `grads` says whose gradients are wanted.
fn outcome<const D: usize>(
    y: Tensor<D>,
    gradients: impl FnOnce(&burn::tensor::Gradients) -> Vec<Vec<f32>>,
) -> Outcome {
    let dy = constant(99, y.dims(), &y.device().inner());
    let value = values(y.clone().inner());
    let grads = (y * Tensor::from_inner(dy)).sum().backward();
    Outcome { y: value, gradients: gradients(&grads) }
}

macro_rules! gradients {
    ($($x:expr),*) => { |grads| vec![$(values($x.grad(grads).unwrap())),*] };
}

fn conv_block(device: &Device, by: By) -> Outcome {
    let window = Window::new(3, 2, 1);
    let x = trained(1, [2, 7, 6, 5], device);
    let weight = trained(2, [3, 3, 5, 8], device);
    let (scale, shift) = (constant(3, [8], device), trained(4, [8], device));
    let residual = trained(5, [2, 4, 3, 8], device);
    let epilogue = TensorEpilogue {
        scale: Some(scale),
        shift: Some(shift.clone()),
        residual: Some(residual.clone()),
        relu: true,
    };
    let y = match by {
        By::Ops => conv2d(x.clone(), weight.clone(), window, epilogue),
        By::Portable => portable::conv2d(x.clone(), weight.clone(), window, epilogue),
    };
    outcome(y, gradients![x, weight, shift, residual])
}

fn winograd(device: &Device, by: By) -> Outcome {
    let window = Window::new(3, 1, 1);
    let x = trained(1, [2, 12, 13, 17], device);
    let weight = trained(2, [3, 3, 17, 18], device);
    let y = match by {
        By::Ops => conv2d(x.clone(), weight.clone(), window, TensorEpilogue::default()),
        By::Portable => portable::conv2d(x.clone(), weight.clone(), window, TensorEpilogue::default()),
    };
    outcome(y, gradients![x, weight])
}

fn pyramid(device: &Device, by: By) -> Outcome {
    let window = Window::new(3, 1, 1);
    let levels = [Grid::new(2, 6, 5), Grid::new(2, 3, 2), Grid::new(2, 1, 1)];
    let pixels = levels.iter().map(|level| level.pixels()).sum();
    let x = trained(1, [pixels, 16], device);
    let weight = trained(2, [3, 3, 16, 20], device);
    let shift = trained(3, [20], device);
    let epilogue = TensorEpilogue { shift: Some(shift.clone()), relu: true, ..TensorEpilogue::default() };
    let y = match by {
        By::Ops => conv2d_pyramid(x.clone(), &levels, weight.clone(), window, epilogue),
        By::Portable => portable::conv2d_pyramid(x.clone(), &levels, weight.clone(), window, epilogue),
    };
    outcome(y, gradients![x, weight, shift])
}

fn pool(device: &Device, by: By) -> Outcome {
    let window = Window::new(3, 2, 1);
    let x = trained(1, [2, 8, 7, 5], device);
    let y = match by {
        By::Ops => max_pool2d(x.clone(), window),
        By::Portable => portable::max_pool2d(x.clone(), window),
    };
    outcome(y, gradients![x])
}

fn upsample(device: &Device, by: By) -> Outcome {
    upsample_to(6, 8, device, by)
}

fn upsample_unevenly(device: &Device, by: By) -> Outcome {
    upsample_to(5, 7, device, by)
}

fn upsample_to(height: usize, width: usize, device: &Device, by: By) -> Outcome {
    let (top, lateral) = (trained(1, [2, 3, 4, 5], device), trained(2, [2, height, width, 5], device));
    let y = match by {
        By::Ops => upsample_add(top.clone(), lateral.clone()),
        By::Portable => portable::upsample_add(top.clone(), lateral.clone()),
    };
    outcome(y, gradients![top, lateral])
}

fn align(device: &Device, by: By) -> Outcome {
    let x = trained(1, [2, 6, 7, 5], device);
    let regions = vec![
        Region { image: 0, x1: 1.0, y1: 2.0, x2: 20.0, y2: 17.0 },
        Region { image: 1, x1: -4.0, y1: -3.0, x2: 9.0, y2: 8.0 },
        Region { image: 1, x1: 90.0, y1: 90.0, x2: 99.0, y2: 99.0 },
    ];
    let align = RoiAlign { height: 2, width: 3, spatial_scale: 0.25, sampling_ratio: 0, aligned: false };
    let y = match by {
        By::Ops => roi_align(x.clone(), regions, align),
        By::Portable => portable::roi_align(x.clone(), &regions, align),
    };
    outcome(y, gradients![x])
}

fn focal(device: &Device, by: By) -> Outcome {
    let logits = trained(1, [7, 5], device);
    let labels = vec![-1, 0, 4, -1, 2, 1, -1];
    let weights = vec![1.0, 1.0, 0.5, 0.0, 2.0, 1.0, 0.7];
    let loss = FocalLoss { alpha: 0.25, gamma: 2.0 };
    let y = match by {
        By::Ops => focal_loss(logits.clone(), labels, weights, loss),
        By::Portable => portable::focal_loss(logits.clone(), &labels, &weights, loss),
    };
    outcome(y, gradients![logits])
}

fn group_norm_of_a_pyramid(device: &Device, by: By) -> Outcome {
    // The last level is empty.
    let levels = [Grid::new(2, 6, 5), Grid::new(2, 3, 2), Grid::new(2, 1, 1), Grid::new(2, 0, 1)];
    let x = trained(1, [74, 12], device);
    let (weight, bias) = (trained(2, [12], device), trained(3, [12], device));
    let norm = match by {
        By::Ops => group_norm::<2>,
        By::Portable => portable::group_norm::<2>,
    };
    let y = norm(x.clone(), &levels, 4, weight.clone(), bias.clone(), 1e-5, true);
    outcome(y, gradients![x, weight, bias])
}

fn group_norm_of_a_map(device: &Device, by: By) -> Outcome {
    let x = trained(1, [2, 5, 3, 6], device);
    let (weight, bias) = (trained(2, [6], device), trained(3, [6], device));
    let norm = match by {
        By::Ops => group_norm::<4>,
        By::Portable => portable::group_norm::<4>,
    };
    let y = norm(x.clone(), &[Grid::new(2, 5, 3)], 3, weight.clone(), bias.clone(), 1e-5, false);
    outcome(y, gradients![x, weight, bias])
}

fn batch_norm_block(device: &Device, by: By) -> Outcome {
    let x = trained(1, [2, 5, 6, 19], device);
    let (weight, bias) = (trained(2, [19], device), trained(3, [19], device));
    let residual = trained(4, [2, 5, 6, 19], device);
    let norm = match by {
        By::Ops => batch_norm,
        By::Portable => portable::batch_norm,
    };
    let (y, _) = norm(x.clone(), weight.clone(), bias.clone(), 1e-5, Some(residual.clone()), true);
    outcome(y, gradients![x, weight, bias, residual])
}

fn batch_norm_of_its_own_residual(device: &Device, by: By) -> Outcome {
    let x = trained(1, [2, 4, 4, 8], device);
    let (weight, bias) = (trained(2, [8], device), trained(3, [8], device));
    let norm = match by {
        By::Ops => batch_norm,
        By::Portable => portable::batch_norm,
    };
    let (y, _) = norm(x.clone(), weight.clone(), bias.clone(), 1e-5, Some(x.clone()), true);
    let (y, _) = norm(y.clone(), weight.clone(), bias.clone(), 1e-5, Some(y), false);
    outcome(y, gradients![x, weight, bias])
}

fn batch_norm_statistics(device: &Device, by: By) -> Outcome {
    let x = trained(1, [2, 5, 6, 7], device);
    let (weight, bias) = (constant(2, [7], device), constant(3, [7], device));
    let norm = match by {
        By::Ops => batch_norm,
        By::Portable => portable::batch_norm,
    };
    let (y, BatchStatistics { mean, variance }) = norm(x.clone(), weight, bias, 1e-3, None, false);
    assert!(!mean.device().is_autodiff() && !variance.device().is_autodiff());
    let mut result = outcome(y, gradients![x]);
    result.y.extend([mean, variance].into_iter().flat_map(values));
    result
}

fn slices(device: &Device, by: By) -> Outcome {
    let (x, weight) = (trained(1, [3, 5, 6, 4], device), trained(2, [4, 3, 4, 4], device));
    residual_twice(x.clone().narrow(0, 1, 2), weight.clone().narrow(0, 1, 3), by, gradients![x, weight])
}

fn expanded(device: &Device, by: By) -> Outcome {
    let (x, weight) = (trained(1, [1, 5, 6, 4], device), trained(2, [1, 3, 4, 4], device));
    let (wide_x, wide_weight) = (x.clone().expand([2, 5, 6, 4]), weight.clone().expand([3, 3, 4, 4]));
    residual_twice(wide_x, wide_weight, by, gradients![x, weight])
}

/// A weight used twice, and each time one tensor as input and residual.
fn residual_twice(
    x: Tensor<4>,
    weight: Tensor<4>,
    by: By,
    gradients: impl FnOnce(&burn::tensor::Gradients) -> Vec<Vec<f32>>,
) -> Outcome {
    let window = Window::new(3, 1, 1);
    let run = |x: Tensor<4>| {
        let epilogue = TensorEpilogue { residual: Some(x.clone()), relu: true, ..TensorEpilogue::default() };
        match by {
            By::Ops => conv2d(x, weight.clone(), window, epilogue),
            By::Portable => portable::conv2d(x, weight.clone(), window, epilogue),
        }
    };
    outcome(run(run(x)), gradients)
}

type Case = fn(&Device, By) -> Outcome;

const CASES: [(&str, Case); 15] = [
    ("conv2d", conv_block),
    ("conv2d by Winograd", winograd),
    ("conv2d_pyramid", pyramid),
    ("max_pool2d", pool),
    ("upsample_add", upsample),
    ("upsample_add to an odd size", upsample_unevenly),
    ("conv2d of slices", slices),
    ("conv2d of expanded tensors", expanded),
    ("roi_align", align),
    ("focal_loss", focal),
    ("group_norm of a pyramid", group_norm_of_a_pyramid),
    ("group_norm of a map", group_norm_of_a_map),
    ("batch_norm with a residual", batch_norm_block),
    ("batch_norm with its input as residual, twice", batch_norm_of_its_own_residual),
    ("batch_norm and its statistics", batch_norm_statistics),
];

fn assert_agree(name: &str, ours: &Outcome, theirs: &Outcome) {
    let pairs = std::iter::once((&ours.y, &theirs.y)).chain(ours.gradients.iter().zip(&theirs.gradients));
    for (i, (ours, theirs)) in pairs.enumerate() {
        assert_eq!(ours.len(), theirs.len(), "{name}, output {i}");
        let largest = theirs.iter().fold(1f32, |m, x| m.max(x.abs()));
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 2e-5 * largest, "{name}, output {i}: {a} {b}");
        }
    }
    assert_eq!(ours.gradients.len(), theirs.gradients.len(), "{name}");
}

#[test]
fn kernels_agree_with_burns_own_operations() {
    let device = Device::flex().autodiff();
    for (name, case) in CASES {
        assert_agree(name, &case(&device, By::Ops), &case(&device, By::Portable));
    }
}

/// On a GPU, or Mesa's software Vulkan device: models' calls there agree with Flex.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_agrees_with_flex() {
    use burn::tensor::DeviceKind;
    let found = std::panic::catch_unwind(|| {
        let device = Device::wgpu(DeviceKind::DefaultDevice);
        values(Tensor::<1>::ones([1], &device));
        device
    });
    let gpu = match found {
        Ok(gpu) => gpu,
        Err(reason) => {
            let text = reason.downcast_ref::<String>().map(String::as_str);
            let text = text.or(reason.downcast_ref::<&str>().copied()).unwrap_or_default();
            if !text.to_lowercase().contains("no adapter") {
                std::panic::resume_unwind(reason);
            }
            println!("skipped: {text} (Debian's mesa-vulkan-drivers has a software device)");
            return;
        }
    };
    for (name, case) in CASES {
        let ours = case(&Device::flex().autodiff(), By::Ops);
        assert_agree(name, &ours, &case(&gpu.clone().autodiff(), By::Ops));
    }
}

#[test]
fn the_plain_device_gives_the_same_values() {
    let (plain, tracked) = (Device::flex(), Device::flex().autodiff());
    let on = |device: &Device| {
        let epilogue = TensorEpilogue { relu: true, ..TensorEpilogue::default() };
        let x = conv2d(
            constant(1, [1, 9, 9, 3], device),
            constant(2, [3, 3, 3, 16], device),
            Window::new(3, 2, 1),
            epilogue,
        );
        let x = max_pool2d(x, Window::new(3, 2, 1));
        let y = upsample_add(x.clone(), constant(3, [1, 6, 6, 16], device));
        let (weight, bias) = (constant(5, [16], device), constant(6, [16], device));
        let y = group_norm(y, &[Grid::new(1, 6, 6)], 4, weight.clone(), bias.clone(), 1e-5, false);
        batch_norm(y.clone(), weight, bias, 1e-5, Some(y), true).0
    };
    assert_eq!(values(on(&plain)), values(on(&tracked).inner()));
}

#[test]
fn views_are_read_as_what_they_are() {
    let device = Device::flex();
    let whole = constant(1, [4, 5, 6, 4], &device);
    let weight = constant(2, [1, 1, 4, 6], &device);
    for (name, view) in [
        ("a prefix of a larger buffer", whole.clone().narrow(0, 0, 2)),
        ("dense, with an offset", whole.clone().narrow(0, 1, 2)),
        ("rows with gaps", whole.clone().narrow(2, 1, 3)),
        ("permuted, with an offset", whole.clone().narrow(0, 1, 2).swap_dims(1, 2)),
        ("expanded", whole.narrow(0, 2, 1).expand([3, 5, 6, 4])),
    ] {
        let copy = Tensor::<4>::from_data(view.clone().into_data(), &device);
        let run = |x| values(conv2d(x, weight.clone(), Window::new(1, 1, 0), TensorEpilogue::default()));
        assert_eq!(run(view.clone()), run(copy.clone()), "{name}");
        let pooled = |x| values(max_pool2d(x, Window::new(3, 2, 1)));
        assert_eq!(pooled(view.clone()), pooled(copy.clone()), "{name}");
        let (weight, bias) = (constant(3, [4], &device), constant(4, [4], &device));
        let normed =
            |x: Tensor<4>| values(batch_norm(x.clone(), weight.clone(), bias.clone(), 1e-5, Some(x), true).0);
        assert_eq!(normed(view), normed(copy), "{name}");
    }
}

/// Whether a gradient flows through a tensor: `is_require_grad` says so of leaves only.
fn is_tracked<const D: usize>(x: &Tensor<D>) -> bool {
    let x = x.clone().try_into_primitive::<burn::backend::Autodiff<burn::backend::Flex>>().unwrap();
    x.is_tracked()
}

#[test]
fn frozen_weights_have_no_gradient_and_nothing_runs_below_them() {
    let device = Device::flex().autodiff();
    let window = Window::new(3, 1, 1);
    let image = constant(1, [1, 8, 8, 3], &device);
    let frozen = constant(2, [3, 3, 3, 16], &device);
    let trained_weight = trained(3, [3, 3, 16, 16], &device);
    let after = constant(4, [1, 1, 16, 4], &device);
    let stem = conv2d(image.clone(), frozen.clone(), window, TensorEpilogue::default());
    let stem = max_pool2d(stem, window);
    assert!(!is_tracked(&stem), "nothing is recorded below the first trained layer");
    let y = conv2d(stem.clone(), trained_weight.clone(), window, TensorEpilogue::default());
    assert!(is_tracked(&y));
    let y = conv2d(
        y,
        after.clone(),
        Window::new(1, 1, 0),
        TensorEpilogue { relu: true, ..TensorEpilogue::default() },
    );
    let grads = y.sum().backward();
    assert!(trained_weight.grad(&grads).is_some());
    assert!(image.grad(&grads).is_none() && frozen.grad(&grads).is_none());
    assert!(stem.grad(&grads).is_none() && after.grad(&grads).is_none());
}

#[test]
fn a_norm_trains_what_is_tracked_alone() {
    let device = Device::flex().autodiff();
    let gradients = |tracked: [bool; 4]| {
        let [x, residual] = [(1, 0), (2, 3)]
            .map(|(seed, at)| constant(seed, [2, 3, 3, 8], &device).set_require_grad(tracked[at]));
        let [weight, bias] =
            [(3, 1), (4, 2)].map(|(seed, at)| constant(seed, [8], &device).set_require_grad(tracked[at]));
        let (y, _) = batch_norm(x.clone(), weight.clone(), bias.clone(), 1e-5, Some(residual.clone()), true);
        assert_eq!(is_tracked(&y), tracked.contains(&true));
        let dy = constant(9, [2, 3, 3, 8], &device);
        let grads = if is_tracked(&y) { (y * dy).sum().backward() } else { return [const { None }; 4] };
        let [x, residual] = [x, residual].map(|x| x.grad(&grads).map(values));
        let [weight, bias] = [weight, bias].map(|x| x.grad(&grads).map(values));
        [x, weight, bias, residual]
    };
    let all = gradients([true; 4]);
    for which in 0..16 {
        let tracked = [0, 1, 2, 3].map(|at| which >> at & 1 == 1);
        for (at, (of_some, of_all)) in gradients(tracked).iter().zip(&all).enumerate() {
            assert_eq!(of_some, if tracked[at] { of_all } else { &None }, "{tracked:?} {at}");
        }
    }
}

#[test]
fn a_scale_gets_no_gradient_anywhere() {
    let device = Device::flex().autodiff();
    for by in [By::Ops, By::Portable] {
        let (x, weight) = (trained(1, [1, 4, 4, 3], &device), constant(2, [1, 1, 3, 5], &device));
        let scale = trained(3, [5], &device);
        let epilogue = TensorEpilogue { scale: Some(scale.clone()), ..TensorEpilogue::default() };
        let window = Window::new(1, 1, 0);
        let y = match by {
            By::Ops => conv2d(x.clone(), weight, window, epilogue),
            By::Portable => portable::conv2d(x.clone(), weight, window, epilogue),
        };
        let grads = y.sum().backward();
        assert!(x.grad(&grads).is_some() && scale.grad(&grads).is_none());
    }
}

/// Equal, and NaN at the same places.
fn assert_same(ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a - b).abs() <= 1e-5 || a == b || a.is_nan() && b.is_nan(), "{ours:?} {theirs:?}");
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    let device = Device::flex().autodiff();
    // A pixel that is NaN, one that is infinite, and regions off, on and beside them.
    let mut pixels = numbers(1, 6 * 6 * 2);
    (pixels[0], pixels[2 * 14]) = (f32::NAN, f32::INFINITY);
    let region = |x1: f32, x2| Region { image: 0, x1, y1: 0.0, x2, y2: 6.0 };
    let regions = vec![
        region(3.0, 6.0),
        region(0.0, 2.0),
        region(f32::NAN, 2.0),
        region(1.0, f32::INFINITY),
        region(50.0, 60.0),
    ];
    let align = RoiAlign { height: 2, width: 2, spatial_scale: 1.0, sampling_ratio: 0, aligned: false };
    let labels = vec![0, -1, 1];
    let weights = vec![1.0, 0.0, 2.0];
    let loss = FocalLoss { alpha: 0.25, gamma: 2.0 };
    let [ours, theirs] = [By::Ops, By::Portable].map(|by| {
        let x = Tensor::<4>::from_data(TensorData::new(pixels.clone(), [1, 6, 6, 2]), &device).require_grad();
        let logits = TensorData::new(vec![0.5, -1.0, f32::NAN, f32::INFINITY, 0.2, 0.3], [3, 2]);
        let logits = Tensor::<2>::from_data(logits, &device).require_grad();
        let (y, loss) = match by {
            By::Ops => (
                roi_align(x.clone(), regions.clone(), align),
                focal_loss(logits.clone(), labels.clone(), weights.clone(), loss),
            ),
            By::Portable => (
                portable::roi_align(x.clone(), &regions, align),
                portable::focal_loss(logits.clone(), &labels, &weights, loss),
            ),
        };
        (outcome(y, gradients![x]), outcome(loss, gradients![logits]))
    });
    assert_same(&ours.0.y, &theirs.0.y);
    assert_same(&ours.0.gradients[0], &theirs.0.gradients[0]);
    assert!(ours.0.gradients[0].iter().all(|g| g.is_finite()));
    assert_same(&ours.1.y, &theirs.1.y);
    assert_same(&ours.1.gradients[0], &theirs.1.gradients[0]);
    assert!(ours.1.y[0].is_finite());
}

fn address<const D: usize>(x: &Tensor<D>) -> usize {
    x.clone().try_into_primitive::<burn::backend::Flex>().unwrap().bytes().as_ptr() as usize
}

const SGD: Sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01 };

#[test]
fn updates_happen_in_place_where_they_can() {
    let device = Device::flex();
    let lengths = [210, 1, 70_000];
    let make = |seed, len| constant::<1>(seed, [len], &device);
    let update = |len| Update { parameter: make(1, len), gradient: make(4, len), velocity: make(2, len) };
    let updates: Vec<_> = lengths.into_iter().map(update).collect();
    let averages: Vec<_> = lengths.into_iter().map(|len| make(3, len)).collect();
    let addresses: Vec<_> = updates.iter().map(|u| (address(&u.parameter), address(&u.velocity))).collect();
    let average_addresses: Vec<_> = averages.iter().map(address).collect();
    let updated = sgd_step(updates, SGD);
    let pairs = averages.into_iter().zip(updated.iter().map(|(parameter, _)| parameter.clone())).collect();
    let averages = ema_step(pairs, 0.9);
    assert_eq!(updated.iter().map(|(p, v)| (address(p), address(v))).collect::<Vec<_>>(), addresses);
    assert_eq!(averages.iter().map(address).collect::<Vec<_>>(), average_addresses);
    for ((len, ours), average) in lengths.into_iter().zip(updated).zip(averages) {
        let theirs = portable::sgd_step(update(len), SGD);
        let their_average = portable::ema_step(make(3, len), theirs.0.clone(), 0.9);
        for (ours, theirs) in [(ours.0, theirs.0), (ours.1, theirs.1), (average, their_average)] {
            for (a, b) in values(ours).into_iter().zip(values(theirs)) {
                assert!((a - b).abs() < 1e-6, "{a} {b}");
            }
        }
    }
    assert!(sgd_step(Vec::new(), SGD).is_empty() && ema_step(Vec::new(), 0.9).is_empty());
}

#[test]
fn updates_leave_other_holders_and_the_rest_of_a_buffer_alone() {
    let device = Device::flex();
    let make = |seed| constant::<1>(seed, [30], &device);
    let kept = make(1);
    let whole = constant::<1>(2, [60], &device);
    let velocity = whole.clone().narrow(0, 30, 30);
    let update = Update { parameter: kept.clone(), gradient: make(4), velocity };
    let (moved, _) = sgd_step(vec![update], SGD).remove(0);
    assert_eq!(values(kept), values(make(1)));
    assert_eq!(values(whole), values(constant::<1>(2, [60], &device)));
    assert_ne!(values(moved), values(make(1)));
}

#[test]
fn a_trained_param_is_updated_in_its_own_memory() {
    use burn::module::Param;
    let device = Device::flex().autodiff();
    let mut weight = Param::from_tensor(constant(1, [3, 3, 4, 4], &device));
    let mut velocity = Tensor::<1>::zeros([144], &device.clone().inner());
    let x = constant(2, [1, 6, 6, 4], &device);
    let home = address(&weight.val().inner());
    for _ in 0..3 {
        let before = values(weight.val().inner());
        let y = conv2d(x.clone(), weight.val(), Window::new(3, 1, 1), TensorEpilogue::default());
        let grads = y.sum().backward();
        let gradient = weight.val().grad(&grads).unwrap().reshape([144]);
        weight = weight.map(|weight| {
            let shape = weight.dims();
            let parameter = weight.inner().reshape([144]);
            let update = Update { parameter, gradient, velocity: velocity.clone() };
            let (parameter, next) = sgd_step(vec![update], SGD).remove(0);
            velocity = next;
            Tensor::from_inner(parameter.reshape(shape)).require_grad()
        });
        assert_eq!(address(&weight.val().inner()), home);
        assert_ne!(values(weight.val().inner()), before);
    }
}

/// What a call that must not work says.
fn refusal(call: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let reason = std::panic::catch_unwind(call).expect_err("a refusal");
    let text = reason.downcast_ref::<String>().map(String::as_str);
    text.or(reason.downcast_ref::<&str>().copied()).unwrap_or_default().to_string()
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let of = |shape: [usize; 4]| constant(1, shape, &Device::flex());
    let of_1 = |len: usize| constant(1, [len], &Device::flex());
    let window = Window::new(3, 1, 1);
    let conv = |epilogue| conv2d(of([1, 8, 6, 5]), of([3, 3, 5, 8]), window, epilogue);
    let none = TensorEpilogue::<4>::default;
    let group = |levels: &[Grid], groups, weights| {
        group_norm(of([1, 4, 4, 6]), levels, groups, of_1(weights), of_1(6), 1e-5, true)
    };
    let cases: Vec<(String, &str)> = vec![
        (
            refusal(|| drop(conv2d(of([1, 8, 8, 5]), of([3, 3, 4, 8]), window, none()))),
            "x has shape [1, 8, 8, 5], which does not fit weight of shape [3, 3, 4, 8]",
        ),
        (
            refusal(|| drop(conv2d(of([1, 8, 8, 5]), of([5, 5, 5, 8]), window, none()))),
            "weight has shape [5, 5, 5, 8], which does not fit a window of shape [3, 3]",
        ),
        (
            refusal(|| drop(conv(TensorEpilogue { scale: Some(of_1(5)), ..none() }))),
            "scale has shape [5], which does not fit the output of shape [1, 8, 6, 8]",
        ),
        (
            refusal(|| drop(conv(TensorEpilogue { shift: Some(of_1(1)), ..none() }))),
            "shift has shape [1], which does not fit the output of shape [1, 8, 6, 8]",
        ),
        (
            refusal(|| drop(conv(TensorEpilogue { residual: Some(of([1, 6, 8, 8])), ..none() }))),
            "residual has shape [1, 6, 8, 8], which does not fit the output of shape [1, 8, 6, 8]",
        ),
        (
            refusal(|| drop(upsample_add(of([1, 2, 2, 5]), of([1, 4, 4, 6])))),
            "top has shape [1, 2, 2, 5], which does not fit lateral of shape [1, 4, 4, 6]",
        ),
        (
            refusal(|| drop(group(&[Grid::new(1, 4, 5)], 3, 6))),
            "x has shape [1, 4, 4, 6], which does not fit levels of shape [1, 4, 5]",
        ),
        (
            refusal(|| drop(group(&[Grid::new(1, 4, 4)], 4, 6))),
            "channels has shape [6], which does not fit groups of shape [4]",
        ),
        (
            refusal(|| drop(group(&[Grid::new(1, 4, 4)], 3, 5))),
            "weight has shape [5], which does not fit x of shape [1, 4, 4, 6]",
        ),
        (
            refusal(|| {
                let residual = Some(of([1, 4, 3, 6]));
                drop(batch_norm(of([1, 4, 4, 6]), of_1(6), of_1(6), 1e-5, residual, true));
            }),
            "residual has shape [1, 4, 3, 6], which does not fit x of shape [1, 4, 4, 6]",
        ),
    ];
    for (said, expected) in cases {
        assert_eq!(said, expected);
    }
}

#[test]
fn values_that_do_not_fit_are_named() {
    let logits = || constant(1, [2, 3], &Device::flex());
    let loss = FocalLoss { alpha: 0.25, gamma: 2.0 };
    let focal =
        |labels: Vec<i32>, weights| refusal(move || drop(focal_loss(logits(), labels, weights, loss)));
    let said = "the label of row 1 is 3, neither −1 nor one of 3 classes";
    assert_eq!(focal(vec![-1, 3], vec![1.0; 2]), said);
    assert_eq!(focal(vec![0, -2], vec![1.0; 2]), said.replace("is 3", "is -2"));
    let said = "labels has shape [1], which does not fit logits of shape [2, 3]";
    assert_eq!(focal(vec![0], vec![1.0; 2]), said);
    assert_eq!(focal(vec![0, 0], vec![1.0; 1]), said.replace("labels", "weights"));
    let region = Region { image: 2, x1: 0.0, y1: 0.0, x2: 1.0, y2: 1.0 };
    let align = RoiAlign { height: 2, width: 2, spatial_scale: 1.0, sampling_ratio: 0, aligned: false };
    let said = refusal(|| drop(roi_align(constant(1, [2, 3, 4, 5], &Device::flex()), vec![region], align)));
    assert_eq!(said, "region 0 is of image 2, outside x of shape [2, 3, 4, 5]");
    let said = refusal(|| drop(max_pool2d(constant(1, [1, 8, 8, 5], &Device::flex()), Window::new(3, 2, 2))));
    assert!(said.contains("padding has shape [2]"), "{said}");
}
