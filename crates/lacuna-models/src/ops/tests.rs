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
    let epilogue = Epilogue {
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
        By::Ops => conv2d(x.clone(), weight.clone(), window, Epilogue::default()),
        By::Portable => portable::conv2d(x.clone(), weight.clone(), window, Epilogue::default()),
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
    let epilogue = Epilogue { shift: Some(shift.clone()), relu: true, ..Epilogue::default() };
    let y = match by {
        By::Ops => conv2d_pyramid(x.clone(), &levels, weight.clone(), window, epilogue),
        By::Portable => portable::conv2d_pyramid(x.clone(), &levels, weight.clone(), window, epilogue),
    };
    outcome(y, gradients![x, weight, shift])
}

fn depthwise(device: &Device, by: By) -> Outcome {
    let window = Window::new(3, 2, 1);
    let (x, weight) = (trained(1, [2, 7, 6, 5], device), trained(2, [3, 3, 5], device));
    let y = match by {
        By::Ops => depthwise_conv2d(x.clone(), weight.clone(), window),
        By::Portable => portable::depthwise_conv2d(x.clone(), weight.clone(), window),
    };
    outcome(y, gradients![x, weight])
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
    let (top, lateral) = (trained(1, [2, 3, 4, 5], device), trained(2, [2, 6, 8, 5], device));
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

type Case = fn(&Device, By) -> Outcome;

const CASES: [(&str, Case); 8] = [
    ("conv2d", conv_block),
    ("conv2d by Winograd", winograd),
    ("conv2d_pyramid", pyramid),
    ("depthwise_conv2d", depthwise),
    ("max_pool2d", pool),
    ("upsample_add", upsample),
    ("roi_align", align),
    ("focal_loss", focal),
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
    let Ok(gpu) = found else {
        println!("skipped: no Vulkan device here (Debian's mesa-vulkan-drivers has a software one)");
        return;
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
        let epilogue = Epilogue { relu: true, ..Epilogue::default() };
        let x = conv2d(
            constant(1, [1, 9, 9, 3], device),
            constant(2, [3, 3, 3, 16], device),
            Window::new(3, 2, 1),
            epilogue,
        );
        let x = max_pool2d(x, Window::new(3, 2, 1));
        let y = upsample_add(x.clone(), constant(3, [1, 6, 6, 16], device));
        depthwise_conv2d(y, constant(4, [3, 3, 16], device), Window::new(3, 1, 1))
    };
    assert_eq!(values(on(&plain)), values(on(&tracked).inner()));
}

#[test]
fn views_are_read_as_what_they_are() {
    let device = Device::flex();
    let window = Window::new(1, 1, 0);
    let weight = constant(2, [1, 1, 4, 6], &device);
    let whole = constant(1, [3, 5, 4, 7], &device);
    // A slice (with an offset), and a permutation (with strides).
    for view in [whole.clone().narrow(0, 1, 2).swap_dims(2, 3), whole.permute([0, 3, 1, 2]).swap_dims(1, 3)] {
        let channels = view.dims()[3];
        let weight = weight.clone().narrow(2, 0, channels.min(4));
        let view = view.narrow(3, 0, channels.min(4));
        let copy = Tensor::from_data(view.clone().into_data(), &device);
        let run = |x| values(conv2d(x, weight.clone(), window, Epilogue::default()));
        assert_eq!(run(view), run(copy));
    }
}

#[test]
fn frozen_weights_have_no_gradient_and_nothing_runs_below_them() {
    let device = Device::flex().autodiff();
    let image = constant(1, [1, 8, 8, 3], &device);
    let frozen = constant(2, [3, 3, 3, 16], &device);
    let trained_weight = trained(3, [3, 3, 16, 16], &device);
    let after = constant(4, [1, 1, 16, 4], &device);
    let stem = conv2d(image.clone(), frozen.clone(), Window::new(3, 1, 1), Epilogue::default());
    assert!(!stem.is_require_grad());
    let y = conv2d(stem.clone(), trained_weight.clone(), Window::new(3, 1, 1), Epilogue::default());
    let y = conv2d(y, after.clone(), Window::new(1, 1, 0), Epilogue { relu: true, ..Epilogue::default() });
    let grads = y.sum().backward();
    assert!(trained_weight.grad(&grads).is_some());
    assert!(image.grad(&grads).is_none() && frozen.grad(&grads).is_none());
    assert!(stem.grad(&grads).is_none() && after.grad(&grads).is_none());
}

#[test]
fn updates_happen_in_place_where_they_can() {
    let device = Device::flex();
    let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01 };
    let make = |seed| constant::<2>(seed, [30, 7], &device);
    let address = |x: &Tensor<2>| {
        let x = x.clone().try_into_primitive::<burn::backend::Flex>().unwrap();
        x.bytes().as_ptr() as usize
    };
    let (parameter, velocity, average) = (make(1), make(2), make(3));
    let before = [address(&parameter), address(&velocity), address(&average)];
    let expected = portable::sgd_step(make(1), make(4), make(2), sgd);
    let (parameter, velocity) = sgd_step(parameter, make(4), velocity, sgd);
    let expected_average = portable::ema_step(make(3), expected.0.clone(), 0.9);
    let average = ema_step(average, parameter.clone(), 0.9);
    assert_eq!([address(&parameter), address(&velocity), address(&average)], before);
    for (ours, theirs) in [(parameter, expected.0), (velocity, expected.1), (average, expected_average)] {
        for (a, b) in values(ours).into_iter().zip(values(theirs)) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
    }
    // Held by another: that one keeps its values.
    let kept = make(1);
    let (moved, _) = sgd_step(kept.clone(), make(4), make(2), sgd);
    assert_eq!(values(kept), values(make(1)));
    assert_ne!(values(moved), values(make(1)));
}

#[test]
#[should_panic(expected = "x has shape [3, 3, 5], which does not fit weight of shape [3, 3, 4, 8]")]
fn shapes_that_do_not_fit_are_named() {
    let device = Device::flex();
    let (x, weight) = (constant(1, [1, 8, 8, 5], &device), constant(2, [3, 3, 4, 8], &device));
    conv2d(x, weight, Window::new(3, 1, 1), Epilogue::default());
}
